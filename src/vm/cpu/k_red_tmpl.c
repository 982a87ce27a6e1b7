/* Folds and running sums of tiles. Orders are those of strip.h: 64 lanes, lanes by halves, the earlier operand on the
 * left. Halving starts at the first power of two that holds all n elements of a row: lanes above hold the identity,
 * which changes nothing (the one case where it would, a sum of -0, has been through a lane that started at 0). */
#include "vm/cpu/k_tmpl.h"

enum { LANES = DVM_TREE_LANES };

#define FOLD(S, T, expr)                                                                     \
    DVM_INLINE T S(T x, T y) { return expr; }                                                \
    static void S##_lanes(void *DVM_RESTRICT acc_, const void *DVM_RESTRICT x_, int64_t n) { \
        T *DVM_RESTRICT acc = acc_;                                                          \
        const T *x = x_;                                                                     \
        int64_t i = 0;                                                                       \
        for (; i + LANES <= n; i += LANES)                                                   \
            for (int l = 0; l < LANES; l++) acc[l] = S(acc[l], x[i + l]);                    \
        for (int l = 0; i + l < n; l++) acc[l] = S(acc[l], x[i + l]);                        \
    }                                                                                        \
    DVM_INLINE T S##_tree(T *acc, int w) {                                                   \
        for (; w >= 8; w >>= 1)                                                              \
            for (int l = 0; l < w; l++) acc[l] = S(acc[l], acc[l + w]);                      \
        T a0 = S(acc[0], acc[4]), a1 = S(acc[1], acc[5]), a2 = S(acc[2], acc[6]),            \
          a3 = S(acc[3], acc[7]);                                                            \
        return S(S(a0, a2), S(a1, a3));                                                      \
    }                                                                                        \
    static void S##_halves(void *acc) { *(T *)acc = S##_tree(acc, LANES / 2); }              \
    static void S##_rows(void *DVM_RESTRICT out_, const void *DVM_RESTRICT x_, int64_t n,    \
                         int64_t k, const void *id) {                                        \
        T *DVM_RESTRICT out = out_;                                                          \
        const T *DVM_RESTRICT x = x_, identity = *(const T *)id;                             \
        int w = 4;                                                                           \
        while (w < LANES / 2 && 2 * w < n) w *= 2;                                           \
        for (int64_t r = 0; r < k; r++, x += n) {                                            \
            T acc[LANES];                                                                    \
            for (int l = 0; l < LANES; l++) acc[l] = identity;                               \
            S##_lanes(acc, x, n);                                                            \
            out[r] = S##_tree(acc, w);                                                       \
        }                                                                                    \
    }                                                                                        \
    static void S##_col(void *DVM_RESTRICT acc_, const void *DVM_RESTRICT x_, int64_t n) {   \
        T *DVM_RESTRICT acc = acc_;                                                          \
        const T *x = x_;                                                                     \
        for (int64_t i = 0; i < n; i++) acc[i] = S(acc[i], x[i]);                            \
    }

FOLD(sum_f32, float, x + y)
FOLD(prod_f32, float, x *y)
FOLD(max_f32, float, x > y || x != x ? x : y)
FOLD(min_f32, float, x < y || x != x ? x : y)
FOLD(sum_i32, int32_t, (int32_t)((uint32_t)x + (uint32_t)y))
FOLD(prod_i32, int32_t, (int32_t)((uint32_t)x * (uint32_t)y))
FOLD(max_i32, int32_t, x > y ? x : y)
FOLD(min_i32, int32_t, x < y ? x : y)
FOLD(sum_i64, int64_t, (int64_t)((uint64_t)x + (uint64_t)y))
FOLD(prod_i64, int64_t, (int64_t)((uint64_t)x * (uint64_t)y))
FOLD(max_i64, int64_t, x > y ? x : y)
FOLD(min_i64, int64_t, x < y ? x : y)

/* ---- argmax, argmin: better(x, y): a later x replaces y */

