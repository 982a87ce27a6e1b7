/* Strip instructions to micro-operations, one after the other; here the 32-bit types and bool. Stores that stand before
 * a load are moved behind the last one, so that an output may be an input. */
#include <string.h>

#include "base/err.h"
#include "code/bc_table.h"
#include "vm/cpu/jit/jit_help.h"
#include "vm/cpu/jit/jit_ir.h"

enum { SIGN = INT32_MIN, ONE = 0x3f800000, INF = 0x7f800000 }; /* bits of an f32 */

/* ---- f32 */

static dvm_vid sign_f32(struct dvm_jb *b, dvm_vid x) {
    dvm_vid zero = dvm_j_const32(b, 0);
    dvm_vid s = dvm_j_and(b, x, dvm_j_const32(b, SIGN));
    dvm_vid one = dvm_j_or(b, s, dvm_j_const32(b, ONE));
    dvm_vid size = dvm_j_and(b, x, dvm_j_const32(b, ~(uint32_t)SIGN));
    return dvm_j_sel(b, dvm_j_cmpf(b, zero, size, J_F_LT), one, zero); /* false for NaN */
}

static bool safe_const(const struct dvm_jb *b,
                       dvm_vid x) { /* a number that is neither zero nor NaN */
    uint32_t bits;
    if (!b->val[x].konst) return false;
    memcpy(&bits, b->pool + b->val[x].home, 4);
    bits &= 0x7fffffff;
    return bits != 0 && bits <= INF;
}

/* The instruction gives its second operand when one is NaN or both are zero: right but for a NaN in the first. */
static dvm_vid max_f32(struct dvm_jb *b, int op, dvm_vid x, dvm_vid y) {
    if (safe_const(b, x)) return dvm_j_2(b, op, x, y);
    if (safe_const(b, y)) return dvm_j_2(b, op, y, x);
    dvm_vid r = dvm_j_2(b, op, x, y);
    return dvm_j_sel(b, dvm_j_cmpf(b, x, x, J_F_UNORD), x, r);
}

static dvm_vid recip(struct dvm_jb *b, dvm_vid x) {
    return dvm_j_2(b, X_VDIVPS, dvm_j_const32(b, ONE), x);
}

dvm_vid dvm_j_f32(struct dvm_jb *b, int op, const dvm_vid v[3]) {
    dvm_vid x = v[0], y = v[1], zero = dvm_j_const32(b, 0);
    switch (op) {
    case DVM_OP_COPY: return x;
    case DVM_OP_NEG: return dvm_j_xor(b, x, dvm_j_const32(b, SIGN));
    case DVM_OP_ABS: return dvm_j_and(b, x, dvm_j_const32(b, ~(uint32_t)SIGN));
    case DVM_OP_SIGN: return sign_f32(b, x);
    case DVM_OP_RELU: return dvm_j_sel(b, dvm_j_cmpf(b, x, zero, J_F_NLE), x, zero);
    case DVM_OP_SQRT: return dvm_j_1(b, X_VSQRTPS, x);
    case DVM_OP_RECIP: return recip(b, x);
    case DVM_OP_ROUND: return dvm_j_round(b, x, 0);
    case DVM_OP_FLOOR: return dvm_j_round(b, x, 1);
    case DVM_OP_CEIL: return dvm_j_round(b, x, 2);
    case DVM_OP_TRUNC: return dvm_j_round(b, x, 3);
    case DVM_OP_ADD: return dvm_j_2(b, X_VADDPS, x, y);
    case DVM_OP_SUB: return dvm_j_2(b, X_VSUBPS, x, y);
    case DVM_OP_MUL: return dvm_j_2(b, X_VMULPS, x, y);
    case DVM_OP_DIV: return dvm_j_2(b, X_VDIVPS, x, y);
    case DVM_OP_TRUNCDIV: return dvm_j_round(b, dvm_j_2(b, X_VDIVPS, x, y), 3);
    case DVM_OP_MAX: return max_f32(b, X_VMAXPS, x, y);
    case DVM_OP_MIN: return max_f32(b, X_VMINPS, x, y);
    case DVM_OP_FLOORDIV:
    case DVM_OP_REM:
    case DVM_OP_FMOD: return dvm_j_divide_f32(b, op, x, y);
    case DVM_OP_FMA: return dvm_j_vec(b, M_FMA, x, y, v[2], 0);
    default: return dvm_j_expand(b, op, x, y);
    }
}

