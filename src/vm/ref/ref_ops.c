/* Elementwise rows of ops.def. Integers are computed in 64 bits: the low half of a wrapping 64-bit
 * result is the wrapping 32-bit one, and where it is not (division, shifts, powers) the width is a
 * parameter.
 *
 * Decisions beyond the notes of ops.def:
 *   bool arithmetic is done with 0 and 1 and then asks "not zero?": add is or, sub is xor, mul is
 *   and; maximum and minimum are or and and
 *   all four integer divisions by zero give 0; INT_MIN % -1 is 0
 *   integer pow: negative exponents give 0, but 1 for base 1 and +-1 for base -1
 *   sign of -0 is 0, relu of -0 is 0; float floordiv is torch.floor_divide, remainder is Python's */
#include <math.h>
#include <string.h>

#include "code/philox.h"
#include "vm/ref/ref.h"

static int64_t max_int(int width) { return width == 64 ? INT64_MAX : INT32_MAX; }
static int64_t min_int(int width) { return width == 64 ? INT64_MIN : INT32_MIN; }

static int64_t int_trunc_div(int64_t a, int64_t b) {
    if (b == 0) return 0;
    return b == -1 ? (int64_t)(0 - (uint64_t)a) : a / b;
}

static int64_t int_fmod(int64_t a, int64_t b) { return b == 0 || b == -1 ? 0 : a % b; }

static int64_t int_floor_div(int64_t a, int64_t b) {
    int64_t r = int_fmod(a, b);
    return int_trunc_div(a, b) - (r != 0 && (r < 0) != (b < 0));
}

