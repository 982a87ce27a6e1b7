/* Attention through compiled functions of scores, by its C interface: a causal function gives the bits of causal
 * attention; the same bits for any number of threads; memory that runs out; refusals that write nothing. Values are
 * judged in tests/py. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>

#include <dvm/attn.h>
#include <dvm/flex.h>

#include "buffers.h"
#include "graphs.h"

enum { B = 2, H = 4, G = 2, S = 150, T = 200, D = 24, D2 = 40, LAST = 8, TABLE = 500 };

static dvm_val made(dvm_status st, const dvm_val *v) {
    if (st) fail_msg("%s", dvm_error_text());
    return *v;
}

/* ---- functions ---- */

static const dvm_dim tile[2] = {DVM_FLEX_ROWS, DVM_FLEX_KEYS}, tile_at[2] = {DVM_FLEX_PITCH, 1};

static dvm_val load(dvm_graph *g, dvm_dtype t, int rank, const dvm_dim *dims, const dvm_dim *at) {
    dvm_val v = 0;
    return made(dvm_graph_load(g, t, rank, dims, at, &v), &v);
}
#define LOAD(...) load(g, __VA_ARGS__)
static dvm_val op(dvm_graph *g, dvm_op o, dvm_val a, dvm_val b, dvm_val c) {
    dvm_val in[3] = {a, b, c}, v = 0;
    dvm_status st = dvm_graph_op(g, o, c ? 3 : b ? 2 : 1, in, &v);
    return made(st, &v);
}
static dvm_val number(dvm_graph *g, double f) {
    dvm_val v = 0;
    dvm_status st = dvm_graph_const(g, DVM_F32, (dvm_number){.f = f}, &v);
    return made(st, &v);
}
static dvm_val reshape(dvm_graph *g, dvm_val x, int rank, const dvm_dim *dims) {
    dvm_val v = 0;
    dvm_status st = dvm_graph_reshape(g, x, rank, dims, &v);
    return made(st, &v);
}
static void store(dvm_graph *g, dvm_val x, const dvm_dim *at) {
    dvm_val v = 0;
    made(dvm_graph_store(g, x, at, &v), &v);
}
static dvm_kernel *kernel(dvm_graph *g, dvm_status *st) {
    dvm_kernel *k = NULL;
    *st = dvm_compile(g, &k);
    dvm_graph_destroy(&g);
    return k;
}
static dvm_graph *graph(dvm_ctx *ctx) {
    dvm_graph *g = NULL;
    if (dvm_graph_create(ctx, DVM_SPLIT, 0, &g)) fail_msg("%s", dvm_error_text());
    return g;
}

/* score, scale, q, kv, table: scaled score + table[kv], causal if asked */
static const int fn_role[5] = {DVM_FLEX_SCORE, DVM_FLEX_SCALE, DVM_FLEX_QUERY, DVM_FLEX_KEY,
                               DVM_FLEX_OTHER};
static dvm_kernel *scores(dvm_ctx *ctx, bool causal, bool table, bool sums, dvm_status *st) {
    dvm_graph *g = graph(ctx);
    const dvm_dim rows = DVM_FLEX_ROWS, keys = DVM_FLEX_KEYS, column[2] = {DVM_FLEX_ROWS, 1},
                  size = TABLE;
    dvm_val s = LOAD(DVM_F32, 2, tile, tile_at), scale = LOAD(DVM_F32, 0, NULL, NULL);
    dvm_val q = LOAD(DVM_I32, 1, &rows, NULL), k = LOAD(DVM_I32, 1, &keys, NULL);
    dvm_val t = LOAD(DVM_F32, 1, &size, NULL), v = 0;
    s = op(g, DVM_OP_MUL, s, scale, 0);
    if (table) s = op(g, DVM_OP_ADD, s, made(dvm_graph_gather(g, t, k, 0, 1, &v), &v), 0);
    if (sums) {
        made(dvm_graph_reduce(g, DVM_OP_SUM, s, 1, (int[]){1}, 1, DVM_F32, &v), &v);
        s = op(g, DVM_OP_ADD, s, v, 0);
    }
    if (causal) {
        dvm_val sees = op(g, DVM_OP_GE, reshape(g, q, 2, column), k, 0);
        s = op(g, DVM_OP_SELECT, sees, s, number(g, -INFINITY));
    }
    store(g, s, tile_at);
    return kernel(g, st);
}

