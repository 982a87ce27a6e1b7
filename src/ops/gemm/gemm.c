/* Matrix multiply: levels, scratch, the parallel loop over tiles. Threads take tiles from a counter: which thread
 * computes a tile changes nothing in it. */
#include "ops/gemm/gemm.h"

#include <stdatomic.h>
#include <string.h>

#include "base/cpuflags.h"
#include "base/err.h"
#include "ops/gemm/gemm_int.h"
#include "vm/pool.h"

/* ---- levels */

/* The order of additions and the single roundings that gemm.h relies on are the manufacturers' description of the dot
 * instruction; a processor or emulator that does otherwise is found here. */
static bool dot_behaves(const struct dvm_k_gemm *k) {
    enum { P = 32 };
    uint32_t a[P], b[P * DVM_GEMM_MAX_NR], x = 1;
    float af[2 * P], bf[2 * P * DVM_GEMM_MAX_NR], c[DVM_GEMM_MAX_NR], d[DVM_GEMM_MAX_NR];
    for (int i = 0; i < P * k->nr + P; i++) {
        x = x * 1664525 + 1013904223;
        uint32_t w = (x & 0x81ff81ff) | 0x3e003e00;
        if (i < P)
            a[i] = w;
        else
            b[i - P] = w;
    }
    k->unpair(af, a, 1, P);
    k->unpair(bf, b, k->nr, P);
    k->bf16(1, k->nr, P, a, b, c, k->nr, true);
    k->f32(1, k->nr, (int64_t)2 * P, af, bf, k->nr, d, k->nr, true);
    return memcmp(c, d, (size_t)k->nr * 4) == 0;
}

dvm_status dvm_gemm_isa(const char *isa, struct dvm_gemm_isa *out) {
    struct dvm_dev dev;
    DVM_TRY(dvm_dev_cpu(isa, &dev));
    *out = (struct dvm_gemm_isa){&dvm_k_gemm_base, false};
#if defined(__x86_64__)
    if (!strcmp(dev.isa, "avx2")) out->k = &dvm_k_gemm_avx2;
    if (!strcmp(dev.isa, "avx512")) out->k = &dvm_k_gemm_avx512;
#endif
    if (out->k->bf16 && (dvm_cpu_flags() & DVM_CPU_AVX512_BF16)) out->dot = dot_behaves(out->k);
    return DVM_OK;
}

/* ---- scratch */

static bool use_pairs(const struct dvm_gemm *g, const struct dvm_gemm_isa *isa) {
    return isa->dot && gemm_all_bf16(g);
}

static size_t part(size_t *total, size_t size) {
    size_t at = *total;
    *total += gemm_up((int64_t)size, 64) + 64; /* parts start in different cache sets */
    return at;
}

/* Enough for every item: sizes grow with m, n, k of the item. */
static struct gemm_room room_of(const struct dvm_gemm *g, bool pairs) {
    enum { LONG = DVM_GEMM_TN_MAX * DVM_GEMM_SMALL_M * 4 };
    size_t m = (size_t)DVM_MIN(g->m, DVM_GEMM_TM), kc = DVM_GEMM_KC;
    size_t n = (size_t)gemm_up(DVM_MIN(g->n, DVM_GEMM_TN), DVM_GEMM_MAX_NR);
    size_t a = DVM_MAX(m, (size_t)DVM_GEMM_SMALL_M) * kc * 4, b = n * kc * 4;
    bool stream = DVM_MIN(g->m, g->n) <= DVM_GEMM_SMALL_M || g->form == DVM_GEMM_GROUPM;
    size_t lng = stream ? LONG : 0, x = pairs ? a : 0, y = pairs ? b : 0;
    struct gemm_room r = {.total = 0};
    if (g->pack_b) x = DVM_GEMM_TN * kc * 4;
    r.c = part(&r.total, DVM_MAX(m * n * 4, lng));
    r.a = part(&r.total, a);
    r.b = part(&r.total, b);
    r.x = part(&r.total, DVM_MAX(x, lng));
    r.y = part(&r.total, DVM_MAX(y, lng));
    return r;
}
static size_t shared_room(const struct dvm_gemm *g) {
    size_t first = g->form == DVM_GEMM_GROUPM ? (size_t)(g->ngroup + 2) * 8 : 0;
    return (size_t)gemm_up((int64_t)first, 64);
}

