/* What a plan costs to make, counted in nodes visited and values emitted, grows with the graph and not with its square;
 * and what exceeds a kernel is cut, whatever it is. Results of what was cut are judged by the oracle. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <graph_gen.h>

#include "base/text.h"
#include "rt/rt.h"

static const struct dvm_mem sys = {dvm_mem_system, NULL};
static dvm_ctx *ctx;

static int setup(void **state) {
    (void)state;
    return dvm_ctx_create(&(dvm_options){.threads = 1}, &ctx);
}
static int teardown(void **state) {
    (void)state;
    dvm_ctx_destroy(&ctx);
    return 0;
}

/* ---- graphs that grow with n ------------------------------------------------------------------------------ */

typedef void (*writer)(struct dvm_text *t, int n);

static void gathers(struct dvm_text *t, int n) {
    dvm_text_add(t, "(x: f32[16], i: i64[16]) { %%a0 = exp %%x ");
    for (int k = 0; k < n; k++)
        dvm_text_add(t, "%%a%d = gather %%a%d, %%i, axis=0, mode=slice ", k + 1, k);
    dvm_text_add(t, "store %%a%d }", n);
}

static void gathers_at_the_end(struct dvm_text *t, int n) {
    dvm_text_add(t, "(x: f32[%d, 8], i: i64[8]) { ", n);
    for (int k = 0; k < n; k++)
        dvm_text_add(t, "%%s%d = slice %%x, start=[%d, 0], size=[1, -1] %%e%d = exp %%s%d ", k, k,
                     k, k);
    for (int k = 0; k < n; k++)
        dvm_text_add(t, "%%g%d = gather %%e%d, %%i, axis=1, mode=slice ", k, k);
    dvm_text_add(t, "%%a0 = neg %%g0 ");
    for (int k = 1; k < n; k++) dvm_text_add(t, "%%a%d = add %%a%d, %%g%d ", k, k - 1, k);
    dvm_text_add(t, "store %%a%d }", n - 1);
}

static void turns(struct dvm_text *t, int n) {
    dvm_text_add(t, "(x: f32[6, 10]) { %%a0 = exp %%x ");
    for (int k = 0; k < n; k++)
        dvm_text_add(t, "%%p%d = permute %%a%d, [1, 0] %%a%d = reshape %%p%d, [6, 10] ", k, k,
                     k + 1, k);
    dvm_text_add(t, "store %%a%d }", n);
}

static void layers(struct dvm_text *t, int n) {
    dvm_text_add(t, "(x: f32[4, 6], i: i64[4, 6]) { %%c0 = neg %%x ");
    for (int k = 0; k < n; k++)
        dvm_text_add(
            t,
            "%%a%d = tanh %%c%d %%m%d = max %%a%d, dims=[1], keep %%b%d = sub %%a%d, %%m%d "
            "%%p%d = permute %%b%d, [1, 0] %%r%d = reshape %%p%d, [4, 6] %%g%d = gather %%r%d, "
            "%%i, axis=1, mode=element %%c%d = add %%g%d, %%c%d ",
            k, k, k, k, k, k, k, k, k, k, k, k, k, k + 1, k, k);
    dvm_text_add(t, "store %%c%d }", n);
}

static void rows(struct dvm_text *t, int n) {
    for (int k = 0; k < n; k++)
        dvm_text_add(t, "%%s%d = slice %%x, start=[%d, 0], size=[1, -1] ", k, k);
}

static void sum_of_loads(struct dvm_text *t, int n) {
    dvm_text_add(t, "(x: f32[%d, 8]) { ", n);
    rows(t, n);
    dvm_text_add(t, "%%a0 = neg %%s0 ");
    for (int k = 1; k < n; k++) dvm_text_add(t, "%%a%d = add %%a%d, %%s%d ", k, k - 1, k);
    dvm_text_add(t, "store %%a%d }", n - 1);
}

static void sum_from_the_right(struct dvm_text *t, int n) {
    dvm_text_add(t, "(x: f32[%d, 8]) { ", n);
    rows(t, n);
    dvm_text_add(t, "%%a0 = neg %%s0 ");
    for (int k = 1; k < n; k++) dvm_text_add(t, "%%a%d = add %%s%d, %%a%d ", k, k, k - 1);
    dvm_text_add(t, "store %%a%d }", n - 1);
}

