/* Matrix multiply: levels, scratch, the parallel loop over tiles. Threads take tiles from a counter: which thread
 * computes a tile changes nothing in it. */
#include "ops/gemm/gemm.h"

#include <stdatomic.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/cpuflags.h"
#include "base/err.h"
#include "ops/gemm/gemm_int.h"
#include "vm/pool.h"

/* ---- levels */

/* The order of additions and the single roundings that gemm.h relies on are the manufacturers' description of the
 * instructions; a processor or emulator that does otherwise is found here. The numbers are those of `mask`. */
static bool behaves(const struct dvm_k_gemm *k, uint32_t mask, uint32_t set) {
    enum { P = 32 };
    uint32_t a[P], b[P * DVM_GEMM_MAX_NR], x = 1;
    float af[2 * P], bf[2 * P * DVM_GEMM_MAX_NR], c[DVM_GEMM_MAX_NR], d[DVM_GEMM_MAX_NR];
    for (int i = 0; i < P * k->nr + P; i++) {
        x = x * 1664525 + 1013904223;
        uint32_t w = (x & mask) | set;
        if (i < P)
            a[i] = w;
        else
            b[i - P] = w;
    }
    k->unpair(af, a, 1, P);
    k->unpair(bf, b, k->nr, P);
    k->bf16(1, k->nr, P, a, b, c, k->nr, true, (char *)a, 0);
    k->f32(1, k->nr, (int64_t)2 * P, af, 2 * P, 1, bf, k->nr, d, k->nr, true, (char *)a, 0);
    return memcmp(c, d, (size_t)k->nr * 4) == 0;
}
/* Numbers near 1; and, of instructions that may meet them, those whose products are denormal. */
static bool dot_behaves(const struct dvm_k_gemm *k) {
    return behaves(k, 0x81ff81ff, 0x3e003e00) && (!k->exact || behaves(k, 0x9fff9fff, 0x08000800));
}

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}
/* Zen does a dot product of pairs where it does a multiply-add; Sapphire Rapids does one in the time of four (82 GF beside
 * 159 GF). AArch64 does one multiply-add in either case, and reads half the bytes. Some microseconds, least of a few turns. */
static bool dot_is_slow(const struct dvm_k_gemm *k) {
    enum { PAIRS = 64, MR = 12, NR = 32, TURNS = 5 };
    uint32_t zero[PAIRS * 2 * NR] = {0}, rows[MR * DVM_GEMM_KC] = {0};
    float c[MR * NR];
    int64_t dot = INT64_MAX, fma = INT64_MAX;
    for (int i = 0; i < TURNS; i++) {
        int64_t t0 = now_ns();
        k->bf16(k->mr, k->nr, PAIRS, rows, zero, c, NR, true, (const char *)c, 0);
        int64_t t1 = now_ns();
        k->f32(k->mr, k->nr, (int64_t)2 * PAIRS, (const float *)(const void *)rows, DVM_GEMM_KC, 1,
               (const float *)(const void *)zero, k->nr, c, NR, true, (const char *)c, 0);
        dot = DVM_MIN(dot, t1 - t0);
        fma = DVM_MIN(fma, now_ns() - t1);
    }
    return dot > fma + (k->exact ? fma / 4 : 0);
}

/* A tile of TN columns needs about 1 MiB: its blocks of A and B, its sums, and what is fetched ahead. */
static bool has_small_cache(void) {
    long n = -1;
#ifdef _SC_LEVEL2_CACHE_SIZE
    n = sysconf(_SC_LEVEL2_CACHE_SIZE);
#endif
    return n > 0 && n < 1 << 20;
}

dvm_status dvm_gemm_isa(const char *isa, struct dvm_gemm_isa *out) {
    struct dvm_dev dev;
    DVM_TRY(dvm_dev_cpu(isa, &dev));
    *out = (struct dvm_gemm_isa){.k = &dvm_k_gemm_base};
#if defined(__x86_64__)
    if (!strcmp(dev.isa, "avx2")) out->k = &dvm_k_gemm_avx2;
    if (!strcmp(dev.isa, "avx512")) out->k = &dvm_k_gemm_avx512;
#endif
    if (out->k->bf16 && (dvm_cpu_flags() & (DVM_CPU_AVX512_BF16 | DVM_CPU_NEON_BF16)))
        out->dot = dot_behaves(out->k);
    if (out->dot) out->dot_is_slow = dot_is_slow(out->k);
    out->narrow = has_small_cache();
    return DVM_OK;
}

/* ---- scratch */

static bool use_pairs(const struct dvm_gemm *g, const struct dvm_gemm_isa *isa) {
    return isa->dot && !isa->dot_is_slow && gemm_all_bf16(g);
}

