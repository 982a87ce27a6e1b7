/* Arguments of a matrix multiply: what is allowed, and the list of products with their tiles. Tiles depend on sizes and
 * dtypes alone. */
#include "base/err.h"
#include "ops/gemm/gemm_int.h"

static bool float_type(dvm_dtype t) { return t == DVM_F32 || t == DVM_BF16 || t == DVM_F16; }

static dvm_status check_groups(const struct dvm_gemm *g) {
    int64_t limit = g->form == DVM_GEMM_GROUPM ? g->m : g->k, before = 0;
    const char *name = g->form == DVM_GEMM_GROUPM ? "rows of a" : "k of a and b";
    if (g->nbatch) DVM_FAIL(SHAPE, "groups have no batch dimensions");
    if (g->ngroup < 0 || (g->ngroup > 0 && !g->ends)) DVM_FAIL(ARG, "no group list");
    for (int64_t i = 0; i < g->ngroup; before = g->ends[i++]) {
        if (g->ends[i] < before)
            DVM_FAIL(SHAPE, "group list decreases at %lld: %lld after %lld", (long long)i,
                     (long long)g->ends[i], (long long)before);
        if (g->ends[i] > limit)
            DVM_FAIL(SHAPE, "group %lld ends at %lld, beyond the %lld %s", (long long)i,
                     (long long)g->ends[i], (long long)limit, name);
    }
    return DVM_OK;
}

static dvm_status check(const struct dvm_gemm *g) {
    if (g->m < 0 || g->n < 0 || g->k < 0) DVM_FAIL(SHAPE, "a size is negative");
    if ((!g->pack_a && !float_type(g->a.t)) || (!g->pack_b && !float_type(g->b.t)))
        DVM_FAIL(DTYPE, "operands are %s and %s; f32, bf16 and f16 can be multiplied",
                 dvm_dtype_name(g->a.t), dvm_dtype_name(g->b.t));
    if (!g->epilogue && !float_type(g->out.t))
        DVM_FAIL(DTYPE, "result is %s; f32, bf16 or f16 can be stored", dvm_dtype_name(g->out.t));
    if (!g->epilogue && g->bias && !float_type(g->bias_t))
        DVM_FAIL(DTYPE, "bias is %s; f32, bf16 or f16 can be added", dvm_dtype_name(g->bias_t));
    if (g->nbatch < 0 || g->nbatch > DVM_GEMM_NBATCH)
        DVM_FAIL(LIMIT, "%d batch dimensions; at most %d", g->nbatch, DVM_GEMM_NBATCH);
    if (g->panel < 0 || g->panel > DVM_GEMM_TM ||
        (g->panel && (!g->epilogue || g->form != DVM_GEMM_BATCH || g->n > DVM_GEMM_PANEL_N)))
        DVM_FAIL(ARG, "a panel of %lld rows", (long long)g->panel);
    if (g->lanes && (g->form != DVM_GEMM_BATCH || (g->m != 1 && g->n != 1)))
        DVM_FAIL(ARG, "lanes take one row or one column, and no groups");
    int64_t all = 1;
    for (int d = 0; d < g->nbatch; d++)
        if (g->bdim[d] < 0 || !dvm_mul_ok(all, g->bdim[d], &all))
            DVM_FAIL(SHAPE, "batch dimension %d is %lld", d, (long long)g->bdim[d]);
    return g->form == DVM_GEMM_BATCH ? DVM_OK : check_groups(g);
}

dvm_status dvm_gemm_check(const struct dvm_gemm *g) {
    dvm_status st = check(g);
    if (st == DVM_OK) return st;
    return dvm_err_context(st, "%s of [%lld, %lld] and [%lld, %lld]: ",
                           g->form == DVM_GEMM_BATCH ? "matmul" : "grouped matmul", (long long)g->m,
                           (long long)g->k, (long long)g->k, (long long)g->n);
}

