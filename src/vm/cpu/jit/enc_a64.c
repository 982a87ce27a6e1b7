/* See enc_a64.h. Words are those of enc_a64.def, and of the general instructions drawn where they are made. */
#include "vm/cpu/jit/enc_a64.h"

#include <string.h>

const struct dvm_a_row dvm_a_rows[A_NOPS] = {
#define A(NAME, text, word, form) {text, word, A_##form},
#include "vm/cpu/jit/enc_a64.def"
};

enum { T0 = 29, T1 = 30, T2 = 31 }; /* vectors */
enum { ADDR = 16, ADDR2 = 17, CONSTANT = 8, ZR = 31, SP = 31 };

void dvm_a64_word(struct dvm_enc *e, uint32_t word) {
    if (e->end - e->p < 16) {
        e->full = true;
        return;
    }
    memcpy(e->p, &word, 4);
    e->p += 4;
}

static void op3(struct dvm_enc *e, enum dvm_a_op op, int d, int n, int m) {
    dvm_a64_word(e, dvm_a_rows[op].word | (uint32_t)m << 16 | (uint32_t)n << 5 | (uint32_t)d);
}
static void op2(struct dvm_enc *e, enum dvm_a_op op, int d, int n) { op3(e, op, d, n, 0); }
/* left: size + n, else 2 size - n */
static void shift(struct dvm_enc *e, enum dvm_a_op op, int size, int n, int d, int s) {
    uint32_t field = (uint32_t)(op == A_SHL ? size + n : 2 * size - n);
    dvm_a64_word(e, dvm_a_rows[op].word | field << 16 | (uint32_t)s << 5 | (uint32_t)d);
}
static void move(struct dvm_enc *e, int d, int s) {
    if (d != s) op3(e, A_ORR, d, s, s);
}

static int general(int reg) {
    static const uint8_t map[16] = {9, 3, 2, 19, SP, 20, 1, 0, 4, 5, 6, 7, 21, 22, 23, 24};
    return map[reg];
}

/* ---- general registers:  sf op S 100010 sh imm12 Rn Rd  and  sf op S 01011 shift 0 Rm imm6 Rn Rd */

enum {
    ADD_I = 0x11000000,
    ADDS_I = 0x31000000,
    SUB_I = 0x51000000,
    SUBS_I = 0x71000000,
    ADD_R = 0x0b000000,
    ADDS_R = 0x2b000000,
    SUBS_R = 0x6b000000,
    WIDE = (int)0x80000000
};

static void reg3(struct dvm_enc *e, uint32_t word, int d, int n, int m, int lsl) {
    dvm_a64_word(e,
                 word | (uint32_t)m << 16 | (uint32_t)lsl << 10 | (uint32_t)n << 5 | (uint32_t)d);
}

/* movz, movn or movz and movk's:  sf opc 100101 hw imm16 Rd */
static void immediate(struct dvm_enc *e, int d, uint64_t v) {
    if (~v >> 16 == 0) {
        dvm_a64_word(e, 0x92800000 | (uint32_t)(~v & 0xffff) << 5 | (uint32_t)d);
        return;
    }
    uint32_t word = 0xd2800000; /* movz, then movk */
    for (unsigned k = 0; k < 4; k++) {
        uint32_t part = v >> 16 * k & 0xffff;
        if (!part && (v || k)) continue;
        dvm_a64_word(e, word | k << 21 | part << 5 | (uint32_t)d);
        word = 0xf2800000;
    }
}

static void add_constant(struct dvm_enc *e, uint32_t wide, bool flags, int d, int n, int64_t v) {
    uint64_t size = v < 0 ? 0 - (uint64_t)v : (uint64_t)v;
    uint32_t word = v < 0 ? (flags ? SUBS_I : SUB_I) : (flags ? ADDS_I : ADD_I);
    if (size < 4096) {
        dvm_a64_word(e, word | wide | (uint32_t)size << 10 | (uint32_t)n << 5 | (uint32_t)d);
        return;
    }
    immediate(e, CONSTANT, (uint64_t)v);
    reg3(e, (flags ? ADDS_R : ADD_R) | wide, d, n, CONSTANT, 0);
}

