/* Change of value type, rounding to narrow dtypes, and copies of one number. Float to int truncates, saturates and
 * takes NaN to 0: the conversion itself only ever sees numbers in range. */
#include "vm/cpu/k_tmpl.h"

#define COPY(S, T)                           \
    DVM_INLINE T S##_same(T x) { return x; } \
    K_UN(S##_same, T, T)
COPY(i32, int32_t)
COPY(i64, int64_t)
COPY(f32, float)
COPY(f64, double)

#define CAST(name, R, A, expr)              \
    DVM_INLINE R name(A x) { return expr; } \
    K_UN(name, R, A)

/* Limits are exact in both float types; the largest int32 is not a float, hence the comparison from above. */
#define SATURATE(name, R, A, MIN, MAX, LIMIT)   \
    DVM_INLINE R name(A x) {                    \
        bool in = x >= -(LIMIT) && x < (LIMIT); \
        R r = (R)(in ? x : 0);                  \
        r = x >= (LIMIT) ? (MAX) : r;           \
        return x < -(LIMIT) ? (MIN) : r;        \
    }                                           \
    K_UN(name, R, A)

CAST(b1_i64, int64_t, int32_t, x)
CAST(b1_f32, float, int32_t, (float)x)
CAST(b1_f64, double, int32_t, x)
CAST(i32_b1, int32_t, int32_t, x != 0)
CAST(i64_b1, int32_t, int64_t, x != 0)
CAST(i64_i32, int32_t, int64_t, (int32_t)(uint32_t)x)
CAST(i64_f32, float, int64_t, (float)x)
CAST(i64_f64, double, int64_t, (double)x)
CAST(f32_b1, int32_t, float, x != 0)
CAST(f32_f64, double, float, x)
CAST(f64_b1, int32_t, double, x != 0)
CAST(f64_f32, float, double, (float)x)
SATURATE(f32_i32, int32_t, float, INT32_MIN, INT32_MAX, 0x1p31f)
SATURATE(f32_i64, int64_t, float, INT64_MIN, INT64_MAX, 0x1p63f)
SATURATE(f64_i32, int32_t, double, INT32_MIN, INT32_MAX, 0x1p31)
SATURATE(f64_i64, int64_t, double, INT64_MIN, INT64_MAX, 0x1p63)

#define SPLAT(S, U)                                                                      \
    static void splat##S(DVM_K_ARGS) {                                                   \
        U *d = d_, x = *(const U *)a_;                                                   \
        K_UNUSED;                                                                        \
        for (int64_t i = 0; i < n; i++) d[i] = x;                                        \
    }                                                                                    \
    static void spread##S(void *DVM_RESTRICT d_, const void *a_, int64_t n, int64_t k) { \
        U *DVM_RESTRICT d = d_;                                                          \
        const U *a = a_;                                                                 \
        for (int64_t r = 0; r < k; r++, d += n)                                          \
            for (int64_t i = 0; i < n; i++) d[i] = a[r];                                 \
    }
SPLAT(4, uint32_t)
SPLAT(8, uint64_t)

const struct dvm_k_cast K_TABLE(cast) = {
    .cast = {[DVM_VT_B1] = {[DVM_VT_B1] = i32_same_v,
                            [DVM_VT_I32] = i32_same_v,
                            [DVM_VT_I64] = b1_i64_v,
                            [DVM_VT_F32] = b1_f32_v,
                            [DVM_VT_F64] = b1_f64_v},
             [DVM_VT_I32] = {[DVM_VT_B1] = i32_b1_v,
                             [DVM_VT_I32] = i32_same_v,
                             [DVM_VT_I64] = b1_i64_v,
                             [DVM_VT_F32] = b1_f32_v,
                             [DVM_VT_F64] = b1_f64_v},
             [DVM_VT_I64] = {[DVM_VT_B1] = i64_b1_v,
                             [DVM_VT_I32] = i64_i32_v,
                             [DVM_VT_I64] = i64_same_v,
                             [DVM_VT_F32] = i64_f32_v,
                             [DVM_VT_F64] = i64_f64_v},
             [DVM_VT_F32] = {[DVM_VT_B1] = f32_b1_v,
                             [DVM_VT_I32] = f32_i32_v,
                             [DVM_VT_I64] = f32_i64_v,
                             [DVM_VT_F32] = f32_same_v,
                             [DVM_VT_F64] = f32_f64_v},
             [DVM_VT_F64] = {[DVM_VT_B1] = f64_b1_v,
                             [DVM_VT_I32] = f64_i32_v,
                             [DVM_VT_I64] = f64_i64_v,
                             [DVM_VT_F32] = f64_f32_v,
                             [DVM_VT_F64] = f64_same_v}},

    .splat4 = splat4,
    .splat8 = splat8,
    .spread4 = spread4,
    .spread8 = spread8,
};
