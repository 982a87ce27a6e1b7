/* Attention on the CPU. One description of a checked call serves forward and backward.
 *
 * A call is a set of sequences: the batch, or the packed sequences of TND. In every mode row i of a sequence sees one
 * interval of keys, whose ends do not decrease with i:
 *
 *     [ i + lo, max(i + hi + 1, prefix) )   cut to [0, skv)
 *
 * possibly thinned by a mask. attn_cols and attn_rows below are the only places that turn this into ranges of keys and
 * of rows; forward and backward walk tiles by them.
 *
 * What a result means, for every level and number of threads: keys are taken in tiles of ATTN_BN, counted from key 0 of
 * the sequence; scores are chains of fused multiply-adds as in ops/gemm/gemm.h; a row's maximum, sum and output are
 * updated tile after tile (sums as in vm/k_attn.h, products one chain a tile). Which tiles are skipped, and what other
 * rows share a block, changes nothing. The backward adds to dQ one chain a tile of keys, to dK and dV one chain a block
 * of rows; blocks are ATTN_BM rows of one head, or whole short sequences of several heads that share a key head. */
#ifndef DVM_OPS_ATTN_ATTN_CALL_H
#define DVM_OPS_ATTN_ATTN_CALL_H
#include <dvm/attn.h>

#include "base/mem.h"
#include "ops/gemm/gemm.h"
#include "vm/dev.h"
#include "vm/k_attn.h"

enum { ATTN_BM = 96, ATTN_BN = 128, ATTN_MAX_D = 1024 };

struct attn_flex;

/* Strides in bytes; p NULL: absent. Axes that are broadcast have stride 0. */
struct attn_mat {
    char *p;
    int64_t bs, hs, rs, cs; /* sequence, head, row, column */
    dvm_dtype t;
};

struct attn_seq {
    int64_t q0, k0;         /* first row of TND; 0 elsewhere */
    int64_t sq, skv;        /* lengths */
    int64_t lo, hi, prefix; /* the interval above */
    int64_t slot;           /* row i of head n has slot + n * sq + i among all rows of all heads */
    int64_t drop;           /* first element of dropout */
};

struct attn {
    struct dvm_attn_shape shape;
    int mode;
    bool tnd, rows_first; /* rows_first: statistics of TND in the order of rows */
    int64_t nseq, nq, nkv, group, d, d2;
    int64_t tq, tkv; /* rows of TND */
    float scale;
    struct attn_mat q, k, v, pse, mask, sink;
    bool mask_packed;        /* TND: the mask is indexed by packed rows */
    bool pse_added;          /* after scaling */
    int64_t pse_last;        /* rows of an ALiBi-compressed pse, 0: none */
    int64_t max_sq, max_skv; /* of one sequence */
    bool dropout;
    struct dvm_k_drop drop;
    struct attn_mat dy, o, max, sum; /* backward: given; forward: o, max, sum are outputs */
    struct attn_mat dq, dk, dv, dpse, dsink;
    const dvm_attn *call;
    struct attn_flex *
        flex; /* functions of scores, or NULL; then call is NULL and all keys are in the interval */
};

/* Everything but the addresses of outputs. Fills *s; needs no memory. */
dvm_status dvm_attn_check(const dvm_attn *c, bool backward, struct attn *s);
dvm_status dvm_attn_bind_forward(struct attn *s, const dvm_arg *const out[3]);
dvm_status dvm_attn_bind_backward(struct attn *s, const dvm_arg *const grad[5]);
/* Whether two tensors may share a byte; whether one has elements but no address. */
bool dvm_attn_overlap(const dvm_arg *a, const dvm_arg *b);
bool dvm_attn_lacks_data(const dvm_arg *a);
/* Sequence b alone; stat and drop are left to dvm_attn_seqs, which fills all nseq. */
struct attn_seq dvm_attn_seq(const struct attn *s, int64_t b);
void dvm_attn_seqs(const struct attn *s, struct attn_seq *seq);

struct attn_isa {
    const struct dvm_k_gemm *g;
    const struct dvm_k_attn *k;
};
dvm_status dvm_attn_isa(const char *isa, struct attn_isa *out);
dvm_status dvm_attn_run_forward(const struct attn *s, const struct attn_isa *isa,
                                struct dvm_pool *pool, const struct dvm_mem *mem);
dvm_status dvm_attn_run_backward(const struct attn *s, const struct attn_isa *isa,
                                 struct dvm_pool *pool, const struct dvm_mem *mem);

DVM_INLINE int64_t attn_clamp(int64_t x, int64_t most) { return x < 0 ? 0 : x > most ? most : x; }

struct attn_range {
    int64_t from, to; /* empty: from >= to */
};
/* Keys that row i sees. */
DVM_INLINE struct attn_range attn_row_keys(const struct attn_seq *q, int64_t i) {
    return (struct attn_range){attn_clamp(i + q->lo, q->skv),
                               attn_clamp(DVM_MAX(i + q->hi + 1, q->prefix), q->skv)};
}
/* Hull of the keys that rows [i0, i1) see. */
DVM_INLINE struct attn_range attn_cols(const struct attn_seq *q, int64_t i0, int64_t i1) {
    struct attn_range first = attn_row_keys(q, i0), last = attn_row_keys(q, i1 - 1);
    return (struct attn_range){first.from, last.to};
}
/* Rows that see some key of [j0, j1); a hull as above. */
DVM_INLINE struct attn_range attn_rows(const struct attn_seq *q, int64_t j0, int64_t j1) {
    return (struct attn_range){q->prefix > j0 ? 0 : attn_clamp(j0 - q->hi, q->sq),
                               attn_clamp(j1 - q->lo, q->sq)};
}
#endif
