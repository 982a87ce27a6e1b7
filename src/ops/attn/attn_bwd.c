/* Backward from the saved statistics. Two ways to the same bits:
 *
 *   one pass   a unit is a key head: tiles of keys in order, and for each the blocks of rows that see it. dK and dV of
 *              the tile and dQ of the head are summed in scratch. Five products a pair of block and tile.
 *   two passes where there are too few heads for the threads: tiles alone for dK and dV, blocks alone for dQ. Seven
 *              products, any number of threads.
 *
 * Either way dQ of a row grows tile by tile and dK, dV of a key block by block, in order. The gradient of pse is a pass
 * of its own. */
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "base/err.h"
#include "ops/attn/attn_flex.h"
#include "vm/pool.h"

enum { TO_KEYS = 1, TO_ROWS = 2, TO_PSE = 4, TO_CAPTURED = 8 }; /* what a step adds to */

struct backward {
    const struct attn *a;
    const struct attn_isa *isa;
    const struct attn_seq *seq;
    float *delta; /* sum over features of dO O, by slot */
    struct attn_room room;
    size_t q, g, dk, dv, dq, wide, total; /* of one thread */
    int what;
    char *scratch;
    struct attn_units units;
    double *captured; /* sums of the parts */
};

/* Rows of a block, packed. g is the gradient of the output. */
struct operand {
    struct attn_block blk;
    float *q, *g;
    bool q_clean, g_clean;
};

static float *part_at(const struct backward *f, int thread, size_t at) {
    return (float *)(void *)(f->scratch + (size_t)thread * f->total + at);
}

/* ---- one block and one tile */

static void load_rows(const struct attn_work *w, struct operand *o, int what) {
    const struct attn *s = w->a;
    dvm_attn_pack_rows(w, o->q, &s->q, &o->blk, s->d);
    dvm_attn_pack_rows(w, o->g, &s->dy, &o->blk, s->d2);
    o->q_clean = !(what & TO_KEYS) || dvm_attn_finite(w, o->q, 0, o->blk.m, s->d);
    o->g_clean = !(what & TO_KEYS) || dvm_attn_finite(w, o->g, 0, o->blk.m, s->d2);
}

/* Keys as the products need them; whether all features of the keys are finite. */
static bool load_keys(const struct attn_work *w, const struct attn_tile *t, int what) {
    const struct attn *s = w->a;
    dvm_attn_pack_keys(w, w->kt, &s->k, t, s->d);
    dvm_attn_pack_keys(w, w->vt, &s->v, t, s->d2);
    if (!(what & TO_ROWS)) return true;
    dvm_attn_pack_values(w, w->kb, &s->k, t, s->d);
    return dvm_attn_finite(w, w->kb, t->from, t->to, s->d);
}

/* The power of a score is e^(score - max) / sum. */
static void statistics(const struct attn *s, const struct attn_seq *q, int64_t b, int64_t n,
                       int64_t i, float *max, float *sum) {
    if (s->flex) { /* to base 2, the sum inside */
        float lse;
        memcpy(&lse, attn_at(&s->flex->lse, b, n, i), 4);
        *max = lse == -INFINITY ? 0 : (float)(lse * log(2));
        *sum = isnan(lse) ? NAN : 1;
    } else {
        *max = *dvm_attn_stat(s, &s->max, q, b, n, i);
        *sum = *dvm_attn_stat(s, &s->sum, q, b, n, i);
    }
    if (isnan(*max)) *max = 0; /* the sum is NaN too; what the row does not see stays 0 */
}

