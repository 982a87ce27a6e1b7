/* Forward: units are runs of blocks that share a key head, so that packed keys serve several blocks. A few tiles of
 * keys are packed at a time, as many as fit the second-level cache beside one block; then each block of the run goes
 * over them, its rows, sums and scores staying in the cache meanwhile. */
#include <float.h>
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "base/err.h"
#include "ops/attn/attn_flex.h"
#include "vm/pool.h"

/* Blocks of a unit: packing a tile costs about a tenth of the products of one block with it. Tiles packed at a time,
 * and the bytes they may take. */
enum { MAX_RUN = 16, MAX_TILES = 8, TILE_BYTES = 160 << 10 };

struct state { /* of one block */
    struct attn_block blk;
    float *q, *o; /* packed rows; sums */
    float m[ATTN_BM], l[ATTN_BM];
};

struct packed { /* one tile of keys */
    struct attn_tile t;
    float *kt, *vb;
    bool clean;
    bool in_place; /* not packed: attn_tile.h */
};

struct forward {
    const struct attn *a;
    const struct attn_isa *isa;
    const struct attn_seq *seq;
    struct attn_room room;
    size_t q, o, states, kt, vb, total; /* of one thread */
    int run, tiles;
    bool in_place;
    char *scratch;
    struct attn_units units;
};

/* ---- one block and one tile */

/* What the sums so far must be multiplied by, now that the maximum is now[r]. */
static void rescale(struct attn_work *w, struct state *st, const float *now) {
    float *f = w->scratch;
    int64_t n = attn_up(st->blk.m, DVM_ATTN_LANES), pitch = attn_pitch(w->a->d2);
    for (int r = 0; r < n; r++) f[r] = st->m[r] == now[r] ? 0 : st->m[r] - now[r];
    w->k->weights(f, 0, 1, n);
    memcpy(st->m, now, sizeof st->m);
    for (int r = 0; r < st->blk.m; r++) {
        if (f[r] == 1) continue;
        st->l[r] *= f[r];
        w->k->scale(st->o + r * pitch, f[r], w->a->d2);
    }
}

/* Scores of row r to weights; places of the hull that the row does not see become 0. */
static void weigh(struct attn_work *w, struct state *st, const struct attn_tile *t, int r, int a,
                  int b, struct attn_range hull) {
    float *s = w->s + r * ATTN_PITCH, m = st->m[r];
    if (w->from[r] < w->to[r])
        st->l[r] += w->k->exps(s + a, m == -INFINITY ? 0 : m, b - a);
    else
        a = b = (int)hull.to;
    for (int j = (int)hull.from; j < a; j++) s[j] = 0;
    for (int j = b; j < hull.to; j++) s[j] = 0;
    if (!w->a->dropout || w->from[r] == w->to[r]) return;
    dvm_attn_drop_row(w, &st->blk, t, r);
    w->k->times(s + w->from[r], w->z + w->from[r], w->to[r] - w->from[r]);
}

/* Scores of the tile to weights, row by row. */
static void soften(struct attn_work *w, struct state *st, const struct packed *p, float *now) {
    int m = st->blk.m, mr = w->g->mr, a[ATTN_BM], b[ATTN_BM];
    for (int r = 0; r < m; r++) {
        float top = dvm_attn_row(w, &st->blk, &p->t, r, !p->clean, &a[r], &b[r]);
        now[r] = top > st->m[r] ? top : st->m[r];
    }
    rescale(w, st, now);
    for (int r = 0; r < m; r += mr) {
        struct attn_range hull = dvm_attn_hull(w, r, DVM_MIN(r + mr, m));
        for (int i = r; i < DVM_MIN(r + mr, m); i++) weigh(w, st, &p->t, i, a[i], b[i], hull);
    }
}

static void soften_plain(struct attn_work *w, struct state *st, float *now) {
    float *s = w->s + w->from[0];
    int n = w->to[0] - w->from[0];
    w->k->scores_rows(s, ATTN_PITCH, st->blk.m, w->a->scale, n, st->m, now);
    rescale(w, st, now);
    w->k->exps_rows(s, ATTN_PITCH, st->blk.m, st->m, n, st->l);
}

