/* A tile by packing: for each block of K, A and B of the tile are brought into the kernels' formats in the thread's
 * own cache and multiplied. */
#include "ops/gemm/gemm_int.h"

/* bf16 pairs go through the dot instruction, which flushes denormals, only if none can arise. With the exponent fields
 * at least la and lb, every product, hence every sum, is a multiple of 2^(la - 134) 2^(lb - 134): normal or zero if
 * la + lb >= 142. With fields at most ha and hb no product reaches 2^127 if ha + hb <= 379; 255 is infinity or NaN. */
static bool dot_is_exact(int la, int ha, int lb, int hb) {
    return la > 0 && lb > 0 && ha < 255 && hb < 255 && la + lb >= 142 && ha + hb <= 379;
}

struct block {
    int64_t m, n, kc;
    int64_t strip; /* words from one strip of packed B to the next */
    float *c;
    int64_t ldc;
    bool first;
};

/* Heights as even as they can be: 16 rows are 8 + 8, not 12 + 4. */
static int64_t panel(int64_t m, int64_t mr) {
    int64_t panels = (m + mr - 1) / mr;
    return (m + panels - 1) / panels;
}

static void multiply_f32(const struct dvm_k_gemm *k, const struct block *t, const float *a,
                         const float *b) {
    int64_t h = panel(t->m, k->mr);
    for (int64_t i = 0; i < t->m; i += h)
        for (int64_t j = 0; j < t->n; j += k->nr)
            k->f32((int)DVM_MIN(h, t->m - i), (int)DVM_MIN(k->nr, t->n - j), t->kc,
                   a + i * DVM_GEMM_KC, b + j / k->nr * t->strip, k->nr, t->c + i * t->ldc + j,
                   t->ldc, t->first);
}
static void multiply_pairs(const struct dvm_k_gemm *k, const struct block *t, const uint32_t *a,
                           const uint32_t *b) {
    int64_t h = panel(t->m, k->mr), pairs = (t->kc + 1) / 2;
    for (int64_t i = 0; i < t->m; i += h)
        for (int64_t j = 0; j < t->n; j += k->nr)
            k->bf16((int)DVM_MIN(h, t->m - i), (int)DVM_MIN(k->nr, t->n - j), pairs,
                    a + i * (DVM_GEMM_KC / 2), b + j / k->nr * t->strip, t->c + i * t->ldc + j,
                    t->ldc, t->first);
}

/* ---- blocks of the operands: rows r0.., k0..; k0.., columns c0.. */

static struct dvm_k_block a_block(const struct dvm_gemm *g, const struct gemm_item *it, int64_t r0,
                                  int64_t k0, const struct block *t) {
    return (struct dvm_k_block){
        it->a + r0 * g->a.rs + k0 * g->a.cs, g->a.rs, g->a.cs, t->m, t->kc, g->a.t};
}
static struct dvm_k_block b_block(const struct dvm_gemm *g, const struct gemm_item *it, int64_t k0,
                                  int64_t c0, const struct block *t) {
    return (struct dvm_k_block){
        it->b + k0 * g->b.rs + c0 * g->b.cs, g->b.rs, g->b.cs, t->kc, t->n, g->b.t};
}

static void f32_step(const struct gemm_run *r, const struct gemm_ws *ws, int thread,
                     const struct gemm_item *it, int64_t r0, int64_t c0, int64_t k0,
                     const struct block *t) {
    const struct dvm_gemm *g = r->g;
    int64_t nr = r->k->nr;
    struct dvm_k_block a = a_block(g, it, r0, k0, t), b = b_block(g, it, k0, c0, t);
    if (g->pack_a)
        g->pack_a(g->ctx, thread, it->batch, it->ma + r0, it->ka + k0, t->m, t->kc, ws->a,
                  DVM_GEMM_KC);
    else
        r->k->rows(ws->a, DVM_GEMM_KC, DVM_GEMM_KC, 0, false, &a);
    if (g->pack_b) {
        g->pack_b(g->ctx, thread, it->batch, it->kb + k0, c0, t->kc, t->n, ws->x, DVM_GEMM_TN);
        b = (struct dvm_k_block){(char *)ws->x, DVM_GEMM_TN * 4, 4, t->kc, t->n, DVM_F32};
    }
    r->k->rows(ws->b, nr, nr, t->strip, true, &b);
    multiply_f32(r->k, t, ws->a, ws->b);
}

static void pairs_step(const struct gemm_run *r, const struct gemm_ws *ws,
                       const struct gemm_item *it, int64_t r0, int64_t c0, int64_t k0,
                       const struct block *t) {
    const struct dvm_k_gemm *k = r->k;
    int64_t pairs = (t->kc + 1) / 2, strips = (t->n + k->nr - 1) / k->nr;
    struct dvm_k_block a = a_block(r->g, it, r0, k0, t), b = b_block(r->g, it, k0, c0, t);
    int la = 255, ha = 0, lb, hb;
    k->col_pairs(ws->a, DVM_GEMM_KC / 2, &a);
    k->row_pairs(ws->b, k->nr, t->strip, &b);
    for (int64_t i = 0; i < t->m; i++) {
        int lo, hi;
        k->exponents((uint32_t *)ws->a + i * (DVM_GEMM_KC / 2), pairs, &lo, &hi);
        la = DVM_MIN(la, lo);
        ha = DVM_MAX(ha, hi);
    }
    k->exponents(ws->b, strips * k->nr * pairs, &lb, &hb);
    if (dot_is_exact(la, ha, lb, hb)) {
        multiply_pairs(k, t, ws->a, ws->b);
        return;
    }
    for (int64_t i = 0; i < t->m; i++)
        k->unpair(ws->x + i * DVM_GEMM_KC, (uint32_t *)ws->a + i * (DVM_GEMM_KC / 2), 1, pairs);
    struct block f = *t;
    f.strip = 2 * t->strip;
    k->unpair(ws->y, ws->b, k->nr, strips * pairs);
    multiply_f32(k, &f, ws->x, ws->y);
}

void dvm_gemm_block_tile(const struct gemm_run *r, const struct gemm_ws *ws, int thread,
                         const struct gemm_item *it, int64_t r0, int64_t c0, int64_t m, int64_t n) {
    struct block t = {.m = m, .n = n, .c = ws->c, .ldc = gemm_up(n, DVM_GEMM_MAX_NR)};
    for (int64_t k0 = 0; k0 < it->k; k0 += DVM_GEMM_KC) {
        t.kc = DVM_MIN(it->k - k0, DVM_GEMM_KC);
        t.strip = r->k->nr * (r->pairs ? (t.kc + 1) / 2 : t.kc);
        t.first = k0 == 0;
        if (r->pairs)
            pairs_step(r, ws, it, r0, c0, k0, &t);
        else
            f32_step(r, ws, thread, it, r0, c0, k0, &t);
    }
    dvm_gemm_finish(r, thread, it, r0, c0, m, n, ws->c, t.ldc);
}
