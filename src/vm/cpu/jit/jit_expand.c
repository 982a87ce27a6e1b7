/* The functions of expand.h as micro-operations: the text is instantiated with value numbers. */
#include <string.h>

#include "vm/cpu/jit/jit_ir.h"

static dvm_vid constant(struct dvm_jb *b, float f) {
    uint32_t bits;
    memcpy(&bits, &f, 4);
    return dvm_j_const32(b, bits);
}

static dvm_vid three(struct dvm_jb *b, int op, dvm_vid x, dvm_vid y, dvm_vid z) {
    return dvm_j_vec(b, op, x, y, z, 0);
}

static dvm_vid minus(struct dvm_jb *b, dvm_vid x, dvm_vid y, dvm_vid z) {
    if (!b->neon) return three(b, M_FMS, x, y, z);
    return three(b, M_FMA, x, y, dvm_j_xor(b, z, dvm_j_const32(b, 0x80000000)));
}

/* p * 2^n with one rounding, |n| <= 160 and integral. Without the instruction two factors, both in range: 2^(n +- 64)
 * is exact, its sign chosen so that the second, 2^-+64, does the rounding. */
static dvm_vid scale(struct dvm_jb *b, dvm_vid p, dvm_vid n) {
    if (b->z) return dvm_j_2(b, X_VSCALEFPS, p, n);
    dvm_vid neg = dvm_j_cmpf(b, n, dvm_j_const32(b, 0), J_F_LT);
    dvm_vid t = dvm_j_2(b, X_VADDPS, n, constant(b, 0x1.8p23f));
    dvm_vid i = dvm_j_1i(b, X_VPSLLD, t, 23);
    dvm_vid c = dvm_j_sel(b, neg, dvm_j_const32(b, 0x5f800000), dvm_j_const32(b, 0x1f800000));
    dvm_vid q = dvm_j_2(b, X_VMULPS, p, dvm_j_2(b, X_VPADDD, i, c));
    dvm_vid k = dvm_j_sel(b, neg, constant(b, 0x1p-64f), constant(b, 0x1p64f));
    return dvm_j_2(b, X_VMULPS, q, k);
}

#define XFN(name) x_##name
#define XF dvm_vid
#define XI dvm_vid
#define XB dvm_vid
#define XCTX struct dvm_jb *jb,
#define XCTX_ jb,
#define XK(f) constant(jb, f)
#define XKI(i) dvm_j_const32(jb, (uint32_t)(i))
#define X_ADD(x, y) dvm_j_2(jb, X_VADDPS, x, y)
#define X_SUB(x, y) dvm_j_2(jb, X_VSUBPS, x, y)
#define X_MUL(x, y) dvm_j_2(jb, X_VMULPS, x, y)
#define X_DIV(x, y) dvm_j_2(jb, X_VDIVPS, x, y)
#define X_SQRT(x) dvm_j_1(jb, X_VSQRTPS, x)
#define X_FMA(x, y, z) three(jb, M_FMA, x, y, z)
#define X_FNMA(x, y, z) three(jb, M_FNMA, x, y, z)
#define X_FMS(x, y, z) minus(jb, x, y, z)
#define X_SCALEF(x, y) scale(jb, x, y)
#define X_NEG(x) dvm_j_xor(jb, x, dvm_j_const32(jb, 0x80000000))
#define X_ABS(x) dvm_j_and(jb, x, dvm_j_const32(jb, 0x7fffffff))
#define X_RINT(x) dvm_j_round(jb, x, 0)
#define X_MIN(x, y) dvm_j_2(jb, X_VMINPS, x, y)
#define X_MAX(x, y) dvm_j_2(jb, X_VMAXPS, x, y)
#define X_LT(x, y) dvm_j_cmpf(jb, x, y, J_F_LT)
#define X_LE(x, y) dvm_j_cmpf(jb, x, y, J_F_LE)
#define X_EQ(x, y) dvm_j_cmpf(jb, x, y, J_F_EQ)
#define X_NE(x, y) dvm_j_cmpf(jb, x, y, J_F_NE)
#define X_SEL(m, x, y) dvm_j_sel(jb, m, x, y)
#define X_F2I(x) (x)
#define X_I2F(x) (x)
#define X_CVT_I2F(x) dvm_j_1(jb, X_VCVTDQ2PS, x)
#define X_CVT_F2I(x) dvm_j_1(jb, X_VCVTTPS2DQ, x)
#define XI_ADD(x, y) dvm_j_2(jb, X_VPADDD, x, y)
#define XI_SUB(x, y) dvm_j_2(jb, X_VPSUBD, x, y)
#define XI_AND(x, y) dvm_j_and(jb, x, y)
#define XI_OR(x, y) dvm_j_or(jb, x, y)
#define XI_XOR(x, y) dvm_j_xor(jb, x, y)
#define XI_SHL(x, n) dvm_j_1i(jb, X_VPSLLD, x, n)
#define XI_SHR(x, n) dvm_j_1i(jb, X_VPSRLD, x, n)
#define XI_SAR(x, n) dvm_j_1i(jb, X_VPSRAD, x, n)
#define XI_LT(x, y) dvm_j_cmpi(jb, x, y, J_I_LT)
#define XI_EQ(x, y) dvm_j_cmpi(jb, x, y, J_I_EQ)
#define XI_SEL(m, x, y) dvm_j_sel(jb, m, x, y)
#define XB_AND(x, y) dvm_j_band(jb, x, y)
#define XB_OR(x, y) dvm_j_bor(jb, x, y)
#define XB_NOT(x) dvm_j_bnot(jb, x)
#define XI_MUL(x, y) dvm_j_2(jb, X_VPMULLD, x, y)
#define XI_UMULH(x, y) dvm_j_umulh(jb, x, y)
#define XI_SHLV(x, y) dvm_j_2(jb, X_VPSLLVD, x, y)
#define XI_SHRV(x, y) dvm_j_2(jb, X_VPSRLVD, x, y)
#include "code/expand.h"

