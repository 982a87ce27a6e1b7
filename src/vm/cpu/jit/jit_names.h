/* Names of machine code for perf and gdb. */
#ifndef DVM_JIT_JIT_NAMES_H
#define DVM_JIT_JIT_NAMES_H
#include "base/mem.h"
#include "code/strip.h"

struct dvm_jit_name;
/* NULL: nothing to be taken back. */
struct dvm_jit_name *dvm_jit_name_new(const struct dvm_mem *m, const struct dvm_strip *s,
                                      const void *code, size_t size);
void dvm_jit_name_free(const struct dvm_mem *m, struct dvm_jit_name *n);
#endif
