/* 64-bit integers as pairs of vectors, and casts between all types. */
#include "code/philox.h"
#include "vm/cpu/jit/jit_help.h"
#include "vm/cpu/jit/jit_ir.h"

typedef struct dvm_jpair pair;

static bool uniform(pair x) { return x.lo == x.hi; }

static pair two(struct dvm_jb *b, int op, pair x, pair y) {
    pair r;
    r.lo = dvm_j_2(b, op, x.lo, y.lo);
    r.hi = uniform(x) && uniform(y) ? r.lo : dvm_j_2(b, op, x.hi, y.hi);
    return r;
}

static pair one(struct dvm_jb *b, int op, pair x) {
    pair r;
    r.lo = dvm_j_1(b, op, x.lo);
    r.hi = uniform(x) ? r.lo : dvm_j_1(b, op, x.hi);
    return r;
}

static pair shift(struct dvm_jb *b, int op, pair x, int n) {
    pair r;
    r.lo = dvm_j_1i(b, op, x.lo, n);
    r.hi = uniform(x) ? r.lo : dvm_j_1i(b, op, x.hi, n);
    return r;
}

static pair number(struct dvm_jb *b, uint64_t bits) {
    dvm_vid v = dvm_j_const64(b, bits);
    return (pair){v, v};
}

/* ---- masks */

/* 64-bit lane masks (AVX2) of two halves as one mask of 32-bit lanes. */
static dvm_vid pack_mask(struct dvm_jb *b, pair m) {
    dvm_vid even = dvm_j_2i(b, X_VSHUFPS, m.lo, m.hi, 0x88);
    return b->neon ? even : dvm_j_1i(b, X_VPERMQ, even, 0xd8);
}

/* The mask of 16 lanes of two of 8. */
static dvm_vid join_mask(struct dvm_jb *b, dvm_vid lo, dvm_vid hi) {
    return dvm_j_k2(b, X_KUNPCKBW, hi, lo);
}

static dvm_vid compare_k(struct dvm_jb *b, int op, dvm_vid x, dvm_vid y, int predicate) {
    return dvm_j_op(b, J_K,
                    (struct dvm_mi){.op = (uint16_t)op,
                                    .attr = (uint8_t)b->len,
                                    .a = x,
                                    .b = y,
                                    .imm = (uint8_t)predicate});
}

static dvm_vid compare(struct dvm_jb *b, pair x, pair y, int predicate) {
    if (b->z) {
        dvm_vid lo = compare_k(b, X_VPCMPQ_K, x.lo, y.lo, predicate);
        dvm_vid hi =
            uniform(x) && uniform(y) ? lo : compare_k(b, X_VPCMPQ_K, x.hi, y.hi, predicate);
        return join_mask(b, lo, hi);
    }
    switch (predicate) {
    case J_I_EQ: return pack_mask(b, two(b, X_VPCMPEQQ, x, y));
    case J_I_GT: return pack_mask(b, two(b, X_VPCMPGTQ, x, y));
    case J_I_LT: return pack_mask(b, two(b, X_VPCMPGTQ, y, x));
    case J_I_NE: return dvm_j_bnot(b, compare(b, x, y, J_I_EQ));
    case J_I_LE: return dvm_j_bnot(b, compare(b, x, y, J_I_GT));
    default: return dvm_j_bnot(b, compare(b, x, y, J_I_LT));
    }
}

/* Comparison of f64, for casts. */
static dvm_vid compare_f64(struct dvm_jb *b, pair x, pair y, int predicate) {
    if (b->z) {
        dvm_vid lo = compare_k(b, X_VCMPPD_K, x.lo, y.lo, predicate);
        dvm_vid hi =
            uniform(x) && uniform(y) ? lo : compare_k(b, X_VCMPPD_K, x.hi, y.hi, predicate);
        return join_mask(b, lo, hi);
    }
    pair m;
    m.lo = dvm_j_2i(b, X_VCMPPD, x.lo, y.lo, predicate);
    m.hi = uniform(x) && uniform(y) ? m.lo : dvm_j_2i(b, X_VCMPPD, x.hi, y.hi, predicate);
    return pack_mask(b, m);
}