size_t dvm_gemm_scratch(const struct dvm_gemm *g, const struct dvm_gemm_isa *isa, int threads) {
    return shared_room(g) + room_of(g, use_pairs(g, isa)).total * (size_t)threads;
}

/* ---- tiles */

void dvm_gemm_finish(const struct gemm_run *r, int thread, const struct gemm_item *it, int64_t r0,
                     int64_t c0, int64_t m, int64_t n, float *tile, int64_t ld) {
    const struct dvm_gemm *g = r->g;
    int64_t batch = DVM_MAX(it->batch, 0);
    float bias[DVM_GEMM_TN_MAX];
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
        return dvm_gemm_item(r->g, i);
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
    return dvm_gemm_item(r->g, lo);
}

/* Tiles one below the other follow each other: they share columns of B. */
static void run_tile(const struct gemm_run *r, const struct gemm_ws *ws, int thread, int64_t t) {
    struct gemm_item it = item_of(r, &t);
    int64_t r0 = t % it.rows * it.tm, c0 = t / it.rows * it.tn;
    int64_t m = DVM_MIN(it.tm, it.m - r0), n = DVM_MIN(it.tn, it.n - c0);
    if (it.way == WAY_BLOCK)
        dvm_gemm_block_tile(r, ws, thread, &it, r0, c0, m, n);
    else
        dvm_gemm_stream_tile(r, ws, thread, &it, r0, c0, m, n);
}

static void run_thread(void *arg, int thread) {
    const struct gemm_run *r = arg;
    char *p = r->ws + r->room.total * (size_t)thread;
    struct gemm_ws ws = {.c = (float *)(void *)(p + r->room.c),
                         .a = p + r->room.a,
                         .b = p + r->room.b,
                         .x = (float *)(void *)(p + r->room.x),
                         .y = (float *)(void *)(p + r->room.y)};
    for (;;) {
        int64_t t = atomic_fetch_add_explicit(r->next, 1, memory_order_relaxed);
        if (t >= r->tiles) return;
        run_tile(r, &ws, thread, t);
    }
}

static void count_tiles(struct gemm_run *r, int64_t *first) {
    if (!first) {
        struct gemm_item it = dvm_gemm_item(r->g, 0);
        r->tiles = r->items * it.rows * it.cols;
        return;
    }
    for (int64_t i = 0; i < r->items; i++) {
        struct gemm_item it = dvm_gemm_item(r->g, i);
        first[i] = r->tiles;
        r->tiles += it.rows * it.cols;
    }
    first[r->items] = r->tiles;
    r->first = first;
}

dvm_status dvm_gemm_run(const struct dvm_gemm *g, const struct dvm_gemm_isa *isa,
                        struct dvm_pool *pool, const struct dvm_mem *mem, void *scratch) {
    DVM_TRY(dvm_gemm_check(g));
    _Atomic int64_t next = 0;
    bool pairs = use_pairs(g, isa);
    struct gemm_run r = {.g = g,
                         .k = isa->k,
                         .pairs = pairs,
                         .room = room_of(g, pairs),
                         .items = dvm_gemm_items(g),
                         .next = &next};
    if (r.items == 0 || g->m == 0 || g->n == 0) return DVM_OK;
    int threads = pool ? dvm_pool_size(pool) : 1;
    size_t got = 0;
    char *ws = scratch;
    if (!ws) ws = dvm_pool_take(pool, mem, dvm_gemm_scratch(g, isa, threads), &got);
    if (!ws) return DVM_ERR_NOMEM;
    r.ws = ws + shared_room(g);
    count_tiles(&r, g->form == DVM_GEMM_GROUPM ? (int64_t *)(void *)ws : NULL);
    dvm_pool_run(pool, (int)DVM_MIN(threads, r.tiles), run_thread, &r);
    if (!scratch) dvm_pool_give(pool, mem, ws, got);
    return DVM_OK;
}
