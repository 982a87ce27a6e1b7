/* See cpuflags.h. A level counts only with all its parts, so that one bit answers for a build level. */
#include "base/cpuflags.h"

#if defined(__x86_64__)
#include <cpuid.h>

static bool has_f16c(void) {
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

static bool has_bf16(void) {
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & (1u << 5));
}

uint32_t dvm_cpu_flags(void) {
    uint32_t f = 0;
    /* These ask the system too whether it saves the wide registers. */
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
        __builtin_cpu_supports("bmi2") && has_f16c())
        f |= DVM_CPU_AVX2;
    if ((f & DVM_CPU_AVX2) && __builtin_cpu_supports("avx512f") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq"))
        f |= DVM_CPU_AVX512;
    if ((f & DVM_CPU_AVX512) && has_bf16()) f |= DVM_CPU_AVX512_BF16;
    return f;
}
#elif defined(__aarch64__)
#include <sys/auxv.h>

uint32_t dvm_cpu_flags(void) {
    enum { BF16 = 1 << 14 }; /* HWCAP2_BF16, which older headers lack */
    return DVM_CPU_NEON | (getauxval(AT_HWCAP2) & BF16 ? DVM_CPU_NEON_BF16 : 0);
}
#else
uint32_t dvm_cpu_flags(void) { return 0; }
#endif