static dvm_vid compare_f32(struct dvm_jb *b, int op, dvm_vid x, dvm_vid y) {
    switch (op) {
    case DVM_OP_ISFINITE:
        return dvm_j_cmpf(b, dvm_j_and(b, x, dvm_j_const32(b, ~(uint32_t)SIGN)),
                          dvm_j_const32(b, INF), J_F_LT);
    case DVM_OP_ISNAN: return dvm_j_cmpf(b, x, x, J_F_UNORD);
    case DVM_OP_EQ: return dvm_j_cmpf(b, x, y, J_F_EQ);
    case DVM_OP_NE: return dvm_j_cmpf(b, x, y, J_F_NE);
    case DVM_OP_LT: return dvm_j_cmpf(b, x, y, J_F_LT);
    case DVM_OP_LE: return dvm_j_cmpf(b, x, y, J_F_LE);
    case DVM_OP_GT: return dvm_j_cmpf(b, x, y, J_F_GT);
    default: return dvm_j_cmpf(b, x, y, J_F_GE);
    }
}

/* ---- i32 */

/* Quotient toward zero through f64, where it is exact: the nearest a quotient of 32-bit numbers comes to an integer
 * without being one is farther than the rounding error. Division by zero gives 0. */
static dvm_vid quotient(struct dvm_jb *b, dvm_vid x, dvm_vid y, dvm_vid by_zero) {
    dvm_vid half[2];
    for (int k = 0; k < 2; k++) {
        dvm_vid xd = dvm_j_1(b, X_VCVTDQ2PD, k ? dvm_j_high(b, x) : x);
        dvm_vid yd = dvm_j_1(b, X_VCVTDQ2PD, k ? dvm_j_high(b, y) : y);
        half[k] = dvm_j_1i(b, X_VCVTTPD2DQ, dvm_j_2(b, X_VDIVPD, xd, yd), 1); /* wraps */
    }
    return dvm_j_sel(b, by_zero, dvm_j_const32(b, 0), dvm_j_join(b, half[0], half[1]));
}

static dvm_vid divide_i32(struct dvm_jb *b, int op, dvm_vid x, dvm_vid y) {
    dvm_vid zero = dvm_j_const32(b, 0);
    dvm_vid by_zero = dvm_j_cmpi(b, y, zero, J_I_EQ);
    dvm_vid q = quotient(b, x, y, by_zero);
    if (op == DVM_OP_TRUNCDIV) return q;
    dvm_vid r = dvm_j_2(b, X_VPSUBD, x, dvm_j_2(b, X_VPMULLD, q, y));
    r = dvm_j_sel(b, by_zero, zero, r);
    if (op == DVM_OP_FMOD) return r;
    /* the remainder is not zero and of the other sign than the divisor */
    dvm_vid differ = dvm_j_cmpi(b, dvm_j_xor(b, r, y), zero, J_I_LT);
    dvm_vid off = dvm_j_band(b, differ, dvm_j_cmpi(b, r, zero, J_I_NE));
    if (op == DVM_OP_REM) return dvm_j_2(b, X_VPADDD, r, dvm_j_sel(b, off, y, zero));
    return dvm_j_2(b, X_VPADDD, q, dvm_j_sel(b, off, dvm_j_const32(b, UINT32_MAX), zero));
}

static dvm_vid power_i32(struct dvm_jb *b, dvm_vid x, dvm_vid y) {
    struct dvm_jpair px = {x, x}, py = {y, y};
    dvm_vid r = dvm_j_power_i32(b, x, y);
    return r ? r : dvm_j_call(b, J_H_POW32, DVM_VT_I32, DVM_VT_I32, px, py).lo;
}

static dvm_vid count32(struct dvm_jb *b, dvm_vid y) {
    return dvm_j_and(b, y, dvm_j_const32(b, 31));
}

