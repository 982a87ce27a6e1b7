/* Blocks, tiles and the steps on them. Every product goes through the matrix kernels, for the hull of the keys that the
 * rows of a register tile see. */
#include "ops/attn/attn_flex.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

enum { LANES = DVM_ATTN_LANES, KC = DVM_GEMM_KC };

/* ---- blocks */

/* Heads of a block: whole short sequences are stacked. */
static int64_t stacked(const struct attn *s, const struct attn_seq *q) {
    return q->sq >= ATTN_BM ? 1 : DVM_MIN(s->group, ATTN_BM / DVM_MAX(q->sq, 1));
}

int64_t dvm_attn_blocks(const struct attn *s, const struct attn_seq *q) {
    if (q->sq == 0) return 0;
    int64_t heads = stacked(s, q);
    return (s->group + heads - 1) / heads * ((q->sq + ATTN_BM - 1) / ATTN_BM);
}

struct attn_block dvm_attn_block(const struct attn *s, const struct attn_seq *q, int64_t b,
                                 int64_t h, int64_t index) {
    int64_t per = (q->sq + ATTN_BM - 1) / ATTN_BM, heads = stacked(s, q), n = index / per * heads;
    struct attn_block k = {.b = b, .n0 = h * s->group + n, .i0 = index % per * ATTN_BM};
    k.heads = DVM_MIN(heads, s->group - n);
    k.rows = DVM_MIN(ATTN_BM, q->sq - k.i0);
    k.m = (int)(k.heads * k.rows);
    return k;
}

/* ---- scratch */

size_t dvm_attn_part(size_t *total, int64_t size) {
    size_t at = *total;
    *total += (size_t)attn_up(size, 64) + 64; /* parts start in different cache sets */
    return at;
}

struct attn_room dvm_attn_room(const struct attn *s, bool backward) {
    struct attn_room r = {.total = 0};
    int64_t one = (int64_t)4 * ATTN_BN;
    r.s = dvm_attn_part(&r.total, (int64_t)4 * ATTN_BM * ATTN_PITCH);
    r.off = dvm_attn_part(&r.total, (int64_t)ATTN_BM * ATTN_BN);
    r.bias = dvm_attn_part(&r.total, one);
    r.z = dvm_attn_part(&r.total, one);
    if (s->flex) r.flex = dvm_attn_part(&r.total, (int64_t)dvm_attn_flex_room(s->flex, backward));
    if (!backward) return r;
    r.kt = dvm_attn_part(&r.total, s->d * one);
    r.kb = dvm_attn_part(&r.total, attn_row_pitch(s->d) * one);
    r.vt = dvm_attn_part(&r.total, s->d2 * one);
    r.t = dvm_attn_part(&r.total, (int64_t)4 * ATTN_BM * ATTN_PITCH);
    return r;
}

static float *floats(char *p, size_t at) { return (float *)(void *)(p + at); }

void dvm_attn_enter(struct attn_work *w, const struct attn *s, const struct attn_seq *seq,
                    const struct attn_isa *isa, const struct attn_room *r, char *p) {
    w->a = s;
    w->seq = seq;
    w->g = isa->g;
    w->k = isa->k;
    w->kt = floats(p, r->kt);
    w->s = floats(p, r->s);
    w->off = (uint8_t *)p + r->off;
    w->bias = floats(p, r->bias);
    w->z = floats(p, r->z);
    w->kb = floats(p, r->kb);
    w->vt = floats(p, r->vt);
    w->t = floats(p, r->t);
    memset(w->bias, 0, (size_t)4 * ATTN_BN);
    w->flex.flex = NULL;
    if (s->flex) dvm_attn_flex_enter(&w->flex, s->flex, r->t != 0, p + r->flex);
}

/* ---- packing */

static struct dvm_k_block rows_of(const struct attn_mat *x, const char *p, int64_t c0, int64_t rows,
                                  int64_t cols) {
    return (struct dvm_k_block){p + c0 * x->cs, x->rs, x->cs, rows, cols, x->t};
}

void dvm_attn_pack_rows(const struct attn_work *w, float *d, const struct attn_mat *x,
                        const struct attn_block *blk, int64_t features) {
    const struct attn_seq *q = &w->seq[blk->b];
    int64_t pitch = attn_row_pitch(features);
    for (int64_t n = 0; n < blk->heads; n++) {
        const char *p = attn_at(x, blk->b, blk->n0 + n, q->q0 + blk->i0);
        struct dvm_k_block s = rows_of(x, p, 0, blk->rows, features);
        w->g->rows(d + n * blk->rows * pitch, pitch, attn_pitch(features), 0, true, &s);
    }
}

