/* Attention through its C interface: the same bits on every level and for any number of threads and callers; nothing
 * read but what is seen, up to unmapped pages; memory that runs out; refusals that write nothing. Values are judged in
 * tests/py. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <dvm/attn.h>

#include "buffers.h"
#include "graphs.h"
#include "ops/attn/attn_call.h"

enum { B = 2, NQ = 4, NKV = 2, SQ = 230, SKV = 300, D = 40, D2 = 72, LAST = 8 };

/* ---- one problem with all its buffers ----------------------------------------------------------------------------- */

static const int64_t dim_q[] = {B, NQ, SQ, D}, dim_k[] = {B, NKV, SKV, D};
static const int64_t dim_v[] = {B, NKV, SKV, D2}, dim_o[] = {B, NQ, SQ, D2};
static const int64_t dim_s[] = {B, NQ, SQ, LAST}, dim_pse[] = {1, NQ, SQ, SKV}, dim_sink[] = {NQ};

enum { IQ, IK, IV, IPSE, ISINK, IDY, IOUT, IMAX, ISUM, IDQ, IDK, IDV, IDPSE, IDSINK, NBUF };
static const struct form form[NBUF] = {
    {dim_q, 4}, {dim_k, 4}, {dim_v, 4}, {dim_pse, 4}, {dim_sink, 1}, {dim_o, 4},   {dim_o, 4},
    {dim_s, 4}, {dim_s, 4}, {dim_q, 4}, {dim_k, 4},   {dim_v, 4},    {dim_pse, 4}, {dim_sink, 1}};

struct problem {
    dvm_attn a;
    dvm_arg arg[NBUF];
    const dvm_arg *out[3], *grad[5];
};

static void open_problem(struct problem *p) {
    *p = (struct problem){0};
    buffers_open(p->arg, form, NBUF, IOUT);
    p->a = (dvm_attn){.query = &p->arg[IQ],
                      .key = &p->arg[IK],
                      .value = &p->arg[IV],
                      .pse = &p->arg[IPSE],
                      .sink = &p->arg[ISINK],
                      .dy = &p->arg[IDY],
                      .attention_in = &p->arg[IOUT],
                      .softmax_max = &p->arg[IMAX],
                      .softmax_sum = &p->arg[ISUM],
                      .head_num = NQ,
                      .input_layout = "BNSD",
                      .scale = 0.2,
                      .keep_prob = 0.8,
                      .sparse_mode = 4,
                      .pre_tockens = 150,
                      .next_tockens = 20,
                      .seed = 5,
                      .numels = (int64_t)B * NQ * SQ * SKV};
    for (int i = 0; i < 3; i++) p->out[i] = &p->arg[IOUT + i];
    for (int i = 0; i < 5; i++) p->grad[i] = &p->arg[IDQ + i];
}

static void close_problem(struct problem *p) {
    for (int i = 0; i < NBUF; i++) free(p->arg[i].data);
}

static dvm_status run(dvm_ctx *ctx, struct problem *p) {
    dvm_status st = dvm_attn_forward(ctx, &p->a, p->out);
    return st == DVM_OK ? dvm_attn_backward(ctx, &p->a, p->grad) : st;
}

/* ---- bits --------------------------------------------------------------------------------------------------------- */

static void test_levels_and_threads(void **state) {
    static const char *const isa[] = {"base", "avx2", "avx512"};
    static const int threads[] = {1, 2, 3, 16};
    uint64_t want = 0;
    int levels = 0;
    (void)state;
    for (int l = 0; l < 3; l++)
        for (int t = 0; t < 4; t++) {
            dvm_options o = {.isa = isa[l], .threads = threads[t]};
            dvm_ctx *ctx;
            if (dvm_ctx_create(&o, &ctx) != DVM_OK) continue;
            struct problem p;
            open_problem(&p);
            if (run(ctx, &p)) fail_msg("%s", dvm_error_text());
            uint64_t h = buffers_hash(p.arg, NBUF, IOUT);
            if (levels++ == 0) want = h;
            if (h != want) fail_msg("level %s, %d threads: other bits", isa[l], threads[t]);
            close_problem(&p);
            dvm_ctx_destroy(&ctx);
        }
    assert_true(levels >= 4);
}