static size_t part(size_t *total, size_t size) {
    size_t at = *total;
    *total += gemm_up((int64_t)size, 64) + 64; /* parts start in different cache sets */
    return at;
}

static struct gemm_room lanes_room(const struct dvm_gemm *g) {
    bool swap = g->m != 1;
    size_t n = (size_t)gemm_up(DVM_MIN(swap ? g->m : g->n, DVM_GEMM_LANE_N), DVM_GEMM_MAX_NR);
    size_t stage = 4 * (size_t)DVM_MAX(LANE_ROWS * LANE_STAGE_N, LANE_COLS * DVM_GEMM_LANE_KC);
    struct gemm_room r = {.total = 0};
    r.c = part(&r.total, 4 * (g->panel && !swap ? (size_t)gemm_up(g->n, DVM_GEMM_MAX_NR) : n));
    r.a = part(&r.total, 4 * (size_t)gemm_up(DVM_MIN(g->k, DVM_GEMM_LANE_KC), DVM_GEMM_LANES));
    r.x = part(&r.total, gemm_staged(g, swap ? WAY_LANES_SWAP : WAY_LANES) ? stage : 0);
    r.y = part(&r.total, 4 * DVM_GEMM_LANES * n);
    return r;
}

/* Enough for every item: sizes grow with m, n, k of the item. Pairs take half, and floats for multiply_wide. */
static struct gemm_room room_of(const struct dvm_gemm *g, bool pairs) {
    enum { LONG = DVM_GEMM_TN_MAX * DVM_GEMM_SMALL_M * 4 };
    if (g->lanes) return lanes_room(g);
    size_t m = (size_t)DVM_MIN(g->m, DVM_GEMM_TM), kc = DVM_GEMM_KC;
    size_t n = (size_t)gemm_up(DVM_MIN(g->n, DVM_GEMM_TN), DVM_GEMM_MAX_NR);
    bool stream = DVM_MIN(g->m, g->n) <= DVM_GEMM_SMALL_M || g->form == DVM_GEMM_GROUPM;
    size_t lng = stream ? LONG : 0, few = stream ? DVM_GEMM_SMALL_M * kc * 4 : 0, x = 0, y = 0;
    if (pairs) x = m * kc * 4, y = DVM_GEMM_MAX_NR * kc * 4;
    if (g->pack_b) x = DVM_GEMM_TN * kc * 4;
    struct gemm_room r = {.total = 0};
    size_t wide = (size_t)g->panel * (size_t)gemm_up(g->n, DVM_GEMM_MAX_NR);
    r.c = part(&r.total, DVM_MAX(g->panel ? wide * 4 : m * n * 4, lng));
    r.a = part(&r.total, DVM_MAX(m * kc * (pairs ? 2 : 4), few));
    r.b = part(&r.total, (size_t)gemm_block_b((int64_t)n, pairs));
    r.x = part(&r.total, DVM_MAX(x, lng));
    r.y = part(&r.total, DVM_MAX(y, lng));
    return r;
}

/* ---- sharing packed blocks: worth its two waits if a product has several tiles and enough work */

enum { SHARE_WORK = 1 << 22, SHARE_A = 8 << 20, SHARE_ALL = 13 << 20 };

static bool is_shared(const struct dvm_gemm *g, const struct gemm_item *it, int64_t items,
                      int threads) {
    int64_t tiles = gemm_tiles(g, it);
    return it->way == WAY_BLOCK && tiles > 1 && it->m * it->n * it->k >= SHARE_WORK &&
           (items == 1 || tiles >= 2 * (int64_t)threads);
}

/* Sizes of one product; addresses when p is not NULL. Returns the bytes. Whole rows need all columns of B at once. */
static size_t share(const struct dvm_gemm *g, const struct gemm_item *it, bool pairs, char *p,
                    struct gemm_shared *s) {
    int64_t e = pairs ? 2 : 4, columns = it->depth;
    *s = (struct gemm_shared){.a_size = it->tm * DVM_GEMM_KC * e,
                              .b_size = gemm_block_b(it->tn, pairs)};
    int64_t a = it->rows * it->depth * s->a_size, b = columns * s->b_size, ranges = 0;
    if (it->cols < 2 || a > SHARE_A || gemm_a_stays(g)) a = 0;
    if (it->rows < 2 || b * (g->panel ? it->cols : 1) > SHARE_ALL - a) b = 0;
    int64_t fit = b ? (SHARE_ALL - a) / b : it->cols, groups = gemm_over(it->cols, fit);
    s->cols = gemm_over(it->cols, groups);
    b *= s->cols;
    ranges = (it->rows + s->cols) * it->depth * (int64_t)sizeof *s->ra;
    if (p && a) s->a = p;
    if (p && b) s->b = p + a;
    if (p) s->ra = (struct dvm_k_range *)(void *)(p + a + b);
    if (p) s->rb = s->ra + it->rows * it->depth;
    return (size_t)gemm_up(a + b + ranges, 64);
}

