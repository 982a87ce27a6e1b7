/* Matrix-multiply kernels of one ISA level: the table that vm/cpu/k_gemm_tmpl.c fills and ops/gemm uses. It stands
 * here because neither room sees the other.
 *
 * Formats of packed blocks (k <= DVM_GEMM_KC, pitches fixed):
 *   A, f32     row r at a + r * KC:          a[r][k]
 *   A, pairs   row r at a + r * KC / 2:      32-bit words {a[r][2p] in the high half, a[r][2p + 1] in the low half}
 *   B, f32     strips of nr columns:         b[strip][k][nr]
 *   B, pairs   strips of nr columns:         b[strip][k / 2][nr], words as above
 * Columns of a strip beyond n are zeros, and so is the second element of the last pair of an odd k: -0 in A, 0 in B. */
#ifndef DVM_VM_K_GEMM_H
#define DVM_VM_K_GEMM_H
#include <dvm/dvm.h>

#include "base/cc.h"

enum {
    DVM_GEMM_KC =
        256, /* elements of K in one chain of fused multiply-adds; part of what a result means */
    DVM_GEMM_MAX_NR = 64, /* a multiple of every level's nr: row pitches of C are multiples of it */
    DVM_GEMM_SMALL_M = 8, /* rows that the streaming kernels take */
    DVM_GEMM_LANES = 16,
    DVM_GEMM_LANE_KC = 2048 /* products in lanes (ops/gemm/gemm.h) */
};

/* A block in memory; strides in bytes. */
struct dvm_k_block {
    const char *p;
    int64_t rs, cs, rows, cols;
    dvm_dtype t; /* F32, BF16, F16 */
};

/* Smallest exponent field of the nonzero numbers (255: there are none), largest of all. */
struct dvm_k_range {
    uint8_t lo, hi;
};

struct dvm_k_gemm {
    int mr, nr; /* rows and columns of the micro-kernels */

    /* One micro-tile: c[r][j] = (first) or += the chain over k. m <= mr; n <= nr columns are wanted, up to nr are
     * read, computed and written. a[r][k] at a + r * ars + k * acs, b[k][j] at b + k * bs + j: (KC, 1) and nr for the
     * formats above. The lines at next and next + 64, next + step and so on
     * (one step for each k) are prefetched: what the caller will need soon; any address will do. NULL: none, where the
     * operands are in the cache; then m may be any number, and nr columns are computed. */
    void (*f32)(int m, int n, int64_t k, const float *a, int64_t ars, int64_t acs, const float *b,
                int64_t bs, float *c, int64_t ldc, bool first, const char *next, int64_t step);
    /* The same from pairs with instructions that multiply bf16: NULL where the level has none. The dot instruction of x86 gives
     * the bits of f32 as long as no denormal number and no infinity arises (gemm_block.c proves that from the exponents); the
     * multiply-adds of AArch64 always do: exact. */
    bool exact;
    void (*bf16)(int m, int n, int64_t pairs, const uint32_t *a, const uint32_t *b, float *c,
                 int64_t ldc, bool first, const char *next, int64_t step);

    /* d[i * pitch + j] = float(s[i][j]), with columns in strips of w that are `strip` floats apart. Columns up to the
     * end of the last strip become zero if pad. */
    void (*rows)(float *d, int64_t pitch, int64_t w, int64_t strip, bool pad,
                 const struct dvm_k_block *s);
    /* bf16 only. Pairs along the columns of s, without strips; and pairs of rows of s, in strips of nr columns that are
     * `strip` words apart. */
    struct dvm_k_range (*col_pairs)(uint32_t *d, int64_t pitch, const struct dvm_k_block *s);
    struct dvm_k_range (*row_pairs)(uint32_t *d, int64_t strip, const struct dvm_k_block *s);
    /* Pairs to floats: d[2i * w + j], d[(2i + 1) * w + j] of the words s[i * w + j] (B); w = 1: A. */
    void (*unpair)(float *d, const uint32_t *s, int64_t w, int64_t pairs);

    /* Streaming: c[r][j] = (first) or += the chain over k <= KC for m <= SMALL_M rows of a, which are ars apart; B is
     * read where it stands. tmp holds m * n floats. n1: rows of B are contiguous. k1: columns of B are contiguous. */
    void (*stream_n1)(int m, const float *a, int64_t ars, const struct dvm_k_block *b, float *c,
                      int64_t ldc, float *tmp, bool first);
    void (*stream_k1)(int m, const float *a, int64_t ars, const struct dvm_k_block *b, float *c,
                      int64_t ldc, bool first);

    /* Products in lanes of one row a, which is in f32 and padded with -0 to whole lanes, with a block of up to LANE_KC rows.
     * k1, columns of B contiguous: c[j] = (first) or += the sum. n1, rows of B contiguous: row k adds to lane k % LANES of its
     * column, lane[l * pitch + j]; pitch is a multiple of MAX_NR, and whole vectors are read and written. fold then makes
     * c[j] of them, whole vectors too. */
    void (*lanes_k1)(const float *a, const struct dvm_k_block *b, float *c, bool first);
    void (*lanes_n1)(const float *a, const struct dvm_k_block *b, float *lane, int64_t pitch);
    void (*lanes_fold)(float *c, int64_t n, const float *lane, int64_t pitch, bool first);

    /* stream_* and lanes_* where B is bf16 and the floats of a are bf16 too, with instructions that multiply these. NULL where
     * the level has none. */
    void (*stream_bf16_n1)(int m, const float *a, int64_t ars, const struct dvm_k_block *b,
                           float *c, int64_t ldc, float *tmp, bool first);
    void (*stream_bf16_k1)(int m, const float *a, int64_t ars, const struct dvm_k_block *b,
                           float *c, int64_t ldc, bool first);
    void (*lanes_bf16_k1)(const float *a, const struct dvm_k_block *b, float *c, bool first);
    void (*lanes_bf16_n1)(const float *a, const struct dvm_k_block *b, float *lane, int64_t pitch);

    /* Stores m x n floats, each plus bias[j] unless bias is NULL, rounded once to t. */
    void (*store)(char *d, int64_t rs, int64_t cs, dvm_dtype t, const float *c, int64_t ldc,
                  int64_t m, int64_t n, const float *bias);
    /* d[j][i] = s[i][j], 32-bit words. */
    void (*transpose)(uint32_t *d, int64_t dp, const uint32_t *s, int64_t sp, int64_t rows,
                      int64_t cols);
};
extern const struct dvm_k_gemm dvm_k_gemm_base;
#if defined(__x86_64__)
extern const struct dvm_k_gemm dvm_k_gemm_avx2, dvm_k_gemm_avx512;
#endif
#endif
