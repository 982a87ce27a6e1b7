/* Loads and stores of bf16, the upper half of an f32.
 *
 * Where a body does the same to every element and all it loads and stores is bf16 (b->pairs), units are paired: of the
 * elements of a full vector of 16 bits, unit 2k has the even ones and unit 2k + 1 the odd ones. A load is then a shift
 * or a mask of the same memory, and a store puts two vectors together as they are: 3 instructions for two vectors
 * instead of 4 with a shuffle each, and 3 instead of 8. Elsewhere (tails, single units, beside other dtypes) a unit has
 * neighbouring elements, and two units side by side are stored by 5 instructions. */
#include "vm/cpu/jit/jit_emit.h"

static void vec(struct dvm_je *e, int op, unsigned attr, int reg, int vvvv, struct dvm_x_rm rm,
                int imm) {
    dvm_x_vec(&e->e, (enum dvm_x_op)op, attr, reg, vvvv, rm, imm);
}

static void shift(struct dvm_je *e, int op, int d, struct dvm_x_rm x) {
    vec(e, op, e->full, 0, d, x, 16);
}

static void load_paired(struct dvm_je *e, const struct dvm_mi *m, int u) {
    bool odd = u & 1;
    int keep = odd ? dvm_j_get(e, m->a, u) : 0, d = dvm_j_dest(e, m->d, u);
    struct dvm_x_rm at = dvm_j_opnd(e, m, u - odd);
    if (odd) {
        vec(e, X_VANDPS, e->full, d, keep, at, 0);
        return;
    }
    if (!e->b->z) vec(e, X_VMOVUPS, e->full, d, 0, at, 0);
    shift(e, X_VPSLLD, d, e->b->z ? at : dvm_x_reg(d));
    dvm_j_fetch(e, m, u, at);
}

void dvm_j_bf16_load(struct dvm_je *e, const struct dvm_mi *m, int u) {
    struct dvm_mi words = *m;
    if (e->paired) {
        load_paired(e, m, u);
        return;
    }
    words.op = X_VPMOVZXWD;
    dvm_j_emit_load(e, &words, u);
    int d = dvm_j_where(e, m->d, u);
    shift(e, X_VPSLLD, d, dvm_x_reg(d));
}

/* Both units are there: their upper halves, in turn. */
static void store_paired(struct dvm_je *e, const struct dvm_mi *m, int u) {
    int even = dvm_j_get(e, m->a, u - 1), odd = dvm_j_get(e, m->a, u), t = dvm_j_take(e, J_V);
    unsigned attr = e->full;
    shift(e, X_VPSRLD, t, dvm_x_reg(even));
    if (e->b->z) {
        enum { C_IS_SET = 0xaa, B = 0xcc, A = 0xf0 };
        struct dvm_x_rm upper = dvm_j_operand(e, X_VPTERNLOGD, m->b, u, &attr);
        vec(e, X_VPTERNLOGD, attr, t, odd, upper, (C_IS_SET & B) | (~C_IS_SET & A & 0xff));
    } else {
        vec(e, X_VPBLENDW, e->full, t, t, dvm_x_reg(odd), 0xaa);
    }
    vec(e, e->stream ? X_VMOVNTPS : X_VMOVUPS_ST, e->full, t, 0, dvm_j_opnd(e, m, u - 1), 0);
    dvm_j_untake(e, J_V, t);
    dvm_j_done(e, m, u - 1);
    dvm_j_done(e, m, u);
}