bool dvm_attn_finite(const struct attn_work *w, const float *d, int64_t from, int64_t to,
                     int64_t features) {
    int64_t pitch = attn_row_pitch(features);
    return w->k->finite(d + from * pitch, pitch, to - from, features);
}

static const char *key_at(const struct attn_work *w, const struct attn_mat *x,
                          const struct attn_tile *t) {
    return attn_at(x, t->b, t->h, w->seq[t->b].k0 + t->j0 + t->from);
}

/* Keys begin inside a strip: its rest first, then whole strips. */
void dvm_attn_pack_keys(const struct attn_work *w, float *d, const struct attn_mat *x,
                        const struct attn_tile *t, int64_t features) {
    int nr = w->g->nr;
    for (int64_t c = 0; c < features; c += KC, d += (int64_t)ATTN_BN * KC) {
        int64_t depth = DVM_MIN(features - c, KC), strip = depth * nr;
        struct dvm_k_block s = {.p = key_at(w, x, t) + c * x->cs,
                                .rs = x->cs,
                                .cs = x->rs,
                                .rows = depth,
                                .cols = t->to - t->from,
                                .t = x->t};
        int64_t at = t->from % nr, head = at ? DVM_MIN(nr - at, s.cols) : 0;
        float *to = d + t->from / nr * strip;
        if (head) {
            struct dvm_k_block h = s;
            h.cols = head;
            w->g->rows(to + at, nr, head, 0, false, &h);
            s.p += head * s.cs;
            s.cols -= head;
            to += strip;
        }
        if (s.cols) w->g->rows(to, nr, nr, strip, true, &s);
    }
}

void dvm_attn_pack_values(const struct attn_work *w, float *d, const struct attn_mat *x,
                          const struct attn_tile *t, int64_t features) {
    int64_t pitch = attn_row_pitch(features);
    struct dvm_k_block s = rows_of(x, key_at(w, x, t), 0, t->to - t->from, features);
    w->g->rows(d + t->from * pitch, pitch, attn_pitch(features), 0, true, &s);
}

/* ---- what is seen */

static const uint8_t *mask_at(const struct attn_work *w, const struct attn_block *blk, int r,
                              int64_t j) {
    const struct attn *s = w->a;
    const struct attn_seq *q = &w->seq[blk->b];
    int64_t n = blk->n0 + r / blk->rows, i = blk->i0 + r % blk->rows;
    if (s->mask_packed) i += q->q0, j += q->k0;
    return (const uint8_t *)attn_at(&s->mask, s->mask_packed ? 0 : blk->b, n, i) + j * s->mask.cs;
}

static bool all_masked(const struct attn_work *w, const struct attn_block *blk, int64_t j0) {
    int64_t step = w->a->mask.cs;
    for (int r = 0; r < blk->m; r++) {
        const uint8_t *p = mask_at(w, blk, r, j0);
        for (int j = w->from[r]; j < w->to[r]; j++)
            if (!p[j * step]) return false;
    }
    return true;
}

/* Keys of row i of the sequence, counted from key j0, in the tile there; 0, 0: none. */
static struct attn_range in_tile(const struct attn_seq *q, int64_t i, int64_t j0) {
    struct attn_range k = attn_row_keys(q, i);
    k.from = attn_clamp(k.from - j0, ATTN_BN);
    k.to = attn_clamp(k.to - j0, ATTN_BN);
    return k.from < k.to ? k : (struct attn_range){0, 0};
}

/* Ends of the intervals do not decrease from row to row: where the first and the last row see the same keys, all do. Where both
 * see none, one may end before the tile and the other begin behind it, with rows between that see some. */
bool dvm_attn_see(struct attn_work *w, const struct attn_block *blk, int64_t j0) {
    w->alike = false;
    if (w->a->flex) return dvm_attn_flex_see(w, blk, j0);
    const struct attn_seq *q = &w->seq[blk->b];
    struct attn_range k = in_tile(q, blk->i0, j0), last = in_tile(q, blk->i0 + blk->rows - 1, j0);
    w->alike = k.from < k.to && k.from == last.from && k.to == last.to;
    bool any = w->alike;
    for (int r = 0; w->alike && r < blk->m; r++) {
        w->from[r] = (int)k.from;
        w->to[r] = (int)k.to;
    }
    for (int64_t i = 0; !w->alike && i < blk->rows; i++) {
        k = in_tile(q, blk->i0 + i, j0);
        any |= k.from < k.to;
        for (int64_t r = i; r < blk->m; r += blk->rows) {
            w->from[r] = (int)k.from;
            w->to[r] = (int)k.to;
        }
    }
    return any && !(w->a->mask.p && all_masked(w, blk, j0));
}