dvm_vid dvm_j_i32(struct dvm_jb *b, int op, const dvm_vid v[3]) {
    dvm_vid x = v[0], y = v[1], zero = dvm_j_const32(b, 0), minus = dvm_j_const32(b, UINT32_MAX);
    switch (op) {
    case DVM_OP_COPY: return x;
    case DVM_OP_NEG: return dvm_j_2(b, X_VPSUBD, zero, x);
    case DVM_OP_ABS: return dvm_j_1(b, X_VPABSD, x);
    case DVM_OP_SIGN:
        return dvm_j_2(b, X_VPMAXSD, dvm_j_2(b, X_VPMINSD, x, dvm_j_const32(b, 1)), minus);
    case DVM_OP_RELU: return dvm_j_2(b, X_VPMAXSD, x, zero);
    case DVM_OP_NOT: return dvm_j_xor(b, x, minus);
    case DVM_OP_ADD: return dvm_j_2(b, X_VPADDD, x, y);
    case DVM_OP_SUB: return dvm_j_2(b, X_VPSUBD, x, y);
    case DVM_OP_MUL: return dvm_j_2(b, X_VPMULLD, x, y);
    case DVM_OP_MAX: return dvm_j_2(b, X_VPMAXSD, x, y);
    case DVM_OP_MIN: return dvm_j_2(b, X_VPMINSD, x, y);
    case DVM_OP_AND: return dvm_j_and(b, x, y);
    case DVM_OP_OR: return dvm_j_or(b, x, y);
    case DVM_OP_XOR: return dvm_j_xor(b, x, y);
    case DVM_OP_SHL: return dvm_j_2(b, X_VPSLLVD, x, count32(b, y));
    case DVM_OP_SHR: return dvm_j_2(b, X_VPSRAVD, x, count32(b, y));
    case DVM_OP_POW: return power_i32(b, x, y);
    case DVM_OP_PHILOX: return dvm_j_philox32(b, v);
    case DVM_OP_FLOORDIV:
    case DVM_OP_TRUNCDIV:
    case DVM_OP_REM:
    case DVM_OP_FMOD: return divide_i32(b, op, x, y);
    default: return 0;
    }
}

static int predicate_of(int op) {
    switch (op) {
    case DVM_OP_EQ: return J_I_EQ;
    case DVM_OP_NE: return J_I_NE;
    case DVM_OP_LT: return J_I_LT;
    case DVM_OP_LE: return J_I_LE;
    case DVM_OP_GT: return J_I_GT;
    default: return J_I_GE;
    }
}

/* ---- bool: arithmetic with 0 and 1, then "not zero?" */

static dvm_vid ew_b1(struct dvm_jb *b, int op, dvm_vid x, dvm_vid y) {
    switch (op) {
    case DVM_OP_COPY: return x;
    case DVM_OP_NOT: return dvm_j_bnot(b, x);
    case DVM_OP_ADD:
    case DVM_OP_MAX:
    case DVM_OP_OR: return dvm_j_bor(b, x, y);
    case DVM_OP_MUL:
    case DVM_OP_MIN:
    case DVM_OP_AND: return dvm_j_band(b, x, y);
    case DVM_OP_SUB:
    case DVM_OP_XOR:
    case DVM_OP_NE: return dvm_j_bxor(b, x, y);
    case DVM_OP_EQ: return dvm_j_bnot(b, dvm_j_bxor(b, x, y));
    case DVM_OP_LT: return dvm_j_band(b, dvm_j_bnot(b, x), y);
    case DVM_OP_LE: return dvm_j_bor(b, dvm_j_bnot(b, x), y);
    case DVM_OP_GT: return dvm_j_band(b, x, dvm_j_bnot(b, y));
    case DVM_OP_GE: return dvm_j_bor(b, x, dvm_j_bnot(b, y));
    default: return 0;
    }
}

static dvm_vid select_b1(struct dvm_jb *b, dvm_vid m, dvm_vid x, dvm_vid y) {
    if (!b->z) return dvm_j_sel(b, m, x, y);
    return dvm_j_bor(b, dvm_j_band(b, m, x), dvm_j_band(b, dvm_j_bnot(b, m), y));
}

/* ---- a sign taken back: x + -y is x - y to the bit. The negation is dropped when nothing else uses it. */

static bool is_neg(const struct dvm_jb *b, int at) {
    return b->s->ins[at].op == DVM_OP_NEG && b->s->ins[at].type == DVM_VT_F32;
}

static dvm_vid source_of(const struct dvm_jb *b, int at) { return b->of[b->s->ins[at].a].lo; }

