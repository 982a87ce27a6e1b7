/* The machine-code tier: strips to x86-64 or AArch64 code in microseconds. Same bits as vm/ref.
 *
 *     strip -> jit_lower*.c -> micro-operations -> jit_plan.c -> jit_loop.c, jit_emit.c -> bytes -> code_mem.c
 *
 * jit_run.c is what runs: it cuts the box to what the code expects and joins the parts of row reductions. */
#ifndef DVM_JIT_JIT_H
#define DVM_JIT_JIT_H
#include "base/mem.h"
#include "base/text.h"
#include "code/strip.h"

enum dvm_jit_isa { DVM_JIT_NONE, DVM_JIT_AVX2, DVM_JIT_AVX512, DVM_JIT_NEON };

/* NULL when machine code can be made and run here, else why not: another processor, DVM_JIT=0, executable memory
 * refused. */
const char *dvm_jit_refused(void);
/* The level for flags of dvm_cpu_flags(). */
enum dvm_jit_isa dvm_jit_isa_of(uint32_t cpu_flags);

/* A verified strip. DVM_ERR_UNSUPPORTED: take another tier. The code owns a copy of the strip. */
dvm_status dvm_jit_compile(const struct dvm_mem *m, const struct dvm_strip *s, int isa,
                           struct dvm_code **out);
void dvm_jit_destroy(const struct dvm_mem *m, struct dvm_code *c);
bool dvm_jit_is(const struct dvm_code *c);

/* The code of a strip as text: labels, strip instructions and below each the bytes that came from it. Nothing is made
 * executable. */
dvm_status dvm_jit_list(const struct dvm_mem *m, const struct dvm_strip *s, int isa,
                        struct dvm_text *out);

/* Bytes of machine code, for tests. */
size_t dvm_jit_code(const struct dvm_code *c, const void **bytes);
/* Offset of the function in it; constants stand before. */
size_t dvm_jit_entry(const struct dvm_code *c);
#endif