/* Row r of s: weights, times dropout; of t: gradients of the scores. Zeros where it sees nothing. */
static void row(struct attn_work *w, const struct backward *f, const struct attn_block *blk,
                const struct attn_tile *t, int r, bool marks) {
    const struct attn *at = w->a;
    const struct attn_seq *q = &w->seq[blk->b];
    int64_t n = blk->n0 + r / blk->rows, i = blk->i0 + r % blk->rows;
    float *s = w->s + r * ATTN_PITCH, *d = w->t + r * ATTN_PITCH;
    int a, b, from = w->from[r], keys = w->to[r] - from;
    dvm_attn_row(w, blk, t, r, marks, &a, &b);
    if (keys) {
        float max, sum;
        statistics(at, q, blk->b, n, i, &max, &sum);
        w->k->weights(s + a, max, 1 / sum, b - a);
        if (at->dropout) {
            dvm_attn_drop_row(w, blk, t, r);
            w->k->times(d + from, w->z + from, keys);
        }
        w->k->dscores(d + a, s + a, f->delta[q->slot + n * q->sq + i], b - a);
        if (at->dropout) w->k->times(s + from, w->z + from, keys);
    } else {
        a = b = ATTN_BN;
    }
    memset(s, 0, (size_t)a * 4);
    memset(d, 0, (size_t)a * 4);
    memset(s + b, 0, (size_t)(ATTN_BN - b) * 4);
    memset(d + b, 0, (size_t)(ATTN_BN - b) * 4);
}

/* The same for all rows of a tile that is plain. */
static void rows_plain(struct attn_work *w, const struct backward *f,
                       const struct attn_block *blk) {
    const struct attn_seq *q = &w->seq[blk->b];
    float max[ATTN_BM], factor[ATTN_BM], delta[ATTN_BM];
    int from = w->from[0], to = w->to[0];
    for (int r = 0; r < blk->m; r++) {
        int64_t n = blk->n0 + r / blk->rows, i = blk->i0 + r % blk->rows;
        float sum;
        statistics(w->a, q, blk->b, n, i, &max[r], &sum);
        factor[r] = 1 / sum;
        delta[r] = f->delta[q->slot + n * q->sq + i];
    }
    w->k->gradients(w->s + from, w->t + from, ATTN_PITCH, blk->m, w->a->scale, max, factor, delta,
                    to - from);
    for (int r = 0; to - from < ATTN_BN && r < blk->m; r++) {
        float *s = w->s + r * ATTN_PITCH, *d = w->t + r * ATTN_PITCH;
        memset(s, 0, (size_t)from * 4);
        memset(d, 0, (size_t)from * 4);
        memset(s + to, 0, (size_t)(ATTN_BN - to) * 4);
        memset(d + to, 0, (size_t)(ATTN_BN - to) * 4);
    }
}

/* dk, dv: sums of the tile; dq: sums of the block's rows. */
static void step(struct attn_work *w, const struct backward *f, const struct operand *o,
                 const struct attn_tile *t, bool k_clean, float *dk, float *dv, float *dq) {
    int m = o->blk.m;
    bool marks = !k_clean || !o->q_clean || !o->g_clean;
    struct attn_flex *flex = w->a->flex;
    dvm_attn_scores(w, m, w->a->d, o->q, w->kt, flex ? w->flex.raw : w->s);
    dvm_attn_scores(w, m, w->a->d2, o->g, w->vt, w->t);
    if (flex) dvm_attn_flex_scores(w, &o->blk, t->j0);
    if (dvm_attn_plain(w, marks))
        rows_plain(w, f, &o->blk);
    else
        for (int r = 0; r < m; r++) row(w, f, &o->blk, t, r, marks);
    if (flex && f->what & (TO_KEYS | TO_ROWS)) dvm_attn_flex_grad(w, &o->blk);
    if (dq) dvm_attn_over_keys(w, m, w->t, w->kb, w->a->d, dq, k_clean);
    if (!dk) return;
    dvm_attn_over_rows(w, m, t, w->s, o->g, w->a->d2, dv, o->g_clean);
    dvm_attn_over_rows(w, m, t, w->t, o->q, w->a->d, dk, o->q_clean);
}

static bool hull_of(struct attn_work *w, const struct attn_block *blk, struct attn_tile *t) {
    if (!dvm_attn_see(w, blk, t->j0)) return false;
    struct attn_range h = dvm_attn_hull(w, 0, blk->m);
    t->from = DVM_MIN(t->from, (int)h.from);
    t->to = DVM_MAX(t->to, (int)h.to);
    return true;
}

/* ---- dK and dV of one tile, with dQ of the rows that see it if dq is not NULL */

