/* Graphs around a matrix product. What reduces rows of the result shares its kernel and is right on every tier and for any
 * number of threads; nothing beyond an operand is read or written, whatever its size, steps and transposition. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <dvm/dvm.h>
#include <graph_gen.h>

#include "guard.h"
#include "rnd.h"

/* ---- rows of a result */

/* %s is the product, [.., M, N]; b has N elements, r is a number a row. */
static const char *const after[] = {
    "  %m = max %s, dims=[-1], keep\n  %d = sub %s, %m\n  %e = exp %d\n"
    "  %l = sum %e, dims=[-1], keep\n  store %m\n  store %l\n",
    "  %q = mul %s, %s\n  %l = sum %q, dims=[-1]\n  store %l\n  store %s\n",
    "  %q = mul %s, %s\n  %l = sum %q, dims=[-1], keep\n  %t = add %l, 1e-3\n  %u = rsqrt %t\n"
    "  %y = mul %s, %u\n  %z = mul %y, %b\n  store %z\n",
    "  %t = add %s, %b\n  %m = max %t, dims=[-1], keep\n  %d = sub %t, %m\n  %e = exp %d\n"
    "  %l = sum %e, dims=[-1], keep\n  %y = div %e, %l\n  store %y\n",
    "  %a = argmax %s, dims=[-1]\n  %m = min %s, dims=[-1]\n  store %a\n  store %m\n",
    "  %t = mul %s, %r\n  %c = cast %t, bf16\n  %f = cast %c, f32\n"
    "  %l = sum %f, dims=[-1], keep\n  %y = sub %f, %l\n  %h = cast %y, f16\n  store %h\n"
    "  %g = relu %l\n  store %g\n",
};
enum { NAFTER = sizeof after / sizeof *after };

struct problem {
    int64_t batch, m, n, k;     /* batch 0: two axes */
    bool moves, ta, tb, strict; /* the second factor has the batch too */
    const char *dtype;
};

static void text_of(const struct problem *p, const char *rest, char *text, size_t size) {
    char a[96], b[96], lead[32] = "", r[64];
    if (p->batch) snprintf(lead, sizeof lead, "%lld, ", (long long)p->batch);
    snprintf(a, sizeof a, "%s[%s%lld, %lld]", p->dtype, lead, (long long)(p->ta ? p->k : p->m),
             (long long)(p->ta ? p->m : p->k));
    snprintf(b, sizeof b, "%s[%s%lld, %lld]", p->dtype, p->moves ? lead : "",
             (long long)(p->tb ? p->n : p->k), (long long)(p->tb ? p->k : p->n));
    snprintf(r, sizeof r, "f32[%s%lld, 1]", lead, (long long)p->m);
    snprintf(text, size,
             "kernel mix%s (x: %s, w: %s, b: f32[%lld], r: %s) {\n"
             "  %%s = matmul %%x, %%w%s%s, dtype=f32\n%s}\n",
             p->strict ? ":strict" : "", a, b, (long long)p->n, r, p->ta ? ", trans_a" : "",
             p->tb ? ", trans_b" : "", rest);
}

static int64_t kernels_of(const char *text) {
    dvm_ctx *c = NULL;
    dvm_graph *g = NULL;
    dvm_kernel *k = NULL;
    dvm_stats stats = {0};
    assert_int_equal(dvm_ctx_create(NULL, &c), DVM_OK);
    if (dvm_graph_parse(c, "rows", text, strlen(text), &g) || dvm_compile(g, &k))
        fail_msg("%s\n%s", dvm_error_text(), text);
    assert_int_equal(dvm_kernel_stats(k, &stats), DVM_OK);
    dvm_kernel_destroy(&k);
    dvm_graph_destroy(&g);
    dvm_ctx_destroy(&c);
    return stats.kernels;
}

static void try_rows(const struct problem *p, int which, int64_t kernels) {
    char text[1024];
    struct graph_trial r;
    text_of(p, after[which], text, sizeof text);
    if (kernels_of(text) != kernels)
        fail_msg("%lld kernels\n%s", (long long)kernels_of(text), text);
    if (graph_try(text, rnd(), &r)) fail_msg("%s\n%s", r.why, text);
}