/* Whole tiles that are only scaled take another way than tiles with a bias, here of zeros, forward and backward. S does not fill the last
 * block or tile; causal, so that both ways meet in one row. */
static void test_plain_tiles(void **state) {
    enum { S = 300, F = 24 };
    static const char *const isa[] = {"base", "avx2", "avx512"};
    static const int64_t dq[] = {1, 1, S, F}, ds[] = {1, 1, S, LAST}, dp[] = {1, 1, S, S};
    static float in[3][S * F], zeros[S * S], o[2][S * F], m[S * LAST], l[2][S * LAST];
    static float first[2][S * F], g[2][3][S * F], first_g[2][3][S * F];
    uint64_t seed = 4;
    (void)state;
    for (int i = 0; i < 3 * S * F; i++) in[i / (S * F)][i % (S * F)] = rnd(&seed);
    for (int mode = 0; mode < 4; mode += 3)
        for (int level = 0, levels = 0; level < 3; level++) {
            dvm_ctx *ctx;
            if (dvm_ctx_create(&(dvm_options){.isa = isa[level], .threads = 1}, &ctx)) continue;
            for (int way = 0; way < 2; way++) {
                dvm_arg a[3], bias = {.data = zeros, .dims = dp, .rank = 4, .dtype = DVM_F32};
                for (int i = 0; i < 3; i++)
                    a[i] = (dvm_arg){.data = in[i], .dims = dq, .rank = 4, .dtype = DVM_F32};
                dvm_arg ao = a[0], am = {.data = m, .dims = ds, .rank = 4, .dtype = DVM_F32};
                dvm_arg al = am, ag[3] = {ao, ao, ao};
                ao.data = o[way], al.data = l[way];
                for (int i = 0; i < 3; i++) ag[i].data = g[way][i];
                dvm_attn c = {.query = &a[0],
                              .key = &a[1],
                              .value = &a[2],
                              .pse = way ? &bias : NULL,
                              .dy = &a[0],
                              .attention_in = &ao,
                              .softmax_max = &am,
                              .softmax_sum = &al,
                              .head_num = 1,
                              .input_layout = "BNSD",
                              .scale = 0.7,
                              .keep_prob = 1,
                              .sparse_mode = mode,
                              .pre_tockens = DVM_ATTN_ALL,
                              .next_tockens = DVM_ATTN_ALL};
                memset(o[way], 0xff, sizeof o[way]);
                memset(g[way], 0xff, sizeof g[way]);
                if (dvm_attn_forward(ctx, &c, (const dvm_arg *const[]){&ao, &am, &al}) ||
                    dvm_attn_backward(ctx, &c,
                                      (const dvm_arg *const[]){&ag[0], &ag[1], &ag[2], NULL, NULL}))
                    fail_msg("%s", dvm_error_text());
            }
            assert_memory_equal(o[0], o[1], sizeof o[0]);
            assert_memory_equal(l[0], l[1], sizeof l[0]);
            assert_memory_equal(g[0], g[1], sizeof g[0]);
            if (levels == 0) memcpy(first_g[mode / 3], g[0], sizeof g[0]);
            if (levels++ == 0) memcpy(first[mode / 3], o[0], sizeof o[0]);
            assert_memory_equal(o[0], first[mode / 3], sizeof o[0]);
            assert_memory_equal(g[0], first_g[mode / 3], sizeof g[0]);
            dvm_ctx_destroy(&ctx);
        }
}