/* grad, kv: addends of the gradient of the table */
static const int add_role[2] = {DVM_FLEX_GRAD, DVM_FLEX_KEY};
static dvm_kernel *addends(dvm_ctx *ctx, dvm_status *st) {
    dvm_graph *g = graph(ctx);
    const dvm_dim keys = DVM_FLEX_KEYS;
    dvm_val ds = LOAD(DVM_F32, 2, tile, tile_at), k = LOAD(DVM_I32, 1, &keys, NULL), v = 0;
    store(g, op(g, DVM_OP_MUL, ds, number(g, 1), 0), tile_at);
    made(dvm_graph_broadcast(g, k, 2, tile, &v), &v);
    dvm_val wide = 0;
    made(dvm_graph_cast(g, v, DVM_I64, &wide), &wide);
    store(g, wide, tile_at);
    return kernel(g, st);
}

/* ---- one problem with all its buffers ---- */

static const int64_t dim_q[] = {B, H, S, D}, dim_k[] = {B, G, T, D}, dim_v[] = {B, G, T, D2};
static const int64_t dim_o[] = {B, H, S, D2}, dim_l[] = {B, H, S}, dim_t[] = {TABLE};
enum { IQ, IK, IV, ITABLE, IDY, IDLSE, IOUT, ILSE, ITOP, IDQ, IDK, IDV, IDTABLE, NBUF };
static const struct form form[NBUF] = {{dim_q, 4}, {dim_k, 4}, {dim_v, 4}, {dim_t, 1}, {dim_o, 4},
                                       {dim_l, 3}, {dim_o, 4}, {dim_l, 3}, {dim_l, 3}, {dim_q, 4},
                                       {dim_k, 4}, {dim_v, 4}, {dim_t, 1}};

/* Blocks of 64 rows and 32 keys, all of them seen in part. */
enum { QB = 64, KB = 32, NQB = 3, NKB = 7 };
static int32_t num[NQB], list[NQB][NKB];
static const int64_t dim_n[] = {1, 1, NQB}, dim_i[] = {1, 1, NQB, NKB};
static const dvm_arg arg_num = {.data = num, .dims = dim_n, .rank = 3, .dtype = DVM_I32};
static const dvm_arg arg_list = {.data = list, .dims = dim_i, .rank = 4, .dtype = DVM_I32};

struct problem {
    dvm_flex f;
    dvm_arg arg[NBUF], other[5];
    const dvm_arg *out[3], *grad[3];
    int target;
};

static void open_problem(struct problem *p) {
    *p = (struct problem){0};
    for (int i = 0; i < NQB; i++) {
        num[i] = NKB;
        for (int j = 0; j < NKB; j++) list[i][j] = NKB - 1 - j;
    }
    buffers_open(p->arg, form, NBUF, IOUT);
    p->other[4] = p->arg[ITABLE];
    p->f = (dvm_flex){.query = &p->arg[IQ],
                      .key = &p->arg[IK],
                      .value = &p->arg[IV],
                      .scale = 0.2,
                      .num = &arg_num,
                      .index = &arg_list,
                      .q_block = QB,
                      .kv_block = KB,
                      .out = &p->arg[IOUT],
                      .lse = &p->arg[ILSE],
                      .dy = &p->arg[IDY],
                      .dlse = &p->arg[IDLSE],
                      .nadd = 1,
                      .target = &p->target};
    for (int i = 0; i < 3; i++) p->out[i] = &p->arg[IOUT + i];
    for (int i = 0; i < 3; i++) p->grad[i] = &p->arg[IDQ + i];
}