static void store_keys(struct attn_work *w, const struct attn_mat *x, const struct attn_tile *t,
                       float *c, float scale, int64_t features) {
    const struct attn_seq *q = &w->seq[t->b];
    int64_t n = DVM_MIN(ATTN_BN, q->skv - t->j0), pitch = attn_pitch(features);
    if (scale != 1)
        for (int64_t j = 0; j < n; j++) w->k->scale(c + j * pitch, scale, features);
    w->g->store(attn_at(x, t->b, t->h, q->k0 + t->j0), x->rs, x->cs, x->t, c, pitch, n, features,
                NULL);
}

/* Blocks of the head whose rows can see the tile; blocks of one head are in order of rows. */
static bool meets(const struct attn_block *blk, struct attn_range rows) {
    return blk->i0 < rows.to && blk->i0 + blk->rows > rows.from;
}

static void tile(const struct backward *f, struct attn_work *w, struct operand *o, int64_t b,
                 int64_t h, int64_t j0, float *dk, float *dv, float *dq) {
    const struct attn *s = f->a;
    const struct attn_seq *q = &f->seq[b];
    struct attn_tile t = {.b = b, .h = h, .j0 = j0, .from = ATTN_BN, .to = 0};
    struct attn_range rows = attn_rows(q, j0, DVM_MIN(j0 + ATTN_BN, q->skv));
    int64_t blocks = dvm_attn_blocks(s, q), at = 0;
    memset(dk, 0, (size_t)(ATTN_BN * attn_pitch(s->d)) * 4);
    memset(dv, 0, (size_t)(ATTN_BN * attn_pitch(s->d2)) * 4);
    for (int64_t i = 0; i < blocks; i++) {
        struct attn_block blk = dvm_attn_block(s, q, b, h, i);
        if (meets(&blk, rows)) hull_of(w, &blk, &t);
    }
    bool k_clean = t.from < t.to ? load_keys(w, &t, f->what) : true;
    for (int64_t i = 0; t.from < t.to && i < blocks; i++) {
        o->blk = dvm_attn_block(s, q, b, h, i);
        int64_t first = at;
        at += o->blk.m;
        if (!meets(&o->blk, rows) || !dvm_attn_see(w, &o->blk, j0)) continue;
        load_rows(w, o, f->what);
        step(w, f, o, &t, k_clean, dk, dv, dq ? dq + first * attn_pitch(s->d) : NULL);
    }
    store_keys(w, &s->dk, &t, dk, s->scale, s->d);
    store_keys(w, &s->dv, &t, dv, 1, s->d2);
}

/* ---- threads */

static void enter(const struct backward *f, int thread, struct attn_work *w, struct operand *o) {
    dvm_attn_enter(w, f->a, f->seq, f->isa, &f->room, f->scratch + (size_t)thread * f->total);
    o->q = part_at(f, thread, f->q);
    o->g = part_at(f, thread, f->g);
}

static void store_queries(struct attn_work *w, const struct attn_block *blk, float *dq) {
    const struct attn *s = w->a;
    int64_t pitch = attn_pitch(s->d);
    for (int r = 0; r < blk->m; r++) w->k->scale(dq + r * pitch, s->scale, s->d);
    dvm_attn_store_rows(w, &s->dq, blk, dq, s->d);
}

/* Unit: a key head. */
static void whole_heads(void *arg, int thread) {
    struct backward *f = arg;
    const struct attn *s = f->a;
    float *dk = part_at(f, thread, f->dk), *dv = part_at(f, thread, f->dv);
    float *dq = part_at(f, thread, f->dq);
    int64_t b, h, pitch = attn_pitch(s->d);
    struct attn_work w;
    struct operand o;
    enter(f, thread, &w, &o);
    while (dvm_attn_next(&f->units, &b, &h)) {
        const struct attn_seq *q = &f->seq[b];
        memset(dq, 0, (size_t)(s->group * q->sq * pitch) * 4);
        for (int64_t j0 = 0; j0 < q->skv; j0 += ATTN_BN) tile(f, &w, &o, b, h, j0, dk, dv, dq);
        int64_t blocks = dvm_attn_blocks(s, q), at = 0;
        for (int64_t i = 0; i < blocks; i++) {
            struct attn_block blk = dvm_attn_block(s, q, b, h, i);
            store_queries(&w, &blk, dq + at * pitch);
            at += blk.m;
        }
    }
}

