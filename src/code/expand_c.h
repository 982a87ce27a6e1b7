/*
 * expand_c.h - the operations of expand.h as scalar C.
 *
 * Include it, with XFN defined, right before expand.h; expand.h consumes the macros, so both are
 * included again for another instance. The functions are plain selects and arithmetic: a loop
 * around one of them vectorises under -O3 -fno-math-errno -fno-trapping-math. -ffp-contract=off (nvcc:
 * the intrinsics below) is part of the meaning; -ffast-math and its parts are not allowed.
 *
 * Every level gives the same bits. Two operations need care for that:
 *   fma   a level without the instruction would call libm, element by element. The product of two
 *         floats is exact in double; the sum is rounded to odd there, so that the last rounding,
 *         to float, sees every bit that was lost.
 *   rint  a level without the instruction adds and subtracts 2^23 on the magnitude.
 */
#ifndef DVM_CODE_EXPAND_C_H
#define DVM_CODE_EXPAND_C_H

#include <stdint.h>
#include <string.h>

#if defined(__CUDACC__)
#define XC_INLINE static __device__ __forceinline__
#else
#define XC_INLINE static inline
#endif

XC_INLINE int32_t xc_bits(float a) {
    int32_t r;
    memcpy(&r, &a, sizeof r);
    return r;
}

XC_INLINE float xc_float(int32_t a) {
    float r;
    memcpy(&r, &a, sizeof r);
    return r;
}

/* a*b+c rounded once, out of double arithmetic. Also the test of the instruction. */
XC_INLINE float xc_fma_soft(float a, float b, float c) {
    double p = (double)a * (double)b;
    double z = (double)c;
    double s = p + z;
    double t = s - p;
    double e = (p - (s - t)) + (z - t); /* s + e == p + z; NaN when s is not finite */
    /*
     * Round to odd: an inexact s becomes the odd neighbour of the true sum. Sign bits instead of
     * comparisons, which SSE2 does not have for 64 bits; adding zero makes a negative zero positive.
     */
    double d = s * e;
    double up = d + 0.0, down = 0.0 - d, o;
    uint64_t above, below, u;
    memcpy(&above, &up, sizeof above);
    memcpy(&below, &down, sizeof below);
    memcpy(&u, &s, sizeof u);
    above >>= 63;
    below >>= 63;
    u = (u - above) | above | below;
    memcpy(&o, &u, sizeof o);
    float finite = (float)(d - d), odd = (float)o, same = (float)s;
    return finite == 0.0f ? odd : same;
}

XC_INLINE float xc_fma(float a, float b, float c) {
#if defined(__CUDACC__)
    return __fmaf_rn(a, b, c);
#elif defined(__FMA__) || defined(__ARM_FEATURE_FMA)
    return __builtin_fmaf(a, b, c);
#else
    return xc_fma_soft(a, b, c);
#endif
}

XC_INLINE float xc_rint(float a) {
#if defined(__CUDACC__)
    return rintf(a);
#elif defined(__SSE4_1__) || defined(__ARM_FEATURE_FMA)
    return __builtin_rintf(a);
#else
    float m = xc_float(xc_bits(a) & 0x7fffffff);
    float r = (m + 0x1p23f) - 0x1p23f;
    r = m < 0x1p23f ? r : m;
    return xc_float(xc_bits(r) | (xc_bits(a) & INT32_MIN));
#endif
}

XC_INLINE int32_t xc_umulh(int32_t a, int32_t b) {
    return (int32_t)(uint32_t)(((uint64_t)(uint32_t)a * (uint32_t)b) >> 32);
}

/* float -> int64: truncation, saturating, NaN gives 0. C only: no 64-bit value in the protocol. */
XC_INLINE int64_t xc_f32_to_i64(float a) {
    int big = a >= 0x1p63f, small = a < -0x1p63f;
    float b = big || small || a != a ? 0.0f : a;
    int64_t r = (int64_t)b;
    r = big ? INT64_MAX : r;
    return small ? INT64_MIN : r;
}

#endif

#define XDEF XC_INLINE
#define XF float
#define XI int32_t
#define XB int
#define XCTX
#define XCTX_

#define XK(c) (c)
#define XKI(c) ((int32_t)(c))

#if defined(__CUDACC__)
#define X_ADD(a, b) __fadd_rn(a, b)
#define X_SUB(a, b) __fsub_rn(a, b)
#define X_MUL(a, b) __fmul_rn(a, b)
#define X_DIV(a, b) __fdiv_rn(a, b)
#define X_SQRT(a) __fsqrt_rn(a)
#else
#define X_ADD(a, b) ((a) + (b))
#define X_SUB(a, b) ((a) - (b))
#define X_MUL(a, b) ((a) * (b))
#define X_DIV(a, b) ((a) / (b))
#define X_SQRT(a) __builtin_sqrtf(a)
#endif
#define X_FMA(a, b, c) xc_fma(a, b, c)
#define X_NEG(a) (-(a))
#define X_ABS(a) xc_float(xc_bits(a) & 0x7fffffff)
#define X_RINT(a) xc_rint(a)
#define X_MIN(a, b) ((a) < (b) ? (a) : (b))
#define X_MAX(a, b) ((a) > (b) ? (a) : (b))

#define X_LT(a, b) ((a) < (b))
#define X_LE(a, b) ((a) <= (b))
#define X_EQ(a, b) ((a) == (b))
#define X_NE(a, b) ((a) != (b))
#define X_SEL(m, a, b) ((m) ? (a) : (b))

#define XI_ADD(a, b) ((int32_t)((uint32_t)(a) + (uint32_t)(b)))
#define XI_SUB(a, b) ((int32_t)((uint32_t)(a) - (uint32_t)(b)))
#define XI_AND(a, b) ((a) & (b))
#define XI_OR(a, b) ((a) | (b))
#define XI_XOR(a, b) ((a) ^ (b))
#define XI_SHL(a, n) ((int32_t)((uint32_t)(a) << (n)))
#define XI_SHR(a, n) ((int32_t)((uint32_t)(a) >> (n)))
#define XI_SAR(a, n) ((a) >> (n))
#define XI_LT(a, b) ((a) < (b))
#define XI_EQ(a, b) ((a) == (b))
#define XI_SEL(m, a, b) ((m) ? (a) : (b))

#define XI_MUL(a, b) ((int32_t)((uint32_t)(a) * (uint32_t)(b)))
#define XI_UMULH(a, b) xc_umulh(a, b)
#define XI_SHLV(a, b) ((int32_t)((uint32_t)(a) << (b)))
#define XI_SHRV(a, b) ((int32_t)((uint32_t)(a) >> (b)))

#define XB_AND(a, b) ((a) & (b))
#define XB_OR(a, b) ((a) | (b))
#define XB_NOT(a) (!(a))

#define X_F2I(a) xc_bits(a)
#define X_I2F(a) xc_float(a)
#define X_CVT_I2F(a) ((float)(a))
#define X_CVT_F2I(a) ((int32_t)(a))
