/* Rows of enc_x64.def to bytes.
 *
 * VEX, three bytes (two when W = X = B = 0 and the map is 0F; then C5, R in the place of W):
 *     C4 | R' X' B' map:5 | W vvvv':4 L pp:2 | opcode | modrm ...
 * EVEX:
 *     62 | R' X' B' R4' 0 map:3 | W vvvv':4 1 pp:2 | z L'L:2 b V4' aaa:3 | opcode | modrm ...
 * A prime marks fields stored inverted. R, X, B and R4, V4 are bits 3 and 4 of register numbers; when modrm.rm is a
 * vector register X is its bit 4. An EVEX displacement byte counts units of the memory operand.
 *     modrm  mod:2 reg:3 rm:3      sib  scale:2 index:3 base:3 */
#include "vm/cpu/jit/enc_a64.h"

#include <string.h>

const struct dvm_x_row dvm_x_rows[X_NVEC] = {
#define V(NAME, text, enc, pp, map, w, opcode, digit, form, types, tuple, lens)       \
    {X_ENC_##enc, pp, map, w, opcode, digit, X_##form, X_##tuple, lens, text, types},
#include "vm/cpu/jit/enc_x64.def"
};

const struct dvm_x_grow dvm_x_grows[G_NGPR] = {
#define G(NAME, text, size, map, opcode, digit, form, imm) \
    {text, #size[0], #form[0], map, opcode, digit, imm},
#include "vm/cpu/jit/enc_x64.def"
};

enum { MAX_INS = 16 };

/* True when an instruction fits; else the rest of the code goes nowhere. */
static inline bool room(struct dvm_enc *e) {
    if (DVM_LIKELY(e->end - e->p >= MAX_INS)) return true;
    e->full = true;
    return false;
}

static inline uint8_t *put8(uint8_t *p, unsigned v) {
    *p = (uint8_t)v;
    return p + 1;
}

static inline uint8_t *put32(uint8_t *p, int32_t v) {
    memcpy(p, &v, 4);
    return p + 4;
}

/* log2 of the bytes of a memory operand. */
static int unit(const struct dvm_x_row *r, unsigned attr) {
    static const uint8_t fixed[] = {[X_S1] = 0, [X_S2] = 1,  [X_S4] = 2,
                                    [X_S8] = 3, [X_S16] = 4, [X_S32] = 5};
    int len = attr & 3;
    switch (r->tuple) {
    case X_FV:
    case X_HV:
        if (attr & X_BCST) return r->w ? 3 : 2;
        return r->tuple == X_FV ? 4 + len : 3 + len;
    case X_FM: return 4 + len;
    case X_HM: return 3 + len;
    case X_QM: return 2 + len;
    case X_OM: return 1 + len;
    case X_NO: return 0;
    default: return fixed[r->tuple];
    }
}

/* modrm, sib and displacement of a memory operand. n: log2 of the displacement unit. tail: bytes behind it. */
static uint8_t *put_mem(const struct dvm_enc *e, uint8_t *p, int reg, struct dvm_x_rm m, int n,
                        int tail) {
    unsigned r = (unsigned)(reg & 7) << 3;
    if (m.base == X_RIP) {
        p = put8(p, r | 5);
        return put32(p, m.disp - (int32_t)(p + 4 + tail - e->base));
    }
    bool sib = m.index != X_NONE || (m.base & 7) == X_RSP;
    int32_t small = m.disp >> n;
    unsigned mod = 0x80;
    if (m.disp == 0 && (m.base & 7) != X_RBP)
        mod = 0;
    else if (small == (int8_t)small && (int32_t)((uint32_t)small << n) == m.disp)
        mod = 0x40;
    p = put8(p, mod | r | (sib ? 4u : (unsigned)m.base & 7));
    if (sib) {
        unsigned index = m.index == X_NONE ? 4u : (unsigned)m.index & 7;
        p = put8(p, (unsigned)m.scale << 6 | index << 3 | ((unsigned)m.base & 7));
    }
    if (mod == 0x40) p = put8(p, (unsigned)small);
    if (mod == 0x80) p = put32(p, m.disp);
    return p;
}

static uint8_t *put_rm(const struct dvm_enc *e, uint8_t *p, int reg, struct dvm_x_rm rm, int n,
                       int tail) {
    if (rm.reg >= 0) return put8(p, 0xc0 | (unsigned)(reg & 7) << 3 | (unsigned)(rm.reg & 7));
    return put_mem(e, p, reg, rm, n, tail);
}

/* X and B of an operand, as bits 1 and 0; bit 4 of a register is X. */
static inline unsigned extend(struct dvm_x_rm rm) {
    if (DVM_LIKELY(rm.reg >= 0)) return (unsigned)rm.reg >> 3 & 3;
    unsigned b = rm.base >= 0 ? (unsigned)rm.base >> 3 : 0;
    return (rm.index >= 0 ? (unsigned)rm.index >> 3 : 0) << 1 | b;
}

/* Both prefixes of a row with registers 0 and the least length; what operands add is XORed in, since the fields that
 * hold them are inverted or zero. VEX: three bytes and the opcode. Byte by byte took half of the time of emission. */
static const struct {
    uint32_t vex, evex;
} heads[X_NVEC] = {
#define V(NAME, text, enc, pp, map, w, opcode, digit, form, types, tuple, lens)  \
    {0xc4u | (0xe0u | (map)) << 8 |                                              \
         ((X_ENC_##enc & X_ENC_W0 ? 0 : (w)) << 7 | 0x78u | (pp)) << 16 |        \
         (unsigned)(opcode) << 24,                                               \
     0x62u | (0xf0u | (map)) << 8 | ((w) << 7 | 0x7cu | (pp)) << 16 | 8u << 24},
#include "vm/cpu/jit/enc_x64.def"
};

/* Of the two-byte prefix C5 there is one for the first map without W, X, B. */
static inline uint8_t *put_vex(uint8_t *p, uint32_t head, unsigned attr, int reg, int vvvv,
                               unsigned xb) {
    head ^= ((unsigned)reg & 8) << 12 | xb << 13 | ((unsigned)vvvv & 15) << 19 | (attr & 1) << 18;
    if ((head & 0x807fff) == 0x61c4) {
        put32(p, (int32_t)(0xc5 | (head & 0x8000) | (head >> 8 & 0x7f00) | (head >> 24) << 16));
        return p + 3;
    }
    return put32(p, (int32_t)head);
}

static inline uint8_t *put_evex(uint8_t *p, uint32_t head, unsigned attr, int reg, int vvvv,
                                unsigned xb) {
    unsigned r = (unsigned)reg, v = (unsigned)vvvv;
    head ^= (r & 8) << 12 | (r & 16) << 8 | xb << 13 | (v & 15) << 19 | (v & 16) << 23;
    return put32(p, (int32_t)(head ^ ((attr & 7) << 29 | (attr & 8) << 25 | (attr & 0x70) << 20)));
}

/* Memory, an immediate or a digit in modrm. */
static DVM_NOINLINE void vec_rest(struct dvm_enc *e, enum dvm_x_op op, unsigned attr, int reg,
                                  int vvvv, struct dvm_x_rm rm, int imm) {
    const struct dvm_x_row *r = &dvm_x_rows[op];
    uint8_t *p = e->p;
    bool has_imm = r->form >= X_RVMR, high = (reg | vvvv) > 15 || rm.reg > 15;
    if (r->form == X_VMI) {
        high |= rm.reg < 0; /* shifts by a constant take memory under EVEX only */
        reg = r->digit;
    }
    bool evex = !(r->enc & X_ENC_V) || ((r->enc & X_ENC_E) && (high || attr > 1));
    if (evex)
        p = put8(put_evex(p, heads[op].evex, attr, reg, vvvv, extend(rm)), r->opcode);
    else
        p = put_vex(p, heads[op].vex, attr, reg, vvvv, extend(rm));
    p = put_rm(e, p, reg, rm, evex ? unit(r, attr) : 0, has_imm);
    if (has_imm) p = put8(p, r->form == X_RVMR ? (unsigned)imm << 4 : (unsigned)imm);
    e->p = p;
}

void dvm_x_vec(struct dvm_enc *e, enum dvm_x_op op, unsigned attr, int reg, int vvvv,
               struct dvm_x_rm rm, int imm) {
    const struct dvm_x_row *r = &dvm_x_rows[op];
    if (DVM_UNLIKELY(e->a64)) {
        dvm_a64_vec(e, op, attr, reg, vvvv, rm, imm);
        return;
    }
    if (!room(e)) return;
    unsigned enc = r->enc;
    uint8_t *p = e->p;
    if (rm.reg < 0 || r->form >= X_RVMR) {
        bool constant = rm.reg < 0 && rm.base == X_RIP && r->form < X_RVMR;
        if (constant && (enc & X_ENC_V) && attr <= 1 &&
            (reg | vvvv) < 16) { /* AVX2: every second */
            p = put8(put_vex(p, heads[op].vex, attr, reg, vvvv, 0), ((unsigned)reg & 7) << 3 | 5);
            e->p = put32(p, rm.disp - (int32_t)(p + 4 - e->base));
        } else {
            vec_rest(e, op, attr, reg, vvvv, rm, imm);
        }
        return;
    }
    unsigned xb = (unsigned)rm.reg >> 3;
    if ((enc & X_ENC_V) && (!(enc & X_ENC_E) || (attr <= 1 && (reg | vvvv | rm.reg) < 16)))
        p = put_vex(p, heads[op].vex, attr, reg, vvvv, xb);
    else
        p = put8(put_evex(p, heads[op].evex, attr, reg, vvvv, xb), r->opcode);
    e->p = put8(p, 0xc0 | ((unsigned)reg & 7) << 3 | ((unsigned)rm.reg & 7));
}

/* [66] [REX: 0100 W R X B] [0F] opcode modrm ... */
void dvm_x_gpr(struct dvm_enc *e, enum dvm_x_gop op, bool wide, int reg, struct dvm_x_rm rm,
               int imm) {
    if (DVM_UNLIKELY(e->a64)) {
        dvm_a64_gpr(e, op, wide, reg, rm, imm);
        return;
    }
    if (!room(e)) return;
    const struct dvm_x_grow *r = &dvm_x_grows[op];
    uint8_t *p = e->p;
    if (r->form == 'D') reg = r->digit;
    if (r->size == 'w' && r->form == 'M') p = put8(p, 0x66);
    unsigned rex =
        (unsigned)(wide || r->size == 'q') << 3 | ((unsigned)reg >> 3 & 1) << 2 | extend(rm);
    /* byte registers spl .. dil need a prefix, else they would be ah .. bh */
    bool byte = r->size == 'b' && (rm.reg >= 4 || (r->form == 'M' && reg >= 4));
    if (rex || byte) p = put8(p, 0x40 | rex);
    if (r->map) p = put8(p, 0x0f);
    p = put8(p, r->opcode);
    p = put_rm(e, p, reg, rm, 0, r->imm);
    if (r->imm == 1) p = put8(p, (unsigned)imm);
    if (r->imm == 4) p = put32(p, imm);
    e->p = p;
}

void dvm_x_mov_imm64(struct dvm_enc *e, int reg, uint64_t v) {
    if (DVM_UNLIKELY(e->a64)) {
        dvm_a64_imm(e, reg, v);
        return;
    }
    if (!room(e)) return;
    bool wide = v >> 32 != 0;
    if (wide || reg > 7) e->p = put8(e->p, 0x40 | (unsigned)wide << 3 | (unsigned)reg >> 3);
    e->p = put8(e->p, 0xb8 | ((unsigned)reg & 7));
    e->p = put32(e->p, (int32_t)(uint32_t)v);
    if (wide) e->p = put32(e->p, (int32_t)(uint32_t)(v >> 32));
}

void dvm_x_bzhi(struct dvm_enc *e, int d, int a, int b) {
    if (!room(e)) return;
    struct dvm_x_rm rm = dvm_x_reg(a);
    e->p = put_vex(e->p, 0xf578e2c4, 0, d, b, extend(rm));
    e->p = put_rm(e, e->p, d, rm, 0, 0);
}

void dvm_x_prefetch(struct dvm_enc *e, struct dvm_x_rm m) {
    if (e->a64 || !room(e)) return;
    unsigned rex = extend(m);
    uint8_t *p = e->p;
    if (rex) p = put8(p, 0x40 | rex);
    p = put8(p, 0x0f);
    p = put8(p, 0x18);
    e->p = put_mem(e, p, 1, m, 0, 0);
}

static void one_reg(struct dvm_enc *e, unsigned opcode, int reg) {
    if (!room(e)) return;
    if (reg > 7) e->p = put8(e->p, 0x41);
    e->p = put8(e->p, opcode | ((unsigned)reg & 7));
}
void dvm_x_push(struct dvm_enc *e, int reg) {
    if (e->a64)
        dvm_a64_push(e, reg);
    else
        one_reg(e, 0x50, reg);
}
void dvm_x_pop(struct dvm_enc *e, int reg) {
    if (e->a64)
        dvm_a64_pop(e, reg);
    else
        one_reg(e, 0x58, reg);
}

void dvm_x_call(struct dvm_enc *e, int reg) {
    if (DVM_UNLIKELY(e->a64)) {
        dvm_a64_call(e, reg);
        return;
    }
    if (!room(e)) return;
    if (reg > 7) e->p = put8(e->p, 0x41);
    e->p = put8(e->p, 0xff);
    e->p = put8(e->p, 0xd0 | ((unsigned)reg & 7));
}

static void bytes(struct dvm_enc *e, const char *s, size_t n) {
    if (!room(e)) return;
    memcpy(e->p, s, n);
    e->p += n;
}
void dvm_x_ret(struct dvm_enc *e) {
    if (e->a64)
        dvm_a64_word(e, A_RET);
    else
        bytes(e, "\xc3", 1);
}
void dvm_x_vzeroupper(struct dvm_enc *e) {
    if (!e->a64) bytes(e, "\xc5\xf8\x77", 3);
}
void dvm_x_sfence(struct dvm_enc *e) {
    if (e->a64)
        dvm_a64_word(e, A_DMB);
    else
        bytes(e, "\x0f\xae\xf8", 3);
}

void dvm_x_align(struct dvm_enc *e, int n) {
    static const char nop[9][9] = {"\x90",
                                   "\x66\x90",
                                   "\x0f\x1f\x00",
                                   "\x0f\x1f\x40\x00",
                                   "\x0f\x1f\x44\x00\x00",
                                   "\x66\x0f\x1f\x44\x00\x00",
                                   "\x0f\x1f\x80\x00\x00\x00\x00",
                                   "\x0f\x1f\x84\x00\x00\x00\x00\x00",
                                   {0x66, 0x0f, 0x1f, (char)0x84, 0, 0, 0, 0, 0}};
    int gap = -dvm_enc_at(e) & (n - 1);
    for (; e->a64 && gap > 0 && !e->full; gap -= 4) dvm_a64_word(e, A_NOP);
    for (int k; gap && !e->full; gap -= k) {
        k = DVM_MIN(gap, 9);
        bytes(e, nop[k - 1], (size_t)k);
    }
}

void dvm_x_jump_back(struct dvm_enc *e, enum dvm_x_cond c, int target) {
    if (DVM_UNLIKELY(e->a64)) {
        dvm_a64_jump_back(e, c, target);
        return;
    }
    if (!room(e)) return;
    int d = target - (dvm_enc_at(e) + 2);
    if (d >= -128) {
        e->p = put8(e->p, c == X_ALWAYS ? 0xeb : 0x70 | (unsigned)c);
        e->p = put8(e->p, (unsigned)d);
        return;
    }
    int jump = dvm_x_jump(e, c);
    put32(e->base + jump, target - (jump + 4));
}

/* Always with four bytes of distance: what lies between is not known yet. */
int dvm_x_jump(struct dvm_enc *e, enum dvm_x_cond c) {
    if (DVM_UNLIKELY(e->a64)) return dvm_a64_jump(e, c);
    if (!room(e)) return 0;
    if (c != X_ALWAYS) e->p = put8(e->p, 0x0f);
    e->p = put8(e->p, c == X_ALWAYS ? 0xe9 : 0x80 | (unsigned)c);
    int at = dvm_enc_at(e);
    e->p = put32(e->p, 0);
    return at;
}

int dvm_x_call_near(struct dvm_enc *e) {
    if (!room(e)) return 0;
    e->p = put8(e->p, 0xe8);
    int at = dvm_enc_at(e);
    e->p = put32(e->p, 0);
    return at;
}

void dvm_x_land(struct dvm_enc *e, int jump) {
    if (DVM_UNLIKELY(e->a64)) {
        dvm_a64_land(e, jump);
        return;
    }
    if (!e->full) put32(e->base + jump, dvm_enc_at(e) - (jump + 4));
}
