/* Results do not depend on the number of threads; kernels, contexts and their caches serve many threads at once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>

#include "graphs.h"
#include "rt/rt.h"
#include "vm/pool.h"

enum { CALLERS = 8 };

static dvm_ctx *new_ctx(int threads) {
    dvm_ctx *c;
    assert_int_equal(dvm_ctx_create(&(dvm_options){.threads = threads}, &c), DVM_OK);
    dvm_pool_set_eager(c->pool, true);
    return c;
}

/* ---- when threads are asked ---------------------------------------------------------------------------------- */

static void count_loop(void *user, int n, void (*body)(void *arg, int i), void *arg) {
    ++*(int *)user;
    for (int i = 0; i < n; i++) body(arg, i);
}

/* How often the pool is asked by one run over n elements. */
static int loops(const char *text, int64_t n, bool eager) {
    int count = 0;
    struct prog p;
    char size[32];
    dvm_ctx *c;
    dvm_options o = {.threads = 4, .parallel = count_loop, .parallel_user = &count};
    assert_int_equal(dvm_ctx_create(&o, &c), DVM_OK);
    dvm_pool_set_eager(c->pool, eager);
    snprintf(size, sizeof size, "%lld", (long long)n);
    assert_int_equal(prog_open(&p, c, text, size), DVM_OK);
    assert_int_equal(prog_run(&p), DVM_OK);
    prog_close(&p);
    dvm_ctx_destroy(&c);
    return count;
}

/* Work counts, not elements: load, neg and store are 3 additions, one more tanh is 12. */
static void test_threads_where_they_pay(void **state) {
    (void)state;
    const char *light = "kernel vector (x: f32[?]) { %a = neg %x store %a }";
    const char *heavy = "kernel vector (x: f32[?]) { %a = tanh %x %b = tanh %a store %b }";
    const char *row = "kernel vector (x: f32[?]) { %a = sum %x store %a }";
    assert_int_equal(loops(light, 100000, false), 0);
    assert_int_equal(loops(heavy, 15000, false), 0);
    assert_int_equal(loops(row, 100000, false), 0);
    assert_true(loops(light, 200000, false) > 0);
    assert_true(loops(heavy, 25000, false) > 0);
    assert_true(loops(row, 400000, false) > 0);
    assert_true(loops(light, 100000, true) > 0);
    assert_int_equal(loops(light, 1000, true), 0);
}

/* ---- sections with fewer threads ------------------------------------------------------------------------------ */

static void most_loop(void *user, int n, void (*body)(void *arg, int i), void *arg) {
    *(int *)user = DVM_MAX(*(int *)user, n);
    for (int i = 0; i < n; i++) body(arg, i);
}

/* Most threads that one kernel asked for, and what came out. */
static int most_threads(const char *text, uint64_t *hash) {
    int most = 0;
    struct prog p;
    dvm_ctx *c;
    dvm_options o = {.threads = 8, .parallel = most_loop, .parallel_user = &most};
    assert_int_equal(dvm_ctx_create(&o, &c), DVM_OK);
    dvm_pool_set_eager(c->pool, true);
    if (prog_open(&p, c, text, "400,300")) fail_msg("%s", dvm_error_text());
    assert_int_equal(prog_run(&p), DVM_OK);
    *hash = prog_hash(&p);
    prog_close(&p);
    dvm_ctx_destroy(&c);
    return most;
}

static void test_sections_with_limits(void **state) {
    (void)state;
    static const char *const bodies[] = {"%a = exp %x store %a", "%a = sum %x, dims=[1] store %a",
                                         "%a = sum %x, dims=[0] store %a",
                                         "%a = matmul %x, %x, trans_b store %a"};
    static const char *const kinds[] = {"vector", "vector", "vector", "cube"};
    char text[400];
    for (int i = 0; i < 4; i++) {
        uint64_t want = 0, got = 0;
        const char *format = "kernel parallel () { next %s%s %%x = load f32[?, ?] %s }";
        snprintf(text, sizeof text, format, kinds[i], "", bodies[i]);
        int all = most_threads(text, &want);
        assert_true(all > 3);
        for (int cores = 1; cores <= 3; cores++) {
            char limit[16];
            snprintf(limit, sizeof limit, " cores=%d", cores);
            snprintf(text, sizeof text, format, kinds[i], limit, bodies[i]);
            int most = most_threads(text, &got);
            if (most > cores || (cores > 1 && most < 2))
                fail_msg("%s: %d threads of %d", text, most, cores);
            assert_true(got == want);
        }
    }
}

