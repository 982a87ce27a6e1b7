/* Promises 1 and 2 from C: time from graph to verified bytecode, time to meet a new shape, cost of a call. Prints one
 * JSON object; all times in nanoseconds, medians and 90th percentiles over many repetitions on one core. */
#include <dvm/dvm.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "timing.h"

enum { REPEAT = 400 };

static void must(dvm_status st) {
    if (st == DVM_OK) return;
    fprintf(stderr, "%s: %s\n", dvm_status_name(st), dvm_error_text());
    exit(1);
}

static void report(const char *name, double *t, int n, int last) {
    qsort(t, (size_t)n, sizeof *t, ascending);
    printf("\"%s\": {\"median\": %.0f, \"p90\": %.0f, \"max\": %.0f}%s", name, t[n / 2],
           t[n * 9 / 10], t[n - 1], last ? "" : ", ");
}

static dvm_graph *chain(dvm_ctx *c, int ops) {
    dvm_graph *g;
    dvm_val x, y, v;
    dvm_dim any[2] = {-1, -1};
    must(dvm_graph_create(c, DVM_SPLIT, 0, &g));
    must(dvm_graph_load(g, DVM_F32, 2, any, NULL, &x));
    must(dvm_graph_load(g, DVM_F32, 2, any, NULL, &y));
    v = x;
    for (int i = 0; i < ops; i++) {
        static const dvm_op op[] = {DVM_OP_ADD, DVM_OP_MUL, DVM_OP_MAX,
                                    DVM_OP_EXP, DVM_OP_SUB, DVM_OP_TANH};
        dvm_val in[2] = {v, i & 1 ? x : y};
        int unary = i % 6 == 3 || i % 6 == 5;
        must(dvm_graph_op(g, op[i % 6], unary ? 1 : 2, in, &v));
    }
    must(dvm_graph_store(g, v, NULL, NULL));
    return g;
}

static void run_at(dvm_kernel *k, int64_t rows, int64_t cols, float *a, float *b, float *o) {
    int64_t d[2] = {rows, cols};
    dvm_arg in[2] = {{.data = a, .dims = d, .rank = 2, .dtype = DVM_F32},
                     {.data = b, .dims = d, .rank = 2, .dtype = DVM_F32}};
    dvm_arg out = {.data = o, .dims = d, .rank = 2, .dtype = DVM_F32};
    must(dvm_run(k, 2, in, 1, &out));
}

int main(void) {
    dvm_ctx *c;
    dvm_options opt = {.threads = 1};
    static float a[128 * 128], b[128 * 128], o[128 * 128];
    static double build[REPEAT], compile[REPEAT], plan[REPEAT], shape[REPEAT], call[REPEAT],
        fresh[REPEAT];
    must(dvm_ctx_create(&opt, &c));
    for (int i = 0; i < REPEAT; i++) {
        dvm_kernel *k;
        dvm_stats s;
        double t0 = now();
        dvm_graph *g = chain(c, 64);
        double t1 = now();
        must(dvm_compile(g, &k));
        double t2 = now();
        run_at(k, 1 + i % 3, 8, a, b, o);
        must(dvm_kernel_stats(k, &s));
        build[i] = t1 - t0;
        compile[i] = t2 - t1 + (double)s.compile_ns;
        double t3 = now();
        run_at(k, 9 + i % 5, 16, a, b, o);
        shape[i] = now() - t3;
        must(dvm_kernel_stats(k, &s));
        plan[i] = (double)s.compile_ns;
        dvm_kernel_destroy(&k);
        dvm_graph_destroy(&g);
    }
    for (int i = 0; i < REPEAT; i++) { /* machine code or steps of a strip that no cache knows */
        dvm_ctx *c2;
        dvm_kernel *k;
        must(dvm_ctx_create(&opt, &c2));
        dvm_graph *g = chain(c2, 64);
        must(dvm_compile(g, &k));
        double t = now();
        run_at(k, 1, 8, a, b, o);
        double first = now() - t;
        dvm_stats s;
        must(dvm_kernel_stats(k, &s));
        fresh[i] = first - (double)s.compile_ns;
        dvm_kernel_destroy(&k);
        dvm_graph_destroy(&g);
        dvm_ctx_destroy(&c2);
    }
    dvm_graph *g = chain(c, 3);
    dvm_kernel *k;
    must(dvm_compile(g, &k));
    run_at(k, 1, 8, a, b, o);
    for (int i = 0; i < REPEAT; i++) {
        double t = now();
        for (int j = 0; j < 1000; j++) run_at(k, 1, 8, a, b, o);
        call[i] = (now() - t) / 1000;
    }
    printf("{\"device\": \"%s\", ", dvm_ctx_device(c));
    report("build", build, REPEAT, 0);
    report("compile", compile, REPEAT, 0);
    report("new_shape_plan", plan, REPEAT, 0);
    report("new_shape_run", shape, REPEAT, 0);
    report("strip_code", fresh, REPEAT, 0);
    report("call", call, REPEAT, 1);
    printf("}\n");
    dvm_kernel_destroy(&k);
    dvm_graph_destroy(&g);
    dvm_ctx_destroy(&c);
    return 0;
}
