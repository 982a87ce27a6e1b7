/* A tile by packing: for each block of K, A and B are brought into the kernels' formats and multiplied. Packed blocks
 * are shared by all tiles that read them or, where that does not pay, made in the thread's own cache. While a block is
 * multiplied the kernels prefetch what is to be packed next, two lines for each k.
 *
 * Measured, one Zen 4 core that can do 118 GF (f32) and 236 GF (bf16): 2048 x 2048 x 2048 with every tile packing its own
 * blocks 98 and 194 GF, shared 104 and 208; prefetching packed blocks gained nothing. 16 x 8192 x 8192, where all of B is
 * packed to be used once: without prefetching 40 and 89 GF, with it 79 and 146. It must cover the whole block: with an
 * eighth of the lines left out half of the gain is gone. */
#include "ops/gemm/gemm_int.h"

enum { KC = DVM_GEMM_KC };

/* bf16 pairs go through the dot instruction of x86, which flushes denormals, only if none can arise. With the exponent fields
 * at least la and lb, every product, hence every sum, is a multiple of 2^(la - 134) 2^(lb - 134): normal or zero if
 * la + lb >= 142. With fields at most ha and hb no product reaches 2^128 if ha + hb <= 379; 255 is infinity or NaN. */
static bool dot_is_exact(struct dvm_k_range a, struct dvm_k_range b) {
    return a.lo > 0 && b.lo > 0 && a.hi < 255 && b.hi < 255 && a.lo + b.lo >= 142 &&
           a.hi + b.hi <= 379;
}

/* ---- what to prefetch: pairs of lines of `rows` rows, rs bytes apart; a call of a kernel takes a pair of as many rows
 * as it has k */

struct ahead {
    const char *p;
    int64_t rs, rows, lines, row, line;
};
static struct ahead ahead_of(const char *p, int64_t rs, int64_t rows, int64_t bytes) {
    return (struct ahead){p, rs, rows, gemm_over(bytes, 128), 0, 0};
}
static const char *take(struct ahead *h, int64_t k, int64_t *step) {
    *step = 0;
    if (h->line >= h->lines) return h->p;
    const char *p = h->p + h->row * h->rs + h->line * 128;
    *step = h->rs;
    h->row += k;
    if (h->row >= h->rows) h->row = 0, h->line++;
    return p;
}

/* ---- one block of K of one tile */

struct step {
    int64_t r0, c0, k0, m, n, kc;
    bool pairs;
    int64_t strip; /* words from one strip of packed B to the next */
    const void *a, *b;
    int64_t ars; /* floats from one row of A to the next */
    struct dvm_k_range ra, rb;
    struct ahead next;
    float *c;
    int64_t ldc;
};

/* Heights as even as they can be: 16 rows are 8 + 8, not 12 + 4. */
static int64_t height(int64_t m, int64_t mr) { return gemm_over(m, gemm_over(m, mr)); }

/* What the first strips of rows i.. fetch: the next rows of A, which the second-level cache need not hold where K is long.
 * 128 x 512 x 4096 on a Zen 3 core: 42 GF without, 67 with. Rows that stay where they are may lie far apart: each strip fetches
 * one. Packed pairs are half a block of words, and so is a call: the first strip fetches them all. */
static const char *next_rows(const void *a, int64_t row_bytes, int64_t i, int64_t h,
                             int64_t *step) {
    *step = h * 4;
    return (const char *)a + (i + h) * row_bytes;
}