static void test_same_bits(void **state) {
    (void)state;
    static const int threads[] = {1, 2, 3, 16};
    dvm_ctx *c = new_ctx(1);
    for (int i = 0; i < GRAPH_CASES; i++) {
        const struct graph_case *g = &graph_cases[i];
        struct prog p;
        uint64_t first = 0;
        if (prog_open(&p, c, g->text, g->sizes[1])) fail_msg("%s: %s", g->name, dvm_error_text());
        for (int t = 0; t < 4; t++) {
            assert_int_equal(dvm_ctx_set_threads(c, threads[t]), DVM_OK);
            for (int again = 0; again < 2; again++) {
                prog_poison(&p);
                if (prog_run(&p)) fail_msg("%s: %s", g->name, dvm_error_text());
                assert_true(prog_untouched(&p, false));
                uint64_t h = prog_hash(&p);
                if (t + again == 0) first = h;
                if (h != first) fail_msg("%s: other bits with %d threads", g->name, threads[t]);
            }
        }
        prog_close(&p);
    }
    dvm_ctx_destroy(&c);
}

/* Tall, wide and long shapes are cut in different ways. */
static void test_same_bits_by_shape(void **state) {
    (void)state;
    static const char *const texts[] = {
        "kernel split (x: f32[?, ?]) { %a = exp %x %b = sum %a, dims=[1] %c = sum %x, dims=[0] %d "
        "= max %x store %b store %c "
        "store %d }",
        "kernel split (x: f32[?, ?]) { %m = max %x, dims=[1], keep %d = sub %x, %m %e = exp %d %s "
        "= sum %e, dims=[1], keep %r = "
        "div %e, %s store %r %a = argmax %x, dims=[1] store %a }",
    };
    static const char *const sizes[] = {"1, 300000", "300000, 1", "2, 150001", "150001, 2",
                                        "7, 40000",  "40000, 7",  "513, 517"};
    dvm_ctx *c = new_ctx(1);
    for (size_t i = 0; i < 2 * sizeof sizes / sizeof *sizes; i++) {
        struct prog p;
        uint64_t first = 0;
        assert_int_equal(dvm_ctx_set_threads(c, 1), DVM_OK);
        assert_int_equal(prog_open(&p, c, texts[i % 2], sizes[i / 2]), DVM_OK);
        for (int t = 1; t <= 16; t = t * 2 + (t == 1)) {
            assert_int_equal(dvm_ctx_set_threads(c, t), DVM_OK);
            assert_int_equal(prog_run(&p), DVM_OK);
            if (t == 1) first = prog_hash(&p);
            if (prog_hash(&p) != first)
                fail_msg("[%s]: other bits with %d threads\n%s", sizes[i / 2], t, texts[i % 2]);
        }
        prog_close(&p);
    }
    dvm_ctx_destroy(&c);
}

/* ---- one kernel, many callers ------------------------------------------------------------------------------------- */

static const char softmax[] =
    "kernel split (x: f32[?, ?]) { %m = max %x, dims=[1], keep %d = sub %x, %m %e = exp %d %s = "
    "sum %e, "
    "dims=[1], keep %r = div %e, %s store %r %c = sum %r, dims=[0] store %c }";
enum { SHAPES = 40, ROUNDS = 3 };

struct caller {
    pthread_t thread;
    dvm_ctx *ctx;
    dvm_kernel *k;
    int number;
    const char *failed; /* cmocka belongs to the main thread */
};

static void shape_text(char *buf, size_t cap, int caller, int shape) {
    snprintf(buf, cap, "%d, %d", 1 + caller * 3 + shape % 7, 1 + shape * 11 + caller);
}

static void *call_kernel(void *arg) {
    struct caller *c = arg;
    uint64_t want[SHAPES];
    for (int round = 0; round < ROUNDS; round++)
        for (int s = 0; s < SHAPES; s++) {
            char sizes[40];
            struct prog p;
            shape_text(sizes, sizeof sizes, c->number, s);
            /* the first round compiles a kernel of its own: what the shared one must give */
            if (prog_open(&p, c->ctx, softmax, sizes)) c->failed = "open";
            if (round == 0) {
                if (prog_run(&p)) c->failed = "own kernel";
                want[s] = prog_hash(&p);
            } else {
                prog_poison(&p);
                if (dvm_run(c->k, p.nin, p.in, p.nout, p.out)) c->failed = "shared kernel";
                if (prog_hash(&p) != want[s]) c->failed = "other bits from the shared kernel";
                if (!prog_untouched(&p, false)) c->failed = "bytes outside";
            }
            prog_close(&p);
            if (c->failed) return NULL;
        }
    return NULL;
}