/* In front of the threads' parts: first tiles of groups, then shared blocks. */
static size_t first_room(const struct dvm_gemm *g) {
    return g->form != DVM_GEMM_BATCH ? (size_t)gemm_up((g->ngroup + 2) * 8, 64) : 0;
}
static size_t shared_room(const struct dvm_gemm *g, bool pairs, const struct gemm_host *h) {
    int64_t items = dvm_gemm_items(g);
    size_t most = 0;
    for (int64_t i = 0; i < (g->form == DVM_GEMM_BATCH ? DVM_MIN(items, 1) : items); i++) {
        struct gemm_item it = dvm_gemm_item(g, i, h);
        struct gemm_shared s;
        size_t size = is_shared(g, &it, items, h->threads) ? share(g, &it, pairs, NULL, &s) : 0;
        most = DVM_MAX(most, size);
    }
    return most;
}

size_t dvm_gemm_scratch(const struct dvm_gemm *g, const struct dvm_gemm_isa *isa, int threads) {
    bool pairs = use_pairs(g, isa);
    struct gemm_host h = {threads, isa->narrow};
    return first_room(g) + shared_room(g, pairs, &h) + room_of(g, pairs).total * (size_t)threads;
}

/* ---- tiles */

void dvm_gemm_finish(const struct gemm_run *r, int thread, const struct gemm_item *it, int64_t r0,
                     int64_t c0, int64_t m, int64_t n, float *tile, int64_t ld) {
    const struct dvm_gemm *g = r->g;
    int64_t batch = DVM_MAX(it->batch, 0);
    float bias[DVM_MAX((int)DVM_GEMM_TN_MAX, (int)DVM_GEMM_LANE_N)];
    bool biased = g->bias && it->batch >= 0;
    if (it->k == 0)
        for (int64_t i = 0; i < m; i++) memset(tile + i * ld, 0, (size_t)n * 4);
    if (g->epilogue) {
        g->epilogue(g->ctx, thread, it->batch, it->row0 + r0, c0, m, n, tile, ld);
        return;
    }
    if (biased) {
        const char *p = g->bias + gemm_batch_at(g, g->bias_bs, batch) + c0 * g->bias_cs;
        struct dvm_k_block b = {p, 0, g->bias_cs, 1, n, g->bias_t};
        r->k->rows(bias, n, n, 0, false, &b);
    }
    int64_t at = g->form == DVM_GEMM_GROUPM ? 0 : gemm_batch_at(g, g->out.bs, batch);
    char *d = (char *)(uintptr_t)g->out.p + at + (it->row0 + r0) * g->out.rs + c0 * g->out.cs;
    r->k->store(d, g->out.rs, g->out.cs, g->out.t, tile, ld, m, n, biased ? bias : NULL);
}

/* Item of a tile; *t becomes the tile's number in it. */
static struct gemm_item item_of(const struct gemm_run *r, int64_t *t) {
    if (!r->first) {
        int64_t each = r->tiles / r->items, i = *t / each;
        *t %= each;
        return dvm_gemm_item(r->g, i, &r->host);
    }
    int64_t lo = 0, hi = r->items; /* first[lo] <= t < first[hi] */
    while (hi - lo > 1) {
        int64_t mid = (lo + hi) / 2;
        if (r->first[mid] <= *t)
            lo = mid;
        else
            hi = mid;
    }
    *t -= r->first[lo];
    return dvm_gemm_item(r->g, lo, &r->host);
}

static struct gemm_ws ws_of(const struct gemm_run *r, int thread) {
    char *p = r->ws + r->room.total * (size_t)thread;
    return (struct gemm_ws){.c = (float *)(void *)(p + r->room.c),
                            .a = p + r->room.a,
                            .b = p + r->room.b,
                            .x = (float *)(void *)(p + r->room.x),
                            .y = (float *)(void *)(p + r->room.y)};
}
static int64_t ticket(struct gemm_run *r) {
    return atomic_fetch_add_explicit(&r->next, 1, memory_order_relaxed);
}
static void run_threads(struct gemm_run *r, struct dvm_pool *pool, int64_t work,
                        void (*body)(void *, int)) {
    atomic_store(&r->next, 0);
    if (work) dvm_pool_run(pool, (int)DVM_MIN(r->host.threads, work), body, r);
}