/* ---- memory: a base register and a displacement that the access of `size` bytes can hold */

struct place {
    int base;
    int32_t disp;
};

static struct place place_of(struct dvm_enc *e, struct dvm_x_rm m, int size) {
    struct place p = {0, m.disp};
    if (m.base == X_RIP) { /* adr: immlo:2 10000 immhi:19 Rd */
        uint32_t d = (uint32_t)(m.disp - dvm_enc_at(e));
        dvm_a64_word(e, 0x10000000 | (d & 3) << 29 | (d >> 2 & 0x7ffff) << 5 | ADDR);
        return (struct place){ADDR, 0};
    }
    p.base = general(m.base);
    if (m.index != X_NONE) {
        reg3(e, ADD_R | WIDE, ADDR, p.base, general(m.index), m.scale);
        p.base = ADDR;
    }
    bool scaled = p.disp >= 0 && p.disp % size == 0 && p.disp / size < 4096;
    if (!scaled && (p.disp < -256 || p.disp > 255)) {
        add_constant(e, WIDE, false, ADDR, p.base, p.disp);
        p = (struct place){ADDR, 0};
    }
    return p;
}

/* size 111 V 01 opc imm12 Rn Rt (scaled), size 111 V 00 opc 0 imm9 00 Rn Rt */
static void access(struct dvm_enc *e, uint32_t scaled, int size, int t, struct dvm_x_rm m) {
    struct place p = place_of(e, m, size);
    uint32_t regs = (uint32_t)p.base << 5 | (uint32_t)t;
    if (p.disp >= 0 && p.disp % size == 0)
        dvm_a64_word(e, scaled | (uint32_t)(p.disp / size) << 10 | regs);
    else
        dvm_a64_word(e, (scaled & ~UINT32_C(0x01000000)) | ((uint32_t)p.disp & 511) << 12 | regs);
}

static uint32_t vector_word(int size, bool store) {
    switch (size) {
    case 4: return store ? 0xbd000000 : 0xbd400000;
    case 8: return store ? 0xfd000000 : 0xfd400000;
    default: return store ? 0x3d800000 : 0x3dc00000;
    }
}
static void load_vector(struct dvm_enc *e, int size, int t, struct dvm_x_rm m) {
    if (m.base == X_RIP && size == 16) { /* 10 011 1 00 imm19 Rt */
        dvm_a64_word(e, 0x9c000000 | ((uint32_t)(m.disp - dvm_enc_at(e)) >> 2 & 0x7ffff) << 5 |
                            (uint32_t)t);
        return;
    }
    access(e, vector_word(size, false), size, t, m);
}
static void store_vector(struct dvm_enc *e, int size, int t, struct dvm_x_rm m) {
    access(e, vector_word(size, true), size, t, m);
}
static void load_general(struct dvm_enc *e, int size, int t, struct dvm_x_rm m) {
    static const uint32_t word[9] = {
        [1] = 0x39400000, [2] = 0x79400000, [4] = 0xb9400000, [8] = 0xf9400000};
    access(e, word[size], size, t, m);
}
static void store_general(struct dvm_enc *e, int size, int t, struct dvm_x_rm m) {
    static const uint32_t word[9] = {
        [1] = 0x39000000, [2] = 0x79000000, [4] = 0xb9000000, [8] = 0xf9000000};
    access(e, word[size], size, t, m);
}

/* ld1r: 0 Q 0011010 10 00000 1100 size Rn Rt */
static void load_all_lanes(struct dvm_enc *e, unsigned log2, int t, struct dvm_x_rm m) {
    struct place p = place_of(e, m, 1 << log2);
    if (p.disp) {
        add_constant(e, WIDE, false, ADDR, p.base, p.disp);
        p.base = ADDR;
    }
    dvm_a64_word(e, 0x4d40c000 | log2 << 10 | (uint32_t)p.base << 5 | (uint32_t)t);
}

