/* What this processor and its operating system offer. Asked once per device, nothing is kept. */
#ifndef DVM_BASE_CPUFLAGS_H
#define DVM_BASE_CPUFLAGS_H
#include "base/cc.h"

enum {
    DVM_CPU_AVX2 = 1,        /* AVX2, FMA, F16C, BMI2 */
    DVM_CPU_AVX512 = 2,      /* F, VL, BW, DQ on top of AVX2 */
    DVM_CPU_AVX512_BF16 = 4, /* on top of AVX512 */
    DVM_CPU_NEON = 8,
    DVM_CPU_NEON_BF16 = 16 /* FEAT_BF16 */
};
uint32_t dvm_cpu_flags(void);
#endif