static void step(struct attn_work *w, struct state *st, const struct packed *p) {
    const struct attn_tile *t = &p->t;
    int m = st->blk.m;
    float now[ATTN_BM];
    memcpy(now, st->m, sizeof now);
    if (p->in_place)
        dvm_attn_scores_in_place(w, m, t, st->q, w->s);
    else
        dvm_attn_scores(w, m, w->a->d, st->q, p->kt, w->s);
    if (w->a->flex) {
        w->flex.raw = w->s;
        dvm_attn_flex_scores(w, &st->blk, t->j0);
    }
    if (dvm_attn_plain(w, !p->clean))
        soften_plain(w, st, now);
    else
        soften(w, st, p, now);
    if (p->in_place)
        dvm_attn_over_keys_in_place(w, m, t, w->s, st->o, p->vb);
    else
        dvm_attn_over_keys(w, m, w->s, p->vb, w->a->d2, st->o, p->clean);
}

/* ---- a unit */

static void begin(struct attn_work *w, struct state *st) {
    const struct attn *s = w->a;
    dvm_attn_pack_rows(w, st->q, &s->q, &st->blk, s->d);
    memset(st->o, 0, (size_t)st->blk.m * (size_t)attn_pitch(s->d2) * 4);
    for (int r = 0; r < ATTN_BM; r++) {
        st->m[r] = -INFINITY;
        st->l[r] = 0;
        if (!s->sink.p || r >= st->blk.m) continue;
        st->m[r] =
            *(const float *)(const void *)attn_at(&s->sink, 0, st->blk.n0 + r / st->blk.rows, 0);
        st->l[r] = st->m[r] == -INFINITY ? 0 : 1;
    }
}

/* Statistics of functions of scores are to base 2. */
static void put_logarithm(const struct attn_work *w, const struct attn_block *blk, int r, float max,
                          float sum) {
    const struct attn_flex *f = w->a->flex;
    int64_t n = blk->n0 + r / blk->rows, i = blk->i0 + r % blk->rows;
    double ln2 = log(2);
    bool seen = sum != FLT_MAX && sum != 0;
    float lse = seen ? (float)((max + log(sum)) / ln2) : -INFINITY;
    float top = seen ? (float)(max / ln2) : -INFINITY;
    memcpy(attn_at(&f->lse, blk->b, n, i), &lse, 4);
    memcpy(attn_at(&f->top, blk->b, n, i), &top, 4);
}

static void put(const struct attn_work *w, const struct attn_block *blk, int r, float max,
                float sum) {
    const struct attn *s = w->a;
    if (s->flex) {
        put_logarithm(w, blk, r, max, sum);
        return;
    }
    const struct attn_seq *q = &w->seq[blk->b];
    int64_t n = blk->n0 + r / blk->rows, i = blk->i0 + r % blk->rows;
    char *pm = (char *)dvm_attn_stat(s, &s->max, q, blk->b, n, i);
    char *ps = (char *)dvm_attn_stat(s, &s->sum, q, blk->b, n, i);
    for (int e = 0; e < DVM_ATTN_ROWS; e++) {
        memcpy(pm + e * s->max.cs, &max, 4);
        memcpy(ps + e * s->sum.cs, &sum, 4);
    }
}

/* A row that saw nothing has l = 0: zeros, and statistics that make every weight of the backward 0. */
static void end(struct attn_work *w, struct state *st) {
    const struct attn *s = w->a;
    bool no_keys = w->seq[st->blk.b].skv == 0;
    int64_t pitch = attn_pitch(s->d2);
    for (int r = 0; r < st->blk.m; r++) {
        float l = st->l[r];
        if (no_keys)
            put(w, &st->blk, r, 0, 0);
        else if (l == 0)
            put(w, &st->blk, r, -FLT_MAX, FLT_MAX);
        else
            put(w, &st->blk, r, st->m[r] == -INFINITY ? NAN : st->m[r], l); /* scores were NaN */
        if (l != 0) w->k->scale(st->o + r * pitch, 1 / l, s->d2);
    }
    dvm_attn_store_rows(w, &s->o, &st->blk, st->o, s->d2);
}