/* Unit: a tile of a key head. */
static void tiles_alone(void *arg, int thread) {
    struct backward *f = arg;
    int64_t b, index;
    struct attn_work w;
    struct operand o;
    enter(f, thread, &w, &o);
    while (dvm_attn_next(&f->units, &b, &index)) {
        int64_t per = (f->seq[b].skv + ATTN_BN - 1) / ATTN_BN;
        tile(f, &w, &o, b, index / per, index % per * ATTN_BN, part_at(f, thread, f->dk),
             part_at(f, thread, f->dv), NULL);
    }
}

/* Steps of one block over the tiles that it sees; the gradients of the scores go where `what` says. */
static void block(const struct backward *f, struct attn_work *w, struct operand *o, float *dq,
                  void (*use)(struct attn_work *w, const struct attn_block *blk,
                              const struct attn_tile *t, void *arg),
                  void *arg) {
    const struct attn *s = f->a;
    const struct attn_seq *q = &f->seq[o->blk.b];
    struct attn_range keys = attn_cols(q, o->blk.i0, o->blk.i0 + o->blk.rows);
    load_rows(w, o, f->what);
    for (int64_t j0 = keys.from / ATTN_BN * ATTN_BN; j0 < keys.to; j0 += ATTN_BN) {
        struct attn_tile t = {.b = o->blk.b, .h = o->blk.n0 / s->group, .j0 = j0, .from = ATTN_BN};
        if (!hull_of(w, &o->blk, &t)) continue;
        bool k_clean = load_keys(w, &t, f->what);
        step(w, f, o, &t, k_clean, NULL, NULL, dq);
        if (use) use(w, &o->blk, &t, arg);
    }
}

/* Unit: a block of rows. */
static void blocks_alone(void *arg, int thread) {
    struct backward *f = arg;
    float *dq = part_at(f, thread, f->dq);
    int64_t b, index;
    struct attn_work w;
    struct operand o;
    enter(f, thread, &w, &o);
    while (dvm_attn_next(&f->units, &b, &index)) {
        int64_t per = dvm_attn_blocks(f->a, &f->seq[b]);
        o.blk = dvm_attn_block(f->a, &f->seq[b], b, index / per, index % per);
        memset(dq, 0, (size_t)(o.blk.m * attn_pitch(f->a->d)) * 4);
        block(f, &w, &o, dq, NULL, NULL);
        store_queries(&w, &o.blk, dq);
    }
}

/* ---- pse */

struct pse_sum {
    float *sum; /* rows x max_skv of one head */
    int64_t n;
};

static void add_pse(struct attn_work *w, const struct attn_block *blk, const struct attn_tile *t,
                    void *arg) {
    const struct pse_sum *p = arg;
    const struct attn *s = w->a;
    float scale = s->pse_added ? 1 : s->scale;
    for (int r = 0; r < blk->m; r++) {
        if (blk->n0 + r / blk->rows != p->n) continue;
        int64_t shift, i = attn_pse_row(s, blk->i0 + r % blk->rows, &shift);
        if (s->call->pse->dims[2] == 1) i = 0;
        float *to = p->sum + i * s->max_skv + t->j0 + shift;
        const float *ds = w->t + r * ATTN_PITCH;
        for (int j = w->from[r]; j < w->to[r]; j++) to[j] += scale * ds[j];
    }
}

/* Unit: a head of one entry of pse's first axis; sequences and blocks in order. */
static void pse_heads(void *arg, int thread) {
    struct backward *f = arg;
    const struct attn *s = f->a;
    const dvm_arg *pse = s->call->pse;
    int64_t entry, n, rows = pse->dims[2];
    struct pse_sum p = {.sum = part_at(f, thread, f->wide)};
    struct attn_work w;
    struct operand o;
    enter(f, thread, &w, &o);
    while (dvm_attn_next(&f->units, &entry, &n)) {
        bool shared = pse->dims[0] == 1;
        p.n = n;
        memset(p.sum, 0, (size_t)(rows * s->max_skv) * 4);
        for (int64_t b = shared ? 0 : entry; b < (shared ? s->nseq : entry + 1); b++)
            for (int64_t i = 0; i < dvm_attn_blocks(s, &f->seq[b]); i++) {
                o.blk = dvm_attn_block(s, &f->seq[b], b, n / s->group, i);
                if (o.blk.n0 <= n && n < o.blk.n0 + o.blk.heads)
                    block(f, &w, &o, NULL, add_pse, &p);
            }
        w.g->store(attn_at(&s->dpse, entry, n, 0), s->dpse.rs, s->dpse.cs, s->dpse.t, p.sum,
                   s->max_skv, rows, s->max_skv, NULL);
    }
}