static dvm_vid blend64(struct dvm_jb *b, dvm_vid m, dvm_vid x, dvm_vid y) {
    uint8_t len = (uint8_t)b->len;
    if (b->z)
        return dvm_j_op(b, J_V,
                        (struct dvm_mi){.op = X_VPBLENDMQ, .attr = len, .a = y, .b = x, .k = m});
    return dvm_j_op(b, J_V,
                    (struct dvm_mi){.op = X_VBLENDVPD, .attr = len, .a = y, .b = x, .c = m});
}

/* Masks of the two halves of a 32-bit mask, for 64-bit lanes. */
static pair split_mask(struct dvm_jb *b, dvm_vid m) {
    bool flat = dvm_j_list_of(b, m) < J_BODY;
    if (b->z) return (pair){m, flat ? m : dvm_j_k1i(b, X_KSHIFTRW, m, 8)};
    pair r;
    r.lo = dvm_j_1(b, X_VPMOVSXDQ, m);
    r.hi = flat ? r.lo : dvm_j_1(b, X_VPMOVSXDQ, dvm_j_high(b, m));
    return r;
}

pair dvm_j_sel64(struct dvm_jb *b, dvm_vid m, pair x, pair y) {
    pair k = split_mask(b, m), r;
    r.lo = blend64(b, k.lo, x.lo, y.lo);
    r.hi = uniform(k) && uniform(x) && uniform(y) ? r.lo : blend64(b, k.hi, x.hi, y.hi);
    return r;
}

/* ---- arithmetic */

static pair negate(struct dvm_jb *b, pair x) { return two(b, X_VPSUBQ, number(b, 0), x); }

/* All ones where negative (AVX2). */
static pair negative(struct dvm_jb *b, pair x) { return two(b, X_VPCMPGTQ, number(b, 0), x); }

static pair multiply(struct dvm_jb *b, pair x, pair y) {
    if (b->z) return two(b, X_VPMULLQ, x, y);
    pair low = two(b, X_VPMULUDQ, x, y);
    pair c1 = two(b, X_VPMULUDQ, shift(b, X_VPSRLQ, x, 32), y);
    pair c2 = two(b, X_VPMULUDQ, x, shift(b, X_VPSRLQ, y, 32));
    return two(b, X_VPADDQ, low, shift(b, X_VPSLLQ, two(b, X_VPADDQ, c1, c2), 32));
}

static pair absolute(struct dvm_jb *b, pair x) {
    if (b->z) return one(b, X_VPABSQ, x);
    pair s = negative(b, x);
    return two(b, X_VPSUBQ, two(b, X_VXORPS, x, s), s);
}

static pair larger(struct dvm_jb *b, pair x, pair y) {
    if (b->z) return two(b, X_VPMAXSQ, x, y);
    pair m = two(b, X_VPCMPGTQ, x, y), r;
    r.lo = blend64(b, m.lo, x.lo, y.lo);
    r.hi = uniform(m) && uniform(x) && uniform(y) ? r.lo : blend64(b, m.hi, x.hi, y.hi);
    return r;
}

static pair smaller(struct dvm_jb *b, pair x, pair y) {
    if (b->z) return two(b, X_VPMINSQ, x, y);
    pair m = two(b, X_VPCMPGTQ, y, x), r;
    r.lo = blend64(b, m.lo, x.lo, y.lo);
    r.hi = uniform(m) && uniform(x) && uniform(y) ? r.lo : blend64(b, m.hi, x.hi, y.hi);
    return r;
}

/* AVX2 shifts in zeros only: a negative number is complemented around the shift. */
static pair shift_right(struct dvm_jb *b, pair x, pair n) {
    if (b->z) return two(b, X_VPSRAVQ, x, n);
    pair s = negative(b, x);
    return two(b, X_VXORPS, two(b, X_VPSRLVQ, two(b, X_VXORPS, x, s), n), s);
}

/* ---- random words */

/* A word of the counter or the key is the low half of a lane; the high half holds anything until the end, since products
 * read low halves only. */