static void test_rows_join_the_product(void **state) {
    (void)state;
    static const int64_t ms[] = {1, 5, 48, 49, 145, 200}, ns[] = {2, 7, 64, 65, 513, 1030},
                         ks[] = {1, 3, 33, 257, 0, 16};
    static const char *const dtypes[] = {"f32", "bf16", "f16"};
    for (int z = 0; z < 60; z++) {
        struct problem p = {.batch = z % 3 ? 0 : 1 + below(3),
                            .m = ms[below(6)],
                            .n = ns[z % 6],
                            .k = ks[below(6)],
                            .moves = rnd() & 1,
                            .ta = rnd() & 1,
                            .tb = rnd() & 1,
                            .strict = z % 7 == 0,
                            .dtype = dtypes[below(3)]};
        if ((1 + p.batch) * p.m * p.n * p.k > 4000000) p.k = 5;
        try_rows(&p, z % NAFTER, 1);
    }
}

/* Sums of columns and of everything, rows too long for the cache: kernels of their own, and right. */
static void test_other_reductions_stay_outside(void **state) {
    (void)state;
    static const char *const rest[] = {"  %l = sum %s, dims=[-2]\n  store %l\n",
                                       "  %l = sum %s\n  store %l\n"};
    for (int i = 0; i < 2; i++) {
        char text[1024];
        struct graph_trial r;
        struct problem p = {.m = 37, .n = 65, .k = 20, .dtype = "f32"};
        text_of(&p, rest[i], text, sizeof text);
        assert_true(kernels_of(text) > 1);
        if (graph_try(text, 1, &r)) fail_msg("%s\n%s", r.why, text);
    }
    try_rows(&(struct problem){.m = 2, .n = 1 << 18, .k = 2, .dtype = "f32"}, 1, 2);
}

/* ---- the edges of operands */

struct tensor {
    dvm_arg arg;
    int64_t dims[3], strides[3];
    struct guarded memory;
};

/* In one of several layouts, its last byte (or first) at the border. */
static void open_tensor(struct tensor *x, dvm_dtype t, int rank, const int64_t *dims) {
    int64_t order[3] = {0, 1, 2}, step = 1, last = 0;
    memcpy(x->dims, dims, sizeof *dims * (size_t)rank);
    if (rank >= 2 && rnd() & 1) order[rank - 1] = rank - 2, order[rank - 2] = rank - 1;
    for (int i = rank - 1; i >= 0; i--) {
        const int64_t gap = below(4) ? 1 : 3;
        x->strides[order[i]] = step *= gap;
        last += step * (dims[order[i]] - 1);
        step *= dims[order[i]];
    }
    const size_t size = (size_t)(last + 1) * dvm_dtype_size(t);
    x->memory = guard(size, rnd() & 1);
    for (size_t i = 0; i < size / dvm_dtype_size(t); i++) {
        const float f = (float)below(9) - 4;
        uint32_t u;
        memcpy(&u, &f, 4);
        if (t == DVM_BF16) u >>= 16; /* small whole numbers: exact */
        memcpy(x->memory.p + i * dvm_dtype_size(t), &u, dvm_dtype_size(t));
    }
    x->arg = (dvm_arg){
        .dtype = t, .rank = rank, .dims = x->dims, .strides = x->strides, .data = x->memory.p};
}

static float at(const struct tensor *x, const int64_t *i) {
    int64_t off = 0;
    uint32_t u = 0;
    float f;
    for (int a = 0; a < x->arg.rank; a++) off += i[a] * x->strides[a];
    memcpy(&u, x->memory.p + off * (int64_t)dvm_dtype_size(x->arg.dtype),
           dvm_dtype_size(x->arg.dtype));
    if (x->arg.dtype == DVM_BF16) u <<= 16;
    memcpy(&f, &u, 4);
    return f;
}