/* Against libm: every level alike, the promised error, 1 at 0, 0 far below, NaN and excluded places. */
static void test_exponentials(void **state) {
    enum { N = 1 << 14 };
    static const char *const isa[] = {"base", "avx2", "avx512"};
    static float x[N], first[N], got[N];
    uint64_t seed = 5;
    int levels = 0;
    (void)state;
    for (int i = 0; i < N; i++) x[i] = -fabsf(rnd(&seed)) * (i % 2 ? 90.0f : 2.0f);
    const float special[] = {0, -0.0f, NAN, -INFINITY, -1e30f, -88.5f, -87.7f, -1e-30f};
    memcpy(x, special, sizeof special);
    for (int level = 0; level < 3; level++) {
        struct attn_isa k;
        if (dvm_attn_isa(isa[level], &k)) continue;
        memcpy(got, x, sizeof x);
        float sum = k.k->exps(got, 0, N);
        assert_true(isnan(sum));
        if (levels++ == 0) memcpy(first, got, sizeof got);
        assert_memory_equal((char *)got + sizeof special, (char *)first + sizeof special,
                            sizeof got - sizeof special);
        memcpy(got, x, sizeof x);
        k.k->weights(got, 0, NAN, DVM_ATTN_LANES);
        for (int i = 0; i < 8; i++) assert_true(i < 3 || i == 7 ? isnan(got[i]) : got[i] == 0);
    }
    assert_true(levels > 0);
    assert_true(first[0] == 1 && first[1] == 1 && isnan(first[2]) && first[7] == 1);
    for (int i = 3; i < 7; i++) assert_true(first[i] == 0);
    for (int i = 8; i < N; i++) {
        double want = exp((double)x[i]), bound = want * (1.8 * 0x1p-23 - x[i] * 0x1p-28) + 0x1p-126;
        if (!(fabs(first[i] - want) <= bound))
            fail_msg("e^%a is %a", (double)x[i], (double)first[i]);
    }
}

/* The products of the tile loop against the matrix kernels of the same level: forms, heights with and without whole
 * register tiles, chains of any length. What is not a result is not touched. */
static void test_products(void **state) {
    enum { P = DVM_ATTN_PITCH, N = DVM_ATTN_MAX_COLS, COLS = 48 };
    static const char *const isa[] = {"avx2", "avx512"};
    static const int places[] = {0, 1, 3, 4, 7, 8, 30, N},
                     rows[] = {1, 2, 5, 6, 11, 12, 13, 31, ATTN_BM};
    static float a[N * P], b[N * P], want[N * COLS], got[N * COLS], start[N * COLS];
    uint64_t seed = 11;
    (void)state;
    for (int i = 0; i < N * P; i++) a[i] = rnd(&seed), b[i] = rnd(&seed);
    for (int i = 0; i < N * COLS; i++) start[i] = rnd(&seed);
    for (int level = 0; level < 2; level++) {
        struct attn_isa k;
        if (dvm_attn_isa(isa[level], &k)) continue;
        for (int f = 0; f < 3; f++)
            for (unsigned i = 0; i < DVM_COUNT(places) * DVM_COUNT(rows) * 2; i++) {
                int m = rows[i / 2 % DVM_COUNT(rows)], n = places[i / 2 / DVM_COUNT(rows)];
                bool columns = f == DVM_ATTN_COLUMNS_ROWS, first = i % 2;
                int64_t bs = f == DVM_ATTN_ROWS_STRIP ? k.g->nr : P;
                memcpy(want, start, sizeof want);
                memcpy(got, start, sizeof got);
                k.g->f32(m, k.g->nr, n, a, columns ? 1 : P, columns ? P : 1, b, bs, want, COLS,
                         first, NULL, 0);
                k.k->product((enum dvm_attn_form)f, m, n, a, b, got, COLS, first);
                assert_memory_equal(got, want, sizeof got);
            }
    }
}

static dvm_ctx *shared;
static void *caller(void *arg) {
    for (int i = 0; i < 3; i++)
        if (run(shared, arg)) return arg;
    return NULL;
}

static void test_callers_at_once(void **state) {
    dvm_options o = {.threads = 3};
    struct problem p[3];
    pthread_t t[3];
    (void)state;
    assert_int_equal(dvm_ctx_create(&o, &shared), DVM_OK);
    for (int i = 0; i < 3; i++) open_problem(&p[i]);
    for (int i = 0; i < 3; i++) assert_int_equal(pthread_create(&t[i], NULL, caller, &p[i]), 0);
    for (int i = 0; i < 3; i++) {
        void *bad;
        pthread_join(t[i], &bad);
        assert_null(bad);
        assert_true(buffers_hash(p[i].arg, NBUF, IOUT) == buffers_hash(p[0].arg, NBUF, IOUT));
    }
    for (int i = 0; i < 3; i++) close_problem(&p[i]);
    dvm_ctx_destroy(&shared);
}

