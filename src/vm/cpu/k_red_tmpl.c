/* Folds and running sums of tiles. Orders are those of strip.h: 64 lanes, lanes by halves, the earlier operand on the
 * left. Halving starts at the first power of two that holds all n elements of a row: lanes above hold the identity,
 * which changes nothing (the one case where it would, a sum of -0, has been through a lane that started at 0). */
#include "vm/cpu/k_tmpl.h"

enum { LANES = DVM_TREE_LANES };

/* GET(i): element i of the tile, from x and y. */
#define FOLD(S, T, expr, GET)                                                                   \
    DVM_INLINE T S(T x, T y) { return expr; }                                                   \
    static void S##_lanes(void *DVM_RESTRICT acc_, const void *x_, const void *y_, int64_t n) { \
        T *DVM_RESTRICT acc = acc_;                                                             \
        const T *x = x_, *y = y_;                                                               \
        int64_t i = 0;                                                                          \
        for (; i + LANES <= n; i += LANES)                                                      \
            for (int l = 0; l < LANES; l++) acc[l] = S(acc[l], GET(i + l));                     \
        for (int l = 0; i + l < n; l++) acc[l] = S(acc[l], GET(i + l));                         \
        (void)y;                                                                                \
    }                                                                                           \
    DVM_INLINE T S##_tree(T *acc, int w) {                                                      \
        for (; w >= 8; w >>= 1)                                                                 \
            for (int l = 0; l < w; l++) acc[l] = S(acc[l], acc[l + w]);                         \
        T a0 = S(acc[0], acc[4]), a1 = S(acc[1], acc[5]);                                       \
        T a2 = S(acc[2], acc[6]), a3 = S(acc[3], acc[7]);                                       \
        return S(S(a0, a2), S(a1, a3));                                                         \
    }                                                                                           \
    static void S##_halves(void *acc) { *(T *)acc = S##_tree(acc, LANES / 2); }                 \
    DVM_INLINE T S##_row(const T *x, const T *y, int64_t n, int w, T identity) {                \
        T acc[LANES];                                                                           \
        for (int l = 0; l < LANES; l++) acc[l] = identity;                                      \
        S##_lanes(acc, x, y, n);                                                                \
        return S##_tree(acc, w);                                                                \
    }                                                                                           \
    static void S##_rows(void *DVM_RESTRICT out_, const void *x_, const void *y_, int64_t n,    \
                         int64_t k, const void *id) {                                           \
        T *DVM_RESTRICT out = out_;                                                             \
        const T *x = x_, *y = y_, identity = *(const T *)id;                                    \
        int w = 4;                                                                              \
        while (w < LANES / 2 && 2 * w < n) w *= 2;                                              \
        for (int64_t r = 0; r < k; r++, x += n, y += n) out[r] = S##_row(x, y, n, w, identity); \
    }                                                                                           \
    static void S##_cols(void *DVM_RESTRICT acc_, const void *x_, int64_t xs, const void *y_,   \
                         int64_t ys, int64_t rows, int64_t n) {                                 \
        T *DVM_RESTRICT acc = acc_;                                                             \
        const char *px = x_, *py = y_;                                                          \
        for (; rows >= 4; rows -= 4, px += 4 * xs, py += 4 * ys)                                \
            S##_cols4(acc, px, xs, py, ys, n);                                                  \
        for (; rows > 0; rows--, px += xs, py += ys) {                                          \
            const T *x = (const T *)(const void *)px, *y = (const T *)(const void *)py;         \
            for (int64_t i = 0; i < n; i++) acc[i] = S(acc[i], GET(i));                         \
            (void)y;                                                                            \
        }                                                                                       \
    }

/* Four rows in one pass over the accumulators. */
#define COLS4(S, T, GETR)                                                                      \
    DVM_INLINE T S(T x, T y);                                                                  \
    DVM_INLINE void S##_cols4(T *DVM_RESTRICT acc, const char *px, int64_t xs, const char *py, \
                              int64_t ys, int64_t n) {                                         \
        const T *x0 = (const T *)(const void *)px, *x1 = (const T *)(const void *)(px + xs);   \
        const T *x2 = (const T *)(const void *)(px + 2 * xs),                                  \
                *x3 = (const T *)(const void *)(px + 3 * xs);                                  \
        const T *y0 = (const T *)(const void *)py, *y1 = (const T *)(const void *)(py + ys);   \
        const T *y2 = (const T *)(const void *)(py + 2 * ys),                                  \
                *y3 = (const T *)(const void *)(py + 3 * ys);                                  \
        for (int64_t i = 0; i < n; i++)                                                        \
            acc[i] = S(S(S(S(acc[i], GETR(0)), GETR(1)), GETR(2)), GETR(3));                   \
        (void)y0, (void)y1, (void)y2, (void)y3;                                                \
    }