/* By halves: n is made a power of two. */
static void tree_of(struct dvm_text *t, int n, const char *end) {
    int at = 0, width = 1;
    while (width * 2 <= n) width *= 2;
    dvm_text_add(t, "(x: f32[%d, 8]) { ", width);
    rows(t, width);
    for (int k = 0; k < width / 2; k++, at++)
        dvm_text_add(t, "%%t%d = mul %%s%d, %%s%d ", at, 2 * k, 2 * k + 1);
    for (int from = 0, left = width / 2; left > 1; from += left, left /= 2)
        for (int k = 0; k < left / 2; k++, at++)
            dvm_text_add(t, "%%t%d = add %%t%d, %%t%d ", at, from + 2 * k, from + 2 * k + 1);
    dvm_text_add(t, "%%e = tanh %%t%d %s }", at - 1, end);
}
static void tree(struct dvm_text *t, int n) { tree_of(t, n, "store %e"); }
static void tree_reduced(struct dvm_text *t, int n) {
    tree_of(t, n, "%m = max %e, dims=[1], keep %d = sub %e, %m store %d");
}

static void stores(struct dvm_text *t, int n) {
    dvm_text_add(t, "(x: f32[%d, 8]) { ", n);
    rows(t, n);
    for (int k = 0; k < n; k++) dvm_text_add(t, "%%e%d = neg %%s%d ", k, k);
    dvm_text_add(t, "%%c = concat %%e0");
    for (int k = 1; k < n; k++) dvm_text_add(t, ", %%e%d", k);
    dvm_text_add(t, ", axis=0 store %%c }");
}

/* Pieces of three operands each: a kernel is full before it has all the roots it may have. */
static void pieces(struct dvm_text *t, int n) {
    dvm_text_add(t, "(x: f32[%d, 8]) { ", n);
    rows(t, n);
    for (int k = 0; k < n; k++)
        dvm_text_add(t, "%%e%d = fma %%s%d, %%s%d, %%s%d ", k, k, (k + 1) % n, (k + 2) % n);
    dvm_text_add(t, "%%c = concat %%e0");
    for (int k = 1; k < n; k++) dvm_text_add(t, ", %%e%d", k);
    dvm_text_add(t, ", axis=0 %%d = max %%c, dims=[0] store %%c store %%d }");
}

static void sums(struct dvm_text *t, int n) {
    dvm_text_add(t, "(x: f32[%d, 8]) { ", n);
    rows(t, n);
    for (int k = 0; k < n; k++) dvm_text_add(t, "%%m%d = max %%s%d, dims=[1], keep ", k, k);
    dvm_text_add(t, "%%a0 = neg %%m0 ");
    for (int k = 1; k < n; k++) dvm_text_add(t, "%%a%d = add %%a%d, %%m%d ", k, k - 1, k);
    dvm_text_add(t, "%%b = sub %%s0, %%a%d store %%b }", n - 1);
}

/* Few loads and many instructions, none of them deep. */
static void instructions(struct dvm_text *t, int n) {
    uint32_t r = 1;
    dvm_text_add(t, "(x: f32[8], y: f32[8]) { ");
    int wide = n / 8, at = 0;
    for (int k = 0; k < wide; k++, at++)
        dvm_text_add(t, "%%t%d = sub %%x, %%y %%u%d = fma %%t%d, %d.5, %%x ", at, at, at, k % 64);
    for (int layer = 1; layer < 8; layer++)
        for (int k = 0; k < wide; k++, at++) {
            int from = (layer - 1) * wide;
            int a = from + (int)((r = r * 1664525 + 1013904223) >> 8) % wide, b = from + k;
            dvm_text_add(t, "%%u%d = fma %%u%d, 0.25, %%u%d ", at, a, b);
        }
    dvm_text_add(t, "%%v0 = neg %%u%d ", at - wide);
    for (int k = 1; k < wide; k++)
        dvm_text_add(t, "%%v%d = maximum %%u%d, %%v%d ", k, at - wide + k, k - 1);
    dvm_text_add(t, "store %%v%d }", wide - 1);
}

static void product(struct dvm_text *t, int n) {
    dvm_text_add(t, "(x: f32[%d, 4, 4], w: f32[4, 4]) { ", n);
    for (int k = 0; k < n; k++)
        dvm_text_add(t, "%%s%d = slice %%x, start=[%d, 0, 0], size=[1, -1, -1] ", k, k);
    dvm_text_add(t, "%%a0 = neg %%s0 ");
    for (int k = 1; k < n; k++) dvm_text_add(t, "%%a%d = maximum %%a%d, %%s%d ", k, k - 1, k);
    dvm_text_add(t, "%%m = matmul %%a%d, %%w %%b0 = tanh %%m ", n - 1);
    for (int k = 1; k < n; k++) dvm_text_add(t, "%%b%d = maximum %%b%d, %%s%d ", k, k - 1, k);
    dvm_text_add(t, "store %%b%d }", n - 1);
}

