/* Functions of scores inside the tile loop. A tile is cut where the block of rows, the block of keys, the head or what
 * is seen changes; each part is one call of a strip. Functions are elementwise, so the cut changes no bit. */
#include "ops/attn/attn_flex.h"

#include <math.h>
#include <string.h>

/* ---- memory */

static size_t code_scratch(const struct attn_flex *f) {
    size_t most = 0;
    for (int i = 0; i < NFLEX_USE; i++)
        if (f->fn[i].code) most = DVM_MAX(most, f->fn[i].code->scratch);
    return most;
}

static int most_opnd(const struct attn_flex *f) {
    int most = 1;
    for (int i = 0; i < NFLEX_USE; i++) most = DVM_MAX(most, f->fn[i].nopnd);
    return most;
}

struct places {
    size_t raw, add, opnd, scratch, total;
};
static struct places places(const struct attn_flex *f, bool backward) {
    struct places p = {.total = 0};
    p.opnd = dvm_attn_part(&p.total, most_opnd(f) * (int64_t)sizeof(struct dvm_opnd_arg));
    p.scratch = dvm_attn_part(&p.total, (int64_t)code_scratch(f));
    if (!backward) return p;
    p.raw = dvm_attn_part(&p.total, (int64_t)4 * ATTN_BM * ATTN_PITCH);
    p.add = dvm_attn_part(&p.total, (int64_t)2 * f->call->nadd * FLEX_ADD_TILE);
    return p;
}

size_t dvm_attn_flex_room(const struct attn_flex *f, bool backward) {
    return places(f, backward).total;
}

void dvm_attn_flex_enter(struct attn_flex_work *x, struct attn_flex *f, bool backward, char *p) {
    struct places at = places(f, backward);
    x->flex = f;
    x->scale = f->scale;
    x->opnd = (struct dvm_opnd_arg *)(void *)(p + at.opnd);
    x->scratch = p + at.scratch;
    x->raw = backward ? (float *)(void *)(p + at.raw) : NULL;
    x->add = p + at.add;
}

/* ---- what is seen */

static const uint8_t *states(const struct attn_flex *f, const struct attn_block *blk, int64_t head,
                             int64_t i) {
    return f->state + blk->b * f->bs + (blk->n0 + head) * f->hs + i / f->q_block * f->rs;
}

/* Rows of a head up to the end of the block of rows that row i is in. */
static int64_t same_rows(const struct attn_flex *f, const struct attn_block *blk, int64_t i) {
    return DVM_MIN(blk->rows - i, f->q_block - (blk->i0 + i) % f->q_block);
}

/* Hull of the keys of a tile in blocks that are seen. */
static struct attn_range seen(const struct attn_flex *f, const uint8_t *s, int64_t j0,
                              int64_t skv) {
    int64_t end = DVM_MIN(j0 + ATTN_BN, skv), at = j0 / f->kv_block, last = (end - 1) / f->kv_block;
    while (at <= last && s[at] == FLEX_NONE) at++;
    if (at > last) return (struct attn_range){0, 0};
    while (s[last] == FLEX_NONE) last--;
    return (struct attn_range){DVM_MAX(at * f->kv_block - j0, 0),
                               DVM_MIN((last + 1) * f->kv_block, end) - j0};
}

bool dvm_attn_flex_see(struct attn_work *w, const struct attn_block *blk, int64_t j0) {
    const struct attn_flex *f = w->flex.flex;
    int64_t skv = w->seq[blk->b].skv;
    bool any = false;
    for (int64_t n = 0; n < blk->heads; n++)
        for (int64_t i = 0, rows; i < blk->rows; i += rows) {
            rows = same_rows(f, blk, i);
            struct attn_range k = seen(f, states(f, blk, n, blk->i0 + i), j0, skv);
            any |= k.from < k.to;
            for (int64_t r = n * blk->rows + i; r < n * blk->rows + i + rows; r++) {
                w->from[r] = (int)k.from;
                w->to[r] = (int)k.to;
            }
        }
    return any;
}

/* ---- running a function on a part of a tile */

struct part {
    int row, rows, key, keys; /* inside the tile */
};