bool dvm_attn_plain(const struct attn_work *w, bool marks) {
    const struct attn *s = w->a;
    return w->alike && !marks && !s->mask.p && !s->pse.p && !s->dropout && !s->flex &&
           w->from[0] % LANES == 0 && w->to[0] % LANES == 0;
}

struct attn_range dvm_attn_hull(const struct attn_work *w, int r0, int r1) {
    struct attn_range h = {ATTN_BN, 0};
    for (int r = r0; r < r1; r++) {
        if (w->from[r] == w->to[r]) continue;
        h.from = DVM_MIN(h.from, w->from[r]);
        h.to = DVM_MAX(h.to, w->to[r]);
    }
    return h;
}

/* ---- products. A strip of the right operand stays in the first-level cache while all rows pass. */

/* Register tiles of rows (or of keys), first to last, that take the same part of the other operand. */
struct group {
    int first, rows;
    struct attn_range h; /* the part */
};
enum { MAX_GROUPS = ATTN_BN };

/* Appends rows [at, at + rows) to n groups; what sees nothing is left out. */
static int append(struct group *g, int n, int at, int rows, struct attn_range h) {
    struct group *last = n ? &g[n - 1] : NULL;
    if (h.from >= h.to) return n;
    if (last && last->first + last->rows == at && last->h.from == h.from && last->h.to == h.to) {
        last->rows += rows;
        return n;
    }
    g[n] = (struct group){at, rows, h};
    return n + 1;
}

static int row_groups(const struct attn_work *w, int m, struct group g[MAX_GROUPS]) {
    int n = 0, mr = w->g->mr;
    if (w->alike) return append(g, n, 0, m, (struct attn_range){w->from[0], w->to[0]});
    for (int r = 0; r < m; r += mr) {
        int rows = DVM_MIN(mr, m - r);
        n = append(g, n, r, rows, dvm_attn_hull(w, r, r + rows));
    }
    return n;
}

/* One strip of a product. pitch: that of operands that are rows of features. */
static void strip(const struct attn_work *w, enum dvm_attn_form form, int64_t pitch, int m,
                  int64_t k, const float *a, const float *b, float *c, int64_t ldc, bool first) {
    int nr = w->g->nr;
    if (w->k->product && pitch == DVM_ATTN_PITCH)
        w->k->product(form, m, k, a, b, c, ldc, first);
    else if (form == DVM_ATTN_ROWS_STRIP)
        w->g->f32(m, nr, k, a, pitch, 1, b, nr, c, ldc, first, NULL, 0);
    else if (form == DVM_ATTN_ROWS_ROWS)
        w->g->f32(m, nr, k, a, ATTN_PITCH, 1, b, pitch, c, ldc, first, NULL, 0);
    else
        w->g->f32(m, nr, k, a, 1, ATTN_PITCH, b, pitch, c, ldc, first, NULL, 0);
}

void dvm_attn_scores(const struct attn_work *w, int m, int64_t features, const float *a,
                     const float *b, float *s) {
    struct group g[MAX_GROUPS];
    struct attn_range all = dvm_attn_hull(w, 0, m);
    int nr = w->g->nr, groups = row_groups(w, m, g);
    int64_t pitch = attn_row_pitch(features);
    for (int64_t c = 0; c < features; c += KC) {
        int64_t depth = DVM_MIN(features - c, KC);
        for (int64_t j = all.from / nr * nr; j < all.to; j += nr)
            for (int i = 0; i < groups; i++)
                if (g[i].h.from < j + nr && j < g[i].h.to)
                    strip(w, DVM_ATTN_ROWS_STRIP, pitch, g[i].rows, depth,
                          a + g[i].first * pitch + c, b + c * ATTN_BN + j * depth,
                          s + g[i].first * ATTN_PITCH + j, ATTN_PITCH, c == 0);
    }
}

