/* Memory that runs out: the n-th allocation fails for n = 1, 2, ... until everything succeeds. The status is
 * DVM_ERR_NOMEM, nothing is lost, nothing is written outside, and what existed before still works. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "graphs.h"
#include "rt/rt.h"
#include "vm/pool.h"

static void balanced(const struct balance *b, const char *what, long n) {
    if (b->bytes || b->blocks)
        fail_msg("%s, allocation %ld: %ld bytes in %ld blocks are lost", what, n, (long)b->bytes,
                 (long)b->blocks);
}

static dvm_options options(struct balance *b) {
    return (dvm_options){.threads = 1, .alloc = balance_alloc, .alloc_user = b};
}

/* ---- from nothing to a result ---------------------------------------------------------------------------------- */

static dvm_status all_texts(const dvm_kernel *k) {
    for (int stage = DVM_TEXT_GRAPH; stage <= DVM_TEXT_NATIVE; stage++) {
        char *text;
        dvm_status st = dvm_kernel_text(k, (enum dvm_stage)stage, &text);
        if (st != DVM_OK) {
            assert_null(text);
            return st;
        }
        dvm_string_free(&text);
    }
    return DVM_OK;
}

static dvm_status whole_life(const struct graph_case *c, struct balance *b) {
    dvm_options o = options(b);
    struct prog p = {0};
    dvm_ctx *ctx = NULL;
    dvm_status st = dvm_ctx_create(&o, &ctx);
    if (st == DVM_OK) st = prog_open(&p, ctx, c->text, c->sizes[0]);
    if (st == DVM_OK) st = prog_run(&p);
    if (st == DVM_OK || p.k) assert_true(prog_untouched(&p, false));
    if (st == DVM_OK) st = all_texts(p.k);
    prog_close(&p);
    dvm_ctx_destroy(&ctx);
    assert_null(ctx);
    return st;
}

static void test_whole_life(void **state) {
    (void)state;
    for (int i = 0; i < GRAPH_CASES; i++) {
        dvm_status st = DVM_ERR_NOMEM;
        for (long n = 1; st != DVM_OK; n++) {
            struct balance b = {.fail = n};
            st = whole_life(&graph_cases[i], &b);
            if (st != DVM_OK && st != DVM_ERR_NOMEM)
                fail_msg("%s, allocation %ld: %s", graph_cases[i].name, n, dvm_error_text());
            balanced(&b, graph_cases[i].name, n);
        }
    }
}

/* ---- what existed before still works ---------------------------------------------------------------------------- */

static void fail_next(struct balance *b, long n) { b->fail = n ? b->calls + n : 0; }

/* The large sizes need workspace, scratch and threads. */
static void one_run(const struct graph_case *c, dvm_ctx *ctx, struct balance *b) {
    struct prog p;
    b->fail = 0;
    if (prog_open(&p, ctx, c->text, c->sizes[1])) fail_msg("%s: %s", c->name, dvm_error_text());
    assert_int_equal(prog_run(&p), DVM_OK);
    uint64_t want = prog_hash(&p);
    dvm_kernel_destroy(&p.k);
    b->fail = 0;
    dvm_graph *g;
    assert_int_equal(dvm_graph_parse(ctx, "graph", c->text, strlen(c->text), &g), DVM_OK);
    dvm_status st = DVM_ERR_NOMEM;
    for (long n = 1; st != DVM_OK; n++) {
        fail_next(b, n);
        st = dvm_compile(g, &p.k);
        assert_true(st == DVM_OK || (st == DVM_ERR_NOMEM && !p.k));
    }
    dvm_graph_destroy(&g);
    st = DVM_ERR_NOMEM;
    for (long n = 1; st != DVM_OK; n++) {
        prog_poison(&p);
        fail_next(b, n);
        st = prog_run(&p);
        if (st != DVM_OK && st != DVM_ERR_NOMEM)
            fail_msg("%s, allocation %ld: %s", c->name, n, dvm_error_text());
        assert_true(prog_untouched(&p, false));
    }
    b->fail = 0;
    if (prog_hash(&p) != want) fail_msg("%s: other bits after memory ran out", c->name);
    prog_close(&p);
}

