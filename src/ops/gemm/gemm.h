/* Matrix multiply on the CPU: C = A B for many matrices, with what comes before and after in the tile loop.
 *
 * What a result means, on every ISA level, for every number of threads, strides, layout and batch:
 *
 *     for each block of DVM_GEMM_KC consecutive k (the last may be shorter), in order:
 *         s = 0;  for k in the block, in order:  s = fma(a[i][k], b[k][j], s)
 *         sum = first block ? s : sum + s
 *
 * or, for products in lanes, which have one row or one column,
 *
 *     for each block of DVM_GEMM_LANE_KC consecutive k, in order:
 *         s[0..15] = 0;  for k in the block, in order:  s[k % 16] = fma(a[k], b[k], s[k % 16])
 *         for h = 8, 4, 2, 1:  s[l] = s[l] + s[l + h] for each l < h
 *         sum = first block ? s[0] : sum + s[0]
 *
 * in fp32, operands widened to fp32 exactly; K = 0 gives 0. dvm_gemm_ref is these loops. One chain would leave a row waiting for
 * each multiply-add, and vectors would have to be turned where K is contiguous. The caller says which order holds, from shapes
 * alone (plan/matmul.c). Only the payload and sign of a
 * NaN are open. The bf16 dot instruction of x86 computes fma(a_even, b_even, fma(a_odd, b_odd, s)) and flushes denormals; with
 * the earlier k in the odd half it is this very chain, and it is used only for blocks whose exponents show that no
 * denormal and no overflow can arise. AArch64 widens and multiplies by f32's rules (BFMLALB, BFMLALT), so pairs are the chain
 * there for all numbers. So there is no separate fast mode.
 *
 * Tiles: C is cut into tiles of at most TM x TN elements or, where M or N is small enough to stream the other operand,
 * of all rows (columns) and at most TN_MAX columns (rows). The cut depends on sizes, dtypes, prologues and on which
 * strides are dense, on the size of the core's cache, in lanes on the number of threads too; not on addresses. No result depends
 * on the cut. A finished tile goes to `epilogue` exactly once, hot in
 * the cache, in no promised order and from any thread; without an epilogue it is stored to `out`. What a callback adds
 * up across tiles must be kept by tile, not by thread, if its order matters.
 *
 * With `panel` rows, a finished tile is that many whole rows (the last ones of a matrix may be fewer), computed by one thread one
 * range of columns after the other: for an epilogue that reduces rows.
 *
 * A batch whose B does not move (stride 0) and whose rows of A and C continue from one matrix to the next is one
 * matrix with more rows: the caller folds it, since only the caller can renumber rows for its epilogue. */
#ifndef DVM_OPS_GEMM_GEMM_H
#define DVM_OPS_GEMM_GEMM_H
#include "base/mem.h"
#include "vm/dev.h"
#include "vm/k_gemm.h"

enum {
    DVM_GEMM_TM = 144, /* a multiple of every level's mr */
    DVM_GEMM_TN = 512, /* columns of a tile; streamed shapes (M or N <= 8) have up to TN_MAX */
    DVM_GEMM_TN_MAX = 1024,
    DVM_GEMM_LANE_N = 2048,     /* of products in lanes */
    DVM_GEMM_PANEL_N = 1 << 24, /* columns of a panel */
    DVM_GEMM_NBATCH = 8
};

/* A matrix, or one for every point of the batch. Strides in bytes, any sign, 0 included. */
struct dvm_gemm_mat {
    const char *p; /* element (0, 0) of batch 0; may be NULL when a prologue makes the values */
    int64_t rs, cs;
    int64_t bs[DVM_GEMM_NBATCH];
    dvm_dtype t; /* F32, BF16, F16 */
};

/* m x n finished fp32 sums at tile + i * ld + j, those of rows row0.. and columns col0.. of matrix `batch`; the
 * callback may overwrite them. */