int64_t dvm_gemm_items(const struct dvm_gemm *g) {
    int64_t n = 1;
    if (g->form == DVM_GEMM_GROUPK) return g->ngroup;
    if (g->form == DVM_GEMM_GROUPM) return g->ngroup + 1; /* the last: rows of no group */
    for (int d = 0; d < g->nbatch; d++) n *= g->bdim[d];
    return n;
}

/* ---- products */

static void place_batch(const struct dvm_gemm *g, int64_t i, struct gemm_item *it) {
    it->a = gemm_at(it->a, gemm_batch_at(g, g->a.bs, i));
    it->b = gemm_at(it->b, gemm_batch_at(g, g->b.bs, i));
}
static void place_groupm(const struct dvm_gemm *g, int64_t i, struct gemm_item *it) {
    int64_t lo = i ? g->ends[i - 1] : 0, hi = i < g->ngroup ? g->ends[i] : g->m;
    it->a = gemm_at(it->a, lo * g->a.rs);
    it->b = gemm_at(it->b, i * g->b.bs[0]);
    it->m = hi - lo;
    it->ma = it->row0 = lo;
    if (i == g->ngroup) {
        it->k = 0;
        it->batch = -1;
    }
}
static void place_groupk(const struct dvm_gemm *g, int64_t i, struct gemm_item *it) {
    int64_t lo = i ? g->ends[i - 1] : 0;
    it->a = gemm_at(it->a, lo * g->a.cs);
    it->b = gemm_at(it->b, lo * g->b.rs);
    it->k = g->ends[i] - lo;
    it->ka = it->kb = lo;
}

static bool dense(const struct dvm_gemm_mat *m) {
    return m->rs == gemm_size(m->t) || m->cs == gemm_size(m->t);
}
/* Rows that are fewer than packing is worth. Columns that are contiguous are turned once for every four rows. */
static int64_t few_of(const struct dvm_gemm_mat *m, int64_t step, int64_t few) {
    enum { TURNED = 4 };
    return step == gemm_size(m->t) ? few : DVM_MIN(few, TURNED);
}
/* Streaming reads the large operand where it stands, in one of the two directions. */
static enum gemm_way way_of(const struct dvm_gemm *g, const struct gemm_item *it) {
    if (g->lanes) return g->m == 1 ? WAY_LANES : WAY_LANES_SWAP;
    if (g->panel) return WAY_BLOCK;
    int64_t few = gemm_all_bf16(g) ? 2 : DVM_GEMM_SMALL_M; /* the dot instruction does more rows */
    if (it->m <= few_of(&g->b, g->b.cs, few) && !g->pack_b && dense(&g->b)) return WAY_STREAM;
    if (it->n <= few_of(&g->a, g->a.rs, few) && !g->pack_a && dense(&g->a)) return WAY_STREAM_SWAP;
    return WAY_BLOCK;
}

/* Long tiles stream better; but enough of them for many threads. Rows that are contiguous are read in pieces as wide as a tile,
 * and each piece begins anew: 1 x 2048 x 2048 takes 1.5 ms on a Zen 3 core by 256 columns, 1.0 by 512. */
static int64_t stream_width(int64_t n, int64_t k, bool contiguous) {
    enum { LEAST = 128, WIDE = 512, SMALL = 1 << 20 };
    bool wide = contiguous && (n >= 4 * WIDE || n * k <= SMALL);
    int64_t w = gemm_up((n + 7) / 8, 64), least = wide ? DVM_MIN(DVM_MAX(n, LEAST), WIDE) : LEAST;
    return gemm_up(DVM_MAX(DVM_MIN(w, DVM_GEMM_TN_MAX), least), 64);
}

/* In lanes a matrix is read once, best in long pieces of its rows: where these are contiguous threads get one piece each, and some
 * where columns are; worth waking them. 1 x 2048 x 8192 on two Zen 3 cores: 10.1 ms by four pieces a thread, 5.5 by one. */