static void close_problem(struct problem *p) {
    dvm_kernel_destroy(&p->f.part.kernel);
    dvm_kernel_destroy(&p->f.add.kernel);
    for (int i = 0; i < NBUF; i++) free(p->arg[i].data);
}

/* Kernels belong to a context. */
static dvm_status functions(dvm_ctx *ctx, struct problem *p, bool table) {
    dvm_status st;
    p->f.part = (dvm_flex_fn){NULL, 5, fn_role, p->other};
    p->f.add = (dvm_flex_fn){NULL, 2, add_role, p->other};
    p->f.part.kernel = scores(ctx, true, table, false, &st);
    if (st == DVM_OK) p->f.add.kernel = addends(ctx, &st);
    return st;
}

static dvm_status run(dvm_ctx *ctx, struct problem *p) {
    dvm_status st = dvm_flex_forward(ctx, &p->f, p->out);
    return st == DVM_OK ? dvm_flex_backward(ctx, &p->f, p->grad, 1, &p->arg[IDTABLE]) : st;
}

/* ---- tests ---- */

static void test_causal_bits(void **state) {
    static const int64_t ds[] = {B, H, S, LAST};
    static float out[B * H * S * D2], max[B * H * S * LAST], sum[B * H * S * LAST];
    struct problem p;
    dvm_ctx *ctx;
    (void)state;
    open_problem(&p);
    assert_int_equal(dvm_ctx_create(NULL, &ctx), DVM_OK);
    assert_int_equal(functions(ctx, &p, false), DVM_OK);
    if (dvm_flex_forward(ctx, &p.f, p.out)) fail_msg("%s", dvm_error_text());
    dvm_attn a = {.query = &p.arg[IQ],
                  .key = &p.arg[IK],
                  .value = &p.arg[IV],
                  .head_num = H,
                  .input_layout = "BNSD",
                  .scale = 0.2,
                  .keep_prob = 1,
                  .sparse_mode = 2};
    dvm_arg o = p.arg[IOUT], m = {.data = max, .dims = ds, .rank = 4, .dtype = DVM_F32}, l = m;
    o.data = out, l.data = sum;
    assert_int_equal(dvm_attn_forward(ctx, &a, (const dvm_arg *const[]){&o, &m, &l}), DVM_OK);
    assert_memory_equal(p.arg[IOUT].data, out, sizeof out);
    for (int i = 0; i < B * H * S; i++) {
        double want = (max[i * LAST] + log(sum[i * LAST])) / log(2);
        assert_true(fabs(((float *)p.arg[ILSE].data)[i] - want) < 1e-6 * fmax(1, fabs(want)));
    }
    close_problem(&p);
    dvm_ctx_destroy(&ctx);
}

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
            assert_int_equal(functions(ctx, &p, true), DVM_OK);
            if (run(ctx, &p)) fail_msg("%s", dvm_error_text());
            uint64_t h = buffers_hash(p.arg, NBUF, IOUT);
            if (levels++ == 0) want = h;
            if (h != want) fail_msg("level %s, %d threads: other bits", isa[l], threads[t]);
            close_problem(&p);
            dvm_ctx_destroy(&ctx);
        }
    assert_true(levels >= 4);
}

static void test_out_of_memory(void **state) {
    dvm_status st = DVM_ERR_NOMEM;
    (void)state;
    for (long n = 1; st != DVM_OK; n++) {
        struct balance b = {0};
        dvm_options o = {.threads = 2, .alloc = balance_alloc, .alloc_user = &b};
        struct problem p;
        dvm_ctx *ctx;
        open_problem(&p);
        assert_int_equal(dvm_ctx_create(&o, &ctx), DVM_OK);
        assert_int_equal(functions(ctx, &p, true), DVM_OK);
        b.fail = b.calls + n;
        st = run(ctx, &p);
        if (st != DVM_OK) assert_int_equal(st, DVM_ERR_NOMEM);
        close_problem(&p);
        dvm_ctx_destroy(&ctx);
        assert_int_equal(b.bytes, 0);
        assert_true(n < 200);
    }
}