/* ---- tensors that a function of scores reads */

/* Parts of the key heads, whose sums are kept apart until all are there: the sizes decide how many, not the threads. */
static int64_t captured_parts(const struct attn *s) {
    enum { MOST = 16, BYTES = 1 << 28 };
    int64_t all = s->flex->begin[s->flex->ncaptured], heads = s->nseq * s->nkv;
    return DVM_MAX(1, DVM_MIN(DVM_MIN(heads, MOST), BYTES / 8 / DVM_MAX(all, 1)));
}

static void add_captured(struct attn_work *w, const struct attn_block *blk,
                         const struct attn_tile *t, void *sum) {
    (void)t;
    dvm_attn_flex_add(w, blk, sum);
}

/* Unit: a part; its heads in order, blocks and tiles in order. */
static void captured_heads(void *arg, int thread) {
    struct backward *f = arg;
    const struct attn *s = f->a;
    int64_t parts = captured_parts(s), heads = s->nseq * s->nkv, zero, part;
    struct attn_work w;
    struct operand o;
    enter(f, thread, &w, &o);
    while (dvm_attn_next(&f->units, &zero, &part)) {
        double *sum = f->captured + part * s->flex->begin[s->flex->ncaptured];
        for (int64_t i = part * heads / parts; i < (part + 1) * heads / parts; i++) {
            int64_t b = i / s->nkv, h = i % s->nkv;
            for (int64_t k = 0; k < dvm_attn_blocks(s, &f->seq[b]); k++) {
                o.blk = dvm_attn_block(s, &f->seq[b], b, h, k);
                block(f, &w, &o, NULL, add_captured, sum);
            }
        }
    }
}

/* Sums of the parts, in order, to the tensors, whose elements are numbered as if they were dense. */
static void store_captured(const struct backward *f) {
    const struct attn_flex *x = f->a->flex;
    int64_t parts = captured_parts(f->a), all = x->begin[x->ncaptured];
    for (int c = 0; c < x->ncaptured; c++) {
        const dvm_arg *a = &x->captured[c];
        int64_t size = (int64_t)dvm_dtype_size((dvm_dtype)a->dtype), e = x->begin[c];
        for (char *p = a->data; e < x->begin[c + 1]; e++, p += size) {
            double sum = f->captured[e];
            for (int64_t i = 1; i < parts; i++) sum += f->captured[i * all + e];
            float one = (float)sum;
            f->isa->g->store(p, size, size, (dvm_dtype)a->dtype, &one, 1, 1, 1, NULL);
        }
    }
}

/* ---- what comes before */

/* Sums of dO O of one head of one sequence. Unit: a head. */
static void deltas(void *arg, int thread) {
    struct backward *f = arg;
    const struct attn *s = f->a;
    float *x = part_at(f, thread, f->g), *y = x + attn_pitch(s->d2);
    int64_t b, n;
    while (dvm_attn_next(&f->units, &b, &n)) {
        const struct attn_seq *q = &f->seq[b];
        for (int64_t i = 0; i < q->sq; i++) {
            struct dvm_k_block g = {.p = attn_at(&s->dy, b, n, q->q0 + i),
                                    .rs = s->dy.rs,
                                    .cs = s->dy.cs,
                                    .rows = 1,
                                    .cols = s->d2,
                                    .t = s->dy.t};
            struct dvm_k_block o = {.p = attn_at(&s->o, b, n, q->q0 + i),
                                    .rs = s->o.rs,
                                    .cs = s->o.cs,
                                    .rows = 1,
                                    .cols = s->d2,
                                    .t = s->o.t};
            f->isa->g->rows(x, ATTN_MAX_D, ATTN_MAX_D, 0, false, &g);
            f->isa->g->rows(y, ATTN_MAX_D, ATTN_MAX_D, 0, false, &o);
            float *delta = &f->delta[q->slot + n * q->sq + i];
            *delta = f->isa->k->dot(x, y, s->d2);
            if (s->flex && s->flex->dlse.p) {
                float dlse;
                memcpy(&dlse, attn_at(&s->flex->dlse, b, n, i), 4);
                *delta -= (float)(dlse / log(2));
            }
        }
    }
}