static void run_callers(struct caller *c, void *(*body)(void *), dvm_ctx *ctx, dvm_kernel *k) {
    for (int i = 0; i < CALLERS; i++) {
        c[i] = (struct caller){.ctx = ctx, .k = k, .number = i};
        assert_int_equal(pthread_create(&c[i].thread, NULL, body, &c[i]), 0);
    }
    for (int i = 0; i < CALLERS; i++) pthread_join(c[i].thread, NULL);
    for (int i = 0; i < CALLERS; i++)
        if (c[i].failed) fail_msg("caller %d: %s", i, c[i].failed);
}

static void test_many_callers(void **state) {
    (void)state;
    struct caller c[CALLERS];
    dvm_graph *g;
    dvm_kernel *k;
    dvm_stats s;
    dvm_ctx *ctx = new_ctx(3);
    assert_int_equal(dvm_graph_parse(ctx, "t", softmax, strlen(softmax), &g), DVM_OK);
    assert_int_equal(dvm_compile(g, &k), DVM_OK);
    dvm_graph_destroy(&g);
    run_callers(c, call_kernel, ctx, k);
    assert_int_equal(dvm_kernel_stats(k, &s), DVM_OK);
    assert_true(s.shapes >= CALLERS * SHAPES); /* more than the table holds */
    dvm_kernel_destroy(&k);
    dvm_ctx_destroy(&ctx);
}

/* ---- compiling side by side ----------------------------------------------------------------------------------------- */

static uint64_t case_hash[GRAPH_CASES];

static void *compile_all(void *arg) {
    struct caller *c = arg;
    for (int n = 0; n < GRAPH_CASES; n++) {
        int i = (n + c->number * 5) % GRAPH_CASES;
        struct prog p;
        char *text;
        if (prog_open(&p, c->ctx, graph_cases[i].text, graph_cases[i].sizes[0]) || prog_run(&p)) {
            c->failed = graph_cases[i].name;
            return NULL;
        }
        if (prog_hash(&p) != case_hash[i]) c->failed = graph_cases[i].name;
        if (dvm_kernel_text(p.k, DVM_TEXT_EXPLAIN, &text)) c->failed = "text";
        dvm_string_free(&text);
        prog_close(&p);
    }
    return NULL;
}

static void test_many_compilers(void **state) {
    (void)state;
    struct caller c[CALLERS];
    struct balance b = {0};
    dvm_ctx *ctx;
    dvm_options o = {.threads = 2, .alloc = balance_alloc, .alloc_user = &b};
    assert_int_equal(dvm_ctx_create(&o, &ctx), DVM_OK);
    for (int i = 0; i < GRAPH_CASES; i++) {
        struct prog p;
        assert_int_equal(prog_open(&p, ctx, graph_cases[i].text, graph_cases[i].sizes[0]), DVM_OK);
        assert_int_equal(prog_run(&p), DVM_OK);
        case_hash[i] = prog_hash(&p);
        prog_close(&p);
    }
    dvm_ctx_destroy(&ctx);
    assert_int_equal(dvm_ctx_create(&o, &ctx), DVM_OK); /* nothing is known to it */
    run_callers(c, compile_all, ctx, NULL);
    dvm_ctx_destroy(&ctx);
    assert_int_equal(b.bytes, 0);
}

/* ---- changing the number while others run ------------------------------------------------------------------------------ */

static void *resize(void *arg) {
    struct caller *c = arg;
    if (c->number) return call_kernel(arg);
    for (int i = 0; i < 60; i++)
        if (dvm_ctx_set_threads(c->ctx, 1 + i % 5)) c->failed = "set_threads";
    return NULL;
}

static void test_resize_while_running(void **state) {
    (void)state;
    struct caller c[CALLERS];
    dvm_graph *g;
    dvm_kernel *k;
    dvm_ctx *ctx = new_ctx(2);
    assert_int_equal(dvm_graph_parse(ctx, "t", softmax, strlen(softmax), &g), DVM_OK);
    assert_int_equal(dvm_compile(g, &k), DVM_OK);
    dvm_graph_destroy(&g);
    run_callers(c, resize, ctx, k);
    dvm_kernel_destroy(&k);
    dvm_ctx_destroy(&ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_threads_where_they_pay),
        cmocka_unit_test(test_sections_with_limits),
        cmocka_unit_test(test_same_bits),
        cmocka_unit_test(test_same_bits_by_shape),
        cmocka_unit_test(test_many_callers),
        cmocka_unit_test(test_many_compilers),
        cmocka_unit_test(test_resize_while_running),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