/* ---- memory ------------------------------------------------------------------------------------------------------- */

static void test_out_of_memory(void **state) {
    dvm_status st = DVM_ERR_NOMEM;
    struct problem p;
    (void)state;
    open_problem(&p);
    for (long n = 1; st != DVM_OK; n++) {
        struct balance b = {0};
        dvm_options o = {.threads = 2, .alloc = balance_alloc, .alloc_user = &b};
        dvm_ctx *ctx;
        assert_int_equal(dvm_ctx_create(&o, &ctx), DVM_OK);
        b.fail = b.calls + n;
        st = run(ctx, &p);
        if (st != DVM_OK) assert_int_equal(st, DVM_ERR_NOMEM);
        dvm_ctx_destroy(&ctx);
        assert_int_equal(b.bytes, 0);
        assert_true(n < 100);
    }
    close_problem(&p);
}

/* Keys and values of which only the rows from `first` on, up to the end of a page, may be touched. */
struct fence {
    char *map, *p;
    size_t size;
};
static struct fence fence(int64_t rows, int64_t features, int64_t first) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes = (size_t)(rows * features) * 4;
    size_t body = (bytes + page - 1) / page * page, dead;
    struct fence f = {.size = body + page};
    f.map = mmap(NULL, f.size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(f.map != MAP_FAILED);
    f.p = f.map + body - bytes;
    for (size_t i = 0; i < bytes / 4; i++) ((float *)(void *)f.p)[i] = (float)(i % 7);
    dead = (size_t)(f.p - f.map) + (size_t)(first * features) * 4;
    if (!first) dead = 0; /* all may be touched */
    assert_int_equal(dead % page, 0);
    if (dead) assert_int_equal(mprotect(f.map, dead, PROT_NONE), 0);
    assert_int_equal(mprotect(f.map + body, page, PROT_NONE), 0);
    return f;
}

/* 64 floats a row are 16 rows a page: the window begins at a page in the middle of a tile. */
static void test_unseen_keys_are_not_read(void **state) {
    enum { S = 1024, ROWS = 16, FIRST = 1024 - 160, F = 64 };
    static const int64_t dq[] = {1, 1, ROWS, F}, dk[] = {1, 1, S, F}, ds[] = {1, 1, ROWS, LAST};
    static float q[ROWS * F], g[ROWS * F], o[ROWS * F], m[ROWS * LAST], l[ROWS * LAST];
    static float gq[ROWS * F], gk[S * F], gv[S * F];
    struct fence k = fence(S, F, FIRST), v = fence(S, F, FIRST);
    dvm_arg aq = {.data = q, .dims = dq, .rank = 4, .dtype = DVM_F32}, ag = aq, ao = aq, agq = aq;
    dvm_arg ak = {.data = k.p, .dims = dk, .rank = 4, .dtype = DVM_F32}, av = ak, agk = ak,
            agv = ak;
    dvm_arg am = {.data = m, .dims = ds, .rank = 4, .dtype = DVM_F32}, al = am;
    dvm_ctx *ctx;
    (void)state;
    av.data = v.p, ag.data = g, ao.data = o, agq.data = gq, agk.data = gk, agv.data = gv;
    al.data = l;
    dvm_attn a = {.query = &aq,
                  .key = &ak,
                  .value = &av,
                  .dy = &ag,
                  .attention_in = &ao,
                  .softmax_max = &am,
                  .softmax_sum = &al,
                  .head_num = 1,
                  .input_layout = "BNSD",
                  .scale = 1,
                  .keep_prob = 1,
                  .sparse_mode = 4,
                  .pre_tockens = 144};
    assert_int_equal(dvm_ctx_create(NULL, &ctx), DVM_OK);
    for (int threads = 1; threads < 4; threads += 2) {
        assert_int_equal(dvm_ctx_set_threads(ctx, threads), DVM_OK);
        assert_int_equal(dvm_attn_forward(ctx, &a, (const dvm_arg *const[]){&ao, &am, &al}),
                         DVM_OK);
        assert_true(l[0] == 145); /* keys 864 .. 1008 */
        assert_int_equal(
            dvm_attn_backward(ctx, &a, (const dvm_arg *const[]){&agq, &agk, &agv, NULL, NULL}),
            DVM_OK);
    }
    dvm_ctx_destroy(&ctx);
    munmap(k.map, k.size);
    munmap(v.map, v.size);
}