static const struct {
    const char *name;
    writer write;
    int n;          /* planned with this size and with four times as much */
    uint64_t bound; /* on the work for each node */
} growing[] = {{"gathers", gathers, 350, 12},
               {"gathers at the end", gathers_at_the_end, 300, 16},
               {"turns", turns, 350, 16},
               {"layers", layers, 140, 8},
               {"sum of loads", sum_of_loads, 700, 24},
               {"sum from the right", sum_from_the_right, 700, 16},
               {"tree", tree, 512, 16},
               {"tree, reduced", tree_reduced, 512, 16},
               {"stores", stores, 250, 8},
               {"pieces", pieces, 250, 8},
               {"sums", sums, 300, 16},
               {"instructions", instructions, 8000, 120},
               {"product", product, 300, 24}};
enum { GROWING = sizeof growing / sizeof *growing };

static char *text_of(writer write, const char *kind, int n) {
    struct dvm_text t;
    char *s;
    dvm_text_init(&t, &sys);
    dvm_text_add(&t, "kernel %s ", kind);
    write(&t, n);
    assert_int_equal(dvm_text_take(&t, &s), DVM_OK);
    return s;
}

static dvm_status compile(const char *text, dvm_kernel **k) {
    dvm_graph *g;
    dvm_status st = dvm_graph_parse(ctx, "graph", text, strlen(text), &g);
    if (st == DVM_OK) st = dvm_compile(g, k);
    dvm_graph_destroy(&g);
    return st;
}

static void check_work(int c, int n) {
    char *text = text_of(growing[c].write, "split", n);
    dvm_kernel *k;
    if (compile(text, &k)) fail_msg("%s: %s", growing[c].name, dvm_error_text());
    uint64_t work = k->table->plan->work, bound = growing[c].bound * k->g->node.n;
    if (work > bound)
        fail_msg("%s of %d: %llu nodes visited and values emitted, more than %llu for each node",
                 growing[c].name, n, (unsigned long long)work,
                 (unsigned long long)growing[c].bound);
    dvm_kernel_destroy(&k);
    dvm_string_free(&text);
}

static void test_work_grows_with_the_graph(void **state) {
    (void)state;
    for (int c = 0; c < GROWING; c++) {
        check_work(c, growing[c].n);
        check_work(c, 4 * growing[c].n);
    }
}

/* ---- what is cut gives the right values --------------------------------------------------------------------- */

static void test_cut_kernels_are_right(void **state) {
    (void)state;
    static const struct {
        writer write;
        int n;
    } cut[] = {{gathers, 40},        {gathers_at_the_end, 270},
               {turns, 270},         {layers, 30},
               {sum_of_loads, 300},  {sum_from_the_right, 300},
               {tree, 512},          {tree_reduced, 512},
               {stores, 300},        {pieces, 200},
               {sums, 300},          {sums, 600},
               {instructions, 9000}, {product, 270}};
    static const char *const kinds[] = {"split", "eager", "mix", "vector:spec"};
    for (size_t i = 0; i < sizeof cut / sizeof *cut; i++)
        for (size_t j = 0; j < sizeof kinds / sizeof *kinds; j++) {
            struct graph_trial r;
            char *text = text_of(cut[i].write, kinds[j], cut[i].n);
            int result = graph_try(text, i + 1, &r);
            dvm_string_free(&text);
            if (result < 0 || (result > 0 && j < 2))
                fail_msg("case %zu, %s: %s", i, kinds[j], r.why);
            if (cut[i].write == product) break; /* no vector kernel */
        }
}

/* A vector kernel cannot be cut: the error says what is too much. */
static void test_vector_says_why(void **state) {
    (void)state;
    dvm_kernel *k;
    char *text = text_of(sum_of_loads, "vector", 300);
    assert_int_equal(compile(text, &k), DVM_ERR_KIND);
    assert_non_null(strstr(dvm_error_text(), "at most 256 tensors"));
    dvm_string_free(&text);
    text = text_of(sum_of_loads, "vector", 200);
    assert_int_equal(compile(text, &k), DVM_OK);
    dvm_kernel_destroy(&k);
    dvm_string_free(&text);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_work_grows_with_the_graph),
                                       cmocka_unit_test(test_cut_kernels_are_right),
                                       cmocka_unit_test(test_vector_says_why)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
