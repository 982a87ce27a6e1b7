/* A tile of few rows (decoding) or few columns: the large operand is read once, where it stands; only the small one is
 * packed. Few columns are few rows of the transposed product; that tile is turned at the end.
 *
 * Measured, one Zen 4 core, 1 x 8192 x 8192 (memory gives about 23 GB/s): rows 8.3 GF (f32) without prefetching the next
 * eight of them, 10.7 with; columns 9.0 GF with 64 of them at a time, 10.5 with 16. */
#include "ops/gemm/gemm_int.h"

/* The product seen with few rows: S times T. */
struct view {
    struct dvm_k_block s, t; /* whole K, then cut into blocks */
    bool swap;
};

static struct view view_of(const struct dvm_gemm *g, const struct gemm_item *it, int64_t r0,
                           int64_t c0, int64_t m, int64_t n) {
    const char *a = gemm_at(it->a, r0 * g->a.rs), *b = gemm_at(it->b, c0 * g->b.cs);
    if (it->way == WAY_STREAM)
        return (struct view){{a, g->a.rs, g->a.cs, m, it->k, g->a.t},
                             {b, g->b.rs, g->b.cs, it->k, n, g->b.t},
                             false};
    return (struct view){
        {b, g->b.cs, g->b.rs, n, it->k, g->b.t}, {a, g->a.cs, g->a.rs, it->k, m, g->a.t}, true};
}

/* Rows of S for k0.., as A, f32. */
static void pack_small(const struct gemm_run *r, const struct gemm_ws *ws, int thread,
                       const struct gemm_item *it, const struct view *v, int64_t r0, int64_t c0,
                       int64_t k0, int64_t kc) {
    const struct dvm_gemm *g = r->g;
    struct dvm_k_block s = v->s;
    s.p = gemm_at(s.p, k0 * s.cs);
    s.cols = kc;
    if (!v->swap && g->pack_a) {
        g->pack_a(g->ctx, thread, it->batch, it->ma + r0, it->ka + k0, s.rows, kc, ws->a,
                  DVM_GEMM_KC);
        return;
    }
    if (v->swap && g->pack_b) {
        g->pack_b(g->ctx, thread, it->batch, it->kb + k0, c0, kc, s.rows, ws->x, DVM_GEMM_SMALL_M);
        s = (struct dvm_k_block){(char *)ws->x, 4, DVM_GEMM_SMALL_M * 4, s.rows, kc, DVM_F32};
    }
    r->k->rows(ws->a, DVM_GEMM_KC, DVM_GEMM_KC, 0, false, &s);
}

/* Columns of T that are contiguous in memory are read to their end, some at a time; rows all at once. */
enum { COLUMNS = 16 };

static void stream(const struct gemm_run *r, const struct gemm_ws *ws, int thread,
                   const struct gemm_item *it, const struct view *v, int64_t r0, int64_t c0,
                   struct dvm_k_block t, float *c, int64_t ldc) {
    const struct dvm_k_gemm *k = r->k;
    bool by_rows = t.cs == gemm_size(t.t), half = r->pairs && k->stream_bf16_n1;
    int few = (int)v->s.rows;
    for (int64_t k0 = 0; k0 < it->k; k0 += DVM_GEMM_KC, t.p += DVM_GEMM_KC * t.rs) {
        t.rows = DVM_MIN(it->k - k0, DVM_GEMM_KC);
        pack_small(r, ws, thread, it, v, r0, c0, k0, t.rows);
        if (by_rows)
            (half ? k->stream_bf16_n1 : k->stream_n1)(few, ws->a, DVM_GEMM_KC, &t, c, ldc, ws->y,
                                                      k0 == 0);
        else
            (half ? k->stream_bf16_k1 : k->stream_k1)(few, ws->a, DVM_GEMM_KC, &t, c, ldc, k0 == 0);
    }
}

void dvm_gemm_stream_tile(const struct gemm_run *r, const struct gemm_ws *ws, int thread,
                          const struct gemm_item *it, int64_t tr, int64_t tc) {
    int64_t r0 = tr * it->tm, c0 = tc * it->tn;
    int64_t m = DVM_MIN(it->tm, it->m - r0), n = DVM_MIN(it->tn, it->n - c0);
    struct view v = view_of(r->g, it, r0, c0, m, n);
    int64_t few = v.s.rows, ldc = gemm_up(v.t.cols, DVM_GEMM_MAX_NR);
    int64_t width = v.t.cs == gemm_size(v.t.t) ? v.t.cols : COLUMNS;
    for (int64_t j = 0; j < v.t.cols; j += width) {
        struct dvm_k_block t = v.t;
        t.p += j * t.cs;
        t.cols = DVM_MIN(width, t.cols - j);
        stream(r, ws, thread, it, &v, r0, c0, t, ws->c + j, ldc);
    }
    if (v.swap && it->k > 0) {
        r->k->transpose((uint32_t *)ws->x, few, (uint32_t *)ws->c, ldc, few, m);
        dvm_gemm_finish(r, thread, it, r0, c0, m, n, ws->x, few);
    } else {
        dvm_gemm_finish(r, thread, it, r0, c0, m, n, ws->c, v.swap ? few : ldc);
    }
}