static int64_t int_rem(int64_t a, int64_t b) {
    int64_t r = int_fmod(a, b);
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

static int64_t int_pow(int64_t base, int64_t exponent) {
    if (exponent < 0) return base == 1 ? 1 : base == -1 ? (exponent & 1 ? -1 : 1) : 0;
    uint64_t result = 1, b = (uint64_t)base;
    for (; exponent; exponent >>= 1, b *= b)
        if (exponent & 1) result *= b;
    return (int64_t)result;
}

/* Words of the counter change places as the authors of Philox write it; four words a block. */
static int64_t philox(uint64_t key, uint64_t offset, uint64_t index) {
    uint32_t c[4] = {(uint32_t)offset, (uint32_t)(offset >> 32), (uint32_t)(index >> 2),
                     (uint32_t)(index >> 34)};
    uint32_t k[2] = {(uint32_t)key, (uint32_t)(key >> 32)};
    for (int round = 0; round < DVM_PHILOX_ROUNDS; round++) {
        uint64_t p0 = (uint64_t)DVM_PHILOX_M0 * c[0], p1 = (uint64_t)DVM_PHILOX_M1 * c[2];
        uint32_t next[4] = {(uint32_t)(p1 >> 32) ^ c[1] ^ k[0], (uint32_t)p1,
                            (uint32_t)(p0 >> 32) ^ c[3] ^ k[1], (uint32_t)p0};
        memcpy(c, next, sizeof c);
        k[0] += DVM_PHILOX_W0;
        k[1] += DVM_PHILOX_W1;
    }
    return c[index & 3];
}

/* The caller wraps the result to the width; operands are sign-extended. */
static int64_t ew_int(int op, int width, int64_t a, int64_t b, int64_t c) {
    uint64_t ua = (uint64_t)a, ub = (uint64_t)b;
    switch (op) {
    case DVM_OP_COPY: return a;
    case DVM_OP_NEG: return (int64_t)(0 - ua);
    case DVM_OP_ABS: return a < 0 ? (int64_t)(0 - ua) : a;
    case DVM_OP_SIGN: return (a > 0) - (a < 0);
    case DVM_OP_RELU: return a > 0 ? a : 0;
    case DVM_OP_NOT: return ~a;
    case DVM_OP_ADD: return (int64_t)(ua + ub);
    case DVM_OP_SUB: return (int64_t)(ua - ub);
    case DVM_OP_MUL: return (int64_t)(ua * ub);
    case DVM_OP_FLOORDIV: return int_floor_div(a, b);
    case DVM_OP_TRUNCDIV: return int_trunc_div(a, b);
    case DVM_OP_REM: return int_rem(a, b);
    case DVM_OP_FMOD: return int_fmod(a, b);
    case DVM_OP_POW: return int_pow(a, b);
    case DVM_OP_MAX: return a > b ? a : b;
    case DVM_OP_MIN: return a < b ? a : b;
    case DVM_OP_AND: return a & b;
    case DVM_OP_OR: return a | b;
    case DVM_OP_XOR: return a ^ b;
    case DVM_OP_SHL: return (int64_t)(ua << (b & (width - 1)));
    case DVM_OP_SHR: return a >> (b & (width - 1));
    case DVM_OP_PHILOX: return philox(ua, ub, (uint64_t)c);
    default: return 0;
    }
}

static float float_rem(float a, float b) {
    float r = fmodf(a, b);
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

static float float_floor_div(float a, float b) {
    if (b == 0) return a / b;
    float r = fmodf(a, b);
    float quotient = (a - r) / b;
    if (r != 0 && (r < 0) != (b < 0)) quotient -= 1;
    if (quotient == 0) return copysignf(0, a / b);
    float down = floorf(quotient);
    return quotient - down > 0.5f ? down + 1 : down;
}

static float ew_float(int op, float a, float b, float c) {
    switch (op) {
    case DVM_OP_COPY: return a;
    case DVM_OP_NEG: return -a;
    case DVM_OP_ABS: return fabsf(a);
    case DVM_OP_SIGN: return (float)((a > 0) - (a < 0));
    case DVM_OP_RELU: return a > 0 || isnan(a) ? a : 0;
    case DVM_OP_SQRT: return sqrtf(a);
    case DVM_OP_RECIP: return 1 / a;
    case DVM_OP_FLOOR: return floorf(a);
    case DVM_OP_CEIL: return ceilf(a);
    case DVM_OP_TRUNC: return truncf(a);
    case DVM_OP_ROUND: return rintf(a);
    case DVM_OP_ADD: return a + b;
    case DVM_OP_SUB: return a - b;
    case DVM_OP_MUL: return a * b;
    case DVM_OP_DIV: return a / b;
    case DVM_OP_FLOORDIV: return float_floor_div(a, b);
    case DVM_OP_TRUNCDIV: return truncf(a / b);
    case DVM_OP_REM: return float_rem(a, b);
    case DVM_OP_FMOD: return fmodf(a, b);
    case DVM_OP_MAX: return a > b || isnan(a) ? a : b;
    case DVM_OP_MIN: return a < b || isnan(a) ? a : b;
    case DVM_OP_FMA: return fmaf(a, b, c);
    default: return dvm_ref_trans(op, a, b);
    }
}

static bool compare_int(int op, int64_t a, int64_t b) {
    switch (op) {
    case DVM_OP_EQ: return a == b;
    case DVM_OP_NE: return a != b;
    case DVM_OP_LT: return a < b;
    case DVM_OP_LE: return a <= b;
    case DVM_OP_GT: return a > b;
    default: return a >= b;
    }
}

static bool compare_float(int op, float a, float b) {
    switch (op) {
    case DVM_OP_ISFINITE: return isfinite(a);
    case DVM_OP_ISNAN: return isnan(a);
    case DVM_OP_EQ: return a == b;
    case DVM_OP_NE: return a != b;
    case DVM_OP_LT: return a < b;
    case DVM_OP_LE: return a <= b;
    case DVM_OP_GT: return a > b;
    default: return a >= b;
    }
}

static int64_t int_of(enum dvm_vt t, union ref_val v) { return t == DVM_VT_I64 ? v.i64 : v.i32; }

/* Of type t, wrapped to it. */
static union ref_val of_int(enum dvm_vt t, int64_t x) {
    if (t == DVM_VT_I64) return (union ref_val){.i64 = x};
    return (union ref_val){.bits = (uint32_t)x};
}

static union ref_val of_bool(bool x) { return (union ref_val){.bits = x}; }

static union ref_val of_float(float x) {
    union ref_val v = {.bits = 0};
    v.f = x;
    return v;
}

static int64_t saturate(double x, int width) {
    if (isnan(x)) return 0;
    double limit = ldexp(1, width - 1);
    if (x >= limit) return max_int(width);
    return x < -limit ? min_int(width) : (int64_t)x;
}

static union ref_val cast(enum dvm_vt from, enum dvm_vt to, union ref_val v) {
    bool floating = from == DVM_VT_F32 || from == DVM_VT_F64;
    double d = from == DVM_VT_F32 ? (double)v.f : v.d;
    if (from == to) return v;
    switch (to) {
    case DVM_VT_B1: return of_bool(floating ? d != 0 : v.bits != 0);
    case DVM_VT_I32: return of_int(to, floating ? saturate(d, 32) : int_of(from, v));
    case DVM_VT_I64: return of_int(to, floating ? saturate(d, 64) : int_of(from, v));
    /* from an integer straight to f32: rounded once */
    case DVM_VT_F32: return of_float(floating ? (float)d : (float)int_of(from, v));
    default: return (union ref_val){.d = floating ? d : (double)int_of(from, v)};
    }
}

union ref_val dvm_ref_ew(int op, enum dvm_vt t, enum dvm_vt to, const union ref_val v[3]) {
    if (op == DVM_OP_CAST) return cast(t, to, v[0]);
    if (op == DVM_OP_SELECT) return v[0].bits ? v[1] : v[2];
    if (op == DVM_OP_COPY) return v[0];
    if (t == DVM_VT_F32) {
        if (to == DVM_VT_B1) return of_bool(compare_float(op, v[0].f, v[1].f));
        return of_float(ew_float(op, v[0].f, v[1].f, v[2].f));
    }
    int64_t a = int_of(t, v[0]), b = int_of(t, v[1]), c = int_of(t, v[2]);
    if (op >= DVM_OP_EQ && op <= DVM_OP_GE) return of_bool(compare_int(op, a, b));
    if (op == DVM_OP_NOT && t == DVM_VT_B1) return of_bool(a == 0);
    int64_t r = ew_int(op, t == DVM_VT_I64 ? 64 : 32, a, b, c);
    return t == DVM_VT_B1 ? of_bool(r != 0) : of_int(t, r);
}
