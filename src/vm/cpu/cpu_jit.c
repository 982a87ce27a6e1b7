/* The machine-code tier as a device: asked before the tile VM of the same level. */
#include <string.h>

#include "base/cpuflags.h"
#include "base/err.h"
#include "vm/cpu/jit/jit.h"
#include "vm/dev.h"

static dvm_status compile(const struct dvm_dev *d, const struct dvm_mem *m,
                          const struct dvm_strip *s, struct dvm_code **out) {
    int isa = strcmp(d->isa, "avx512") == 0 ? DVM_JIT_AVX512 : DVM_JIT_AVX2;
    return dvm_jit_compile(m, s, isa, out);
}

static void destroy(const struct dvm_dev *d, const struct dvm_mem *m, struct dvm_code *c) {
    (void)d;
    dvm_jit_destroy(m, c);
}

dvm_status dvm_dev_jit(const char *isa, struct dvm_dev *out) {
    const char *why = dvm_jit_refused();
    if (why) DVM_FAIL(UNSUPPORTED, "no machine code: %s", why);
    if (!strcmp(isa, "base")) DVM_FAIL(UNSUPPORTED, "no machine code for level base");
    *out = (struct dvm_dev){.name = "jit", .isa = isa, .compile = compile, .destroy = destroy};
    return DVM_OK;
}
