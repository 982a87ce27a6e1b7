/* dvm run: execute a text, summarize or print what comes out, compare it with the oracle. */
#include "cli.h"

#include <math.h>
#include <stdlib.h>

struct summary {
    dvm_dtype t;
    const char *data;
    double min, max, sum;
    int64_t n, nan;
};

static void add_element(void *arg, int64_t k, int64_t offset) {
    struct summary *s = arg;
    (void)k;
    double v = oracle_get(s->t, s->data + offset * (int64_t)dvm_dtype_size(s->t));
    if (isnan(v)) {
        s->nan++;
        return;
    }
    if (s->n == 0 || v < s->min) s->min = v;
    if (s->n == 0 || v > s->max) s->max = v;
    s->sum += v;
    s->n++;
}

static void print_output(const struct session *s, int i, bool values) {
    const dvm_arg *a = &s->out[i];
    struct summary sum = {.t = (dvm_dtype)a->dtype, .data = a->data};
    printf("  out %d  ", i);
    print_type(stdout, sum.t, a->rank, a->dims);
    if (values) {
        printf("\n");
        print_values(stdout, a);
        return;
    }
    oracle_each(a->rank, a->dims, a->strides, add_element, &sum);
    if (sum.n) printf("  min %.6g  max %.6g  mean %.6g", sum.min, sum.max, sum.sum / (double)sum.n);
    if (sum.nan) printf("  nan %lld", (long long)sum.nan);
    printf("\n");
}

static void print_inputs(const struct session *s) {
    for (int i = 0; i < s->nin; i++) {
        const struct oracle_io *io = oracle_input(s->oracle, i);
        printf("  in     %s: ", io->name);
        if (io->scalar) {
            bool f = io->dtype == DVM_F16 || io->dtype == DVM_BF16 || io->dtype == DVM_F32 ||
                     io->dtype == DVM_F64;
            printf("scalar %s ", dvm_dtype_name(io->dtype));
            if (io->dtype == DVM_I64)
                printf("%lld", (long long)io->num.i);
            else
                print_number(stdout, io->dtype, f ? io->num.f : (double)io->num.i);
        } else {
            print_type(stdout, io->dtype, io->rank, io->dims);
        }
        printf("\n");
    }
}

/* Runs behind the first one when --repeat does not say, within this many seconds. */
enum { MORE = 10 };
static const double BUDGET = 0.2;

static dvm_stats stats_of(const struct session *s) {
    dvm_stats st = {0};
    dvm_kernel_stats(s->kernel, &st);
    return st;
}

/* planned: before the first run; where all sizes are fixed the plan is made with the kernel. */
static void print_times(struct session *s, bool planned, double first, double best, int more) {
    const dvm_stats st = stats_of(s);
    int threads = dvm_ctx_threads(s->ctx);
    printf("  plan   %.2f us, with its bytecode, once for a shape; %s the first run\n",
           (double)st.compile_ns * 1e-3, planned ? "before" : "part of");
    printf("  first  %.2f us, with memory and machine code\n", first * 1e6);
    printf("  again  %.2f us, fastest of %d (%.2f GB/s; %s, %d thread%s)\n", best * 1e6, more,
           (double)st.bytes_minimum / best * 1e-9, dvm_ctx_device(s->ctx), threads,
           threads == 1 ? "" : "s");
}

static int run(struct session *s, const struct options *o) {
    double best = INFINITY, worst;
    int64_t undecided;
    int more = 0;
    if (!session_bind(s)) return EXIT_INPUT;
    const bool planned = stats_of(s).plans > 0;
    double begun = now_seconds();
    if (!session_run(s)) return EXIT_INPUT;
    double first = now_seconds() - begun, end = begun + first + BUDGET;
    bool again = o->repeat || !o->no_time;
    while (again &&
           (o->repeat ? more < o->repeat : more < MORE && (!more || now_seconds() < end))) {
        double t = now_seconds();
        if (!session_run(s)) return EXIT_INPUT;
        best = fmin(best, now_seconds() - t);
        more++;
    }
    printf("kernel%s%s\n", *oracle_name(s->oracle) ? " " : "", oracle_name(s->oracle));
    print_inputs(s);
    for (int i = 0; i < s->nout; i++) print_output(s, i, o->print);
    if (!o->no_time) print_times(s, planned, first, best, more);
    return !o->check || session_check(s, false, &worst, &undecided) ? EXIT_OK : EXIT_CHECK;
}

int cmd_run(const struct options *o) {
    struct session s;
    int code = session_open(&s, o) ? run(&s, o) : EXIT_INPUT;
    session_close(&s);
    return code;
}
