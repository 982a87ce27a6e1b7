/* A tile of a product in lanes (gemm.h): one row times a matrix, or a matrix times one column, which is a row times the
 * transposed matrix. The matrix is read once, where it stands; one that a prologue makes, or that is contiguous neither way, goes
 * through a buffer first.
 *
 * Measured, one Zen 3 core: 1 x 512 x 512 with columns contiguous 10 GF by one chain a column (vectors turned in registers), 26 in
 * lanes; with rows contiguous 21 and 27. */
#include <string.h>

#include "ops/gemm/gemm_int.h"

enum { KC = DVM_GEMM_LANE_KC };

/* A row s times a matrix t, of whole K. */
struct view {
    bool swap;
    struct dvm_k_block s, t;
};

static struct view view_of(const struct dvm_gemm *g, const struct gemm_item *it, int64_t r0,
                           int64_t c0, int64_t m, int64_t n) {
    const char *a = gemm_at(it->a, r0 * g->a.rs), *b = gemm_at(it->b, c0 * g->b.cs);
    if (it->way == WAY_LANES)
        return (struct view){
            false, {a, 0, g->a.cs, 1, it->k, g->a.t}, {b, g->b.rs, g->b.cs, it->k, n, g->b.t}};
    return (struct view){
        true, {b, 0, g->b.rs, 1, it->k, g->b.t}, {a, g->a.cs, g->a.rs, it->k, m, g->a.t}};
}

/* What a tile works on: a block of K of it. */
struct part {
    const struct gemm_run *r;
    const struct gemm_ws *ws;
    int thread;
    const struct gemm_item *it;
    int64_t r0, c0, k0, kc, pitch;
    float *c;
};

static void pack_row(const struct part *p, const struct view *v) {
    const struct dvm_gemm *g = p->r->g;
    const struct gemm_item *it = p->it;
    float *d = p->ws->a;
    struct dvm_k_block s = v->s;
    s.p = gemm_at(s.p, p->k0 * s.cs);
    s.cols = p->kc;
    if (!v->swap && g->pack_a)
        g->pack_a(g->ctx, p->thread, it->batch, it->ma + p->r0, it->ka + p->k0, 1, p->kc, d, KC);
    else if (v->swap && g->pack_b)
        g->pack_b(g->ctx, p->thread, it->batch, it->kb + p->k0, p->c0, p->kc, 1, d, 1);
    else
        p->r->k->rows(d, KC, KC, 0, false, &s);
    for (int64_t i = p->kc; i % DVM_GEMM_LANES; i++) d[i] = -0.0f;
}

/* Some rows of t. */
static struct dvm_k_block stage_rows(const struct part *p, const struct dvm_k_block *t, int64_t k,
                                     int64_t rows) {
    const struct dvm_gemm *g = p->r->g;
    const struct gemm_item *it = p->it;
    float *x = p->ws->x;
    struct dvm_k_block s = *t;
    s.p = gemm_at(s.p, k * s.rs);
    s.rows = rows;
    if (it->way == WAY_LANES && g->pack_b)
        g->pack_b(g->ctx, p->thread, it->batch, it->kb + p->k0 + k, p->c0, rows, t->cols, x,
                  LANE_STAGE_N);
    else
        p->r->k->rows(x, LANE_STAGE_N, LANE_STAGE_N, 0, false, &s);
    return (struct dvm_k_block){(char *)x, LANE_STAGE_N * 4, 4, rows, t->cols, DVM_F32};
}

/* Are factors read as bf16? */
static bool half(const struct gemm_run *r) { return r->pairs && r->k->lanes_bf16_k1; }

static void by_rows(const struct part *p, const struct dvm_k_block *t, bool staged) {
    const float *a = p->ws->a;
    float *lane = p->ws->y;
    memset(lane, 0, (size_t)(DVM_GEMM_LANES * p->pitch) * 4);
    if (!staged) (half(p->r) ? p->r->k->lanes_bf16_n1 : p->r->k->lanes_n1)(a, t, lane, p->pitch);
    for (int64_t k = 0; staged && k < p->kc; k += LANE_ROWS) {
        struct dvm_k_block s = stage_rows(p, t, k, DVM_MIN(p->kc - k, LANE_ROWS));
        p->r->k->lanes_n1(a + k, &s, lane, p->pitch);
    }
    p->r->k->lanes_fold(p->c, t->cols, lane, p->pitch, p->k0 == 0);
}

/* Columns of t that a prologue makes: rows of A. */
static void by_made_columns(const struct part *p, int64_t cols) {
    const struct dvm_gemm *g = p->r->g;
    const struct gemm_item *it = p->it;
    for (int64_t j = 0; j < cols; j += LANE_COLS) {
        struct dvm_k_block s = {(char *)p->ws->x, 4, KC * 4, p->kc, DVM_MIN(cols - j, LANE_COLS),
                                DVM_F32};
        g->pack_a(g->ctx, p->thread, it->batch, it->ma + p->r0 + j, it->ka + p->k0, s.cols, p->kc,
                  p->ws->x, KC);
        p->r->k->lanes_k1(p->ws->a, &s, p->c + j, p->k0 == 0);
    }
}

/* Row r0, columns c0..c0 + n; or rows r0..r0 + m of one column. */
static void multiply(struct part *p, int64_t m, int64_t n) {
    const struct dvm_gemm *g = p->r->g;
    struct view v = view_of(g, p->it, p->r0, p->c0, m, n);
    bool staged = gemm_staged(g, p->it->way);
    p->pitch = gemm_up(v.t.cols, DVM_GEMM_MAX_NR);
    for (p->k0 = 0; p->k0 < p->it->k; p->k0 += KC) {
        struct dvm_k_block t = v.t;
        p->kc = t.rows = DVM_MIN(p->it->k - p->k0, KC);
        t.p = gemm_at(t.p, p->k0 * t.rs);
        pack_row(p, &v);
        if (v.swap && g->pack_a)
            by_made_columns(p, t.cols);
        else if (!staged && t.rs == gemm_size(t.t))
            (half(p->r) ? p->r->k->lanes_bf16_k1 : p->r->k->lanes_k1)(p->ws->a, &t, p->c,
                                                                      p->k0 == 0);
        else
            by_rows(p, &t, staged);
    }
}

/* Panels of a matrix of one row are the row. */
void dvm_gemm_lanes_tile(const struct gemm_run *r, const struct gemm_ws *ws, int thread,
                         const struct gemm_item *it, int64_t tr, int64_t tc) {
    int64_t r0 = tr * it->tm, c0 = tc * it->tn, tiles = r->g->panel ? it->cols : 1;
    int64_t m = DVM_MIN(it->tm, it->m - r0), n = DVM_MIN(tiles * it->tn, it->n - c0);
    for (int64_t j = 0; j < n; j += it->tn) {
        struct part p = {r, ws, thread, it, r0, c0 + j, 0, 0, 0, ws->c + j};
        multiply(&p, m, DVM_MIN(n - j, it->tn));
    }
    dvm_gemm_finish(r, thread, it, r0, c0, m, n, ws->c,
                    it->way == WAY_LANES ? gemm_up(n, DVM_GEMM_MAX_NR) : 1);
}