#define X_OF(i) x[i]
#define XR_OF(r) x##r[i]
#define XY_OF(i) x[i] * y[i]
#define XYR_OF(r) x##r[i] * y##r[i]
#define PLAIN(S, T, expr) COLS4(S, T, XR_OF) FOLD(S, T, expr, X_OF)

PLAIN(sum_f32, float, x + y)
PLAIN(prod_f32, float, x *y)
PLAIN(max_f32, float, x > y || x != x ? x : y)
PLAIN(min_f32, float, x < y || x != x ? x : y)
PLAIN(sum_i32, int32_t, (int32_t)((uint32_t)x + (uint32_t)y))
PLAIN(prod_i32, int32_t, (int32_t)((uint32_t)x * (uint32_t)y))
PLAIN(max_i32, int32_t, x > y ? x : y)
PLAIN(min_i32, int32_t, x < y ? x : y)
PLAIN(sum_i64, int64_t, (int64_t)((uint64_t)x + (uint64_t)y))
PLAIN(prod_i64, int64_t, (int64_t)((uint64_t)x * (uint64_t)y))
PLAIN(max_i64, int64_t, x > y ? x : y)
PLAIN(min_i64, int64_t, x < y ? x : y)
COLS4(dot_f32, float, XYR_OF)
FOLD(dot_f32, float, x + y, XY_OF)

/* ---- argmax, argmin: the best number, then the first place where it stands. better(x, y): a later x replaces y */

/* The first i with expr, which there is; 64 elements at a time. */
#define FIRST(expr)                                              \
    for (;; at += LANES) {                                       \
        int hit = 0;                                             \
        if (at + LANES > n) break;                               \
        for (int64_t i = at; i < at + LANES; i++) hit |= (expr); \
        if (hit) break;                                          \
    }                                                            \
    for (int64_t i = at; i < n; i++) {                           \
        at = i;                                                  \
        if (expr) break;                                         \
    }

#define ARG(S, F, T, EXTREME, BETTER)                                                        \
    DVM_INLINE bool S##_better(T x, T y) { return BETTER; }                                  \
    static void S##_rows(void *out_, int64_t *index, const void *x_, int64_t n, int64_t k) { \
        T *out = out_, id = EXTREME;                                                         \
        const T *x = x_;                                                                     \
        for (int64_t r = 0; r < k; r++, x += n) {                                            \
            int64_t at = 0;                                                                  \
            T best;                                                                          \
            F##_rows(&best, x, x, n, 1, &id);                                                \
            if (best != best) {                                                              \
                FIRST(x[i] != x[i])                                                          \
            } else {                                                                         \
                FIRST(x[i] == best)                                                          \
            }                                                                                \
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

ARG(argmax_f32, max_f32, float, -INFINITY, x > y || (x != x && y == y))
ARG(argmin_f32, min_f32, float, INFINITY, x < y || (x != x && y == y))
ARG(argmax_i32, max_i32, int32_t, INT32_MIN, x > y)
ARG(argmin_i32, min_i32, int32_t, INT32_MAX, x < y)
ARG(argmax_i64, max_i64, int64_t, INT64_MIN, x > y)
ARG(argmin_i64, min_i64, int64_t, INT64_MAX, x < y)

/* ---- running sum, in a wider type where there is one: each sum is rounded, none is added to rounded. */

#define SCAN(S, T, WIDE, ADD)                                                           \
    static void scan_##S(void *DVM_RESTRICT d_, const void *DVM_RESTRICT x_, int64_t n, \
                         void *sum_) {                                                  \
        T *DVM_RESTRICT d = d_;                                                         \
        const T *x = x_;                                                                \
        WIDE sum = *(const WIDE *)sum_;                                                 \
        for (int64_t i = 0; i < n; i++) d[i] = (T)(sum = ADD(sum, (WIDE)x[i]));         \
        *(WIDE *)sum_ = sum;                                                            \
    }
DVM_INLINE double add_wide(double x, double y) { return x + y; }
SCAN(f32, float, double, add_wide)
SCAN(i32, int32_t, int32_t, sum_i32)
SCAN(i64, int64_t, int64_t, sum_i64)

#define FOLD_ROW(S) {.rows = S##_rows, .lanes = S##_lanes, .halves = S##_halves, .cols = S##_cols}
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
    .dot = FOLD_ROW(dot_f32),
    .scan = {[DVM_K_RF32] = scan_f32, [DVM_K_RI32] = scan_i32, [DVM_K_RI64] = scan_i64},
};
