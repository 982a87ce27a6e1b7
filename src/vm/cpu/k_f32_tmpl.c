/* f32 arithmetic, comparisons and selection on tiles. Every line is one IEEE operation per element or a chain of
 * comparisons, so that the compiler's vector code gives the same bits at every level. */
#include "vm/cpu/k_tmpl.h"

/* ---- one operand */

DVM_INLINE float copy1(float x) { return x; }
DVM_INLINE float neg1(float x) { return -x; }
DVM_INLINE float abs1(float x) { return fabsf(x); }
DVM_INLINE float sign1(float x) { return x > 0 ? 1.0f : x < 0 ? -1.0f : 0.0f; }
DVM_INLINE float relu1(float x) { return x <= 0 ? 0.0f : x; }
DVM_INLINE float sqrt1(float x) { return sqrtf(x); }
DVM_INLINE float recip1(float x) { return 1.0f / x; }
DVM_INLINE int32_t isfinite1(float x) { return fabsf(x) < INFINITY; }
DVM_INLINE int32_t isnan1(float x) { return x != x; }

#if defined(__x86_64__) && !defined(__SSE4_1__)
/* Without a rounding instruction: below 2^23 through int32, where the conversion is exact; above, and NaN, x is
 * integral already. copysign keeps -0. */
DVM_INLINE bool integral1(float x) { return !(fabsf(x) < 0x1p23f); }
DVM_INLINE float trunc1(float x) {
    float t = (float)(int32_t)(integral1(x) ? 0.0f : x);
    return integral1(x) ? x : copysignf(t, x);
}
DVM_INLINE float floor1(float x) {
    float t = trunc1(x);
    return t > x ? t - 1.0f : t;
}
DVM_INLINE float ceil1(float x) {
    float t = trunc1(x);
    return copysignf(t < x ? t + 1.0f : t, x);
}
DVM_INLINE float round1(float x) {
    float t = (fabsf(x) + 0x1p23f) - 0x1p23f;
    return integral1(x) ? x : copysignf(t, x);
}
#else
DVM_INLINE float trunc1(float x) { return truncf(x); }
DVM_INLINE float floor1(float x) { return floorf(x); }
DVM_INLINE float ceil1(float x) { return ceilf(x); }
DVM_INLINE float round1(float x) { return nearbyintf(x); }
#endif

K_UN(copy1, float, float)
K_UN(neg1, float, float)
K_UN(abs1, float, float)
K_UN(sign1, float, float)
K_UN(relu1, float, float)
K_UN(sqrt1, float, float)
K_UN(recip1, float, float)
K_UN(trunc1, float, float)
K_UN(floor1, float, float)
K_UN(ceil1, float, float)
K_UN(round1, float, float)
K_UN(isfinite1, int32_t, float)
K_UN(isnan1, int32_t, float)

/* ---- two operands */

DVM_INLINE float add2(float x, float y) { return x + y; }
DVM_INLINE float sub2(float x, float y) { return x - y; }
DVM_INLINE float mul2(float x, float y) { return x * y; }
DVM_INLINE float div2(float x, float y) { return x / y; }
DVM_INLINE float max2(float x, float y) { return x > y || x != x ? x : y; }
DVM_INLINE float min2(float x, float y) { return x < y || x != x ? x : y; }
DVM_INLINE int32_t eq2(float x, float y) { return x == y; }
DVM_INLINE int32_t ne2(float x, float y) { return x != y; }
DVM_INLINE int32_t lt2(float x, float y) { return x < y; }
DVM_INLINE int32_t le2(float x, float y) { return x <= y; }
DVM_INLINE int32_t gt2(float x, float y) { return x > y; }
DVM_INLINE int32_t ge2(float x, float y) { return x >= y; }

K_BIN(add2, float, float)
K_BIN(sub2, float, float)
K_BIN(mul2, float, float)
K_BIN(div2, float, float)
K_BIN(max2, float, float)
K_BIN(min2, float, float)
K_BIN(eq2, int32_t, float)
K_BIN(ne2, int32_t, float)
K_BIN(lt2, int32_t, float)
K_BIN(le2, int32_t, float)
K_BIN(gt2, int32_t, float)
K_BIN(ge2, int32_t, float)

/* Division with an integral quotient. fmodf is exact; the rest follows Python, as torch does. */
DVM_INLINE float truncdiv2(float x, float y) { return trunc1(x / y); }
DVM_INLINE float fmod2(float x, float y) { return fmodf(x, y); }
DVM_INLINE float rem2(float x, float y) {
    float r = fmodf(x, y);
    return r != 0 && (y < 0) != (r < 0) ? r + y : r;
}
DVM_INLINE float floordiv2(float x, float y) {
    if (y == 0) return x / y;
    float r = fmodf(x, y), q = (x - r) / y;
    if (r != 0 && (y < 0) != (r < 0)) q -= 1.0f;
    if (q == 0) return copysignf(0.0f, x / y);
    float f = floor1(q);
    return q - f > 0.5f ? f + 1.0f : f;
}
K_BIN_VV(truncdiv2, float, float)
K_BIN_VV(fmod2, float, float)
K_BIN_VV(rem2, float, float)
K_BIN_VV(floordiv2, float, float)

/* ---- three operands */

DVM_INLINE float select3(int32_t c, float x, float y) { return c ? x : y; }

K_TER(select3, int32_t, float)

const struct dvm_k_f32 K_TABLE(f32) = {{
    [DVM_OP_COPY] = K_OF_UN(copy1),
    [DVM_OP_NEG] = K_OF_UN(neg1),
    [DVM_OP_ABS] = K_OF_UN(abs1),
    [DVM_OP_SIGN] = K_OF_UN(sign1),
    [DVM_OP_RELU] = K_OF_UN(relu1),
    [DVM_OP_SQRT] = K_OF_UN(sqrt1),
    [DVM_OP_RECIP] = K_OF_UN(recip1),
    [DVM_OP_TRUNC] = K_OF_UN(trunc1),
    [DVM_OP_FLOOR] = K_OF_UN(floor1),
    [DVM_OP_CEIL] = K_OF_UN(ceil1),
    [DVM_OP_ROUND] = K_OF_UN(round1),
    [DVM_OP_ISFINITE] = K_OF_UN(isfinite1),
    [DVM_OP_ISNAN] = K_OF_UN(isnan1),
    [DVM_OP_ADD] = K_OF_BIN(add2),
    [DVM_OP_SUB] = K_OF_BIN(sub2),
    [DVM_OP_MUL] = K_OF_BIN(mul2),
    [DVM_OP_DIV] = K_OF_BIN(div2),
    [DVM_OP_MAX] = K_OF_BIN(max2),
    [DVM_OP_MIN] = K_OF_BIN(min2),
    [DVM_OP_EQ] = K_OF_BIN(eq2),
    [DVM_OP_NE] = K_OF_BIN(ne2),
    [DVM_OP_LT] = K_OF_BIN(lt2),
    [DVM_OP_LE] = K_OF_BIN(le2),
    [DVM_OP_GT] = K_OF_BIN(gt2),
    [DVM_OP_GE] = K_OF_BIN(ge2),
    [DVM_OP_TRUNCDIV] = K_OF_VV(truncdiv2),
    [DVM_OP_FMOD] = K_OF_VV(fmod2),
    [DVM_OP_REM] = K_OF_VV(rem2),
    [DVM_OP_FLOORDIV] = K_OF_VV(floordiv2),

    [DVM_OP_SELECT] = K_OF_TER(select3),
}};