/* c += a b. Rows of the product are rows of the tile of scores, or its columns. */
static void add_product(const struct attn_work *w, enum dvm_attn_form form, const struct group *g,
                        int groups, const float *a, const float *b, float *c, int64_t features) {
    int nr = w->g->nr;
    int64_t ars = form == DVM_ATTN_ROWS_ROWS ? ATTN_PITCH : 1, acs = ATTN_PITCH + 1 - ars;
    int64_t pitch = attn_pitch(features), bs = attn_row_pitch(features);
    for (int64_t f = 0; f < features; f += nr)
        for (int i = 0; i < groups; i++)
            strip(w, form, bs, g[i].rows, g[i].h.to - g[i].h.from,
                  a + g[i].first * ars + g[i].h.from * acs, b + g[i].h.from * bs + f,
                  c + g[i].first * pitch + f, pitch, false);
}

void dvm_attn_over_keys(const struct attn_work *w, int m, const float *a, const float *b,
                        int64_t features, float *c, bool clean) {
    struct group g[MAX_GROUPS];
    int64_t pitch = attn_pitch(features), bs = attn_row_pitch(features);
    if (clean) {
        add_product(w, DVM_ATTN_ROWS_ROWS, g, row_groups(w, m, g), a, b, c, features);
        return;
    }
    for (int r = 0; r < m; r++) {
        int at = w->from[r];
        w->k->chain(c + r * pitch, features, a + r * ATTN_PITCH + at, 1, w->off + r * ATTN_BN + at,
                    1, w->to[r] - at, b + at * bs, bs);
    }
}

bool dvm_attn_in_place(const struct attn *s) {
    int64_t size = s->k.t == DVM_F32 ? 4 : 2;
    return !s->flex && !s->mask.p && s->k.cs == size && s->v.cs == size;
}

void dvm_attn_scores_in_place(const struct attn_work *w, int m, const struct attn_tile *t,
                              const float *a, float *s) {
    const struct attn_mat *k = &w->a->k;
    int64_t pitch = attn_row_pitch(w->a->d);
    for (int64_t c = 0; c < w->a->d; c += KC) {
        struct dvm_k_block b = {.p = key_at(w, k, t) + c * k->cs,
                                .rs = k->cs,
                                .cs = k->rs,
                                .rows = DVM_MIN(w->a->d - c, KC),
                                .cols = t->to - t->from,
                                .t = k->t};
        w->g->stream_k1(m, a + c, pitch, &b, s + t->from, ATTN_PITCH, c == 0);
    }
}

void dvm_attn_over_keys_in_place(const struct attn_work *w, int m, const struct attn_tile *t,
                                 const float *a, float *c, float *tmp) {
    struct dvm_k_block b = rows_of(&w->a->v, key_at(w, &w->a->v, t), 0, t->to - t->from, w->a->d2);
    w->g->stream_n1(m, a + t->from, ATTN_PITCH, &b, c, attn_pitch(w->a->d2), tmp, false);
}

/* Rows that see a key of [j, j + n). */
static struct attn_range seeing(const struct attn_work *w, int m, int64_t j, int64_t n) {
    struct attn_range h = {m, 0};
    if (w->alike && w->from[0] < j + n && w->to[0] > j) return (struct attn_range){0, m};
    for (int r = 0; !w->alike && r < m; r++)
        if (w->from[r] < j + n && w->to[r] > j) {
            h.from = DVM_MIN(h.from, r);
            h.to = r + 1;
        }
    return h;
}

void dvm_attn_over_rows(const struct attn_work *w, int m, const struct attn_tile *t, const float *a,
                        const float *b, int64_t features, float *c, bool clean) {
    struct group g[MAX_GROUPS];
    int mr = w->g->mr, groups = 0;
    int64_t pitch = attn_pitch(features);
    for (int j = t->from; j < t->to && !clean; j++)
        w->k->chain(c + j * pitch, features, a + j, ATTN_PITCH, w->off + j, ATTN_BN, m, b,
                    attn_row_pitch(features));
    if (!clean) return;
    for (int j = t->from / mr * mr; j < t->to; j += mr) {
        int keys = DVM_MIN(mr, t->to - j);
        groups = append(g, groups, j, keys, seeing(w, m, j, keys));
    }
    add_product(w, DVM_ATTN_COLUMNS_ROWS, g, groups, a, b, c, features);
}

/* ---- rows */

static void load_bias(struct attn_work *w, const struct attn_block *blk, const struct attn_tile *t,
                      int r) {
    const struct attn_mat *x = &w->a->pse;
    int64_t shift, i = attn_pse_row(w->a, blk->i0 + r % blk->rows, &shift);
    const char *p = attn_at(x, blk->b, blk->n0 + r / blk->rows, i);
    int from = w->from[r], n = w->to[r] - from;
    struct dvm_k_block s = rows_of(x, p, t->j0 + shift + from, 1, n);
    w->g->rows(w->bias + from, ATTN_BN, ATTN_BN, 0, false, &s);
}