struct philox {
    pair c[4], k[2];
};

static void philox_round(struct dvm_jb *b, struct philox *p) {
    pair p0 = two(b, X_VPMULUDQ, p->c[0], number(b, DVM_PHILOX_M0));
    pair p1 = two(b, X_VPMULUDQ, p->c[2], number(b, DVM_PHILOX_M1));
    pair n0 = two(b, X_VXORPS, shift(b, X_VPSRLQ, p1, 32), two(b, X_VXORPS, p->c[1], p->k[0]));
    pair n2 = two(b, X_VXORPS, shift(b, X_VPSRLQ, p0, 32), two(b, X_VXORPS, p->c[3], p->k[1]));
    *p = (struct philox){{n0, p1, n2, p0},
                         {two(b, X_VPADDQ, p->k[0], number(b, DVM_PHILOX_W0)),
                          two(b, X_VPADDQ, p->k[1], number(b, DVM_PHILOX_W1))}};
}

static dvm_vid bit_of(struct dvm_jb *b, pair x, uint64_t bit) {
    return compare(b, two(b, X_VANDPS, x, number(b, bit)), number(b, 0), J_I_NE);
}

static pair philox(struct dvm_jb *b, const pair v[3]) {
    pair block = shift(b, X_VPSRLQ, v[2], 2);
    struct philox p = {{v[1], shift(b, X_VPSRLQ, v[1], 32), block, shift(b, X_VPSRLQ, block, 32)},
                       {v[0], shift(b, X_VPSRLQ, v[0], 32)}};
    for (int r = 0; r < DVM_PHILOX_ROUNDS; r++) philox_round(b, &p);
    dvm_vid odd = bit_of(b, v[2], 1), high = bit_of(b, v[2], 2);
    pair w = dvm_j_sel64(b, high, dvm_j_sel64(b, odd, p.c[3], p.c[2]),
                         dvm_j_sel64(b, odd, p.c[1], p.c[0]));
    return two(b, X_VANDPS, w, number(b, UINT32_MAX));
}

static bool compared(int op) { return op >= DVM_OP_EQ && op <= DVM_OP_GE; }

static int predicate_of(int op) {
    static const uint8_t p[] = {J_I_EQ, J_I_NE, J_I_LT, J_I_LE, J_I_GT, J_I_GE};
    static_assert(DVM_OP_GE - DVM_OP_EQ == 5, "six comparisons in the order of p");
    return p[op - DVM_OP_EQ];
}

static int helper_of(int op) {
    switch (op) {
    case DVM_OP_FLOORDIV: return J_H_FLOORDIV64;
    case DVM_OP_TRUNCDIV: return J_H_TRUNCDIV64;
    case DVM_OP_REM: return J_H_REM64;
    case DVM_OP_FMOD: return J_H_FMOD64;
    default: return -1;
    }
}

/* Bits that stand for 1.5 x 2^52: an integer of at most 2^51 plus these bits is, as f64, this number plus the integer. */
static const uint64_t MAGIC = 0x4338000000000000;

static pair small_f64(struct dvm_jb *b, pair x) {
    return two(b, X_VSUBPD, two(b, X_VPADDQ, x, number(b, MAGIC)), number(b, MAGIC));
}

/* Lanes in which x and y lie in [-2^51, 2^51) and y is not 0. */
static dvm_vid are_small(struct dvm_jb *b, pair x, pair y) {
    pair most = number(b, UINT64_C(1) << 51), zero = number(b, 0);
    pair over_x = shift(b, X_VPSRLQ, two(b, X_VPADDQ, x, most), 52);
    pair over_y = shift(b, X_VPSRLQ, two(b, X_VPADDQ, y, most), 52);
    return dvm_j_band(b, compare(b, two(b, X_VORPS, over_x, over_y), zero, J_I_EQ),
                      compare(b, y, zero, J_I_NE));
}

/* r is not 0 and x and y are of different signs. */
static dvm_vid differ(struct dvm_jb *b, pair r, pair x, pair y) {
    pair zero = number(b, 0);
    return dvm_j_band(b, compare(b, two(b, X_VXORPS, x, y), zero, J_I_LT),
                      compare(b, r, zero, J_I_NE));
}