/* ---- vectors */

static int bytes_of(enum dvm_x_op op) {
    switch (dvm_x_rows[op].tuple) {
    case X_HV:
    case X_HM:
    case X_S8: return 8;
    case X_QM:
    case X_S4: return 4;
    default: return 16;
    }
}

/* The rm operand in a vector register. */
static int source(struct dvm_enc *e, enum dvm_x_op op, struct dvm_x_rm rm) {
    if (rm.reg >= 0) return rm.reg;
    load_vector(e, bytes_of(op), T0, rm);
    return T0;
}

static void widen_bytes(struct dvm_enc *e, bool sign, int d, int s) {
    op2(e, sign ? A_SXTL_8H : A_UXTL_8H, d, s);
    op2(e, sign ? A_SXTL_4S : A_UXTL_4S, d, d);
}

/* (y > x, as asked) ? x : y, which is what x86 has for a maximum and a minimum */
static void choose(struct dvm_enc *e, bool max, int d, int x, int y) {
    op3(e, A_FCMGT_4S, T1, max ? x : y, max ? y : x);
    op3(e, A_BSL, T1, x, y);
    move(e, d, T1);
}

static void blend(struct dvm_enc *e, int d, int x, int y, int m) { /* m ? y : x */
    if (d == m) {
        op3(e, A_BSL, d, y, x);
    } else if (d == x) {
        op3(e, A_BIT, d, y, m);
    } else if (d == y) {
        op3(e, A_BIF, d, x, m);
    } else {
        move(e, d, m);
        op3(e, A_BSL, d, y, x);
    }
}

static void compare(struct dvm_enc *e, bool wide, int predicate, int d, int x, int y) {
    enum dvm_a_op eq = wide ? A_FCMEQ_2D : A_FCMEQ_4S, ge = wide ? A_FCMGE_2D : A_FCMGE_4S;
    enum dvm_a_op gt = wide ? A_FCMGT_2D : A_FCMGT_4S;
    switch (predicate) { /* of vcmpps; unord and ord have equal operands */
    case 0x00: op3(e, eq, d, x, y); return;
    case 0x07: op3(e, eq, d, x, x); return;
    case 0x11: op3(e, gt, d, y, x); return;
    case 0x12: op3(e, ge, d, y, x); return;
    case 0x1d: op3(e, ge, d, x, y); return;
    case 0x1e: op3(e, gt, d, x, y); return;
    case 0x03: op3(e, eq, d, x, x); break;
    case 0x04: op3(e, eq, d, x, y); break;
    case 0x15: op3(e, gt, d, y, x); break;
    case 0x16: op3(e, ge, d, y, x); break;
    default: op3(e, ge, d, x, y); break; /* 0x19 */
    }
    op2(e, A_NOT, d, d);
}

static void multiply_low(struct dvm_enc *e, int d, int x, int y) {
    op2(e, A_XTN_2S, T1, x);
    op2(e, A_XTN_2S, T2, y);
    op3(e, A_UMULL_2D, d, T1, T2);
}

