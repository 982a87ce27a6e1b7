/* One block of query rows against one tile of keys: what forward and backward share.
 *
 * Positions inside a tile count from its first key, those of a block from its first row; keys of a tile that no row of
 * the unit sees are neither read nor packed, their places in the packed tile hold anything. */
#ifndef DVM_OPS_ATTN_ATTN_TILE_H
#define DVM_OPS_ATTN_ATTN_TILE_H
#include "ops/attn/attn_call.h"

enum { ATTN_PITCH = DVM_ATTN_PITCH }; /* of a tile of scores */
static_assert((int)ATTN_BN == DVM_ATTN_MAX_COLS,
              "rows of scores and rows of features have one pitch");

/* Rows of one block: `heads` heads from n0 on, of each the `rows` rows from i0 on, head by head. */
struct attn_block {
    int64_t b, n0, heads, i0, rows;
    int m; /* heads * rows */
};
/* Blocks of the heads that share key head h, in order: all blocks of a head, then the next head. */
int64_t dvm_attn_blocks(const struct attn *s, const struct attn_seq *q);
struct attn_block dvm_attn_block(const struct attn *s, const struct attn_seq *q, int64_t b,
                                 int64_t h, int64_t index);

/* One tile of keys of sequence b and key head h. */
struct attn_tile {
    int64_t b, h, j0; /* j0: first key */
    int from, to;     /* keys read, counted from j0 */
};

struct attn_room {
    size_t kt, vt, kb;   /* of the backward: K^T, V^T in strips (columns are keys); K row by row */
    size_t s, t;         /* scores, their gradients */
    size_t off, bias, z; /* excluded places of a block; one row of pse; of dropout weights */
    size_t flex;
    size_t total;
};

/* Scores that pass through functions: what a thread needs (attn_flex.h). */
struct attn_flex;
struct attn_flex_work {
    struct attn_flex *flex; /* NULL: no functions */
    float *raw;             /* products; the forward works in place */
    char *add;              /* tiles of addends and their places */
    struct dvm_opnd_arg *opnd;
    void *scratch;
    float scale;
    int32_t b, h;
    int32_t q[ATTN_BM], k[ATTN_BN];
};

/* One thread at work. */
struct attn_work {
    const struct attn *a;
    const struct attn_seq *seq;
    const struct dvm_k_gemm *g;
    const struct dvm_k_attn *k;
    float *kt, *vt, *kb, *s, *t, *bias, *z;
    uint8_t *off;
    int from[ATTN_BM], to[ATTN_BM]; /* keys of each row of the block, in the tile */
    bool alike;                     /* they are the same for all rows */
    float scratch[ATTN_BM + DVM_ATTN_LANES];
    struct attn_flex_work flex;
};

/* Adds a part of `size` bytes; returns where it starts. */
size_t dvm_attn_part(size_t *total, int64_t size);
struct attn_room dvm_attn_room(const struct attn *s, bool backward);
void dvm_attn_enter(struct attn_work *w, const struct attn *s, const struct attn_seq *seq,
                    const struct attn_isa *isa, const struct attn_room *r, char *scratch);

DVM_INLINE int64_t attn_up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }
/* Row pitch of sums over d features; of rows with d features as operands, left or right: zeros follow the features, as many as
 * sums have places. An odd multiple of 16, as vm/k_attn.h says. */
DVM_INLINE int64_t attn_pitch(int64_t d) { return attn_up(DVM_MAX(d, 1), DVM_GEMM_MAX_NR); }
DVM_INLINE int64_t attn_row_pitch(int64_t d) {
    return d <= DVM_ATTN_MAX_COLS ? DVM_ATTN_PITCH : attn_pitch(d) + 16;
}

/* Rows of a block. */
void dvm_attn_pack_rows(const struct attn_work *w, float *d, const struct attn_mat *x,
                        const struct attn_block *blk, int64_t features);
/* Keys of a tile: row by row; transposed, in strips. */
void dvm_attn_pack_values(const struct attn_work *w, float *d, const struct attn_mat *x,
                          const struct attn_tile *t, int64_t features);
void dvm_attn_pack_keys(const struct attn_work *w, float *d, const struct attn_mat *x,
                        const struct attn_tile *t, int64_t features);