/* Small operands. The f64 quotient is within 1/4 of the true one, so rounded it leaves a remainder below 3/4 of y, which is
 * then given the sign of y, and where the division is toward zero that of x. */
static pair near_divide(struct dvm_jb *b, int op, pair x, pair y) {
    pair magic = number(b, MAGIC), zero = number(b, 0);
    pair ratio = two(b, X_VDIVPD, small_f64(b, x), small_f64(b, y));
    pair q = two(b, X_VPSUBQ, two(b, X_VADDPD, ratio, magic), magic);
    pair r = two(b, X_VPSUBQ, x, multiply(b, q, y));
    dvm_vid off = differ(b, r, r, y);
    q = two(b, X_VPADDQ, q, dvm_j_sel64(b, off, number(b, UINT64_MAX), zero));
    r = two(b, X_VPADDQ, r, dvm_j_sel64(b, off, y, zero));
    if (op == DVM_OP_FLOORDIV) return q;
    if (op == DVM_OP_REM) return r;
    off = differ(b, r, x, y);
    if (op == DVM_OP_FMOD) return two(b, X_VPSUBQ, r, dvm_j_sel64(b, off, y, zero));
    return two(b, X_VPADDQ, q, dvm_j_sel64(b, off, number(b, 1), zero));
}

static bool moves(const struct dvm_jb *b, pair x) {
    return dvm_j_list_of(b, x.lo) == J_BODY || dvm_j_list_of(b, x.hi) == J_BODY;
}

static pair divide(struct dvm_jb *b, int op, pair x, pair y) {
    if (b->neon || !(moves(b, x) || moves(b, y)))
        return dvm_j_call(b, helper_of(op), DVM_VT_I64, DVM_VT_I64, x, y);
    dvm_vid all = are_small(b, x, y);
    pair near = near_divide(b, op, x, y);
    return dvm_j_sel64(b, all, near, dvm_j_call_unless(b, all, helper_of(op), DVM_VT_I64, x, y));
}

static pair power(struct dvm_jb *b, pair x, pair y) {
    int n = dvm_j_exponent(b, y.lo);
    pair r = number(b, 1);
    if (n < 0) return dvm_j_call(b, J_H_POW64, DVM_VT_I64, DVM_VT_I64, x, y);
    for (bool first = true; n; n >>= 1) {
        if (n & 1) r = first ? x : multiply(b, r, x);
        if (n & 1) first = false;
        if (n > 1) x = multiply(b, x, x);
    }
    return r;
}

bool dvm_j_ew64(struct dvm_jb *b, int op, const pair v[3], pair *out) {
    pair x = v[0], y = v[1], mask = number(b, 63);
    if (compared(op)) {
        out->lo = out->hi = compare(b, x, y, predicate_of(op));
        return true;
    }
    switch (op) {
    case DVM_OP_COPY: *out = x; break;
    case DVM_OP_NEG: *out = negate(b, x); break;
    case DVM_OP_ABS: *out = absolute(b, x); break;
    case DVM_OP_SIGN: *out = larger(b, smaller(b, x, number(b, 1)), number(b, UINT64_MAX)); break;
    case DVM_OP_RELU: *out = larger(b, x, number(b, 0)); break;
    case DVM_OP_NOT: *out = two(b, X_VXORPS, x, number(b, UINT64_MAX)); break;
    case DVM_OP_ADD: *out = two(b, X_VPADDQ, x, y); break;
    case DVM_OP_SUB: *out = two(b, X_VPSUBQ, x, y); break;
    case DVM_OP_MUL: *out = multiply(b, x, y); break;
    case DVM_OP_MAX: *out = larger(b, x, y); break;
    case DVM_OP_MIN: *out = smaller(b, x, y); break;
    case DVM_OP_AND: *out = two(b, X_VANDPS, x, y); break;
    case DVM_OP_OR: *out = two(b, X_VORPS, x, y); break;
    case DVM_OP_XOR: *out = two(b, X_VXORPS, x, y); break;
    case DVM_OP_SHL: *out = two(b, X_VPSLLVQ, x, two(b, X_VANDPS, y, mask)); break;
    case DVM_OP_SHR: *out = shift_right(b, x, two(b, X_VANDPS, y, mask)); break;
    case DVM_OP_PHILOX: *out = philox(b, v); break;
    case DVM_OP_POW: *out = power(b, x, y); break;
    default:
        if (helper_of(op) < 0) return false;
        *out = divide(b, op, x, y);
    }
    return true;
}