/* Keys of the tile that some block sees. */
static bool tile_of(struct attn_work *w, struct state *st, int n, struct attn_tile *t) {
    t->from = ATTN_BN;
    t->to = 0;
    for (int i = 0; i < n; i++) {
        if (!dvm_attn_see(w, &st[i].blk, t->j0)) continue;
        struct attn_range h = dvm_attn_hull(w, 0, st[i].blk.m);
        t->from = DVM_MIN(t->from, (int)h.from);
        t->to = DVM_MAX(t->to, (int)h.to);
    }
    return t->from < t->to;
}

static struct attn_range keys_of(const struct attn_seq *q, const struct state *st, int n) {
    struct attn_range all = {q->skv, 0};
    for (int i = 0; i < n; i++) {
        struct attn_range k = attn_cols(q, st[i].blk.i0, st[i].blk.i0 + st[i].blk.rows);
        all.from = DVM_MIN(all.from, k.from);
        all.to = DVM_MAX(all.to, k.to);
    }
    return all;
}

static void pack(struct attn_work *w, struct packed *p) {
    const struct attn *s = w->a;
    p->clean = true;
    if (p->in_place) return;
    dvm_attn_pack_keys(w, p->kt, &s->k, &p->t, s->d);
    dvm_attn_pack_values(w, p->vb, &s->v, &p->t, s->d2);
    p->clean = dvm_attn_finite(w, p->vb, p->t.from, p->t.to, s->d2);
}

static void unit(const struct forward *f, struct attn_work *w, struct state *st,
                 struct packed *tile, int64_t b, int64_t index) {
    const struct attn *s = f->a;
    const struct attn_seq *q = &f->seq[b];
    int64_t blocks = dvm_attn_blocks(s, q), per = (blocks + f->run - 1) / f->run;
    int64_t h = index / per, first = index % per * f->run;
    int n = (int)DVM_MIN(f->run, blocks - first);
    for (int i = 0; i < n; i++) {
        st[i].blk = dvm_attn_block(s, q, b, h, first + i);
        begin(w, &st[i]);
    }
    struct attn_range keys = keys_of(q, st, n);
    for (int64_t j0 = keys.from / ATTN_BN * ATTN_BN; j0 < keys.to;) {
        int tiles = 0;
        for (; tiles < f->tiles && j0 < keys.to; j0 += ATTN_BN) {
            struct packed *p = &tile[tiles];
            p->t = (struct attn_tile){.b = b, .h = h, .j0 = j0};
            if (!tile_of(w, st, n, &p->t)) continue;
            p->in_place = f->in_place && n == 1 && w->alike && st[0].blk.m <= DVM_GEMM_SMALL_M;
            pack(w, p);
            tiles++;
        }
        for (int i = 0; i < n; i++)
            for (int t = 0; t < tiles; t++)
                if (dvm_attn_see(w, &st[i].blk, tile[t].t.j0)) step(w, &st[i], &tile[t]);
    }
    for (int i = 0; i < n; i++) end(w, &st[i]);
}

static void work(void *arg, int thread) {
    struct forward *f = arg;
    char *p = f->scratch + (size_t)thread * f->total;
    struct state *st = (struct state *)(void *)(p + f->states);
    struct attn_work w;
    struct packed tile[MAX_TILES];
    int64_t b, index;
    dvm_attn_enter(&w, f->a, f->seq, f->isa, &f->room, p);
    for (int i = 0; i < f->tiles; i++) {
        tile[i].kt = (float *)(void *)(p + f->kt) + i * ATTN_BN * f->a->d;
        tile[i].vb = (float *)(void *)(p + f->vb) + i * ATTN_BN * attn_row_pitch(f->a->d2);
    }
    for (int i = 0; i < f->run; i++) {
        st[i].q = (float *)(void *)(p + f->q) + i * ATTN_BM * attn_row_pitch(f->a->d);
        st[i].o = (float *)(void *)(p + f->o) + i * ATTN_BM * attn_pitch(f->a->d2);
    }
    while (dvm_attn_next(&f->units, &b, &index)) unit(f, &w, st, tile, b, index);
}

/* ---- the run */

static int64_t count(const struct forward *f, int64_t *first) {
    int64_t n = 0;
    for (int64_t b = 0; b < f->a->nseq; b++) {
        int64_t blocks = dvm_attn_blocks(f->a, &f->seq[b]);
        if (first) first[b] = n;
        n += f->a->nkv * ((blocks + f->run - 1) / f->run);
    }
    if (first) first[f->a->nseq] = n;
    return n;
}