static int64_t lanes_width(const struct dvm_gemm *g, const struct gemm_item *it, int64_t n,
                           int threads) {
    enum { UNIT = DVM_GEMM_MAX_NR, WORK = 1 << 17 };
    bool by_rows =
        it->way == WAY_LANES ? g->b.cs == gemm_size(g->b.t) : g->a.rs == gemm_size(g->a.t);
    int64_t each = by_rows ? 1 : 4;
    int64_t most = gemm_staged(g, it->way) ? LANE_STAGE_N : DVM_GEMM_LANE_N, w = n;
    if (threads > 1) w = DVM_MAX(gemm_over(n, threads * each), WORK / DVM_MAX(it->k, 1));
    return DVM_MIN(gemm_up(DVM_MAX(w, 1), UNIT), most);
}

static void count(struct gemm_item *it) {
    it->rows = gemm_over(it->m, it->tm);
    it->cols = gemm_over(it->n, it->tn);
}
/* Even tiles; smaller ones, to occupy more threads, while each is still well worth a thread's attention. Columns are
 * cut first: tiles beside each other have no part of B in common. Few rows leave little work to a block of B: half as
 * many columns stay in the cache until they have been multiplied. A narrow block of B stays in a small cache while rows of A pass,
 * 2048 x 2048 x 2048 on a Zen 3 core with 512 KiB: 73 GF by 512 columns, 76 by 128; but 2048 x 512 x 512, most of which is
 * handing tiles over, 78 and 71. */
static void cut_block(struct gemm_item *it, bool narrow) {
    enum {
        UNIT_M = 12,
        UNIT_N = 64,
        WORK = 1 << 21,
        WANTED = 8,
        FEW = 48,
        SHALLOW = 2 * DVM_GEMM_KC
    };
    int64_t m = DVM_MAX(it->m, 1), n = DVM_MAX(it->n, 1);
    int64_t rows = gemm_over(m, DVM_GEMM_TM);
    int64_t cols = gemm_over(n, narrow && (m <= FEW || it->k > SHALLOW) ? DVM_GEMM_TN / 4
                                : m > FEW                               ? DVM_GEMM_TN
                                                                        : DVM_GEMM_TN / 2);
    for (;;) {
        it->tm = gemm_up(gemm_over(m, rows), UNIT_M);
        it->tn = gemm_up(gemm_over(n, cols), UNIT_N);
        if (rows * cols >= WANTED || it->tm * it->tn < 2 * WORK / DVM_MAX(it->k, 1)) break;
        if (it->tn > UNIT_N)
            cols *= 2;
        else if (it->tm > 4 * UNIT_M)
            rows *= 2;
        else
            break;
    }
}
static void cut(const struct dvm_gemm *g, struct gemm_item *it, const struct gemm_host *h) {
    it->way = way_of(g, it);
    it->tm = it->way == WAY_STREAM_SWAP ? stream_width(it->m, it->k, g->a.rs == gemm_size(g->a.t))
                                        : DVM_GEMM_TM;
    it->tn = it->way == WAY_STREAM ? stream_width(it->n, it->k, g->b.cs == gemm_size(g->b.t))
                                   : DVM_GEMM_TN;
    it->depth = gemm_over(it->k, DVM_GEMM_KC);
    if (it->way == WAY_LANES) it->tm = 1, it->tn = lanes_width(g, it, it->n, h->threads);
    if (it->way == WAY_LANES_SWAP) it->tm = lanes_width(g, it, it->m, h->threads), it->tn = 1;
    if (g->panel)
        it->tm = g->panel;
    else if (it->way == WAY_BLOCK)
        cut_block(it, h->narrow);
    count(it);
}

struct gemm_item dvm_gemm_item(const struct dvm_gemm *g, int64_t i, const struct gemm_host *h) {
    struct gemm_item it = {.m = g->m, .n = g->n, .k = g->k, .batch = i, .a = g->a.p, .b = g->b.p};
    switch (g->form) {
    case DVM_GEMM_BATCH: place_batch(g, i, &it); break;
    case DVM_GEMM_GROUPM: place_groupm(g, i, &it); break;
    case DVM_GEMM_GROUPK: place_groupk(g, i, &it); break;
    }
    cut(g, &it, h);
    return it;
}