static void test_usable_after(void **state) {
    (void)state;
    for (int threads = 1; threads <= 3; threads += 2) {
        struct balance b = {0};
        dvm_options o = options(&b);
        dvm_ctx *ctx;
        o.threads = threads;
        assert_int_equal(dvm_ctx_create(&o, &ctx), DVM_OK);
        dvm_pool_set_eager(ctx->pool, true);
        for (int i = 0; i < GRAPH_CASES; i++) one_run(&graph_cases[i], ctx, &b);
        b.fail = 0;
        dvm_ctx_destroy(&ctx);
        balanced(&b, "all cases", 0);
    }
}

/* A known graph meets a new shape, strip by strip from the cache or not. */
static void test_new_shape(void **state) {
    (void)state;
    struct balance b = {0};
    dvm_options o = options(&b);
    dvm_ctx *ctx;
    struct prog p;
    const char *text = "kernel split (x: f32[?, ?]) { %a = exp %x %s = sum %a, dims=[1], keep %b = "
                       "div %a, %s store %b }";
    assert_int_equal(dvm_ctx_create(&o, &ctx), DVM_OK);
    assert_int_equal(prog_open(&p, ctx, text, "2, 3"), DVM_OK);
    for (int64_t d = 1; d < 200; d++) {
        p.in_dims[0][0] = 1;
        p.in_dims[0][1] = 1 + d % 6;
        p.out_dims[0][0] = 1;
        p.out_dims[0][1] = p.in_dims[0][1];
        fail_next(&b, 1 + d % 7);
        dvm_status st = prog_run(&p);
        assert_true(st == DVM_OK || st == DVM_ERR_NOMEM);
    }
    b.fail = 0;
    assert_int_equal(prog_run(&p), DVM_OK);
    prog_close(&p);
    dvm_ctx_destroy(&ctx);
    balanced(&b, "new shapes", 0);
}

/* An input that an output overwrites too early is copied: the copy can fail. */
static void test_copied_input(void **state) {
    (void)state;
    struct balance b = {0};
    dvm_options o = options(&b);
    dvm_ctx *ctx;
    struct prog p;
    assert_int_equal(dvm_ctx_create(&o, &ctx), DVM_OK);
    assert_int_equal(prog_open(&p, ctx,
                               "kernel vector (x: f32[8, 8]) { %a = permute %x, [1, 0] store %a }",
                               NULL),
                     DVM_OK);
    assert_int_equal(prog_run(&p), DVM_OK);
    memcpy(p.out[0].data, p.in[0].data, p.out_bytes[0]);
    p.in[0].data = p.out[0].data;
    dvm_status st = DVM_ERR_NOMEM;
    for (long n = 1; st != DVM_OK; n++) {
        float before[64];
        memcpy(before, p.out[0].data, sizeof before);
        fail_next(&b, n);
        st = prog_run(&p);
        if (st == DVM_OK) break;
        assert_int_equal(st, DVM_ERR_NOMEM);
        assert_memory_equal(before, p.out[0].data, sizeof before);
    }
    prog_close(&p);
    dvm_ctx_destroy(&ctx);
    balanced(&b, "copied input", 0);
}

/* ---- building ----------------------------------------------------------------------------------------------------- */

struct build {
    dvm_graph *g;
    dvm_val x, y, i, s, bias, list, last;
    dvm_dim d;
    int round;
};