/* ---- casts */

/* One half-length result of each half, joined. */
static dvm_vid narrow(struct dvm_jb *b, int op, pair x) {
    dvm_vid lo = dvm_j_1(b, op, x.lo);
    return dvm_j_join(b, lo, uniform(x) ? lo : dvm_j_1(b, op, x.hi));
}

static pair widen(struct dvm_jb *b, int op, dvm_vid x) {
    dvm_vid high = dvm_j_high(b, x);
    pair r;
    r.lo = dvm_j_1(b, op, x);
    r.hi = high == x ? r.lo : dvm_j_1(b, op, high);
    return r;
}

static dvm_vid i64_to_i32(struct dvm_jb *b, pair x) {
    if (!b->z) return pack_mask(b, x); /* takes the even 32-bit lanes */
    struct dvm_mi m = {.op = X_VPMOVQD, .attr = (uint8_t)b->len, .a = x.lo};
    dvm_vid lo = dvm_j_op(b, J_V, m);
    m.a = x.hi;
    return dvm_j_join(b, lo, uniform(x) ? lo : dvm_j_op(b, J_V, m));
}

/* The instructions give 0x80000000 for all that does not fit; too large has to become 0x7fffffff, NaN 0. */
static dvm_vid f32_to_i32(struct dvm_jb *b, dvm_vid x) {
    dvm_vid r = dvm_j_1(b, X_VCVTTPS2DQ, x);
    dvm_vid big = dvm_j_cmpf(b, x, dvm_j_const32(b, 0x4f000000), J_F_GE);
    r = dvm_j_sel(b, big, dvm_j_const32(b, INT32_MAX), r);
    return dvm_j_sel(b, dvm_j_cmpf(b, x, x, J_F_ORD), r, dvm_j_const32(b, 0));
}

static dvm_vid f64_to_i32(struct dvm_jb *b, pair x) {
    dvm_vid r = narrow(b, X_VCVTTPD2DQ, x);
    dvm_vid big = compare_f64(b, x, number(b, 0x41e0000000000000), J_F_GE);
    r = dvm_j_sel(b, big, dvm_j_const32(b, INT32_MAX), r);
    return dvm_j_sel(b, compare_f64(b, x, x, J_F_ORD), r, dvm_j_const32(b, 0));
}

static pair f32_to_i64(struct dvm_jb *b, dvm_vid x) {
    pair p = {x, x};
    if (!b->z) return dvm_j_call(b, J_H_F32_I64, DVM_VT_I64, DVM_VT_I32, p, p);
    pair r = widen(b, X_VCVTTPS2QQ, x);
    dvm_vid big = dvm_j_cmpf(b, x, dvm_j_const32(b, 0x5f000000), J_F_GE);
    r = dvm_j_sel64(b, big, number(b, INT64_MAX), r);
    return dvm_j_sel64(b, dvm_j_cmpf(b, x, x, J_F_ORD), r, number(b, 0));
}

static pair f64_to_i64(struct dvm_jb *b, pair x) {
    if (!b->z) return dvm_j_call(b, J_H_F64_I64, DVM_VT_I64, DVM_VT_I64, x, x);
    pair r = one(b, X_VCVTTPD2QQ, x);
    dvm_vid big = compare_f64(b, x, number(b, 0x43e0000000000000), J_F_GE);
    r = dvm_j_sel64(b, big, number(b, INT64_MAX), r);
    return dvm_j_sel64(b, compare_f64(b, x, x, J_F_ORD), r, number(b, 0));
}

