/* Between the files of this folder. gemm.c: the run, its scratch and threads; gemm_shape.c: arguments, products, tiles;
 * gemm_block.c: a tile by packing; gemm_stream.c: a tile of few rows or few columns; gemm_lanes.c: one row or one column;
 * gemm_ref.c: the meaning. */
#ifndef DVM_OPS_GEMM_GEMM_INT_H
#define DVM_OPS_GEMM_GEMM_INT_H
#include "ops/gemm/gemm.h"

enum gemm_way {
    WAY_BLOCK,       /* both operands packed */
    WAY_STREAM,      /* few rows: B read where it stands */
    WAY_STREAM_SWAP, /* few columns: the same with the operands exchanged, tiles transposed at the end */
    WAY_LANES,
    WAY_LANES_SWAP /* one column: as a row */
};

/* Words between strips of packed B: packing writes one line of every strip in turn, and without them those lines are some powers
 * of two apart, all in one set of the cache. */
enum { GEMM_STRIP_PAD = 16 };

/* What tiles depend on besides the product. */
struct gemm_host {
    int threads;
    bool narrow;
};

/* One product of the run: a matrix of the batch or a group. */
struct gemm_item {
    int64_t m, n, k;
    int64_t batch, row0; /* as the epilogue hears them */
    const char *a, *b;   /* element (0, 0) */
    int64_t ka, ma, kb;  /* first k of A, row of A, k of B: what a prologue is told */
    enum gemm_way way;
    int64_t tm, tn, rows, cols; /* tile size, tiles */
    int64_t depth;              /* blocks of K */
};

/* Packed blocks that all threads read. A: rows x depth blocks of tm x KC; B: the columns of tiles from col0 on, depth
 * blocks of KC x tn each. a or b NULL: every tile packs its own. */
struct gemm_shared {
    char *a, *b;
    struct dvm_k_range *ra, *rb; /* exponents in blocks of pairs */
    int64_t a_size, b_size;      /* bytes of a block */
    int64_t col0, cols;
};

/* Products in lanes whose matrix is made or not dense: rows of it, or whole columns, that are packed at a time. */
enum { LANE_ROWS = 64, LANE_COLS = 16, LANE_STAGE_N = 512 };
static_assert(LANE_ROWS % DVM_GEMM_LANES == 0, "each piece begins at lane 0");

/* Scratch of one thread: offsets in bytes. */
struct gemm_room {
    size_t c, a, b, x, y; /* sums; packed A; packed B; staging (two) */
    size_t total;
};
struct gemm_ws {
    float *c;
    void *a, *b;
    float *x, *y;
};

struct gemm_run {
    const struct dvm_gemm *g;
    const struct dvm_k_gemm *k;
    bool pairs; /* both operands are bf16 in memory and multiplied as such */
    struct gemm_host host;
    struct gemm_room room;
    char *ws; /* of the threads */
    /* A loop over tiles of all items that are not shared ... */
    const int64_t *first; /* groups: first tile of each item */
    int64_t items, tiles;
    /* ... or over one item that is */
    const struct gemm_item *item;
    struct gemm_shared share;
    int64_t packs_a, packs; /* blocks to pack: of A, in all */
    _Atomic int64_t next;
};

int64_t dvm_gemm_items(const struct dvm_gemm *g);
struct gemm_item dvm_gemm_item(const struct dvm_gemm *g, int64_t i, const struct gemm_host *h);

/* Tile (tr, tc) of the item, or panel tr of whole rows; leaves it to dvm_gemm_finish. s may be NULL. */
void dvm_gemm_block_tile(const struct gemm_run *r, const struct gemm_ws *ws, int thread,
                         const struct gemm_item *it, const struct gemm_shared *s, int64_t tr,
                         int64_t tc);
void dvm_gemm_stream_tile(const struct gemm_run *r, const struct gemm_ws *ws, int thread,
                          const struct gemm_item *it, int64_t tr, int64_t tc);
void dvm_gemm_lanes_tile(const struct gemm_run *r, const struct gemm_ws *ws, int thread,
                         const struct gemm_item *it, int64_t tr, int64_t tc);
/* Packs shared block number i of A, i of B. */
void dvm_gemm_share_a(const struct gemm_run *r, int thread, int64_t i);
void dvm_gemm_share_b(const struct gemm_run *r, const struct gemm_ws *ws, int thread, int64_t i);
/* Epilogue or store. */
void dvm_gemm_finish(const struct gemm_run *r, int thread, const struct gemm_item *it, int64_t r0,
                     int64_t c0, int64_t m, int64_t n, float *tile, int64_t ld);

/* Byte offset of matrix `batch` of an operand. */
DVM_INLINE int64_t gemm_batch_at(const struct dvm_gemm *g, const int64_t *bs, int64_t batch) {
    int64_t at = 0;
    if (g->form != DVM_GEMM_BATCH) return batch * bs[0];
    for (int d = g->nbatch - 1; d >= 0; d--) {
        at += batch % g->bdim[d] * bs[d];
        batch /= g->bdim[d];
    }
    return at;
}
/* Rows of A that are contiguous f32 are read where they stand: each once for a block of B. */
DVM_INLINE bool gemm_a_stays(const struct dvm_gemm *g) {
    return !g->pack_a && g->a.t == DVM_F32 && g->a.cs == 4 && g->a.rs % 4 == 0;
}
/* Is the matrix that a row (a column) is multiplied with packed first? */
DVM_INLINE bool gemm_staged(const struct dvm_gemm *g, enum gemm_way way) {
    const struct dvm_gemm_mat *m = way == WAY_LANES ? &g->b : &g->a;
    int64_t e = m->t == DVM_F32 ? 4 : 2;
    return (way == WAY_LANES ? g->pack_b : g->pack_a) || (m->rs != e && m->cs != e);
}
/* Operands that a prologue makes have no address. */
DVM_INLINE const char *gemm_at(const char *p, int64_t offset) { return p ? p + offset : p; }
/* Tiles of an item as threads take them. */
DVM_INLINE int64_t gemm_tiles(const struct dvm_gemm *g, const struct gemm_item *it) {
    return g->panel ? it->rows : it->rows * it->cols;
}
DVM_INLINE bool gemm_all_bf16(const struct dvm_gemm *g) {
    return !g->pack_a && !g->pack_b && g->a.t == DVM_BF16 && g->b.t == DVM_BF16;
}
/* Bytes of a packed block of KC x n elements of B, for the narrowest strips of any level. */
DVM_INLINE int64_t gemm_block_b(int64_t n, bool pairs) {
    enum { LEAST_NR = 4 };
    return n * DVM_GEMM_KC * (pairs ? 2 : 4) + n / LEAST_NR * GEMM_STRIP_PAD * 4;
}
DVM_INLINE int64_t gemm_size(dvm_dtype t) { return t == DVM_F32 ? 4 : 2; }
DVM_INLINE int64_t gemm_over(int64_t n, int64_t step) { return (n + step - 1) / step; }
DVM_INLINE int64_t gemm_up(int64_t n, int64_t step) { return gemm_over(n, step) * step; }
#endif