/* Whether packed rows [from, to) are finite. */
bool dvm_attn_finite(const struct attn_work *w, const float *d, int64_t from, int64_t to,
                     int64_t features);

/* Fills from, to and alike. False: no row of the block sees a key of the tile, as far as intervals and mask say. */
bool dvm_attn_see(struct attn_work *w, const struct attn_block *blk, int64_t j0);
/* Whether scores of the block are scaled and nothing else, and all rows see the same whole groups of LANES keys of the
 * tile: then all rows are handled in one call. marks: as below. After dvm_attn_see. */
bool dvm_attn_plain(const struct attn_work *w, bool marks);
/* Hull of the keys of rows [r0, r1). */
struct attn_range dvm_attn_hull(const struct attn_work *w, int r0, int r1);
/* s[r][j] = rows of a times keys of b, where some row of the register tile sees a key. */
void dvm_attn_scores(const struct attn_work *w, int m, int64_t features, const float *a,
                     const float *b, float *s);
/* Row r of s: scaled, biased, excluded places -inf, from *a to *b (multiples of LANES). Excluded places are marked in
 * off if the row has any or `marks` asks. Returns the maximum. */
float dvm_attn_row(struct attn_work *w, const struct attn_block *blk, const struct attn_tile *t,
                   int r, bool marks, int *a, int *b);
/* Dropout weights of row r at z[from], ... */
void dvm_attn_drop_row(struct attn_work *w, const struct attn_block *blk, const struct attn_tile *t,
                       int r);
/* c += a b over keys: a is s or t, b is packed rows of keys. clean: b is finite in all it holds. */
void dvm_attn_over_keys(const struct attn_work *w, int m, const float *a, const float *b,
                        int64_t features, float *c, bool clean);
/* c += the transpose of a times b over rows: a is s or t, b is packed rows of the block; c has a row for each key. */
void dvm_attn_over_rows(const struct attn_work *w, int m, const struct attn_tile *t, const float *a,
                        const float *b, int64_t features, float *c, bool clean);
/* The same two products with keys and values read where they stand, for few rows (DVM_GEMM_SMALL_M) that all see the
 * keys of the tile, and no place among them excluded; tmp: a row of features for each. dvm_attn_in_place says whether
 * the call allows it; then packing would cost more than the products. */
bool dvm_attn_in_place(const struct attn *s);
void dvm_attn_scores_in_place(const struct attn_work *w, int m, const struct attn_tile *t,
                              const float *a, float *s);
void dvm_attn_over_keys_in_place(const struct attn_work *w, int m, const struct attn_tile *t,
                                 const float *a, float *c, float *tmp);
/* Stores the rows of a block, features wide. */
void dvm_attn_store_rows(const struct attn_work *w, const struct attn_mat *x,
                         const struct attn_block *blk, const float *c, int64_t features);
void dvm_attn_zero_rows(const struct attn_mat *x, int64_t heads, int64_t b, int64_t from,
                        int64_t to, int64_t features);

/* Address of row `row` (packed rows in TND) of head n. */
DVM_INLINE char *attn_at(const struct attn_mat *x, int64_t b, int64_t n, int64_t row) {
    return x->p + b * x->bs + n * x->hs + row * x->rs;
}
/* Bias of row i: *shift is added to the key's number. docs/attention.md, "pse". */
DVM_INLINE int64_t attn_pse_row(const struct attn *s, int64_t i, int64_t *shift) {
    int64_t first = s->max_sq - s->pse_last;
    *shift = 0;
    if (!s->pse_last) return i;
    *shift = DVM_MAX(first - i, 0);
    return DVM_MAX(i - first, 0);
}
/* Statistics of row i of head n. */
float *dvm_attn_stat(const struct attn *s, const struct attn_mat *m, const struct attn_seq *q,
                     int64_t b, int64_t n, int64_t i);

/* Units of work: sequence and number inside it. */
struct attn_units {
    const int64_t *first; /* nseq + 1 */
    int64_t nseq;
    _Atomic int64_t next;
};
bool dvm_attn_next(struct attn_units *u, int64_t *b, int64_t *index);
#endif