static void from_b1(struct dvm_jb *b, int to, dvm_vid m, pair *out) {
    dvm_vid zero = dvm_j_const32(b, 0);
    switch (to) {
    case DVM_VT_B1: out->lo = m; break;
    case DVM_VT_I32: out->lo = dvm_j_sel(b, m, dvm_j_const32(b, 1), zero); break;
    case DVM_VT_F32: out->lo = dvm_j_sel(b, m, dvm_j_const32(b, 0x3f800000), zero); break;
    case DVM_VT_I64: *out = dvm_j_sel64(b, m, number(b, 1), number(b, 0)); break;
    default: *out = dvm_j_sel64(b, m, number(b, 0x3ff0000000000000), number(b, 0)); break;
    }
}

static void from_i32(struct dvm_jb *b, int to, dvm_vid x, pair *out) {
    switch (to) {
    case DVM_VT_B1: out->lo = dvm_j_cmpi(b, x, dvm_j_const32(b, 0), J_I_NE); break;
    case DVM_VT_I32: out->lo = x; break;
    case DVM_VT_F32: out->lo = dvm_j_1(b, X_VCVTDQ2PS, x); break;
    case DVM_VT_I64: *out = widen(b, X_VPMOVSXDQ, x); break;
    default: *out = widen(b, X_VCVTDQ2PD, x); break;
    }
}

static void from_i64(struct dvm_jb *b, int to, pair x, pair *out) {
    switch (to) {
    case DVM_VT_B1: out->lo = compare(b, x, number(b, 0), J_I_NE); break;
    case DVM_VT_I32: out->lo = i64_to_i32(b, x); break;
    case DVM_VT_F32:
        if (b->z)
            out->lo = narrow(b, X_VCVTQQ2PS, x);
        else
            *out = dvm_j_call(b, J_H_I64_F32, DVM_VT_F32, DVM_VT_I64, x, x);
        break;
    case DVM_VT_I64: *out = x; break;
    default:
        *out = b->z ? one(b, X_VCVTQQ2PD, x)
                    : dvm_j_call(b, J_H_I64_F64, DVM_VT_I64, DVM_VT_I64, x, x);
        break;
    }
}

static void from_f32(struct dvm_jb *b, int to, dvm_vid x, pair *out) {
    switch (to) {
    case DVM_VT_B1: out->lo = dvm_j_cmpf(b, x, dvm_j_const32(b, 0), J_F_NE); break;
    case DVM_VT_I32: out->lo = f32_to_i32(b, x); break;
    case DVM_VT_F32: out->lo = x; break;
    case DVM_VT_I64: *out = f32_to_i64(b, x); break;
    default: *out = widen(b, X_VCVTPS2PD, x); break;
    }
}

static void from_f64(struct dvm_jb *b, int to, pair x, pair *out) {
    switch (to) {
    case DVM_VT_B1: out->lo = compare_f64(b, x, number(b, 0), J_F_NE); break;
    case DVM_VT_I32: out->lo = f64_to_i32(b, x); break;
    case DVM_VT_F32: out->lo = narrow(b, X_VCVTPD2PS, x); break;
    case DVM_VT_I64: *out = f64_to_i64(b, x); break;
    default: *out = x; break;
    }
}

/* The same of 32-bit operands, which count with their sign. */
dvm_vid dvm_j_philox32(struct dvm_jb *b, const dvm_vid v[3]) {
    pair wide[3];
    for (int i = 0; i < 3; i++) from_i32(b, DVM_VT_I64, v[i], &wide[i]);
    return i64_to_i32(b, philox(b, wide));
}

bool dvm_j_cast(struct dvm_jb *b, int from, int to, pair v, pair *out) {
    switch (from) {
    case DVM_VT_B1: from_b1(b, to, v.lo, out); break;
    case DVM_VT_I32: from_i32(b, to, v.lo, out); break;
    case DVM_VT_I64: from_i64(b, to, v, out); break;
    case DVM_VT_F32: from_f32(b, to, v.lo, out); break;
    default: from_f64(b, to, v, out); break;
    }
    return true;
}