static const float TRIG_BOUND = 0x1p17f;

/* Sine and cosine of moderate arguments are a quarter of the work of those for all arguments, and give the same bits
 * there; the rest is jumped over when no lane needs it. */
static dvm_vid trig(struct dvm_jb *b, bool cosine, dvm_vid x) {
    int list = dvm_j_list_of(b, x);
    if (b->neon || list < J_BODY) return cosine ? x_cos(b, x) : x_sin(b, x);
    dvm_vid near = cosine ? x_cos_small(b, x) : x_sin_small(b, x);
    dvm_vid size = dvm_j_and(b, x, dvm_j_const32(b, 0x7fffffff));
    dvm_vid all = dvm_j_cmpf(b, size, constant(b, TRIG_BOUND), J_F_LE);
    struct dvm_mi skip = {.op = M_SKIP, .a = all}, end = {.op = M_SKIP_END};
    b->skips |= list == J_BODY;
    dvm_j_add(b, list, &skip);
    end.disp = (int32_t)b->nval;
    dvm_vid far = cosine ? x_cos(b, x) : x_sin(b, x);
    end.o = (uint16_t)b->nval;
    dvm_j_add(b, list, &end);
    return dvm_j_sel(b, all, near, far);
}

static dvm_vid expand(struct dvm_jb *b, int op, dvm_vid x, dvm_vid y) {
    switch (op) {
    case DVM_OP_RSQRT: return x_rsqrt(b, x);
    case DVM_OP_EXP: return x_exp(b, x);
    case DVM_OP_EXP2: return x_exp2(b, x);
    case DVM_OP_EXPM1: return x_expm1(b, x);
    case DVM_OP_LOG: return x_log(b, x);
    case DVM_OP_LOG2: return x_log2(b, x);
    case DVM_OP_LOG1P: return x_log1p(b, x);
    case DVM_OP_SIN: return trig(b, false, x);
    case DVM_OP_COS: return trig(b, true, x);
    case DVM_OP_TANH: return x_tanh(b, x);
    case DVM_OP_SIGMOID: return x_sigmoid(b, x);
    case DVM_OP_ERF: return x_erf(b, x);
    case DVM_OP_POW: return x_pow(b, x, y);
    default: return 0;
    }
}

/* ---- routines: a long strip with many functions has each of them once, and calls it */

enum {
    LONG = 160, /* micro-operations: shorter bodies are faster with everything in place */
    MOST_CALLS = J_MAX_CALLS / 2 /* the body is emitted twice at most */
};

/* Micro-operations of a function, roughly; 0: not one. */
static int length(int op) {
    switch (op) {
    case DVM_OP_RSQRT: return 10;
    case DVM_OP_EXP:
    case DVM_OP_EXP2: return 25;
    case DVM_OP_EXPM1:
    case DVM_OP_LOG:
    case DVM_OP_LOG2:
    case DVM_OP_LOG1P:
    case DVM_OP_TANH:
    case DVM_OP_SIGMOID:
    case DVM_OP_ERF: return 40;
    case DVM_OP_SIN:
    case DVM_OP_COS:
    case DVM_OP_POW: return 120;
    default: return 0;
    }
}

void dvm_j_choose_subs(struct dvm_jb *b) {
    int count[DVM_NOP] = {0}, total = b->s->nins;
    if (b->neon) return; /* calls need the link register there */
    for (int k = 0; k < b->s->nins; k++) {
        const struct dvm_ins *i = &b->s->ins[k];
        if (i->op >= DVM_NOP || i->type != DVM_VT_F32 || !length(i->op)) continue;
        count[i->op]++;
        total += length(i->op);
    }
    for (int op = 0; op < DVM_NOP && total > LONG; op++) /* AVX2 emits the body for the tail too */
        b->as_sub[op] = count[op] > b->z && count[op] <= MOST_CALLS;
}

static struct dvm_jsub *new_sub(struct dvm_jb *b, int op) {
    int list = J_SUBS + b->nsub, floor = b->floor;
    if (!b->sub) b->sub = dvm_arena_raw(b->arena, J_MAX_SUBS * sizeof *b->sub);
    if (!b->sub) {
        b->failed = b->no_memory = true;
        return NULL;
    }
    struct dvm_jsub *s = &b->sub[b->nsub++];
    *s = (struct dvm_jsub){.op = (uint8_t)op, .in = {dvm_j_value(b, J_V, list)}};
    if (op == DVM_OP_POW) s->in[1] = dvm_j_value(b, J_V, list);
    b->floor = list;
    s->out = expand(b, op, s->in[0], s->in[1]);
    b->floor = floor;
    if (!b->failed) b->val[s->out].last = INT32_MAX; /* wanted at the end */
    return s;
}

dvm_vid dvm_j_expand(struct dvm_jb *b, int op, dvm_vid x, dvm_vid y) {
    bool two = op == DVM_OP_POW,
         body = b->val[x].list == J_BODY || (two && b->val[y].list == J_BODY);
    int k = 0;
    if (!b->as_sub[op] || !body) return expand(b, op, x, y);
    while (k < b->nsub && b->sub[k].op != op) k++;
    if (k == b->nsub && (k == J_MAX_SUBS || !new_sub(b, op)))
        return b->failed ? 0 : expand(b, op, x, y);
    return dvm_j_op(
        b, J_V,
        (struct dvm_mi){
            .op = M_SUB, .attr = (uint8_t)b->len, .o = (uint16_t)k, .a = x, .b = two ? y : 0});
}