static char *stand(struct attn_work *w, const struct attn_fn_opnd *o, float *out) {
    struct attn_flex_work *x = &w->flex;
    switch (o->role) {
    case DVM_FLEX_SCORE: return (char *)x->raw;
    case DVM_FLEX_SCALE: return (char *)&x->scale;
    case DVM_FLEX_BATCH: return (char *)&x->b;
    case DVM_FLEX_HEAD: return (char *)&x->h;
    case DVM_FLEX_QUERY: return (char *)x->q;
    case DVM_FLEX_KEY: return (char *)x->k;
    case DVM_FLEX_GRAD: return (char *)w->t;
    case DVM_FLEX_OTHER: return NULL;
    default: return out ? (char *)out : x->add + (size_t)(o->role - FLEX_OUT) * FLEX_ADD_TILE;
    }
}

static void note(struct attn_flex *f, int use, const struct dvm_fault *fault) {
    pthread_mutex_lock(&f->lock);
    if (!f->fault.any || use <= f->blame) {
        if (use < f->blame) f->fault.any = 0;
        f->blame = use;
        dvm_fault_note(&f->fault, fault->opnd, fault->index, fault->gn);
    }
    pthread_mutex_unlock(&f->lock);
}

/* out NULL: outputs are tiles of addends. */
static void run(struct attn_work *w, enum flex_use use, struct part p, float *out) {
    struct attn_flex_work *x = &w->flex;
    const struct attn_fn *fn = &x->flex->fn[use];
    struct dvm_fault fault = {0};
    for (int i = 0; i < fn->nopnd; i++) {
        const struct attn_fn_opnd *o = &fn->opnd[i];
        uintptr_t at = (uintptr_t)stand(w, o, out) + (uintptr_t)o->at +
                       (uintptr_t)(p.row * o->rs + p.key * o->cs);
        x->opnd[i] = (struct dvm_opnd_arg){(char *)at, o->rs, o->cs, o->gs, o->gn};
    }
    struct dvm_strip_args a = {.opnd = x->opnd,
                               .param = fn->param,
                               .m = p.rows,
                               .n = p.keys,
                               .scratch = x->scratch,
                               .fault = &fault,
                               .alias = out != NULL};
    fn->code->run(fn->code, &a);
    if (DVM_UNLIKELY(fault.any)) note(x->flex, use, &fault);
}

/* Without a function. */
static void scale_part(struct attn_work *w, struct part p) {
    const float *from = w->flex.raw + p.row * ATTN_PITCH + p.key;
    float *to = w->s + p.row * ATTN_PITCH + p.key;
    for (int r = 0; r < p.rows; r++, from += ATTN_PITCH, to += ATTN_PITCH) {
        if (from != to) memcpy(to, from, (size_t)p.keys * 4);
        w->k->scale(to, w->flex.scale, p.keys);
    }
}

static void clear_part(struct attn_work *w, struct part p) {
    for (int r = p.row; r < p.row + p.rows; r++)
        for (int j = p.key; j < p.key + p.keys; j++) w->s[r * ATTN_PITCH + j] = -INFINITY;
}

static void score_part(struct attn_work *w, int state, struct part p) {
    enum flex_use use = state == FLEX_FULL ? FLEX_USE_FULL : FLEX_USE_PART;
    if (state == FLEX_NONE)
        clear_part(w, p);
    else if (w->flex.flex->fn[use].code)
        run(w, use, p, w->s);
    else
        scale_part(w, p);
}

static void place(struct attn_work *w, const struct attn_block *blk, int64_t j0) {
    struct attn_flex_work *x = &w->flex;
    x->b = (int32_t)blk->b;
    for (int r = 0; r < blk->m; r++) x->q[r] = (int32_t)(blk->i0 + r % blk->rows);
    for (int j = 0; j < ATTN_BN; j++) x->k[j] = (int32_t)(j0 + j);
}