static void sink_gradient(const struct backward *f) {
    const struct attn *s = f->a;
    if (!s->dsink.p) return;
    for (int64_t n = 0; n < s->nq; n++) {
        float sink = *(const float *)(const void *)attn_at(&s->sink, 0, n, 0);
        double sum = 0;
        for (int64_t b = 0; b < s->nseq; b++)
            for (int64_t i = 0; i < f->seq[b].sq && f->seq[b].skv; i++) {
                const struct attn_seq *q = &f->seq[b];
                double m = *dvm_attn_stat(s, &s->max, q, b, n, i);
                double l = *dvm_attn_stat(s, &s->sum, q, b, n, i);
                sum -= exp(sink - m) / l * f->delta[q->slot + n * q->sq + i];
            }
        float out = sink == -INFINITY ? 0 : (float)sum;
        memcpy(attn_at(&s->dsink, 0, n, 0), &out, 4);
    }
}

/* Rows and keys of TND that belong to no sequence. */
static void zero_rest(const struct backward *f) {
    const struct attn *s = f->a;
    int64_t q = 0, k = 0;
    if (!s->tnd) return;
    for (int64_t b = 0; b < s->nseq; b++) {
        if (f->seq[b].sq) q = f->seq[b].q0 + f->seq[b].sq;
        if (f->seq[b].skv) k = f->seq[b].k0 + f->seq[b].skv;
    }
    dvm_attn_zero_rows(&s->dq, s->nq, 0, q, s->tq, s->d);
    dvm_attn_zero_rows(&s->dk, s->nkv, 0, k, s->tkv, s->d);
    dvm_attn_zero_rows(&s->dv, s->nkv, 0, k, s->tkv, s->d2);
}

/* ---- the run */

enum pass { DELTAS, HEADS, TILES, BLOCKS, PSE, CAPTURED };

static int64_t units_of(const struct backward *f, enum pass p, int64_t b) {
    const struct attn *s = f->a;
    const struct attn_seq *q = &f->seq[b];
    switch (p) {
    case DELTAS: return q->sq ? s->nq : 0;
    case HEADS: return s->nkv;
    case TILES: return s->nkv * ((q->skv + ATTN_BN - 1) / ATTN_BN);
    case BLOCKS: return s->nkv * dvm_attn_blocks(s, q);
    case CAPTURED: return b == 0 ? captured_parts(s) : 0;
    default: return b < s->call->pse->dims[0] ? s->nq : 0;
    }
}

static int64_t count(const struct backward *f, enum pass p, int64_t *first) {
    int64_t n = 0;
    for (int64_t b = 0; b < f->a->nseq; b++) {
        if (first) first[b] = n;
        n += units_of(f, p, b);
    }
    if (first) first[f->a->nseq] = n;
    return n;
}

static void sizes(struct backward *f, enum pass p) {
    const struct attn *s = f->a;
    int64_t pitch = attn_pitch(s->d), rows = p == HEADS ? s->group * s->max_sq : ATTN_BM;
    f->what = p == HEADS    ? TO_KEYS | TO_ROWS
              : p == TILES  ? TO_KEYS
              : p == BLOCKS ? TO_ROWS
              : p == PSE    ? TO_PSE
                            : TO_CAPTURED;
    f->room = dvm_attn_room(s, true);
    f->total = f->room.total;
    f->q = dvm_attn_part(&f->total, attn_row_pitch(s->d) * ATTN_BM * 4);
    f->g = dvm_attn_part(&f->total, attn_row_pitch(s->d2) * ATTN_BM * 4);
    f->dk = dvm_attn_part(&f->total, pitch * ATTN_BN * 4);
    f->dv = dvm_attn_part(&f->total, attn_pitch(s->d2) * ATTN_BN * 4);
    f->dq = dvm_attn_part(&f->total, rows * pitch * 4);
    f->wide = p == PSE ? dvm_attn_part(&f->total, s->call->pse->dims[2] * s->max_skv * 4) : 0;
}