/* ---- work ---------------------------------------------------------------------------------------------------------- */

/* Products that only count: multiply-adds, and elements of keys and values that are packed. */
static int64_t products, packed;
static void count_f32(int m, int n, int64_t k, const float *a, int64_t ars, int64_t acs,
                      const float *b, int64_t bs, float *c, int64_t ldc, bool first,
                      const char *next, int64_t step) {
    (void)a, (void)ars, (void)acs, (void)b, (void)bs, (void)next, (void)step;
    products += (int64_t)m * n * k;
    for (int r = 0; first && r < m; r++) memset(c + r * ldc, 0, (size_t)n * 4);
}
static void count_rows(float *d, int64_t pitch, int64_t w, int64_t strip, bool pad,
                       const struct dvm_k_block *s) {
    (void)d, (void)pitch, (void)w, (void)strip, (void)pad;
    packed += s->rows * s->cols;
}
static void no_scores(float *s, int64_t pitch, int rows, float scale, int64_t n, const float *m,
                      float *top) {
    (void)s, (void)pitch, (void)scale, (void)n;
    memcpy(top, m, (size_t)rows * 4);
}
static void no_exps(float *s, int64_t pitch, int rows, const float *m, int64_t n, float *l) {
    (void)s, (void)pitch, (void)rows, (void)m, (void)n, (void)l;
}

/* One head of s packed rows, all views of one row; fills products and packed. */
static void count_work(int64_t s, bool backward, dvm_attn a) {
    enum { F = 32 };
    static float row[F];
    const int64_t dims[] = {s, 1, F}, stat[] = {s, 1, LAST}, none[] = {0, 0, 1},
                  whole[] = {F, F, 1};
    dvm_arg in = {.data = row, .dims = dims, .rank = 3, .dtype = DVM_F32, .strides = none};
    dvm_arg g[3], top = {.data = row, .dims = stat, .rank = 3, .dtype = DVM_F32, .strides = none};
    dvm_arg m[2];
    const dvm_arg *out[5] = {&g[0], &m[0], &m[1]};
    struct dvm_mem mem = {.fn = dvm_mem_system};
    struct attn checked;
    struct attn_isa isa;
    for (int i = 0; i < 3; i++) {
        g[i] = in;
        g[i].strides = whole;
        g[i].data = malloc((size_t)(s * F) * 4);
    }
    for (int i = 0; i < 2; i++) {
        m[i] = (dvm_arg){.dims = stat, .rank = 3, .dtype = DVM_F32};
        m[i].data = malloc((size_t)(s * LAST) * 4);
    }
    a.flags |= DVM_ATTN_SWA;
    a.query = a.key = a.value = a.dy = a.attention_in = &in;
    a.softmax_max = a.softmax_sum = &top;
    a.head_num = 1, a.input_layout = a.softmax_layout = "TND", a.scale = a.keep_prob = 1;
    a.actual_seq_qlen = a.actual_seq_kvlen = &s, a.nqlen = a.nkvlen = 1;
    assert_int_equal(dvm_attn_isa("base", &isa), DVM_OK);
    struct dvm_k_gemm gemm = *isa.g;
    struct dvm_k_attn attn = *isa.k;
    gemm.f32 = count_f32, gemm.rows = count_rows;
    attn.scores_rows = no_scores, attn.exps_rows = no_exps;
    isa = (struct attn_isa){&gemm, &attn};
    products = packed = 0;
    if (dvm_attn_check(&a, backward, &checked)) fail_msg("%s", dvm_error_text());
    if (backward) {
        out[1] = &g[1], out[2] = &g[2];
        assert_int_equal(dvm_attn_bind_backward(&checked, out), DVM_OK);
        assert_int_equal(dvm_attn_run_backward(&checked, &isa, NULL, &mem), DVM_OK);
    } else {
        assert_int_equal(dvm_attn_bind_forward(&checked, out), DVM_OK);
        assert_int_equal(dvm_attn_run_forward(&checked, &isa, NULL, &mem), DVM_OK);
    }
    for (int i = 0; i < 3; i++) free(g[i].data);
    for (int i = 0; i < 2; i++) free(m[i].data);
}