/* Calls fn for every part of the tile whose rows share a head and a block of rows, over the hull of their keys. */
static void each_band(struct attn_work *w, const struct attn_block *blk,
                      void (*fn)(struct attn_work *w, const struct attn_block *blk, int64_t head,
                                 struct part p, void *arg),
                      void *arg) {
    for (int64_t n = 0; n < blk->heads; n++) {
        w->flex.h = (int32_t)(blk->n0 + n);
        for (int64_t i = 0, rows; i < blk->rows; i += rows) {
            rows = same_rows(w->flex.flex, blk, i);
            int r = (int)(n * blk->rows + i);
            struct attn_range k = dvm_attn_hull(w, r, r + (int)rows);
            if (k.from < k.to)
                fn(w, blk, n, (struct part){r, (int)rows, (int)k.from, (int)(k.to - k.from)}, arg);
        }
    }
}

static void score_band(struct attn_work *w, const struct attn_block *blk, int64_t head,
                       struct part p, void *arg) {
    const struct attn_flex *f = w->flex.flex;
    int64_t j0 = *(const int64_t *)arg;
    const uint8_t *s = states(f, blk, head, blk->i0 + p.row % blk->rows);
    for (int64_t j = j0 + p.key, end = j + p.keys, to; j < end; j = to) {
        int64_t at = j / f->kv_block;
        int state = s[at];
        do to = ++at * f->kv_block;
        while (to < end && s[at] == state);
        to = DVM_MIN(to, end);
        score_part(w, state, (struct part){p.row, p.rows, (int)(j - j0), (int)(to - j)});
    }
}

void dvm_attn_flex_scores(struct attn_work *w, const struct attn_block *blk, int64_t j0) {
    place(w, blk, j0);
    each_band(w, blk, score_band, &j0);
}

void dvm_attn_flex_trim(struct attn_work *w, int r) {
    const float *s = w->s + r * ATTN_PITCH;
    int from = w->from[r], to = w->to[r];
    while (from < to && s[from] == -INFINITY) from++;
    while (from < to && s[to - 1] == -INFINITY) to--;
    if (from == to) from = to = 0;
    w->from[r] = from;
    w->to[r] = to;
}

/* ---- gradients. Weights of 0 stand where nothing is seen, and what a function gives there may be anything. */

static void grad_band(struct attn_work *w, const struct attn_block *blk, int64_t head,
                      struct part p, void *arg) {
    (void)blk, (void)head, (void)arg;
    run(w, FLEX_USE_GRAD, p, w->t);
    for (int r = p.row; r < p.row + p.rows; r++) {
        const float *s = w->s + r * ATTN_PITCH;
        float *t = w->t + r * ATTN_PITCH;
        for (int j = p.key; j < p.key + p.keys; j++) t[j] = s[j] == 0 ? 0 : t[j];
    }
}

void dvm_attn_flex_grad(struct attn_work *w, const struct attn_block *blk) {
    if (!w->flex.flex->fn[FLEX_USE_GRAD].code) return;
    each_band(w, blk, grad_band, NULL);
}

/* Addends of one captured gradient; addends of 0 weight go nowhere. */
static void add_tile(struct attn_work *w, struct part p, int i, double *sum) {
    struct attn_flex *f = w->flex.flex;
    int target = f->call->target[i];
    int64_t n = f->begin[target + 1] - f->begin[target];
    const float *v = (const float *)(const void *)(w->flex.add + (size_t)2 * i * FLEX_ADD_TILE);
    const int64_t *to =
        (const int64_t *)(const void *)(w->flex.add + (size_t)(2 * i + 1) * FLEX_ADD_TILE);
    sum += f->begin[target];
    for (int r = p.row; r < p.row + p.rows; r++)
        for (int j = p.key; j < p.key + p.keys; j++) {
            int at = r * ATTN_PITCH + j;
            if (w->s[at] == 0) continue;
            if (to[at] >= 0 && to[at] < n) {
                sum[to[at]] += v[at];
            } else {
                struct dvm_fault bad = {0};
                dvm_fault_note(&bad, (uint32_t)i, to[at], n);
                note(f, NFLEX_USE, &bad);
            }
        }
}

static void add_band(struct attn_work *w, const struct attn_block *blk, int64_t head, struct part p,
                     void *sum) {
    (void)blk, (void)head;
    run(w, FLEX_USE_ADD, p, NULL);
    for (int i = 0; i < w->flex.flex->call->nadd; i++) add_tile(w, p, i, sum);
}

void dvm_attn_flex_add(struct attn_work *w, const struct attn_block *blk, double *sum) {
    each_band(w, blk, add_band, sum);
}