/* Instructions of three vectors that are one here too: 1 + row, else 0. */
static int same3(enum dvm_x_op op) {
    static const uint8_t row[X_NVEC] = {
        [X_VADDPS] = 1 + A_FADD_4S,   [X_VADDPD] = 1 + A_FADD_2D,    [X_VSUBPS] = 1 + A_FSUB_4S,
        [X_VMULPS] = 1 + A_FMUL_4S,   [X_VDIVPS] = 1 + A_FDIV_4S,    [X_VDIVPD] = 1 + A_FDIV_2D,
        [X_VANDPS] = 1 + A_AND,       [X_VORPS] = 1 + A_ORR,         [X_VXORPS] = 1 + A_EOR,
        [X_VPADDD] = 1 + A_ADD_4S,    [X_VPSUBD] = 1 + A_SUB_4S,     [X_VPADDQ] = 1 + A_ADD_2D,
        [X_VPSUBQ] = 1 + A_SUB_2D,    [X_VPMULLD] = 1 + A_MUL_4S,    [X_VPMAXSD] = 1 + A_SMAX_4S,
        [X_VPMINSD] = 1 + A_SMIN_4S,  [X_VPCMPEQD] = 1 + A_CMEQ_4S,  [X_VPCMPGTD] = 1 + A_CMGT_4S,
        [X_VPCMPEQQ] = 1 + A_CMEQ_2D, [X_VPCMPGTQ] = 1 + A_CMGT_2D,  [X_VPSLLVD] = 1 + A_USHL_4S,
        [X_VPSLLVQ] = 1 + A_USHL_2D,  [X_VUNPCKLPD] = 1 + A_ZIP1_2D, [X_VSHUFPS] = 1 + A_UZP1_4S,
    };
    return row[op];
}

static int same2(enum dvm_x_op op) {
    static const uint8_t row[X_NVEC] = {
        [X_VSQRTPS] = 1 + A_FSQRT_4S,   [X_VPABSD] = 1 + A_ABS_4S,
        [X_VCVTDQ2PS] = 1 + A_SCVTF_4S, [X_VCVTTPS2DQ] = 1 + A_FCVTZS_4S,
        [X_VCVTPS2PD] = 1 + A_FCVTL_2D, [X_VCVTPD2PS] = 1 + A_FCVTN_2S,
        [X_VCVTPH2PS] = 1 + A_FCVTL_4S, [X_VPMOVZXWD] = 1 + A_UXTL_4S,
        [X_VPMOVSXDQ] = 1 + A_SXTL_2D,
    };
    return row[op];
}

static void shift_right_by(struct dvm_enc *e, enum dvm_a_op op, int d, int x, int n) {
    op2(e, op == A_USHL_2D ? A_NEG_2D : A_NEG_4S, T1, n);
    op3(e, op, d, x, T1);
}

static void round_to(struct dvm_enc *e, int d, int s, int mode) {
    static const uint8_t row[4] = {A_FRINTN_4S, A_FRINTM_4S, A_FRINTP_4S, A_FRINTZ_4S};
    op2(e, (enum dvm_a_op)row[mode & 3], d, s);
}

/* Moves between memory, vectors and general registers; false: not one. */
static bool moves(struct dvm_enc *e, enum dvm_x_op op, int reg, struct dvm_x_rm rm) {
    switch (op) {
    case X_VMOVUPS:
    case X_VMOVAPS:
        if (rm.reg >= 0)
            move(e, reg, rm.reg);
        else
            load_vector(e, 16, reg, rm);
        return true;
    case X_VMOVUPS_ST:
    case X_VMOVNTPS: store_vector(e, 16, reg, rm); return true;
    case X_VMOVSS_LD: load_vector(e, 4, reg, rm); return true;
    case X_VMOVSD_LD: load_vector(e, 8, reg, rm); return true;
    case X_VMOVD_ST:
    case X_VMOVSS_ST: store_vector(e, 4, reg, rm); return true;
    case X_VMOVSD_ST: store_vector(e, 8, reg, rm); return true;
    case X_VMOVD_LD: op2(e, A_FMOV_S, reg, general(rm.reg)); return true;
    case X_VMOVQ_LD: op2(e, A_FMOV_D, reg, general(rm.reg)); return true;
    case X_VPBROADCASTB: load_all_lanes(e, 0, reg, rm); return true;
    case X_VPBROADCASTW: load_all_lanes(e, 1, reg, rm); return true;
    case X_VBROADCASTSS:
        if (rm.reg >= 0)
            op2(e, A_DUP_4S_0, reg, rm.reg);
        else
            load_all_lanes(e, 2, reg, rm);
        return true;
    case X_VPBROADCASTQ:
        if (rm.reg >= 0)
            op2(e, A_DUP_2D_0, reg, rm.reg);
        else
            load_all_lanes(e, 3, reg, rm);
        return true;
    default: return false;
    }
}

