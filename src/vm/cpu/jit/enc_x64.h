/* Encoder of x86-64 instructions: appends bytes to a buffer. Which instructions there are says enc_x64.def; this part
 * knows only how a row becomes bytes. Nothing is checked but the room in the buffer: rows and operands come from the
 * emitter, and the tests compare every form with a disassembler. */
#ifndef DVM_JIT_ENC_X64_H
#define DVM_JIT_ENC_X64_H
#include "base/cc.h"

enum dvm_x_op {
#define V(NAME, ...) X_##NAME,
#define G(NAME, ...)
#include "vm/cpu/jit/enc_x64.def"
    X_NVEC
};
enum dvm_x_gop {
#define V(NAME, ...)
#define G(NAME, ...) G_##NAME,
#include "vm/cpu/jit/enc_x64.def"
    G_NGPR
};

enum { X_ENC_V = 1, X_ENC_E = 2, X_ENC_VE = 3, X_ENC_W0 = 4, X_ENC_VE0 = 7 };
enum dvm_x_form { X_RVM, X_RM, X_MR, X_RVMR, X_RVMI, X_RMI, X_MRI, X_VMI };
enum dvm_x_tuple { X_NO, X_FV, X_FM, X_HV, X_HM, X_QM, X_OM, X_S1, X_S2, X_S4, X_S8, X_S16, X_S32 };
struct dvm_x_row {
    uint8_t enc, pp, map, w, opcode, digit, form, tuple, lens;
    char text[15];
    char types[8];
};
static_assert(sizeof(struct dvm_x_row) == 32, "found by a shift");
extern const struct dvm_x_row dvm_x_rows[X_NVEC];

struct dvm_x_grow {
    char text[12];
    char size, form;
    uint8_t map, opcode, digit, imm;
};
extern const struct dvm_x_grow dvm_x_grows[G_NGPR];

enum {
    X_RAX,
    X_RCX,
    X_RDX,
    X_RBX,
    X_RSP,
    X_RBP,
    X_RSI,
    X_RDI,
    X_R8,
    X_R9,
    X_R10,
    X_R11,
    X_R12,
    X_R13,
    X_R14,
    X_R15
};
enum { X_128, X_256, X_512 };

/* A register (reg >= 0) or memory: [base + index << scale + disp]. base X_RIP: disp is an offset from the start of the
 * buffer. */
enum { X_NONE = -1, X_RIP = -2 };
struct dvm_x_rm {
    int8_t reg, base, index;
    uint8_t scale;
    int32_t disp;
};
DVM_INLINE struct dvm_x_rm dvm_x_reg(int r) { return (struct dvm_x_rm){(int8_t)r, 0, 0, 0, 0}; }
DVM_INLINE struct dvm_x_rm dvm_x_mem(int base, int disp) {
    return (struct dvm_x_rm){X_NONE, (int8_t)base, X_NONE, 0, disp};
}
DVM_INLINE struct dvm_x_rm dvm_x_idx(int base, int index, int scale, int disp) {
    return (struct dvm_x_rm){X_NONE, (int8_t)base, (int8_t)index, (uint8_t)scale, disp};
}
DVM_INLINE struct dvm_x_rm dvm_x_pool(int offset) {
    return (struct dvm_x_rm){X_NONE, X_RIP, X_NONE, 0, offset};
}

/* Length, zeroing, embedded broadcast and write mask of one instruction:  k:3 << 4 | b:1 << 3 | z:1 << 2 | len:2 */
enum { X_Z = 4, X_BCST = 8 };
#define X_K(k) ((unsigned)(k) << 4)

struct dvm_enc {
    uint8_t *base, *p, *end;
    bool full;    /* something did not fit: the code is worthless, try again with more room */
    bool a64;     /* translate to AArch64 (enc_a64.h) */
    bool unknown; /* no translation */
};
DVM_INLINE void dvm_enc_init(struct dvm_enc *e, void *buffer, size_t size) {
    *e = (struct dvm_enc){.base = buffer, .p = buffer, .end = (uint8_t *)buffer + size};
}
DVM_INLINE int dvm_enc_at(const struct dvm_enc *e) { return (int)(e->p - e->base); }

/* reg, vvvv: register numbers of the fields (0 where the form has none); imm is ignored where there is none and is a
 * register number in RVMR. */
void dvm_x_vec(struct dvm_enc *e, enum dvm_x_op op, unsigned attr, int reg, int vvvv,
               struct dvm_x_rm rm, int imm);
/* wide: 64-bit operation. */
void dvm_x_gpr(struct dvm_enc *e, enum dvm_x_gop op, bool wide, int reg, struct dvm_x_rm rm,
               int imm);
void dvm_x_mov_imm64(struct dvm_enc *e, int reg, uint64_t v);
/* VEX.LZ.0F38 F5: zeroes the bits of a from number b on. 32-bit. */
void dvm_x_bzhi(struct dvm_enc *e, int d, int a, int b);
/* prefetcht0: 0F 18 /1. Memory with a base. Nothing on AArch64. */
void dvm_x_prefetch(struct dvm_enc *e, struct dvm_x_rm m);
void dvm_x_push(struct dvm_enc *e, int reg);
void dvm_x_pop(struct dvm_enc *e, int reg);
void dvm_x_call(struct dvm_enc *e, int reg);
/* Call of code further on: the result goes to dvm_x_land there. Not AArch64. */
int dvm_x_call_near(struct dvm_enc *e);
void dvm_x_ret(struct dvm_enc *e);
void dvm_x_vzeroupper(struct dvm_enc *e);
void dvm_x_sfence(struct dvm_enc *e);
/* Fills up to the next multiple of n (a power of two) with long no-ops. */
void dvm_x_align(struct dvm_enc *e, int n);

/* Conditions as in the opcode of jcc. */
enum dvm_x_cond {
    X_O,
    X_NO_O,
    X_B,
    X_AE,
    X_E,
    X_NE,
    X_BE,
    X_A,
    X_S,
    X_NS,
    X_P,
    X_NP,
    X_L,
    X_GE,
    X_LE,
    X_G,
    X_ALWAYS
};
/* Jump to an address already emitted. */
void dvm_x_jump_back(struct dvm_enc *e, enum dvm_x_cond c, int target);
/* Jump forward: the result goes to dvm_x_land at the target. */
int dvm_x_jump(struct dvm_enc *e, enum dvm_x_cond c);
void dvm_x_land(struct dvm_enc *e, int jump);
#endif
