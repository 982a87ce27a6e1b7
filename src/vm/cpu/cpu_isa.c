/* The levels that this build and this processor have, lowest first, and the device made of one. */
#include <stdlib.h>
#include <string.h>

#include "base/cpuflags.h"
#include "base/err.h"
#include "vm/cpu/cpu.h"

#define LEVEL(level)      \
    {#level,              \
     &dvm_k_f32_##level,  \
     &dvm_k_pair_##level, \
     &dvm_k_math_##level, \
     &dvm_k_int_##level,  \
     &dvm_k_cast_##level, \
     &dvm_k_mem_##level,  \
     &dvm_k_red_##level}

static const struct {
    struct dvm_k k;
    uint32_t needs;
} levels[] = {
    {LEVEL(base), 0},
#if defined(__x86_64__)
    {LEVEL(avx2), DVM_CPU_AVX2},
    {LEVEL(avx512), DVM_CPU_AVX512},
#endif
};

static int available(void) {
    uint32_t flags = dvm_cpu_flags();
    int n = 1;
    while (n < (int)DVM_COUNT(levels) && (levels[n].needs & ~flags) == 0) n++;
    return n;
}

/* Number of the level, or -1: unknown here. A level above what the processor has counts as known to a cap. */
static int find(const char *isa, int n) {
    for (int i = 0; i < n; i++)
        if (strcmp(isa, levels[i].k.isa) == 0) return i;
    return -1;
}

static dvm_status refuse(const char *what, const char *isa, int n) {
    DVM_FAIL(ARG, "%s \"%s\" is not a level of this processor; there are: %s%s%s", what, isa,
             levels[0].k.isa, n > 1 ? ", avx2" : "", n > 2 ? ", avx512" : "");
}

dvm_status dvm_dev_cpu(const char *isa, struct dvm_dev *out) {
    int n = available(), level = n - 1;
    if (isa) {
        level = find(isa, n);
        if (level < 0) return refuse("isa", isa, n);
    } else {
        const char *cap = getenv("DVM_ISA");
        if (cap && *cap) {
            int top = find(cap, (int)DVM_COUNT(levels));
            if (top < 0) return refuse("DVM_ISA", cap, n);
            level = DVM_MIN(level, top);
        }
    }
    *out = (struct dvm_dev){.name = "vm",
                            .isa = levels[level].k.isa,
                            .compile = dvm_cpu_compile,
                            .destroy = dvm_cpu_destroy,
                            .table = &levels[level].k};
    return DVM_OK;
}