typedef void dvm_gemm_epilogue_fn(void *ctx, int thread, int64_t batch, int64_t row0, int64_t col0,
                                  int64_t m, int64_t n, float *tile, int64_t ld);
/* Writes r x c values of an operand: rows row0.., columns col0.. of A (M x K) or B (K x N) of matrix `batch`, to
 * dst + i * ld + j. May be called more than once for the same values (other tiles need them too). */
typedef void dvm_gemm_pack_fn(void *ctx, int thread, int64_t batch, int64_t row0, int64_t col0,
                              int64_t r, int64_t c, float *dst, int64_t ld);

enum dvm_gemm_form {
    DVM_GEMM_BATCH, /* one product for each point of bdim */
    DVM_GEMM_GROUPM, /* rows [ends[g - 1], ends[g]) of A times B of group g: B and bias move by bs[0] */
    DVM_GEMM_GROUPK /* C of group g = A[:, ends[g - 1] : ends[g]] times these rows of B; C moves by bs[0] */
};

struct dvm_gemm {
    int64_t m, n, k;
    struct dvm_gemm_mat a, b; /* M x K, K x N */
    bool lanes;               /* BATCH with m or n 1 */
    int cores;                /* threads it may have; 0: all of the pool */
    enum dvm_gemm_form form;
    int nbatch; /* dimensions of the batch, outermost first; grouped forms have none */
    int64_t bdim[DVM_GEMM_NBATCH];
    /* Grouped: end positions, not decreasing, the last at most M (K). Rows beyond the last are zeros: their epilogue
     * call has batch -1, and no bias is added. K beyond the last is not read. */
    const int64_t *ends;
    int64_t ngroup;

    void *ctx;
    dvm_gemm_pack_fn *pack_a, *pack_b;
    dvm_gemm_epilogue_fn *epilogue;
    /* BATCH with an epilogue: rows of a tile of whole rows, at most TM; 0: tiles of any shape */
    int64_t panel;

    /* Without an epilogue: out = sum + bias, rounded once. GROUPM: rows are those of A, out.bs is not used. */
    struct dvm_gemm_mat out; /* .p is written */
    const char *bias;        /* N elements bias_cs apart, or NULL */
    dvm_dtype bias_t;
    int64_t bias_cs, bias_bs[DVM_GEMM_NBATCH];
};

/* Kernels of a level by the name that dvm_dev_cpu gives ("base", "avx2", "avx512"); NULL: the best of this processor
 * not above DVM_ISA. */
struct dvm_gemm_isa {
    const struct dvm_k_gemm *k;
    bool dot;         /* instructions that multiply bf16 are there and behave */
    bool dot_is_slow; /* and takes longer than multiply-adds of f32, which give the same bits */
    bool narrow;      /* the core's second-level cache is small: tiles of a quarter of TN columns */
};
dvm_status dvm_gemm_isa(const char *isa, struct dvm_gemm_isa *out);

/* Sizes, dtypes and group ends; errors name both shapes. dvm_gemm_run does it too. */
dvm_status dvm_gemm_check(const struct dvm_gemm *g);
/* Bytes of 64-byte aligned scratch for `threads` threads. */
size_t dvm_gemm_scratch(const struct dvm_gemm *g, const struct dvm_gemm_isa *isa, int threads);
/* pool NULL: the caller alone. scratch NULL: taken from the pool or mem; otherwise what dvm_gemm_scratch says for
 * dvm_pool_size(pool), or g->cores where that is fewer. Callbacks get thread numbers below that size. */
dvm_status dvm_gemm_run(const struct dvm_gemm *g, const struct dvm_gemm_isa *isa,
                        struct dvm_pool *pool, const struct dvm_mem *mem, void *scratch);
/* The same result by the scalar loop above; callbacks get single elements, or whole rows, which are made in `row`: N floats,
 * not used without a panel. */
dvm_status dvm_gemm_ref(const struct dvm_gemm *g, float *row);
#endif
