/* AArch64 by translation. The emitter speaks in the instructions of enc_x64.def with 128-bit vectors; an encoder of
 * this kind (dvm_enc.a64) turns each into one or a few NEON and general instructions, so that everything above, from
 * lowering to loops, is there once. The general registers stand for
 *
 *   rdi rsi rdx rcx r8 r9   x0 .. x5: arguments of calls in the same order      r10 r11  x6 x7
 *   rax                     x9                                                  rbx rbp  x19 x20
 *   r12 .. r15              x21 .. x24                                          scratch  x8, x16, x17
 *
 * Vector register k is vk; v29 to v31 belong to the translation. Flags are set where x86 sets them and the emitter looks
 * at them: cmp, add, sub, and, inc, dec. */
#ifndef DVM_JIT_ENC_A64_H
#define DVM_JIT_ENC_A64_H
#include "vm/cpu/jit/enc_x64.h"

enum dvm_a_form { A_N3, A_N2, A_NS, A_GN };
enum dvm_a_op {
#define A(NAME, ...) A_##NAME,
#include "vm/cpu/jit/enc_a64.def"
    A_NOPS
};
struct dvm_a_row {
    const char *text;
    uint32_t word;
    uint8_t form;
};
extern const struct dvm_a_row dvm_a_rows[A_NOPS];
enum { A_VECTORS = 28, A_TAIL = 28 };

void dvm_a64_vec(struct dvm_enc *e, enum dvm_x_op op, unsigned attr, int reg, int vvvv,
                 struct dvm_x_rm rm, int imm);
void dvm_a64_gpr(struct dvm_enc *e, enum dvm_x_gop op, bool wide, int reg, struct dvm_x_rm rm,
                 int imm);
void dvm_a64_imm(struct dvm_enc *e, int reg, uint64_t v);
void dvm_a64_push(struct dvm_enc *e, int reg);
void dvm_a64_pop(struct dvm_enc *e, int reg);
void dvm_a64_call(struct dvm_enc *e, int reg);
void dvm_a64_word(struct dvm_enc *e, uint32_t word);
void dvm_a64_jump_back(struct dvm_enc *e, enum dvm_x_cond c, int target);
int dvm_a64_jump(struct dvm_enc *e, enum dvm_x_cond c);
void dvm_a64_land(struct dvm_enc *e, int jump);
/* The link register and the vector registers that belong to the caller. */
void dvm_a64_save(struct dvm_enc *e);
void dvm_a64_restore(struct dvm_enc *e);
/* High half of unsigned 32-bit products. */
void dvm_a64_umulh(struct dvm_enc *e, int d, int x, int y);
#define A_NOP UINT32_C(0xd503201f)
#define A_RET UINT32_C(0xd65f03c0)
#define A_DMB UINT32_C(0xd5033bbf)
#endif