/* Rows of TND that belong to no sequence. */
static void zero_rest(const struct forward *f) {
    const struct attn *s = f->a;
    int64_t used = 0;
    if (!s->tnd) return;
    for (int64_t b = 0; b < s->nseq; b++)
        if (f->seq[b].sq) used = f->seq[b].q0 + f->seq[b].sq;
    dvm_attn_zero_rows(&s->o, s->nq, 0, used, s->tq, s->d2);
    struct attn_mat m = s->max, l = s->sum;
    dvm_attn_zero_rows(&m, s->nq, 0, used, s->tq, DVM_ATTN_ROWS);
    dvm_attn_zero_rows(&l, s->nq, 0, used, s->tq, DVM_ATTN_ROWS);
}

static void sizes(struct forward *f) {
    int64_t kt = f->a->d * ATTN_BN * 4, vb = attn_row_pitch(f->a->d2) * ATTN_BN * 4;
    int64_t most = DVM_MIN(MAX_TILES, (f->a->max_skv + ATTN_BN - 1) / ATTN_BN);
    int64_t used = kt + attn_pitch(f->a->d2) * ATTN_BN * 4; /* of vb; the rest is never touched */
    f->tiles = (int)DVM_MAX(1, DVM_MIN(most, TILE_BYTES / used));
    f->in_place = dvm_attn_in_place(f->a);
    f->room = dvm_attn_room(f->a, false);
    f->total = f->room.total;
    f->kt = dvm_attn_part(&f->total, f->tiles * kt);
    f->vb = dvm_attn_part(&f->total, f->tiles * vb);
    f->q = dvm_attn_part(&f->total, f->run * ATTN_BM * attn_row_pitch(f->a->d) * 4);
    f->o = dvm_attn_part(&f->total, f->run * ATTN_BM * attn_pitch(f->a->d2) * 4);
    f->states = dvm_attn_part(&f->total, f->run * (int64_t)sizeof(struct state));
}

dvm_status dvm_attn_run_forward(const struct attn *s, const struct attn_isa *isa,
                                struct dvm_pool *pool, const struct dvm_mem *mem) {
    struct forward f = {.a = s, .isa = isa, .run = MAX_RUN};
    size_t table = (size_t)s->nseq * sizeof(struct attn_seq) + ((size_t)s->nseq + 1) * 8, got = 0;
    char *p = dvm_mem_new(mem, table);
    if (!p) return DVM_ERR_NOMEM;
    struct attn_seq *seq = (struct attn_seq *)(void *)p;
    int64_t *first = (int64_t *)(void *)(seq + s->nseq);
    dvm_attn_seqs(s, seq);
    f.seq = seq;
    int threads = pool ? dvm_pool_size(pool) : 1;
    while (threads > 1 && f.run > 1 && count(&f, NULL) < 3 * (int64_t)threads) f.run /= 2;
    int64_t units = count(&f, first);
    threads = (int)DVM_MAX(1, DVM_MIN(threads, units));
    f.units = (struct attn_units){.first = first, .nseq = s->nseq};
    zero_rest(&f);
    sizes(&f);
    f.scratch = units ? dvm_pool_take(pool, mem, f.total * (size_t)threads + 64, &got) : NULL;
    if (f.scratch) {
        dvm_pool_run(pool, threads, work, &f);
        dvm_pool_give(pool, mem, f.scratch, got);
    }
    dvm_mem_free(mem, p, table);
    return units && !f.scratch ? DVM_ERR_NOMEM : DVM_OK;
}

dvm_status dvm_attn_isa(const char *isa, struct attn_isa *out) {
    struct dvm_gemm_isa g;
    DVM_TRY(dvm_gemm_isa(isa, &g));
    *out = (struct attn_isa){g.k, &dvm_k_attn_base};
#if defined(__x86_64__)
    if (g.k == &dvm_k_gemm_avx2) out->k = &dvm_k_attn_avx2;
    if (g.k == &dvm_k_gemm_avx512) out->k = &dvm_k_attn_avx512;
#endif
    return DVM_OK;
}