static void multiply_f32(const struct dvm_k_gemm *k, struct step *t) {
    int64_t h = height(t->m, k->mr), jump;
    const float *a = t->a, *b = t->b;
    for (int64_t i = 0; i < t->m; i += h)
        for (int64_t j = 0; j < t->n; j += k->nr) {
            int64_t s = j / k->nr, row = i + h + s;
            const char *next = s < h && row < t->m ? (jump = 4, (const char *)(a + row * t->ars))
                                                   : take(&t->next, t->kc, &jump);
            k->f32((int)DVM_MIN(h, t->m - i), (int)DVM_MIN(k->nr, t->n - j), t->kc, a + i * t->ars,
                   t->ars, 1, b + s * t->strip, k->nr, t->c + i * t->ldc + j, t->ldc, t->k0 == 0,
                   next, jump);
        }
}
static void multiply_pairs(const struct dvm_k_gemm *k, struct step *t) {
    int64_t h = height(t->m, k->mr), pairs = gemm_over(t->kc, 2), jump;
    const uint32_t *a = t->a, *b = t->b;
    for (int64_t i = 0; i < t->m; i += h)
        for (int64_t j = 0; j < t->n; j += k->nr) {
            const char *next = j || i + h >= t->m ? take(&t->next, pairs, &jump)
                                                  : next_rows(a, KC * 2, i, h, &jump);
            k->bf16((int)DVM_MIN(h, t->m - i), (int)DVM_MIN(k->nr, t->n - j), pairs,
                    a + i * (KC / 2), b + j / k->nr * t->strip, t->c + i * t->ldc + j, t->ldc,
                    t->k0 == 0, next, jump);
        }
}
/* Pairs whose exponents reach too far: as floats, B a strip at a time. */
static void multiply_wide(const struct dvm_k_gemm *k, const struct gemm_ws *ws, struct step *t) {
    int64_t pairs = gemm_over(t->kc, 2);
    struct step f = *t;
    f.next = ahead_of((const char *)ws->y, 0, 0, 0);
    for (int64_t i = 0; i < t->m; i++)
        k->unpair(ws->x + i * KC, (const uint32_t *)t->a + i * (KC / 2), 1, pairs);
    for (int64_t j = 0; j < t->n; j += k->nr) {
        k->unpair(ws->y, (const uint32_t *)t->b + j / k->nr * t->strip, k->nr, pairs);
        f.a = ws->x;
        f.ars = KC;
        f.b = ws->y;
        f.n = DVM_MIN(k->nr, t->n - j);
        f.c = t->c + j;
        multiply_f32(k, &f);
    }
}

/* ---- packing */

static struct step step_of(const struct gemm_run *r, const struct gemm_item *it, int64_t tr,
                           int64_t tc, int64_t kb) {
    struct step t = {.r0 = tr * it->tm, .c0 = tc * it->tn, .k0 = kb * KC, .pairs = r->pairs};
    t.m = DVM_MIN(it->tm, it->m - t.r0);
    t.n = DVM_MIN(it->tn, it->n - t.c0);
    t.kc = DVM_MIN(KC, it->k - t.k0);
    t.strip = r->k->nr * (r->pairs ? gemm_over(t.kc, 2) : t.kc) + GEMM_STRIP_PAD;
    return t;
}

static struct dvm_k_range pack_a(const struct gemm_run *r, int thread, const struct gemm_item *it,
                                 const struct step *t, void *d) {
    const struct dvm_gemm *g = r->g;
    struct dvm_k_block s = {
        gemm_at(it->a, t->r0 * g->a.rs + t->k0 * g->a.cs), g->a.rs, g->a.cs, t->m, t->kc, g->a.t};
    if (t->pairs) return r->k->col_pairs(d, KC / 2, &s);
    if (g->pack_a)
        g->pack_a(g->ctx, thread, it->batch, it->ma + t->r0, it->ka + t->k0, t->m, t->kc, d, KC);
    else
        r->k->rows(d, KC, KC, 0, false, &s);
    return (struct dvm_k_range){0, 0};
}

static struct dvm_k_range pack_b(const struct gemm_run *r, float *stage, int thread,
                                 const struct gemm_item *it, const struct step *t, void *d) {
    const struct dvm_gemm *g = r->g;
    struct dvm_k_block s = {
        gemm_at(it->b, t->k0 * g->b.rs + t->c0 * g->b.cs), g->b.rs, g->b.cs, t->kc, t->n, g->b.t};
    if (t->pairs) return r->k->row_pairs(d, t->strip, &s);
    if (g->pack_b) {
        g->pack_b(g->ctx, thread, it->batch, it->kb + t->k0, t->c0, t->kc, t->n, stage,
                  DVM_GEMM_TN);
        s = (struct dvm_k_block){(char *)stage, DVM_GEMM_TN * 4, 4, t->kc, t->n, DVM_F32};
    }
    r->k->rows(d, r->k->nr, r->k->nr, t->strip, true, &s);
    return (struct dvm_k_range){0, 0};
}