/* The same of neighbouring elements. Packing puts four of one unit beside four of the other. */
static void store_two(struct dvm_je *e, const struct dvm_mi *m, int u) {
    enum { EVEN_THEN_ODD = 0xd8 };
    int low = dvm_j_get(e, m->a, u - 1), high = dvm_j_get(e, m->a, u);
    int order = e->b->z ? dvm_j_get(e, m->c, u) : 0;
    int t = dvm_j_take(e, J_V), x = dvm_j_take(e, J_V);
    shift(e, X_VPSRLD, t, dvm_x_reg(low));
    shift(e, X_VPSRLD, x, dvm_x_reg(high));
    vec(e, X_VPACKUSDW, e->full, t, t, dvm_x_reg(x), 0);
    if (e->b->z)
        vec(e, X_VPERMQ_V, e->full, t, order, dvm_x_reg(t), 0);
    else
        vec(e, X_VPERMQ, e->full, t, 0, dvm_x_reg(t), EVEN_THEN_ODD);
    vec(e, X_VMOVUPS_ST, e->full, t, 0, dvm_j_opnd(e, m, u - 1), 0);
    dvm_j_untake(e, J_V, t);
    dvm_j_untake(e, J_V, x);
    dvm_j_done(e, m, u - 1);
    dvm_j_done(e, m, u);
}

/* Stores past the caches are aligned for one unit. */
static bool stores_two(const struct dvm_je *e) {
    return e->unroll > 1 && !e->masked && !e->by_unit && !e->stream;
}

void dvm_j_bf16_store(struct dvm_je *e, const struct dvm_mi *m, int u) {
    struct dvm_mi words = *m;
    if (e->paired || stores_two(e)) {
        if (u & 1) (e->paired ? store_paired : store_two)(e, m, u);
        return;
    }
    int t = dvm_j_take(e, J_V);
    shift(e, X_VPSRLD, t, dvm_x_reg(dvm_j_get(e, m->a, u)));
    if (e->b->z) {
        words.op = X_VPMOVDW;
    } else {
        int high = dvm_j_take(e, J_V);
        vec(e, X_VEXTRACTF128, X_256, t, 0, dvm_x_reg(high), 1);
        vec(e, X_VPACKUSDW, X_128, t, t, dvm_x_reg(high), 0);
        dvm_j_untake(e, J_V, high);
        words.op = X_VMOVUPS_ST;
        words.attr = X_128;
    }
    dvm_j_emit_store(e, &words, u, t);
    dvm_j_untake(e, J_V, t);
    dvm_j_done(e, m, u);
}

/* a0 a1 .. and b0 b1 .. to a0 b0 a1 b1 .. in both registers; t is a third one. */
static void interleave(struct dvm_je *e, int a, int b, int t) {
    vec(e, X_VUNPCKLPS, e->full, t, a, dvm_x_reg(b), 0);
    vec(e, X_VUNPCKHPS, e->full, b, a, dvm_x_reg(b), 0);
    if (e->b->z) {
        enum { LOW_HALVES = 0x44, HIGH_HALVES = 0xee, BY_TURNS = 0xd8 };
        vec(e, X_VSHUFF64X2, e->full, a, t, dvm_x_reg(b), LOW_HALVES);
        vec(e, X_VSHUFF64X2, e->full, b, t, dvm_x_reg(b), HIGH_HALVES);
        vec(e, X_VSHUFF64X2, e->full, a, a, dvm_x_reg(a), BY_TURNS);
        vec(e, X_VSHUFF64X2, e->full, b, b, dvm_x_reg(b), BY_TURNS);
    } else {
        vec(e, X_VINSERTF128, e->full, a, t, dvm_x_reg(b), 1);
        vec(e, X_VEXTRACTF128, e->full, t, 0, dvm_x_reg(t), 1);
        vec(e, X_VPBLENDD, e->full, b, b, dvm_x_reg(t), 0x0f);
    }
}

void dvm_j_unpair(struct dvm_je *e, int units) {
    dvm_j_begin_list(e, J_BODY);
    e->lock[J_V] = 0;
    int t = dvm_j_take(e, J_V);
    for (int k = 0; k < e->b->nacc; k++)
        for (int u = 0; u < units; u += 2)
            interleave(e, e->b->acc[k].reg[u], e->b->acc[k].reg[u + 1], t);
    dvm_j_untake(e, J_V, t);
}