#define ARG(S, T, expr)                                                                      \
    DVM_INLINE bool S##_better(T x, T y) { return expr; }                                    \
    static void S##_rows(void *out_, int64_t *index, const void *x_, int64_t n, int64_t k) { \
        T *out = out_;                                                                       \
        const T *x = x_;                                                                     \
        for (int64_t r = 0; r < k; r++, x += n) {                                            \
            int64_t at = 0;                                                                  \
            for (int64_t i = 1; i < n; i++)                                                  \
                if (S##_better(x[i], x[at])) at = i;                                         \
            out[r] = x[at];                                                                  \
            index[r] = at;                                                                   \
        }                                                                                    \
    }                                                                                        \
    static void S##_col(void *DVM_RESTRICT acc_, int64_t *DVM_RESTRICT index,                \
                        const void *DVM_RESTRICT x_, int64_t r, int64_t n) {                 \
        T *DVM_RESTRICT acc = acc_;                                                          \
        const T *x = x_;                                                                     \
        for (int64_t i = 0; i < n; i++) {                                                    \
            bool b = r == 0 || S##_better(x[i], acc[i]);                                     \
            acc[i] = b ? x[i] : acc[i];                                                      \
            index[i] = b ? r : index[i];                                                     \
        }                                                                                    \
    }

ARG(argmax_f32, float, x > y || (x != x && y == y))
ARG(argmin_f32, float, x < y || (x != x && y == y))
ARG(argmax_i32, int32_t, x > y)
ARG(argmin_i32, int32_t, x < y)
ARG(argmax_i64, int64_t, x > y)
ARG(argmin_i64, int64_t, x < y)

/* ---- running sum: chunks of 64 on their own, then the carry of those before is added */

#define SCAN(S, T)                                                                        \
    static void scan_##S(void *DVM_RESTRICT d_, const void *DVM_RESTRICT x_, int64_t n,   \
                         void *carry_, bool first) {                                      \
        T *DVM_RESTRICT d = d_;                                                           \
        const T *x = x_;                                                                  \
        T *carry = carry_;                                                                \
        for (int64_t i = 0; i < n; i += LANES, first = false) {                           \
            int64_t len = DVM_MIN(n - i, LANES);                                          \
            T local[LANES];                                                               \
            local[0] = x[i];                                                              \
            for (int64_t l = 1; l < len; l++) local[l] = sum_##S(local[l - 1], x[i + l]); \
            for (int64_t l = 0; l < len; l++)                                             \
                d[i + l] = first ? local[l] : sum_##S(*carry, local[l]);                  \
            *carry = d[i + len - 1];                                                      \
        }                                                                                 \
    }
SCAN(f32, float)
SCAN(i32, int32_t)
SCAN(i64, int64_t)

#define FOLD_ROW(S) {.rows = S##_rows, .lanes = S##_lanes, .halves = S##_halves, .col = S##_col}
#define ARG_ROW(S) {.arg_rows = S##_rows, .arg_col = S##_col}
#define FOLD_ROWS(op, ROW)                                                                     \
    {[DVM_K_RF32] = ROW(op##_f32), [DVM_K_RI32] = ROW(op##_i32), [DVM_K_RI64] = ROW(op##_i64)}

const struct dvm_k_red_table K_TABLE(red) = {
    .fold = {[DVM_K_SUM] = FOLD_ROWS(sum, FOLD_ROW),
             [DVM_K_PROD] = FOLD_ROWS(prod, FOLD_ROW),
             [DVM_K_MAX] = FOLD_ROWS(max, FOLD_ROW),
             [DVM_K_MIN] = FOLD_ROWS(min, FOLD_ROW),
             [DVM_K_ARGMAX] = FOLD_ROWS(argmax, ARG_ROW),
             [DVM_K_ARGMIN] = FOLD_ROWS(argmin, ARG_ROW)},
    .scan = {[DVM_K_RF32] = scan_f32, [DVM_K_RI32] = scan_i32, [DVM_K_RI64] = scan_i64},
};