/* F16: 128 times fewer visible pairs are at least ten times less work. */
static void test_case_F16(void **state) {
    dvm_attn window = {.pre_tockens = 127},
             all = {.pre_tockens = DVM_ATTN_ALL, .next_tockens = DVM_ATTN_ALL};
    (void)state;
    count_work(16385, false, window);
    const int64_t some = products, few = packed;
    count_work(16385, false, all);
    assert_true(some > 0 && some * 10 <= products);
    assert_true(few > 0 && few * 3 <= packed);
}

/* P7: with a window of 1024 the work grows with the rows, and is little more than that of the visible pairs. */
static void test_case_P7(void **state) {
    const dvm_attn window = {.pre_tockens = 1023, .sparse_mode = 4};
    (void)state;
    for (int backward = 0; backward < 2; backward++) {
        int64_t first = 0;
        for (int64_t s = 8192; s <= 32768; s *= 2) {
            const int64_t pairs = 1024 * 1025 / 2 + (s - 1024) * 1024;
            count_work(s, backward, window);
            if (s == 8192) first = products;
            assert_true(products <= first / 8192 * s * 11 / 10);
            assert_true(products >= pairs * 32 * (backward ? 5 : 2));
            assert_true(products <= pairs * 32 * (backward ? 5 : 2) * 5 / 4);
        }
    }
}

/* ---- few rows, whose keys are read where they stand --------------------------------------------------------------- */

/* Keys and values by rows, and by columns, where they are packed: the same bits, on every level. Up to the end of a
 * page as above; lengths that no vector divides. */
static void test_few_rows(void **state) {
    enum { S = 1027, F = 67, MOST = 9 };
    static const char *const isa[] = {"base", "avx2", "avx512"};
    static const int64_t some[] = {1, 2, 4, 7, 8, MOST}; /* the last are too many */
    static const int64_t dk[] = {1, 1, S, F}, rows[] = {S * F, S * F, F, 1},
                         columns[] = {S * F, S * F, 1, S};
    static float q[MOST * F], o[2][MOST * F], m[MOST * LAST], l[2][MOST * LAST];
    static float turned[2][S * F], first[MOST * F];
    struct fence k = fence(S, F, 0), v = fence(S, F, 0);
    uint64_t seed = 3;
    (void)state;
    for (int i = 0; i < MOST * F; i++) q[i] = rnd(&seed);
    for (int i = 0; i < S * F; i++) {
        float *a = &((float *)(void *)k.p)[i], *b = &((float *)(void *)v.p)[i];
        *a = rnd(&seed), *b = rnd(&seed);
        turned[0][i % F * S + i / F] = *a;
        turned[1][i % F * S + i / F] = *b;
    }
    for (size_t z = 0; z < sizeof some / sizeof *some; z++)
        for (int level = 0, levels = 0; level < 3; level++) {
            const int64_t n = some[z];
            dvm_ctx *ctx;
            if (dvm_ctx_create(&(dvm_options){.isa = isa[level], .threads = 1}, &ctx)) continue;
            for (int way = 0; way < 2; way++) {
                const int64_t dq[] = {1, 1, n, F}, ds[] = {1, 1, n, LAST};
                dvm_arg aq = {.data = q, .dims = dq, .rank = 4, .dtype = DVM_F32}, ao = aq;
                dvm_arg ak = {.data = way ? (void *)turned[0] : k.p,
                              .dims = dk,
                              .rank = 4,
                              .dtype = DVM_F32,
                              .strides = way ? columns : rows};
                dvm_arg av = ak, am = {.data = m, .dims = ds, .rank = 4, .dtype = DVM_F32};
                dvm_arg al = am;
                av.data = way ? (void *)turned[1] : v.p;
                ao.data = o[way], al.data = l[way];
                dvm_attn a = {.query = &aq,
                              .key = &ak,
                              .value = &av,
                              .head_num = 1,
                              .input_layout = "BNSD",
                              .scale = 0.3,
                              .keep_prob = 0.9,
                              .seed = 5,
                              .sparse_mode = 4,
                              .pre_tockens = 1000,
                              .next_tockens = 0};
                memset(o[way], 0xff, sizeof o[way]);
                if (dvm_attn_forward(ctx, &a, (const dvm_arg *const[]){&ao, &am, &al}))
                    fail_msg("%s", dvm_error_text());
            }
            assert_memory_equal(o[0], o[1], (size_t)(n * F) * 4);
            assert_memory_equal(l[0], l[1], (size_t)(n * LAST) * 4);
            if (levels++ == 0) memcpy(first, o[0], sizeof first);
            assert_memory_equal(o[0], first, (size_t)(n * F) * 4);
            dvm_ctx_destroy(&ctx);
        }
    munmap(k.map, k.size);
    munmap(v.map, v.size);
}