void dvm_gemm_share_a(const struct gemm_run *r, int thread, int64_t i) {
    const struct gemm_shared *s = &r->share;
    struct step t = step_of(r, r->item, i / r->item->depth, 0, i % r->item->depth);
    s->ra[i] = pack_a(r, thread, r->item, &t, s->a + i * s->a_size);
}
void dvm_gemm_share_b(const struct gemm_run *r, const struct gemm_ws *ws, int thread, int64_t i) {
    const struct gemm_shared *s = &r->share;
    struct step t = step_of(r, r->item, 0, s->col0 + i / r->item->depth, i % r->item->depth);
    s->rb[i] = pack_b(r, ws->x, thread, r->item, &t, s->b + i * s->b_size);
}

/* ---- a tile */

/* Block (k0, c0) of B in memory. */
static struct ahead ahead_of_b(const struct dvm_gemm *g, const struct gemm_item *it, int64_t k0,
                               int64_t c0) {
    const char *p = gemm_at(it->b, k0 * g->b.rs + c0 * g->b.cs);
    int64_t e = gemm_size(g->b.t), n = DVM_MIN(it->tn, it->n - c0), k = DVM_MIN(KC, it->k - k0);
    if (g->b.cs == e) return ahead_of(p, g->b.rs, k, n * e);
    if (g->b.rs == e) return ahead_of(p, g->b.cs, n, k * e);
    return ahead_of(p, 0, 0, 0);
}

/* The block of B that this thread will pack after this one: the next of K, of the columns, of the products. */
static struct ahead next_b(const struct gemm_run *r, const struct gemm_item *it, bool alone,
                           const struct step *t) {
    const struct dvm_gemm *g = r->g;
    int64_t k0 = t->k0 + KC, c0 = t->c0;
    if (k0 >= it->k) k0 = 0, c0 += it->tn * (g->panel ? 1 : r->host.threads);
    if (g->pack_b) return ahead_of(t->b, 0, 0, 0);
    if (c0 < it->n) return ahead_of_b(g, it, k0, c0);
    struct gemm_item next = {.k = 0};
    if (alone && it->batch >= 0 && it->batch + 1 < r->items)
        next = dvm_gemm_item(g, it->batch + 1, &r->host);
    return next.k ? ahead_of_b(g, &next, 0, 0) : ahead_of(t->b, 0, 0, 0);
}

/* Its sums go to c, with rows ldc apart. */
static void multiply_tile(const struct gemm_run *r, const struct gemm_ws *ws, int thread,
                          const struct gemm_item *it, const struct gemm_shared *s, int64_t tr,
                          int64_t tc, float *c, int64_t ldc) {
    struct step t;
    for (int64_t kb = 0; kb < it->depth; kb++) {
        t = step_of(r, it, tr, tc, kb);
        int64_t ia = tr * it->depth + kb, ib = s ? (tc - s->col0) * it->depth + kb : 0;
        t.c = c;
        t.ldc = ldc;
        bool stays = gemm_a_stays(r->g);
        t.ars = stays ? r->g->a.rs / 4 : KC;
        t.a = stays       ? it->a + t.r0 * r->g->a.rs + t.k0 * 4
              : s && s->a ? s->a + ia * s->a_size
                          : ws->a;
        t.b = s && s->b ? s->b + ib * s->b_size : ws->b;
        if (!stays) t.ra = s && s->a ? s->ra[ia] : pack_a(r, thread, it, &t, ws->a);
        t.rb = s && s->b ? s->rb[ib] : pack_b(r, ws->x, thread, it, &t, ws->b);
        t.next = s && s->b ? ahead_of(t.b, 0, 0, 0) : next_b(r, it, !s, &t);
        if (!r->pairs)
            multiply_f32(r->k, &t);
        else if (r->k->exact || dot_is_exact(t.ra, t.rb))
            multiply_pairs(r->k, &t);
        else
            multiply_wide(r->k, ws, &t);
    }
}

void dvm_gemm_block_tile(const struct gemm_run *r, const struct gemm_ws *ws, int thread,
                         const struct gemm_item *it, const struct gemm_shared *s, int64_t tr,
                         int64_t tc) {
    struct step t = step_of(r, it, tr, tc, 0);
    int64_t width = r->g->panel ? it->n : t.n, ldc = gemm_up(width, DVM_GEMM_MAX_NR);
    if (!r->g->panel)
        multiply_tile(r, ws, thread, it, s, tr, tc, ws->c, ldc);
    else
        for (tc = 0; tc < it->cols; tc++)
            multiply_tile(r, ws, thread, it, s, tr, tc, ws->c + tc * it->tn, ldc);
    dvm_gemm_finish(r, thread, it, t.r0, t.c0, t.m, width, ws->c, ldc);
}
