/* Attention kernels of one ISA level: the steps between the matrix products, on rows of fp32. The table that
 * vm/cpu/k_attn_tmpl.c fills and ops/attn uses; it stands here because neither room sees the other.
 *
 * Every sum has LANES partial sums: lane l adds the elements l, l + LANES, ... in order, then halves are added to
 * halves. Every level gives the same bits. Rows are handled in whole groups of LANES: n is a multiple of LANES. */
#ifndef DVM_VM_K_ATTN_H
#define DVM_VM_K_ATTN_H
#include <dvm/dvm.h>

#include "base/cc.h"

enum { DVM_ATTN_LANES = 16 };
/* Floats from row to row of the tile of scores, and of packed rows of up to MAX_COLS features: a number of the code, since a
 * loop of multiply-adds with fixed addresses needs a sixth fewer instructions. Odd multiples of 16: as a power of two it would
 * leave most sets of the first-level cache unused. */
enum { DVM_ATTN_MAX_COLS = 128, DVM_ATTN_PITCH = DVM_ATTN_MAX_COLS + 16 };

/* Operands of a product A B, left and right. ROWS: element (i, k) of A at i * PITCH + k. COLUMNS: at k * PITCH + i. STRIP: element
 * (k, j) of B at k * nr + j, nr of the level's matrix kernels; otherwise at k * PITCH + j. */
enum dvm_attn_form { DVM_ATTN_ROWS_STRIP, DVM_ATTN_ROWS_ROWS, DVM_ATTN_COLUMNS_ROWS };

/* Philox4x32-10: element i of the stream is word i % 4 of the block with key seed and counter (offset, i / 4); it is
 * kept if it is below `keep`. */
struct dvm_k_drop {
    uint64_t seed, offset;
    uint64_t keep; /* 0 .. 2^32 */
    float kept;    /* weight of what is kept */
};

struct dvm_k_attn {
    /* s[j] = scale * s[j], or scale * (s[j] + bias[j]); -inf where off[j] (bias, off: NULL for none). Returns the
     * largest, -inf when there is none; a NaN is passed over. */
    float (*scores)(float *s, const float *bias, const uint8_t *off, float scale, int64_t n);
    /* s[j] = e^(s[j] - m); returns the sum. No s[j] is above m. */
    float (*exps)(float *s, float m, int64_t n);
    /* scores without bias and off, for `rows` rows that are `pitch` apart: top[r] is the larger one of m[r] and what it
     * returns. exps, whose sum is added to l[r]; an m[r] of -inf counts as 0. */
    void (*scores_rows)(float *s, int64_t pitch, int rows, float scale, int64_t n, const float *m,
                        float *top);
    void (*exps_rows)(float *s, int64_t pitch, int rows, const float *m, int64_t n, float *l);
    /* s[j] = e^(s[j] - m) * f, 0 where the power is 0 (f may be NaN). Where s[j] is above m + 88 the power is e^88. */
    void (*weights)(float *s, float m, float f, int64_t n);
    /* s[j] *= f, any n */
    void (*scale)(float *s, float f, int64_t n);
    /* d[j] *= z[j] */
    void (*times)(float *d, const float *z, int64_t n);
    /* ds[j] = p[j] == 0 ? 0 : p[j] * (ds[j] - delta) */
    void (*dscores)(float *ds, const float *p, float delta, int64_t n);
    /* scores without bias and off, weights, dscores, for `rows` rows of s and ds that are `pitch` apart. */
    void (*gradients)(float *s, float *ds, int64_t pitch, int rows, float scale, const float *m,
                      const float *f, const float *delta, int64_t n);
    /* sum of a[j] * b[j], any n */
    float (*dot)(const float *a, const float *b, int64_t n);
    /* z[j] = weight of element first + j of the stream: kept or 0; any n */
    void (*drop)(float *z, const struct dvm_k_drop *d, uint64_t first, int64_t n);
    /* c[i][j] = (first) or += the chain over k places, for m rows, any number, and the nr columns of a strip; rows of c are ldc
     * apart. The same bits as the f32 of vm/k_gemm.h. NULL: that one does as well. */
    void (*product)(enum dvm_attn_form form, int m, int64_t k, const float *a, const float *b,
                    float *c, int64_t ldc, bool first);
    /* Whether all numbers of `rows` rows of n are finite. */
    bool (*finite)(const float *s, int64_t pitch, int64_t rows, int64_t n);
    /* c[j] += the chain over k of a[k * step] * b[k * bs + j] with off[k * ostep] = 0: the matrix kernels' meaning
     * without the terms that are off. */
    void (*chain)(float *c, int64_t n, const float *a, int64_t step, const uint8_t *off,
                  int64_t ostep, int64_t k, const float *b, int64_t bs);
};
extern const struct dvm_k_attn dvm_k_attn_base;
#if defined(__x86_64__)
extern const struct dvm_k_attn dvm_k_attn_avx2, dvm_k_attn_avx512;
#endif
#endif