static dvm_vid signed_f32(struct dvm_jb *b, const struct dvm_ins *i, const dvm_vid v[3]) {
    switch (i->op) {
    case DVM_OP_ADD:
        if (is_neg(b, i->b)) return dvm_j_2(b, X_VSUBPS, v[0], source_of(b, i->b));
        if (is_neg(b, i->a)) return dvm_j_2(b, X_VSUBPS, v[1], source_of(b, i->a));
        return 0;
    case DVM_OP_SUB:
        if (is_neg(b, i->b)) return dvm_j_2(b, X_VADDPS, v[0], source_of(b, i->b));
        return 0;
    default: return 0;
    }
}

/* ---- instructions */

static bool ew(struct dvm_jb *b, const struct dvm_ins *i, struct dvm_jpair *out) {
    struct dvm_jpair in[3] = {b->of[i->a], b->of[i->b], b->of[i->c]};
    dvm_vid v[3] = {in[0].lo, in[1].lo, in[2].lo};
    int t = b->s->ins[i->a].type, op = i->op;
    if (op == DVM_OP_CAST) return dvm_j_cast(b, t, i->type, in[0], out);
    if (op == DVM_OP_SELECT) {
        if (i->type == DVM_VT_I64 || i->type == DVM_VT_F64)
            *out = dvm_j_sel64(b, v[0], in[1], in[2]);
        else
            out->lo = i->type == DVM_VT_B1 ? select_b1(b, v[0], v[1], v[2])
                                           : dvm_j_sel(b, v[0], v[1], v[2]);
        return true;
    }
    switch (t) {
    case DVM_VT_F64: *out = in[0]; return op == DVM_OP_COPY;
    case DVM_VT_I64: return dvm_j_ew64(b, op, in, out);
    case DVM_VT_B1: out->lo = ew_b1(b, op, v[0], v[1]); break;
    case DVM_VT_F32:
        out->lo = i->type == DVM_VT_B1 ? compare_f32(b, op, v[0], v[1]) : signed_f32(b, i, v);
        if (!out->lo) out->lo = dvm_j_f32(b, op, v);
        break;
    default:
        out->lo = i->type == DVM_VT_B1 ? dvm_j_cmpi(b, v[0], v[1], predicate_of(op))
                                       : dvm_j_i32(b, op, v);
        break;
    }
    return out->lo != 0;
}

/* A mask of equal lanes. */
static dvm_vid bool_const(struct dvm_jb *b, bool x) {
    if (!b->z) return dvm_j_const32(b, x ? UINT32_MAX : 0);
    dvm_vid zero = dvm_j_const32(b, 0);
    return dvm_j_cmpi(b, zero, zero, x ? J_I_EQ : J_I_NE);
}

static struct dvm_jpair literal(struct dvm_jb *b, int type, uint64_t bits) {
    dvm_vid v;
    if (type == DVM_VT_B1)
        v = bool_const(b, bits != 0);
    else
        v = type == DVM_VT_I64 ? dvm_j_const64(b, bits) : dvm_j_const32(b, (uint32_t)bits);
    return (struct dvm_jpair){v, v};
}

static struct dvm_jpair parameter(struct dvm_jb *b, int type, int p) {
    int op = type == DVM_VT_I64 ? X_VPBROADCASTQ : X_VBROADCASTSS;
    dvm_vid v = dvm_j_op(
        b, J_V,
        (struct dvm_mi){
            .op = (uint16_t)op, .attr = (uint8_t)b->len, .mem = J_PARAM, .o = (uint16_t)p});
    if (type == DVM_VT_B1) v = dvm_j_cmpi(b, v, dvm_j_const32(b, 0), J_I_NE);
    return (struct dvm_jpair){v, v};
}