/* Narrowing and extraction: reg is the source, rm the result. */
static bool narrows(struct dvm_enc *e, enum dvm_x_op op, int reg, struct dvm_x_rm rm) {
    switch (op) {
    case X_VCVTPS2PH: op2(e, A_FCVTN_4H, rm.reg, reg); return true;
    case X_VPMOVDW: op2(e, A_XTN_4H, rm.reg, reg); return true;
    case X_VPMOVDB:
        op2(e, A_XTN_4H, rm.reg, reg);
        op2(e, A_XTN_8B, rm.reg, rm.reg);
        return true;
    default: return false;
    }
}

void dvm_a64_vec(struct dvm_enc *e, enum dvm_x_op op, unsigned attr, int reg, int vvvv,
                 struct dvm_x_rm rm, int imm) {
    (void)attr;
    if (moves(e, op, reg, rm) || narrows(e, op, reg, rm)) return;
    int s = source(e, op, rm);
    if (same3(op)) {
        op3(e, (enum dvm_a_op)(same3(op) - 1), reg, vvvv, s);
        return;
    }
    if (same2(op)) {
        op2(e, (enum dvm_a_op)(same2(op) - 1), reg, s);
        return;
    }
    switch (op) {
    case X_VMAXPS: choose(e, true, reg, vvvv, s); break;
    case X_VMINPS: choose(e, false, reg, vvvv, s); break;
    case X_VBLENDVPS:
    case X_VBLENDVPD: blend(e, reg, vvvv, s, imm); break;
    case X_VCMPPS: compare(e, false, imm, reg, vvvv, s); break;
    case X_VCMPPD: compare(e, true, imm, reg, vvvv, s); break;
    case X_VFMADD231PS: op3(e, A_FMLA_4S, reg, vvvv, s); break;
    case X_VFNMADD231PS: op3(e, A_FMLS_4S, reg, vvvv, s); break;
    case X_VROUNDPS: round_to(e, reg, s, imm); break;
    case X_VPMOVZXBD: widen_bytes(e, false, reg, s); break;
    case X_VPMOVSXBD: widen_bytes(e, true, reg, s); break;
    case X_VPMULUDQ: multiply_low(e, reg, vvvv, s); break;
    case X_VPSRLVD: shift_right_by(e, A_USHL_4S, reg, vvvv, s); break;
    case X_VPSRAVD: shift_right_by(e, A_SSHL_4S, reg, vvvv, s); break;
    case X_VPSRLVQ: shift_right_by(e, A_USHL_2D, reg, vvvv, s); break;
    case X_VPSLLD: shift(e, A_SHL, 32, imm, vvvv, s); break;
    case X_VPSRLD: shift(e, A_USHR, 32, imm, vvvv, s); break;
    case X_VPSRAD: shift(e, A_SSHR, 32, imm, vvvv, s); break;
    case X_VPSLLQ: shift(e, A_SHL, 64, imm, vvvv, s); break;
    case X_VPSRLQ: shift(e, A_USHR, 64, imm, vvvv, s); break;
    case X_VPERMILPS: op2(e, imm == 0xee ? A_DUP_2D_1 : A_DUP_4S_1, reg, s); break;
    case X_VCVTDQ2PD:
        op2(e, A_SXTL_2D, reg, s);
        op2(e, A_SCVTF_2D, reg, reg);
        break;
    case X_VCVTTPD2DQ: /* imm: keep the low half, else saturate */
        op2(e, A_FCVTZS_2D, reg, s);
        op2(e, imm ? A_XTN_2S : A_SQXTN_2S, reg, reg);
        break;
    default: e->unknown = true; break;
    }
}

void dvm_a64_umulh(struct dvm_enc *e, int d, int x, int y) {
    op3(e, A_UMULL_2D, T1, x, y);
    op3(e, A_UMULL2_2D, T2, x, y);
    op3(e, A_UZP2_4S, d, T1, T2);
}