/* Tiles one below the other follow each other: they share columns of B. */
static void run_tiles(void *arg, int thread) {
    struct gemm_run *r = arg;
    struct gemm_ws ws = ws_of(r, thread);
    for (int64_t t; (t = ticket(r)) < r->tiles;) {
        struct gemm_item it = item_of(r, &t);
        if (it.way == WAY_BLOCK)
            dvm_gemm_block_tile(r, &ws, thread, &it, NULL, t % it.rows, t / it.rows);
        else if (r->g->lanes)
            dvm_gemm_lanes_tile(r, &ws, thread, &it, t % it.rows, t / it.rows);
        else
            dvm_gemm_stream_tile(r, &ws, thread, &it, t % it.rows, t / it.rows);
    }
}
static void run_packs(void *arg, int thread) {
    struct gemm_run *r = arg;
    struct gemm_ws ws = ws_of(r, thread);
    for (int64_t t; (t = ticket(r)) < r->packs;) {
        if (t < r->packs_a)
            dvm_gemm_share_a(r, thread, t);
        else
            dvm_gemm_share_b(r, &ws, thread, t - r->packs_a);
    }
}
static void run_shared_tiles(void *arg, int thread) {
    struct gemm_run *r = arg;
    const struct gemm_item *it = r->item;
    struct gemm_ws ws = ws_of(r, thread);
    int64_t cols = DVM_MIN(r->share.cols, it->cols - r->share.col0);
    for (int64_t t; (t = ticket(r)) < it->rows * (r->g->panel ? 1 : cols);)
        dvm_gemm_block_tile(r, &ws, thread, it, &r->share, t % it->rows,
                            r->share.col0 + t / it->rows);
}

static void run_shared(struct gemm_run *r, struct dvm_pool *pool, const struct gemm_item *it,
                       char *p) {
    share(r->g, it, r->pairs, p, &r->share);
    r->item = it;
    r->packs_a = r->share.a ? it->rows * it->depth : 0;
    for (; r->share.col0 < it->cols; r->share.col0 += r->share.cols) {
        int64_t cols = DVM_MIN(r->share.cols, it->cols - r->share.col0);
        r->packs = r->packs_a + (r->share.b ? cols * it->depth : 0);
        run_threads(r, pool, r->packs, run_packs);
        run_threads(r, pool, it->rows * (r->g->panel ? 1 : cols), run_shared_tiles);
        r->packs_a = 0;
    }
}

/* Shared products one after the other; the tiles of all others in one loop. */
static void run_all(struct gemm_run *r, struct dvm_pool *pool, int64_t *first, char *p) {
    for (int64_t i = 0; i < r->items; i++) {
        struct gemm_item it = dvm_gemm_item(r->g, i, &r->host);
        bool shared = is_shared(r->g, &it, r->items, r->host.threads);
        if (!first && !shared) {
            r->tiles = r->items * gemm_tiles(r->g, &it);
            break;
        }
        if (first) first[i] = r->tiles;
        if (shared)
            run_shared(r, pool, &it, p);
        else
            r->tiles += gemm_tiles(r->g, &it);
    }
    if (first) first[r->items] = r->tiles;
    r->first = first;
    run_threads(r, pool, r->tiles, run_tiles);
}

dvm_status dvm_gemm_run(const struct dvm_gemm *g, const struct dvm_gemm_isa *isa,
                        struct dvm_pool *pool, const struct dvm_mem *mem, void *scratch) {
    DVM_TRY(dvm_gemm_check(g));
    int threads = pool ? dvm_pool_size(pool) : 1;
    if (g->cores) threads = DVM_MIN(threads, g->cores);
    bool pairs = use_pairs(g, isa);
    struct gemm_run r = {.g = g,
                         .k = isa->k,
                         .pairs = pairs,
                         .host = {threads, isa->narrow},
                         .room = room_of(g, pairs),
                         .items = dvm_gemm_items(g)};
    if (r.items == 0 || g->m == 0 || g->n == 0) return DVM_OK;
    size_t got = 0;
    char *ws = scratch;
    if (!ws) ws = dvm_pool_take(pool, mem, dvm_gemm_scratch(g, isa, threads), &got);
    if (!ws) return DVM_ERR_NOMEM;
    char *shared = ws + first_room(g);
    r.ws = shared + shared_room(g, pairs, &r.host);
    run_all(&r, pool, g->form == DVM_GEMM_BATCH ? NULL : (int64_t *)(void *)ws, shared);
    if (!scratch) dvm_pool_give(pool, mem, ws, got);
    return DVM_OK;
}