static void refuse(dvm_ctx *ctx, struct problem *p, dvm_status want, const char *text) {
    dvm_status st = dvm_flex_forward(ctx, &p->f, p->out);
    buffers_refused(st, want, text, p->arg, NBUF, IOUT);
}

static void test_refusals(void **state) {
    struct problem p;
    dvm_status st;
    dvm_ctx *ctx;
    (void)state;
    assert_int_equal(dvm_ctx_create(NULL, &ctx), DVM_OK);
    open_problem(&p);
    assert_int_equal(functions(ctx, &p, true), DVM_OK);
    const dvm_flex good = p.f;
    assert_int_equal(dvm_flex_forward(NULL, &good, p.out), DVM_ERR_ARG);
    assert_int_equal(dvm_flex_forward(ctx, NULL, p.out), DVM_ERR_ARG);
    assert_int_equal(dvm_flex_backward(ctx, &good, NULL, 0, NULL), DVM_ERR_ARG);
    assert_int_equal(dvm_flex_check(ctx, &good.part, 1), DVM_OK);
    assert_int_equal(dvm_flex_check(ctx, &good.add, 2), DVM_OK);
    assert_int_equal(dvm_flex_check(ctx, &good.add, 1), DVM_ERR_ARG);

    p.f.value = NULL;
    refuse(ctx, &p, DVM_ERR_ARG, "value is missing");
    p.f = good;
    p.f.value = &p.arg[IDY];
    refuse(ctx, &p, DVM_ERR_SHAPE, "axis 1 of value must be 2, but is 4");
    p.f = good;
    p.f.scale = NAN;
    refuse(ctx, &p, DVM_ERR_ARG, "scale must be finite");
    p.f = good;
    p.f.q_block = 0;
    refuse(ctx, &p, DVM_ERR_ARG, "block sizes must be at least 1");
    p.f.q_block = 32; /* 5 blocks of rows, 3 are listed */
    refuse(ctx, &p, DVM_ERR_SHAPE, "blocks of rows at least 5");
    p.f = good;
    list[1][2] = NKB;
    refuse(ctx, &p, DVM_ERR_INDEX, "names block 7 of keys, but there are 7");
    list[1][2] = 0;
    num[2] = NKB + 1;
    refuse(ctx, &p, DVM_ERR_ARG, "counts 8 blocks, but lists 7");
    num[2] = NKB;
    dvm_arg same = p.arg[IOUT];
    same.data = p.arg[IQ].data;
    p.out[0] = &same;
    refuse(ctx, &p, DVM_ERR_OVERLAP, "output shares memory with an input");
    p.out[0] = &p.arg[IOUT];
    p.out[2] = p.out[1];
    refuse(ctx, &p, DVM_ERR_OVERLAP, "outputs 1 and 2 are the same memory");
    p.out[2] = &p.arg[ITOP];
    const dvm_arg table = p.other[4];
    p.other[4].data = p.arg[IOUT].data;
    refuse(ctx, &p, DVM_ERR_OVERLAP, "shares memory with output 0");
    p.other[4] = table;
    /* 2^30 rows of one element each, blocks of one: 2^63 states. */
    static const int64_t rows = INT64_C(1) << 30, none[4] = {0};
    const int64_t dq[4] = {B, H, rows, D}, dk[4] = {B, G, rows, D}, dv[4] = {B, G, rows, D2},
                  po[4] = {B, H, rows, D2}, pl[3] = {B, H, rows}, pn[3] = {B, H, rows},
                  pi[4] = {B, H, rows, 1};
    const int64_t *const big[] = {dq, dk, dv, po, pl, pl};
    const int at[] = {IQ, IK, IV, IOUT, ILSE, ITOP};
    dvm_arg kept[NBUF], big_num = arg_num, big_list = arg_list;
    big_num.dims = pn, big_num.strides = none;
    big_list.dims = pi, big_list.strides = none;
    memcpy(kept, p.arg, sizeof kept);
    for (int i = 0; i < 6; i++) {
        p.arg[at[i]].dims = big[i];
        p.arg[at[i]].strides = none;
    }
    p.f.q_block = p.f.kv_block = 1;
    p.f.num = &big_num;
    p.f.index = &big_list;
    assert_int_equal(dvm_flex_forward(ctx, &p.f, p.out), DVM_ERR_LIMIT);
    assert_non_null(strstr(dvm_error_text(), "too many blocks"));
    memcpy(p.arg, kept, sizeof kept);
    p.f = good;

    dvm_kernel *sums = scores(ctx, true, false, true, &st);
    p.f.part.kernel = sums;
    refuse(ctx, &p, DVM_ERR_UNSUPPORTED, "is not one map over a tile");
    dvm_kernel_destroy(&sums);
    p.f = good;
    p.f.part.n = 4;
    refuse(ctx, &p, DVM_ERR_ARG, "the kernel takes 5 inputs, got 4");
    p.f = good;

    dvm_arg captured = p.arg[IDTABLE];
    const int64_t negative[] = {-5}, wide[] = {INT64_C(1) << 40, 1 << 20};
    captured.dims = negative;
    assert_int_equal(dvm_flex_backward(ctx, &good, p.grad, 1, &captured), DVM_ERR_SHAPE);
    captured.dims = wide, captured.rank = 2;
    assert_int_equal(dvm_flex_backward(ctx, &good, p.grad, 1, &captured), DVM_ERR_LIMIT);
    captured.rank = DVM_MAX_RANK + 1;
    assert_int_equal(dvm_flex_backward(ctx, &good, p.grad, 1, &captured), DVM_ERR_ARG);
    captured = p.arg[IDTABLE], captured.data = p.grad[1]->data;
    assert_int_equal(dvm_flex_backward(ctx, &good, p.grad, 1, &captured), DVM_ERR_OVERLAP);
    int nowhere = 1;
    p.f.target = &nowhere;
    assert_int_equal(dvm_flex_backward(ctx, &p.f, p.grad, 1, &p.arg[IDTABLE]), DVM_ERR_ARG);
    assert_non_null(strstr(dvm_error_text(), "has no captured gradient to go to"));
    p.f = good;
    assert_true(buffers_untouched(p.arg, NBUF, IOUT));
    close_problem(&p);
    dvm_ctx_destroy(&ctx);
}

/* Keys reach 200; a table of 100 is read beyond its end, also from several threads. */
static void test_places_out_of_range(void **state) {
    static const int64_t few[] = {100};
    dvm_options o = {.threads = 3};
    struct problem p;
    dvm_ctx *ctx;
    (void)state;
    assert_int_equal(dvm_ctx_create(&o, &ctx), DVM_OK);
    open_problem(&p);
    assert_int_equal(functions(ctx, &p, true), DVM_OK);
    if (run(ctx, &p)) fail_msg("%s", dvm_error_text());
    p.arg[IDTABLE].dims = few;
    assert_int_equal(dvm_flex_backward(ctx, &p.f, p.grad, 1, &p.arg[IDTABLE]), DVM_ERR_INDEX);
    assert_non_null(strstr(dvm_error_text(), "place 100 of a captured gradient is out of range"));
    p.arg[IDTABLE].dims = dim_t;
    close_problem(&p);
    dvm_ctx_destroy(&ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_causal_bits),         cmocka_unit_test(test_levels_and_threads),
        cmocka_unit_test(test_out_of_memory),       cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_places_out_of_range),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