/* ---- general instructions */

void dvm_a64_imm(struct dvm_enc *e, int reg, uint64_t v) { immediate(e, general(reg), v); }

/* The rm operand in a general register. */
static int value_of(struct dvm_enc *e, bool wide, struct dvm_x_rm rm) {
    if (rm.reg >= 0) return general(rm.reg);
    load_general(e, wide ? 8 : 4, ADDR2, rm);
    return ADDR2;
}

static void put_back(struct dvm_enc *e, bool wide, struct dvm_x_rm rm) {
    if (rm.reg < 0) store_general(e, wide ? 8 : 4, ADDR2, rm);
}

static void lea(struct dvm_enc *e, int d, struct dvm_x_rm m) {
    struct place p = place_of(e, m, 1);
    add_constant(e, WIDE, false, d, p.base, p.disp);
}

/* op rm, imm and one-operand forms; the result goes back where it came from */
static void on_constant(struct dvm_enc *e, enum dvm_x_gop op, bool wide, struct dvm_x_rm rm,
                        int imm) {
    uint32_t w = wide ? (uint32_t)WIDE : 0;
    if (op == G_MOV_I) {
        int d = rm.reg >= 0 ? general(rm.reg) : ADDR2;
        immediate(e, d, wide ? (uint64_t)(int64_t)imm : (uint32_t)imm);
        put_back(e, wide, rm);
        return;
    }
    int x = value_of(e, wide, rm);
    switch (op) {
    case G_CMP_I8:
    case G_CMP_I: add_constant(e, w, true, ZR, x, -(int64_t)imm); return;
    case G_ADD_I8:
    case G_ADD_I: add_constant(e, w, true, x, x, imm); break;
    case G_SUB_I8:
    case G_SUB_I: add_constant(e, w, true, x, x, -(int64_t)imm); break;
    case G_INC: add_constant(e, w, true, x, x, 1); break;
    case G_DEC: add_constant(e, w, true, x, x, -1); break;
    case G_NEG: reg3(e, SUBS_R | w, x, ZR, x, 0); break;
    case G_SHR_I: /* ubfm: 1 10 100110 1 immr imms Rn Rd */
        dvm_a64_word(e, 0xd340fc00 | (uint32_t)imm << 16 | (uint32_t)x << 5 | (uint32_t)x);
        break;
    case G_AND_I8:
    case G_AND_I: /* ands with 2^k - 1: 1 11 100100 1 immr imms Rn Rd */
        dvm_a64_word(e, 0xf2400000 | (uint32_t)(__builtin_popcount((unsigned)imm) - 1) << 10 |
                            (uint32_t)x << 5 | (uint32_t)x);
        break;
    default: e->unknown = true; break;
    }
    put_back(e, wide, rm);
}

void dvm_a64_gpr(struct dvm_enc *e, enum dvm_x_gop op, bool wide, int reg, struct dvm_x_rm rm,
                 int imm) {
    uint32_t w = wide ? (uint32_t)WIDE : 0;
    int d = general(reg);
    if (dvm_x_grows[op].form == 'D') {
        on_constant(e, op, wide, rm, imm);
        return;
    }
    switch (op) {
    case G_MOV:
        if (rm.reg < 0)
            load_general(e, wide ? 8 : 4, d, rm);
        else
            reg3(e, 0x2a0003e0 | w, d, 0, general(rm.reg), 0); /* orr d, zr, m */
        break;
    case G_MOV_ST: store_general(e, wide ? 8 : 4, d, rm); break;
    case G_MOVB_ST: store_general(e, 1, d, rm); break;
    case G_MOVW_ST: store_general(e, 2, d, rm); break;
    case G_MOVZXB: load_general(e, 1, d, rm); break;
    case G_MOVZXW: load_general(e, 2, d, rm); break;
    case G_LEA: lea(e, d, rm); break;
    case G_ADD: reg3(e, ADDS_R | w, d, d, value_of(e, wide, rm), 0); break;
    case G_SUB: reg3(e, SUBS_R | w, d, d, value_of(e, wide, rm), 0); break;
    case G_CMP: reg3(e, SUBS_R | w, ZR, d, value_of(e, wide, rm), 0); break;
    case G_XOR: reg3(e, 0x4a000000 | w, d, d, value_of(e, wide, rm), 0); break;
    case G_IMUL: reg3(e, 0x1b007c00 | w, d, d, value_of(e, wide, rm), 0); break;
    case G_ADD_ST: {
        int x = value_of(e, wide, rm);
        reg3(e, ADDS_R | w, x, x, d, 0);
        put_back(e, wide, rm);
        break;
    }
    case G_CMOVGE: { /* csel: sf 0 0 11010100 Rm cond 00 Rn Rd */
        int x = value_of(e, wide, rm);
        reg3(e, 0x1a800000 | w | 10 << 12, d, x, d, 0);
        break;
    }
    default: e->unknown = true; break;
    }
}

