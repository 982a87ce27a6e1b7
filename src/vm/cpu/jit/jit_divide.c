/* Remainders and quotients of f32, in f64 where nothing is rounded. Where some lane is beyond that, a C function is called
 * for the whole vector; else the call is jumped over. Powers by constants are products. */
#include <string.h>

#include "vm/cpu/jit/jit_help.h"
#include "vm/cpu/jit/jit_ir.h"

enum { SIGN = INT32_MIN, SIZE = INT32_MAX, ONE = 0x3f800000, HALF = 0x3f000000, INF = 0x7f800000 };
enum { MOST_QUOTIENT = 0x4d800000 }; /* 2^28 */

/* Quotients below 2^28 (65536 of them: 347 us as calls, 82 so): in f64 they have the right whole part, since they are
 * integers or at least 2^-24 away from one; the product with y has 52 bits, and what remains is an f32: nothing is rounded.
 * A zero has the sign of x, too. */
static dvm_vid near_fmod(struct dvm_jb *b, dvm_vid x, dvm_vid y) {
    dvm_vid half[2];
    for (int k = 0; k < 2; k++) {
        dvm_vid xd = dvm_j_1(b, X_VCVTPS2PD, k ? dvm_j_high(b, x) : x);
        dvm_vid yd = dvm_j_1(b, X_VCVTPS2PD, k ? dvm_j_high(b, y) : y);
        dvm_vid q = dvm_j_1(b, X_VCVTTPD2DQ, dvm_j_2(b, X_VDIVPD, xd, yd));
        dvm_vid whole = dvm_j_2(b, X_VMULPD, dvm_j_1(b, X_VCVTDQ2PD, q), yd);
        half[k] = dvm_j_1(b, X_VCVTPD2PS, dvm_j_2(b, X_VSUBPD, xd, whole));
    }
    dvm_vid r = dvm_j_and(b, dvm_j_join(b, half[0], half[1]), dvm_j_const32(b, SIZE));
    return dvm_j_or(b, r, dvm_j_and(b, x, dvm_j_const32(b, SIGN)));
}

static bool is_moving(const struct dvm_jb *b, dvm_vid x, dvm_vid y) {
    return dvm_j_list_of(b, x) == J_BODY || dvm_j_list_of(b, y) == J_BODY;
}

static dvm_vid fmod_f32(struct dvm_jb *b, dvm_vid x, dvm_vid y) {
    struct dvm_jpair px = {x, x}, py = {y, y};
    if (b->neon || !is_moving(b, x, y))
        return dvm_j_call(b, J_H_FMOD, DVM_VT_F32, DVM_VT_F32, px, py).lo;
    dvm_vid size_x = dvm_j_and(b, x, dvm_j_const32(b, SIZE));
    dvm_vid size_y = dvm_j_and(b, y, dvm_j_const32(b, SIZE));
    dvm_vid most = dvm_j_2(b, X_VMULPS, size_y, dvm_j_const32(b, MOST_QUOTIENT));
    dvm_vid all = dvm_j_band(b, dvm_j_cmpf(b, size_x, most, J_F_LT),
                             dvm_j_cmpf(b, size_y, dvm_j_const32(b, INF), J_F_LT));
    dvm_vid near = near_fmod(b, x, y);
    dvm_vid far = dvm_j_call_unless(b, all, J_H_FMOD, DVM_VT_F32, px, py).lo;
    return dvm_j_sel(b, all, near, far);
}

/* A remainder that is not zero and of another sign than the divisor. */
static dvm_vid other_sign(struct dvm_jb *b, dvm_vid r, dvm_vid y) {
    dvm_vid zero = dvm_j_const32(b, 0);
    dvm_vid differ = dvm_j_bxor(b, dvm_j_cmpf(b, r, zero, J_F_LT), dvm_j_cmpf(b, y, zero, J_F_LT));
    return dvm_j_band(b, dvm_j_cmpf(b, r, zero, J_F_NE), differ);
}

static dvm_vid floor_div(struct dvm_jb *b, dvm_vid x, dvm_vid y) {
    dvm_vid zero = dvm_j_const32(b, 0), one = dvm_j_const32(b, ONE);
    dvm_vid r = fmod_f32(b, x, y), plain = dvm_j_2(b, X_VDIVPS, x, y);
    dvm_vid q = dvm_j_2(b, X_VDIVPS, dvm_j_2(b, X_VSUBPS, x, r), y);
    q = dvm_j_sel(b, other_sign(b, r, y), dvm_j_2(b, X_VSUBPS, q, one), q);
    dvm_vid down = dvm_j_round(b, q, 1);
    dvm_vid up = dvm_j_cmpf(b, dvm_j_2(b, X_VSUBPS, q, down), dvm_j_const32(b, HALF), J_F_GT);
    dvm_vid whole = dvm_j_sel(b, up, dvm_j_2(b, X_VADDPS, down, one), down);
    dvm_vid signed_zero = dvm_j_and(b, plain, dvm_j_const32(b, SIGN));
    whole = dvm_j_sel(b, dvm_j_cmpf(b, q, zero, J_F_EQ), signed_zero, whole);
    return dvm_j_sel(b, dvm_j_cmpf(b, y, zero, J_F_EQ), plain, whole);
}

dvm_vid dvm_j_divide_f32(struct dvm_jb *b, int op, dvm_vid x, dvm_vid y) {
    if (op == DVM_OP_FLOORDIV) return floor_div(b, x, y);
    dvm_vid r = fmod_f32(b, x, y);
    if (op == DVM_OP_FMOD) return r;
    return dvm_j_sel(b, other_sign(b, r, y), dvm_j_2(b, X_VADDPS, r, y), r);
}

int dvm_j_exponent(const struct dvm_jb *b, dvm_vid y) {
    int64_t n = 0;
    int32_t n32;
    if (!b->val[y].konst) return -1;
    memcpy(&n32, b->pool + b->val[y].home, sizeof n32);
    n = n32;
    if (b->val[y].wide) memcpy(&n, b->pool + b->val[y].home, sizeof n);
    return n >= 0 && n < 64 ? (int)n : -1;
}

dvm_vid dvm_j_power_i32(struct dvm_jb *b, dvm_vid x, dvm_vid y) {
    int n = dvm_j_exponent(b, y);
    dvm_vid r = 0;
    if (n < 0) return 0;
    for (; n; n >>= 1) {
        if (n & 1) r = r ? dvm_j_2(b, X_VPMULLD, r, x) : x;
        if (n > 1) x = dvm_j_2(b, X_VPMULLD, x, x);
    }
    return r ? r : dvm_j_const32(b, 1);
}