static dvm_status pass(struct backward *f, enum pass p, struct dvm_pool *pool,
                       const struct dvm_mem *mem, int64_t *first) {
    static void (*const body[])(void *arg, int thread) = {
        [DELTAS] = deltas,       [HEADS] = whole_heads, [TILES] = tiles_alone,
        [BLOCKS] = blocks_alone, [PSE] = pse_heads,     [CAPTURED] = captured_heads};
    int64_t units = count(f, p, first);
    int threads = (int)DVM_MIN(pool ? dvm_pool_size(pool) : 1, units);
    size_t got;
    if (!units) return DVM_OK;
    sizes(f, p);
    f->units.first = first;
    f->units.nseq = f->a->nseq;
    atomic_store(&f->units.next, 0);
    f->scratch = dvm_pool_take(pool, mem, f->total * (size_t)threads + 64, &got);
    if (!f->scratch) return DVM_ERR_NOMEM;
    dvm_pool_run(pool, threads, body[p], f);
    dvm_pool_give(pool, mem, f->scratch, got);
    return DVM_OK;
}

static dvm_status captured_pass(struct backward *f, struct dvm_pool *pool,
                                const struct dvm_mem *mem, int64_t *first) {
    const struct attn_flex *x = f->a->flex;
    size_t size = (size_t)(captured_parts(f->a) * x->begin[x->ncaptured]) * sizeof *f->captured;
    f->captured = dvm_mem_new(mem, size);
    if (!f->captured) return DVM_ERR_NOMEM;
    dvm_status st = pass(f, CAPTURED, pool, mem, first);
    if (st == DVM_OK) store_captured(f);
    dvm_mem_free(mem, f->captured, size);
    return st;
}

/* One pass needs two heads a thread to keep them busy. */
static dvm_status passes(struct backward *f, struct dvm_pool *pool, const struct dvm_mem *mem,
                         int64_t *first) {
    int threads = pool ? dvm_pool_size(pool) : 1;
    DVM_TRY(pass(f, DELTAS, pool, mem, first));
    if (threads == 1 || count(f, HEADS, NULL) >= 2 * (int64_t)threads) {
        DVM_TRY(pass(f, HEADS, pool, mem, first));
    } else {
        DVM_TRY(pass(f, TILES, pool, mem, first));
        DVM_TRY(pass(f, BLOCKS, pool, mem, first));
    }
    if (f->a->dpse.p) DVM_TRY(pass(f, PSE, pool, mem, first));
    if (f->a->dpse.p && f->a->nseq == 0)
        dvm_attn_zero_rows(&f->a->dpse, f->a->nq, 0, 0, f->a->call->pse->dims[2], f->a->max_skv);
    if (f->a->flex && f->a->flex->ncaptured) DVM_TRY(captured_pass(f, pool, mem, first));
    sink_gradient(f);
    zero_rest(f);
    return DVM_OK;
}

dvm_status dvm_attn_run_backward(const struct attn *s, const struct attn_isa *isa,
                                 struct dvm_pool *pool, const struct dvm_mem *mem) {
    struct backward f = {.a = s, .isa = isa};
    int64_t slots = (s->tnd ? 1 : s->nseq) * s->tq * s->nq;
    size_t seqs = (size_t)s->nseq * sizeof(struct attn_seq);
    size_t table = seqs + ((size_t)s->nseq + 1) * 8 + (size_t)slots * 4;
    char *p = dvm_mem_new(mem, table);
    if (!p) return DVM_ERR_NOMEM;
    struct attn_seq *seq = (struct attn_seq *)(void *)p;
    int64_t *first = (int64_t *)(void *)(p + seqs);
    f.delta = (float *)(first + s->nseq + 1);
    dvm_attn_seqs(s, seq);
    f.seq = seq;
    dvm_status st = passes(&f, pool, mem, first);
    dvm_mem_free(mem, p, table);
    return st;
}