/* ---- refusals ----------------------------------------------------------------------------------------------------- */

static void refuse(dvm_ctx *ctx, struct problem *p, dvm_status want, const char *text) {
    dvm_status st = dvm_attn_forward(ctx, &p->a, p->out);
    buffers_refused(st, want, text, p->arg, NBUF, IOUT);
}

static void test_refusals(void **state) {
    struct problem p;
    dvm_ctx *ctx;
    dvm_attn_shape s;
    (void)state;
    assert_int_equal(dvm_ctx_create(NULL, &ctx), DVM_OK);
    open_problem(&p);
    const dvm_attn good = p.a;
    assert_int_equal(dvm_attn_infer(&good, 0, &s), DVM_OK);
    assert_int_equal(s.numels, good.numels);
    assert_int_equal(dvm_attn_infer(NULL, 0, &s), DVM_ERR_ARG);
    assert_int_equal(dvm_attn_infer(&good, 0, NULL), DVM_ERR_ARG);
    assert_int_equal(dvm_attn_forward(NULL, &good, p.out), DVM_ERR_ARG);
    assert_int_equal(dvm_attn_backward(ctx, &good, NULL), DVM_ERR_ARG);

    p.a.key = NULL;
    refuse(ctx, &p, DVM_ERR_ARG, "key is missing");
    p.a = good;
    p.a.input_layout = NULL;
    refuse(ctx, &p, DVM_ERR_ARG, "The input_layout should be");
    p.a = good;
    dvm_arg none = p.arg[IK];
    none.data = NULL;
    p.a.key = &none;
    refuse(ctx, &p, DVM_ERR_ARG, "key has no data");
    p.a = good;
    p.out[0] = p.a.dy; /* same shape */
    p.a.value = &p.arg[IV];
    dvm_arg same = p.arg[IOUT];
    same.data = p.arg[IV].data;
    p.out[0] = &same;
    refuse(ctx, &p, DVM_ERR_OVERLAP, "attention_out shares memory with");
    p.out[0] = &p.arg[IOUT];
    const dvm_arg *const twice[5] = {p.grad[0], p.grad[1], p.grad[2], NULL, p.grad[0]};
    assert_int_equal(dvm_attn_backward(ctx, &p.a, twice), DVM_ERR_SHAPE);
    p.a.numels = 1;
    assert_int_equal(dvm_attn_backward(ctx, &p.a, p.grad), DVM_ERR_ARG);
    assert_non_null(strstr(dvm_error_text(), "numels must be"));
    assert_true(buffers_untouched(p.arg, NBUF, IOUT));
    close_problem(&p);
    dvm_ctx_destroy(&ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_levels_and_threads),
        cmocka_unit_test(test_plain_tiles),
        cmocka_unit_test(test_exponentials),
        cmocka_unit_test(test_products),
        cmocka_unit_test(test_callers_at_once),
        cmocka_unit_test(test_out_of_memory),
        cmocka_unit_test(test_unseen_keys_are_not_read),
        cmocka_unit_test(test_case_F16),
        cmocka_unit_test(test_case_P7),
        cmocka_unit_test(test_few_rows),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