static dvm_status step(struct build *b, int which) {
    static const dvm_dim dims[] = {-1, 6}, start[] = {0, 1}, size[] = {-1, 5};
    static const int perm[] = {1, 0}, axes[] = {1};
    char where[40];
    dvm_val in[3] = {b->x, b->s, b->y};
    switch (which) {
    case 0: return dvm_graph_load(b->g, DVM_F32, 2, dims, NULL, &b->x);
    case 1: return dvm_graph_load(b->g, DVM_F32, 2, dims, (dvm_dim[]){1, 4}, &b->y);
    case 2: return dvm_graph_load(b->g, DVM_I64, 2, dims, NULL, &b->i);
    case 3: return dvm_graph_scalar(b->g, DVM_I32, &b->s);
    case 4: return dvm_graph_op(b->g, DVM_OP_FMA, 3, in, &b->last);
    case 5: return dvm_graph_const(b->g, DVM_F16, (dvm_number){.f = b->round}, &b->last);
    case 6: return dvm_graph_iota(b->g, DVM_I64, 2, (dvm_dim[]){3, 4}, -1, &b->last);
    case 7: return dvm_graph_cast(b->g, b->x, DVM_BF16, &b->last);
    case 8: return dvm_graph_broadcast(b->g, b->x, 3, (dvm_dim[]){2, -1, 6}, &b->last);
    case 9: return dvm_graph_reshape(b->g, b->x, 3, (dvm_dim[]){2, 3, -1}, &b->last);
    case 10: return dvm_graph_permute(b->g, b->x, 2, perm, &b->last);
    case 11: return dvm_graph_slice(b->g, b->x, 2, start, size, NULL, &b->last);
    case 12: return dvm_graph_reduce(b->g, DVM_OP_SUM, b->i, 1, axes, 1, DVM_F32, &b->last);
    case 13: return dvm_graph_cumsum(b->g, b->x, &b->last);
    case 14: return dvm_graph_gather(b->g, b->x, b->i, 0, 1, &b->last);
    case 15: return dvm_graph_concat(b->g, 2, (dvm_val[]){b->x, b->y}, 0, &b->last);
    case 16: return dvm_graph_size(b->g, b->x, 1, axes, &b->last);
    case 17: return dvm_graph_store(b->g, b->x, NULL, &b->last);
    case 18: return dvm_dim_scalar(b->g, b->s, &b->d);
    case 19: return dvm_dim_of(b->g, b->x, 0, &b->d);
    case 20: return dvm_dim_op(b->g, DVM_DIM_ADD, b->d, b->round, &b->d);
    case 21:
        snprintf(where, sizeof where, "model.py:%d", b->round * 100);
        return dvm_graph_at(b->g, where);
    case 22: return dvm_graph_section(b->g, DVM_VECTOR, 0);
    case 23: return dvm_graph_load(b->g, DVM_F32, 1, (dvm_dim[]){-1}, NULL, &b->bias);
    case 24: return dvm_graph_load(b->g, DVM_I64, 1, (dvm_dim[]){-1}, NULL, &b->list);
    case 25: return dvm_graph_matmul(b->g, b->x, b->y, 1, 0, 0, DVM_F32, &b->last);
    case 26: return dvm_graph_matmul(b->g, b->x, b->x, 0, 1, b->bias, DVM_F32, &b->last);
    case 27:
        return dvm_graph_grouped_matmul(b->g, b->y, b->x, 0, 0, 0, b->list, DVM_GROUP_K,
                                        DVM_LIST_ENDS, DVM_F32, &b->last);
    default: return dvm_graph_set_name(b->g, "built");
    }
}
enum { STEPS = 29, ROUNDS = 12 };

static char *text_of(struct balance *b, const dvm_graph *g) {
    char *s;
    long fail = b->fail;
    b->fail = 0;
    assert_int_equal(dvm_graph_text(g, &s), DVM_OK);
    b->fail = fail;
    return s;
}

static void failing_step(struct balance *b, struct build *s, int which) {
    for (long n = 1;; n++) {
        char *before = text_of(b, s->g);
        fail_next(b, n);
        dvm_status st = step(s, which);
        b->fail = 0;
        if (st != DVM_OK) {
            char *after = text_of(b, s->g);
            if (st != DVM_ERR_NOMEM) fail_msg("step %d: %s", which, dvm_error_text());
            assert_string_equal(before, after);
            dvm_string_free(&after);
        }
        dvm_string_free(&before);
        if (st == DVM_OK) return;
    }
}

static void test_building(void **state) {
    (void)state;
    struct balance b = {0};
    dvm_options o = options(&b);
    dvm_ctx *ctx;
    assert_int_equal(dvm_ctx_create(&o, &ctx), DVM_OK);
    struct build s = {0};
    for (long n = 1; !s.g; n++) {
        fail_next(&b, n);
        dvm_status st = dvm_graph_create(ctx, DVM_SEQ, 0, &s.g);
        assert_true(st == DVM_OK || (st == DVM_ERR_NOMEM && !s.g));
    }
    for (s.round = 0; s.round < ROUNDS; s.round++)
        for (int which = 0; which < STEPS; which++) failing_step(&b, &s, which);
    b.fail = 0;
    dvm_graph_destroy(&s.g);
    dvm_ctx_destroy(&ctx);
    balanced(&b, "building", 0);
}

static void test_threads(void **state) {
    (void)state;
    struct balance b = {0};
    dvm_options o = options(&b);
    dvm_ctx *ctx;
    assert_int_equal(dvm_ctx_create(&o, &ctx), DVM_OK);
    dvm_status st = DVM_ERR_NOMEM;
    for (long n = 1; st != DVM_OK; n++) {
        fail_next(&b, n);
        st = dvm_ctx_set_threads(ctx, 5);
        assert_true(st == DVM_OK || st == DVM_ERR_NOMEM);
        assert_int_equal(dvm_ctx_threads(ctx), st == DVM_OK ? 5 : 1);
    }
    dvm_ctx_destroy(&ctx);
    balanced(&b, "threads", 0);
}

