/* See jit_help.h. The definitions are those of ops.def and vm/ref, on arrays. */
#include "vm/cpu/jit/jit_help.h"

#include <math.h>
#include <string.h>

#include "base/half.h"

/* Operands and result of a helper on lanes of type A giving type R. */
#define HELPER(name, A, R, expr)                                                         \
    static void name(void *buffer, int lanes) {                                          \
        const A *x = buffer, *y = (const A *)(const void *)((const char *)buffer + 128); \
        R *r = (R *)(void *)((char *)buffer + 256);                                      \
        (void)y;                                                                         \
        for (int i = 0; i < lanes; i++) r[i] = expr;                                     \
    }

/* fmodf goes bit by bit. Below 2^28 the quotient in f64 has the right whole part, since it is an integer or at least
 * 2^-24 away from one; its product with b has 52 bits, and what remains is a float: nothing is rounded. */
static float fmod_f32(float a, float b) {
    double q = (double)a / (double)b;
    if (!(fabs(q) < 0x1p28) || isinf(b)) return fmodf(a, b);
    double r = (double)a - (double)(int32_t)q * (double)b;
    return copysignf((float)r, a); /* a zero has the sign of a, too */
}

static int64_t trunc_div(int64_t a, int64_t b) {
    if (b == 0) return 0;
    return b == -1 ? (int64_t)(0 - (uint64_t)a) : a / b;
}
static int64_t fmod_i64(int64_t a, int64_t b) { return b == 0 || b == -1 ? 0 : a % b; }
static int64_t floor_div(int64_t a, int64_t b) {
    int64_t r = fmod_i64(a, b);
    return trunc_div(a, b) - (r != 0 && (r < 0) != (b < 0));
}
static int64_t rem_i64(int64_t a, int64_t b) {
    int64_t r = fmod_i64(a, b);
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}
static int64_t pow_int(int64_t base, int64_t exponent) {
    if (exponent < 0) return base == 1 ? 1 : base == -1 ? (exponent & 1 ? -1 : 1) : 0;
    uint64_t result = 1, b = (uint64_t)base;
    for (; exponent; exponent >>= 1, b *= b)
        if (exponent & 1) result *= b;
    return (int64_t)result;
}

static int64_t to_i64(double x) {
    if (!(x < 0x1p63)) return x >= 0x1p63 ? INT64_MAX : 0;
    return x < -0x1p63 ? INT64_MIN : (int64_t)x;
}

HELPER(h_fmod, float, float, fmod_f32(x[i], y[i]))
HELPER(h_pow32, int32_t, int32_t, (int32_t)pow_int(x[i], y[i]))
HELPER(h_pow64, int64_t, int64_t, pow_int(x[i], y[i]))
HELPER(h_floordiv64, int64_t, int64_t, floor_div(x[i], y[i]))
HELPER(h_truncdiv64, int64_t, int64_t, trunc_div(x[i], y[i]))
HELPER(h_rem64, int64_t, int64_t, rem_i64(x[i], y[i]))
HELPER(h_fmod64, int64_t, int64_t, fmod_i64(x[i], y[i]))
HELPER(h_i64_f32, int64_t, float, (float)x[i])
HELPER(h_i64_f64, int64_t, double, (double)x[i])
HELPER(h_f32_i64, float, int64_t, to_i64((double)x[i]))
HELPER(h_f64_i64, double, int64_t, to_i64(x[i]))

dvm_j_helper_fn *const dvm_j_helpers[J_H_COUNT] = {
    [J_H_FMOD] = h_fmod,
    [J_H_POW32] = h_pow32,
    [J_H_POW64] = h_pow64,
    [J_H_FLOORDIV64] = h_floordiv64,
    [J_H_TRUNCDIV64] = h_truncdiv64,
    [J_H_REM64] = h_rem64,
    [J_H_FMOD64] = h_fmod64,
    [J_H_I64_F32] = h_i64_f32,
    [J_H_I64_F64] = h_i64_f64,
    [J_H_F32_I64] = h_f32_i64,
    [J_H_F64_I64] = h_f64_i64,
};

/* ---- PICK */

/* The index made good: out of range is a fault and reads at 0. There is an element 0 (jit_run.c). */
static int64_t check_index(const struct dvm_strip_args *a, int o, int64_t index) {
    int64_t gn = a->opnd[o].gn;
    if (index < -gn || index >= gn) {
        dvm_fault_note(a->fault, (uint32_t)o, index, gn);
        return 0;
    }
    return index < 0 ? index + gn : index;
}

static int64_t index_at(const void *buffer, int type, int k) {
    const int32_t *i32 = buffer;
    const int64_t *i64 = buffer;
    return type == DVM_VT_I64 ? i64[k] : i32[k];
}

/* An element of a 32-bit type as its value. */
static uint32_t element(int dtype, const char *p) {
    uint32_t u = 0;
    memcpy(&u, p, dvm_dtype_size((dvm_dtype)dtype));
    switch (dtype) {
    case DVM_BOOL: return u != 0;
    case DVM_I8: return (uint32_t)(int32_t)(int8_t)u;
    case DVM_F16: return dvm_f32_bits(dvm_f16_to_f32((uint16_t)u));
    case DVM_BF16: return u << 16;
    default: return u;
    }
}

void dvm_j_help_pick(void *buffer, const struct dvm_strip_args *a, const char *base, int64_t column,
                     int count, int what) {
    int type = what & 255, o = what >> 8 & 255, dtype = what >> 16;
    const struct dvm_opnd_arg *p = &a->opnd[o];
    bool wide = dtype == DVM_I64 || dtype == DVM_F64;
    char *out = (char *)buffer + 256;
    memset(out, 0, 128);
    for (int k = 0; k < count; k++) {
        int64_t index = check_index(a, o, index_at(buffer, type, k));
        const char *at = base + (column + k) * p->cs + index * p->gs;
        if (wide) {
            memcpy(out + 8 * k, at, 8);
        } else {
            uint32_t u = element(dtype, at);
            memcpy(out + 4 * k, &u, 4);
        }
    }
}

const char *dvm_j_help_pick_row(void *buffer, const struct dvm_strip_args *a, const char *base,
                                int what) {
    int o = what >> 8 & 255;
    return base + check_index(a, o, index_at(buffer, what & 255, 0)) * a->opnd[o].gs;
}
