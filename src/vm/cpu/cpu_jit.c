/* The machine-code tier as a device: asked before the tile VM of the same level. */
#include <string.h>

#include "base/cpuflags.h"
#include "base/err.h"
#include "vm/cpu/jit/jit.h"
#include "vm/dev.h"

static const enum dvm_jit_isa levels[] = {DVM_JIT_NONE, DVM_JIT_AVX2, DVM_JIT_AVX512, DVM_JIT_NEON};
static_assert(DVM_JIT_NONE == 0 && DVM_JIT_AVX2 == 1 && DVM_JIT_AVX512 == 2 && DVM_JIT_NEON == 3,
              "a level is its own index");

static dvm_status compile(const struct dvm_dev *d, const struct dvm_mem *m,
                          const struct dvm_strip *s, struct dvm_code **out) {
    return dvm_jit_compile(m, s, (int)*(const enum dvm_jit_isa *)d->table, out);
}

static void destroy(const struct dvm_dev *d, const struct dvm_mem *m, struct dvm_code *c) {
    (void)d;
    dvm_jit_destroy(m, c);
}

static dvm_status list(const struct dvm_dev *d, const struct dvm_mem *m, const struct dvm_strip *s,
                       struct dvm_text *out) {
    return dvm_jit_list(m, s, (int)*(const enum dvm_jit_isa *)d->table, out);
}

/* What the processor has, up to the level of the tile VM. Level base holds what every processor of its kind has: NEON
 * on AArch64, too little on x86-64. */
static enum dvm_jit_isa level_of(const char *isa) {
    uint32_t flags = dvm_cpu_flags();
    if (strcmp(isa, "avx512")) flags &= ~(uint32_t)(DVM_CPU_AVX512 | DVM_CPU_AVX512_BF16);
    if (!strcmp(isa, "base")) flags &= ~(uint32_t)DVM_CPU_AVX2;
    return dvm_jit_isa_of(flags);
}

dvm_status dvm_dev_jit(const char *isa, struct dvm_dev *out) {
    const char *why = dvm_jit_refused();
    if (why) DVM_FAIL(UNSUPPORTED, "no machine code: %s", why);
    enum dvm_jit_isa level = level_of(isa);
    if (level == DVM_JIT_NONE) DVM_FAIL(UNSUPPORTED, "no machine code for level %s", isa);
    *out = (struct dvm_dev){.name = "jit",
                            .isa = isa,
                            .compile = compile,
                            .destroy = destroy,
                            .list = list,
                            .table = &levels[level]};
    return DVM_OK;
}