/* The largest workspace is the one that is kept: runs of a known shape ask for no memory, whatever ran before. */
static void test_workspace_kept(void **state) {
    (void)state;
    struct balance b = {0};
    dvm_options o = options(&b);
    dvm_ctx *ctx;
    struct prog p;
    static float x[6], y[6];
    const int64_t d[2] = {2, 3};
    dvm_arg in = {.data = x, .dims = d, .rank = 2, .dtype = DVM_F32}, out = in;
    out.data = y;
    assert_int_equal(dvm_ctx_create(&o, &ctx), DVM_OK);
    const char *text = "kernel split (x: f32[?, ?]) { %a = sum %x, dims=[0], keep %b = sub %x, %a "
                       "%c = sum %b, dims=[1], keep %e = sub %b, %c store %e }";
    assert_int_equal(prog_open(&p, ctx, text, "50, 60"), DVM_OK);
    assert_int_equal(dvm_run(p.k, 1, &in, 1, &out), DVM_OK);
    for (int i = 0; i < 2; i++) assert_int_equal(prog_run(&p), DVM_OK);
    dvm_stats s;
    assert_int_equal(dvm_kernel_stats(p.k, &s), DVM_OK);
    assert_true(s.workspace > 0);
    const long calls = b.calls;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(prog_run(&p), DVM_OK);
        assert_int_equal(dvm_run(p.k, 1, &in, 1, &out), DVM_OK);
    }
    assert_int_equal(b.calls, calls);
    for (int i = 0; i < 2; i++) {
        const long bytes = b.bytes;
        dvm_ctx_trim(ctx);
        assert_true(bytes - b.bytes >= s.workspace);
        const long trimmed = b.bytes;
        dvm_ctx_trim(ctx);
        assert_int_equal(b.bytes, trimmed);
        assert_int_equal(prog_run(&p), DVM_OK);
    }
    dvm_ctx_trim(NULL);
    prog_close(&p);
    dvm_ctx_destroy(&ctx);
    balanced(&b, "workspaces", 0);
}

static long idle_bytes(const dvm_ctx *c) {
    size_t sum = 0;
    for (int i = 0; i < IDLE_WORKSPACES; i++) sum += c->idle[i].size;
    return (long)sum;
}

/* Kernels of a context run in one workspace, which is as large as the largest of them asks for; with a kernel goes what
 * it may have needed. */
static void test_workspace_shared(void **state) {
    (void)state;
    struct balance b = {0};
    dvm_options o = options(&b);
    dvm_ctx *ctx;
    struct prog p[4];
    dvm_stats s;
    const char *size[4] = {"4, 6000", "4, 9000", "4, 12000", "4, 3000"};
    const char *text = "kernel split (x: f32[?, ?]) { %a = sum %x, dims=[0], keep %b = sub %x, %a "
                       "%c = sum %b, dims=[1], keep %e = sub %b, %c store %e }";
    assert_int_equal(dvm_ctx_create(&o, &ctx), DVM_OK);
    long most = 0;
    for (int i = 0; i < 4; i++) {
        assert_int_equal(prog_open(&p[i], ctx, text, size[i]), DVM_OK);
        assert_int_equal(prog_run(&p[i]), DVM_OK);
        assert_int_equal(dvm_kernel_stats(p[i].k, &s), DVM_OK);
        assert_true(s.workspace > 0);
        most = s.workspace > most ? s.workspace : most;
    }
    const long calls = b.calls;
    for (int i = 0; i < 4; i++) assert_int_equal(prog_run(&p[i]), DVM_OK);
    assert_int_equal(b.calls, calls);
    assert_int_equal(idle_bytes(ctx), most);
    for (int i = 0; i < 4; i++) prog_close(&p[i]);
    assert_int_equal(idle_bytes(ctx), 0);
    dvm_ctx_destroy(&ctx);
    balanced(&b, "shared workspaces", 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole_life),     cmocka_unit_test(test_usable_after),
        cmocka_unit_test(test_new_shape),      cmocka_unit_test(test_copied_input),
        cmocka_unit_test(test_building),       cmocka_unit_test(test_threads),
        cmocka_unit_test(test_workspace_kept), cmocka_unit_test(test_workspace_shared),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