/* Sums of small whole numbers are exact in every order. */
static void expect_product(const struct problem *p, const struct tensor *t) {
    for (int64_t b = 0; b < p->batch; b++)
        for (int64_t i = 0; i < p->m; i++) {
            float norm = 0;
            for (int64_t j = 0; j < p->n; j++) {
                float s = 0;
                for (int64_t k = 0; k < p->k; k++) {
                    const int64_t ia[] = {b, p->ta ? k : i, p->ta ? i : k},
                                  ib[] = {b, p->tb ? j : k, p->tb ? k : j};
                    s += at(&t[0], ia) * at(&t[1], p->moves ? ib : ib + 1);
                }
                s += at(&t[2], &j);
                norm = s > norm ? s : norm;
                assert_true(at(&t[3], (int64_t[]){b, i, j}) == s);
            }
            assert_true(at(&t[4], (int64_t[]){b, i}) == norm);
        }
}

static void run_between_guards(const struct problem *p, dvm_dtype t, const dvm_options *o) {
    char text[1024];
    dvm_ctx *c = NULL;
    dvm_graph *g = NULL;
    dvm_kernel *kernel = NULL;
    struct tensor x[5];
    if (dvm_ctx_create(o, &c)) {
        if (!o->isa || strcmp(o->isa, "base") == 0) fail_msg("%s", dvm_error_text());
        return; /* not a level of this processor */
    }
    const int64_t a[] = {p->batch, p->ta ? p->k : p->m, p->ta ? p->m : p->k},
                  b[] = {p->batch, p->tb ? p->n : p->k, p->tb ? p->k : p->n};
    open_tensor(&x[0], t, 3, a);
    open_tensor(&x[1], t, p->moves ? 3 : 2, p->moves ? b : b + 1);
    open_tensor(&x[2], DVM_F32, 1, &p->n);
    open_tensor(&x[3], DVM_F32, 3, (int64_t[]){p->batch, p->m, p->n});
    open_tensor(&x[4], DVM_F32, 2, (int64_t[]){p->batch, p->m});
    snprintf(text, sizeof text,
             "kernel mix:dyn (x: %s[a, b, c], w: %s[%sd, e], b: f32[n]) {\n"
             "  %%s = matmul %%x, %%w%s%s, dtype=f32\n  %%t = add %%s, %%b\n"
             "  %%m = max %%t, dims=[-1]\n  %%l = relu %%m\n  store %%t\n  store %%l\n}\n",
             p->dtype, p->dtype, p->moves ? "a, " : "", p->ta ? ", trans_a" : "",
             p->tb ? ", trans_b" : "");
    if (dvm_graph_parse(c, "edges", text, strlen(text), &g) || dvm_compile(g, &kernel) ||
        dvm_run(kernel, 3, (dvm_arg[]){x[0].arg, x[1].arg, x[2].arg}, 2,
                (dvm_arg[]){x[3].arg, x[4].arg}))
        fail_msg("%s\n%s", dvm_error_text(), text);
    expect_product(p, x);
    for (int i = 0; i < 5; i++) unguard(&x[i].memory);
    dvm_kernel_destroy(&kernel);
    dvm_graph_destroy(&g);
    dvm_ctx_destroy(&c);
}

static void test_nothing_beyond_the_operands(void **state) {
    (void)state;
    static const dvm_options tiers[] = {{.device = "ref", .threads = 1},
                                        {.device = "cpu", .threads = 1},
                                        {.device = "cpu", .threads = 3},
                                        {.device = "cpu", .isa = "base", .threads = 1},
                                        {.device = "cpu", .isa = "avx2", .threads = 2}};
    for (int z = 0; z < 100; z++) {
        struct problem p = {.batch = 1 + below(3),
                            .m = 1 + below(z % 4 ? 30 : 160),
                            .n = 2 + below(z % 5 ? 40 : 600),
                            .k = 1 + below(z % 3 ? 20 : 270),
                            .moves = rnd() & 1,
                            .ta = rnd() & 1,
                            .tb = rnd() & 1,
                            .dtype = z & 1 ? "bf16" : "f32"};
        if (p.m * p.n * p.k > 300000) p.k = 1 + below(9);
        run_between_guards(&p, z & 1 ? DVM_BF16 : DVM_F32, &tiers[z % 5]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rows_join_the_product),
                                       cmocka_unit_test(test_other_reductions_stay_outside),
                                       cmocka_unit_test(test_nothing_beyond_the_operands)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