/* ---- stack, calls, jumps */

void dvm_a64_push(struct dvm_enc *e, int reg) {
    dvm_a64_word(e, 0xf81f0fe0 | (uint32_t)general(reg));
} /* str x, [sp, -16]! */
void dvm_a64_pop(struct dvm_enc *e, int reg) {
    dvm_a64_word(e, 0xf84107e0 | (uint32_t)general(reg));
} /* ldr x, [sp], 16 */

void dvm_a64_call(struct dvm_enc *e, int reg) {
    dvm_a64_word(e, 0xd63f0000 | (uint32_t)general(reg) << 5); /* blr */
    reg3(e, 0xaa0003e0, general(X_RAX), 0, 0, 0);
}

void dvm_a64_save(struct dvm_enc *e) {
    dvm_a64_word(e, 0xf81f0fe0 | 30);
    for (uint32_t d = 8; d < 16; d += 2)
        dvm_a64_word(e, 0x6dbf03e0 | (d + 1) << 10 | d); /* stp d, d, [sp, -16]! */
}

void dvm_a64_restore(struct dvm_enc *e) {
    for (uint32_t d = 16; d > 8; d -= 2)
        dvm_a64_word(e, 0x6cc103e0 | (d - 1) << 10 | (d - 2)); /* ldp d, d, [sp], 16 */
    dvm_a64_word(e, 0xf84107e0 | 30);
}

static uint32_t condition(enum dvm_x_cond c) {
    static const uint8_t cond[] = {[X_B] = 3, [X_AE] = 2, [X_E] = 0,   [X_NE] = 1,  [X_BE] = 9,
                                   [X_A] = 8, [X_L] = 11, [X_GE] = 10, [X_LE] = 13, [X_G] = 12};
    return cond[c];
}

/* b: 000101 imm26, b.cond: 01010100 imm19 0 cond; distances in words */
static uint32_t branch(enum dvm_x_cond c, int distance) {
    uint32_t d = (uint32_t)(distance / 4);
    if (c == X_ALWAYS) return 0x14000000 | (d & 0x3ffffff);
    return 0x54000000 | (d & 0x7ffff) << 5 | condition(c);
}

void dvm_a64_jump_back(struct dvm_enc *e, enum dvm_x_cond c, int target) {
    dvm_a64_word(e, branch(c, target - dvm_enc_at(e)));
}

int dvm_a64_jump(struct dvm_enc *e, enum dvm_x_cond c) {
    int at = dvm_enc_at(e);
    dvm_a64_word(e, branch(c, 0));
    return at;
}

void dvm_a64_land(struct dvm_enc *e, int jump) {
    uint32_t word, d = (uint32_t)(dvm_enc_at(e) - jump) / 4;
    if (e->full) return;
    memcpy(&word, e->base + jump, 4);
    word |= word >> 24 == 0x54 ? (d & 0x7ffff) << 5 : d & 0x3ffffff;
    memcpy(e->base + jump, &word, 4);
}