static void mark(struct attn_work *w, const struct attn_block *blk, const struct attn_tile *t,
                 int r) {
    uint8_t *off = w->off + r * ATTN_BN;
    int from = w->from[r], to = w->to[r];
    memset(off, 1, ATTN_BN);
    memset(off + from, 0, (size_t)(to - from));
    if (w->a->flex)
        for (int j = from; j < to; j++) off[j] = w->s[r * ATTN_PITCH + j] == -INFINITY;
    if (!w->a->mask.p || from == to) return;
    const uint8_t *p = mask_at(w, blk, r, t->j0);
    int64_t step = w->a->mask.cs;
    for (int j = from; j < to; j++) off[j] = p[j * step] != 0;
}

float dvm_attn_row(struct attn_work *w, const struct attn_block *blk, const struct attn_tile *t,
                   int r, bool marks, int *a, int *b) {
    if (w->a->flex) dvm_attn_flex_trim(w, r);
    int from = w->from[r], to = w->to[r];
    *a = from / LANES * LANES;
    *b = (int)attn_up(to, LANES);
    bool some = *a != from || *b != to || w->a->mask.p;
    if (some || marks) mark(w, blk, t, r);
    if (from == to) return -INFINITY;
    float *s = w->s + r * ATTN_PITCH + *a, scale = w->a->flex ? 1 : w->a->scale;
    if (w->a->pse.p) load_bias(w, blk, t, r);
    if (w->a->pse_added) {
        w->k->scale(s, scale, *b - *a);
        scale = 1;
    }
    return w->k->scores(s, w->a->pse.p ? w->bias + *a : NULL,
                        some ? w->off + r * ATTN_BN + *a : NULL, scale, *b - *a);
}

void dvm_attn_drop_row(struct attn_work *w, const struct attn_block *blk, const struct attn_tile *t,
                       int r) {
    const struct attn_seq *q = &w->seq[blk->b];
    int64_t n = blk->n0 + r / blk->rows, i = blk->i0 + r % blk->rows;
    uint64_t first = (uint64_t)q->drop + (uint64_t)((n * q->sq + i) * q->skv + t->j0 + w->from[r]);
    w->k->drop(w->z + w->from[r], &w->a->drop, first, w->to[r] - w->from[r]);
}

/* ---- memory */

void dvm_attn_store_rows(const struct attn_work *w, const struct attn_mat *x,
                         const struct attn_block *blk, const float *c, int64_t features) {
    const struct attn_seq *q = &w->seq[blk->b];
    int64_t pitch = attn_pitch(features);
    for (int64_t n = 0; n < blk->heads; n++)
        w->g->store(attn_at(x, blk->b, blk->n0 + n, q->q0 + blk->i0), x->rs, x->cs, x->t,
                    c + n * blk->rows * pitch, pitch, blk->rows, features, NULL);
}

void dvm_attn_zero_rows(const struct attn_mat *x, int64_t heads, int64_t b, int64_t from,
                        int64_t to, int64_t features) {
    size_t size = x->t == DVM_F32 ? 4 : 2;
    for (int64_t i = from; i < to; i++)
        for (int64_t n = 0; n < heads; n++) {
            char *p = attn_at(x, b, n, i);
            for (int64_t c = 0; c < features; c++) memset(p + c * x->cs, 0, size);
        }
}

float *dvm_attn_stat(const struct attn *s, const struct attn_mat *m, const struct attn_seq *q,
                     int64_t b, int64_t n, int64_t i) {
    char *p = m->p;
    if (s->tnd && !s->rows_first)
        p += (q->slot + n * q->sq + i) * DVM_ATTN_ROWS * 4;
    else
        p += b * m->bs + n * m->hs + (q->q0 + i) * m->rs;
    return (float *)(void *)p;
}

/* ---- units */

bool dvm_attn_next(struct attn_units *u, int64_t *b, int64_t *index) {
    int64_t i = atomic_fetch_add(&u->next, 1), low = 0, high = u->nseq;
    if (i >= u->first[u->nseq]) return false;
    i = u->first[u->nseq] - 1 - i; /* the last blocks of causal sequences have most to do */
    while (high - low > 1) {
        int64_t mid = low + (high - low) / 2;
        if (u->first[mid] <= i)
            low = mid;
        else
            high = mid;
    }
    *b = low;
    *index = i - u->first[low];
    return true;
}