/* Running sums: a state in the frame, whose buffer holds the result. */
static bool scan(struct dvm_jb *b, int type, struct dvm_jpair x, struct dvm_jpair *r) {
    struct dvm_mi m = {.op = M_SCAN, .attr = (uint8_t)b->len, .imm = (uint8_t)type, .a = x.lo};
    struct dvm_mi load = {.op = X_VMOVUPS, .attr = (uint8_t)b->len, .mem = J_FRAME};
    if (b->nscan == J_MAX_SCANS) return false;
    m.disp = dvm_j_frame(b, J_SCAN_BYTES);
    b->scan[b->nscan++] = m.disp;
    if (type == DVM_VT_I64) m.b = x.hi;
    dvm_j_add(b, J_BODY, &m);
    load.disp = m.disp + J_S_BUF;
    b->floor = J_BODY;
    r->lo = r->hi = dvm_j_op(b, J_V, load);
    load.disp += b->width * 4;
    if (type == DVM_VT_I64) r->hi = dvm_j_op(b, J_V, load);
    b->floor = J_CALL;
    return true;
}

/* Whether an f32 value is one of bf16, so that storing it as such rounds nothing. */
static bool is_bf16(const struct dvm_jb *b, const struct dvm_ins *i) {
    if (i->type != DVM_VT_F32) return false;
    switch (i->op) {
    case DVM_BC_LOAD:
    case DVM_BC_PICK: return b->s->opnd[i->a].dtype == DVM_BF16;
    case DVM_BC_RND: return i->b == DVM_BF16;
    case DVM_BC_LIT: return (b->s->lit[i->a] & 0xffff) == 0;
    case DVM_OP_COPY:
    case DVM_OP_NEG:
    case DVM_OP_ABS:
    case DVM_OP_RELU: return b->bf16[i->a];
    case DVM_OP_MAX:
    case DVM_OP_MIN: return b->bf16[i->a] && b->bf16[i->b];
    case DVM_OP_SELECT: return b->bf16[i->b] && b->bf16[i->c];
    default: return false;
    }
}

static bool instruction(struct dvm_jb *b, int at) {
    const struct dvm_ins *i = &b->s->ins[at];
    struct dvm_jpair r = {0};
    bool ok = true;
    switch (i->op) {
    case DVM_BC_LOAD: r = dvm_j_load(b, i->a); break;
    case DVM_BC_LIT: r = literal(b, i->type, b->s->lit[i->a]); break;
    case DVM_BC_PARAM: r = parameter(b, i->type, i->a); break;
    case DVM_BC_RND:
        r = i->b == DVM_BF16 && b->bf16[i->a] ? b->of[i->a] : dvm_j_rnd(b, i->b, b->of[i->a]);
        break;
    case DVM_BC_FOLD: ok = dvm_j_fold(b, i, b->of[i->a]); break;
    case DVM_BC_SCAN: ok = scan(b, i->type, b->of[i->a], &r); break;
    case DVM_BC_PICK: r = dvm_j_pick(b, i->a, b->s->ins[i->b].type, b->of[i->b]); break;
    case DVM_BC_STORE: return true;
    default: ok = ew(b, i, &r); break;
    }
    if (!r.hi) r.hi = r.lo;
    b->of[at] = r;
    b->bf16[at] = is_bf16(b, i);
    return ok;
}

static void stores(struct dvm_jb *b, int from, int to) {
    for (int k = from; k < to; k++) {
        if (b->s->ins[k].op != DVM_BC_STORE) continue;
        b->from = (uint16_t)k;
        dvm_j_store(b, b->s->ins[k].a, b->of[b->s->ins[k].b], b->bf16[b->s->ins[k].b]);
    }
}

static int last_load(const struct dvm_strip *s) {
    int last = -1;
    for (int k = 0; k < s->nins; k++)
        if (s->ins[k].op == DVM_BC_LOAD || s->ins[k].op == DVM_BC_PICK) last = k;
    return last;
}

dvm_status dvm_j_lower(struct dvm_jb *b) {
    int last = last_load(b->s);
    dvm_j_choose_subs(b);
    for (int k = 0; k < b->s->nins; k++) {
        b->from = (uint16_t)k;
        if (!instruction(b, k) && !b->failed) {
            const struct dvm_ins *i = &b->s->ins[k];
            DVM_FAIL(UNSUPPORTED, "machine code: no %s.%s", dvm_bc_name(i->op),
                     dvm_vt_name(i->type));
        }
        if (k == last)
            stores(b, 0, k);
        else if (k > last)
            stores(b, k, k + 1);
    }
    dvm_j_ends(b);
    if (b->no_memory) return DVM_ERR_NOMEM;
    if (b->failed) DVM_FAIL(UNSUPPORTED, "machine code: the strip is too long");
    return DVM_OK;
}
