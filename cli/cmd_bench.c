/* dvm bench: how long compiling and running take, beside a copy of as many bytes on as many threads. */
#include "cli.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { COMPILES = 201, RUNS = 2000 };
static const double BUDGET = 0.5; /* seconds for each measurement */

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print_times(const char *what, double *t, int n, double bytes) {
    qsort(t, (size_t)n, sizeof *t, by_value);
    printf("  %-9s %10.2f us  median %10.2f  90%% %10.2f", what, t[0] * 1e6, t[n / 2] * 1e6,
           t[n * 9 / 10] * 1e6);
    if (bytes > 0) printf("  %8.2f GB/s", bytes / t[0] * 1e-9);
    printf("\n");
}

/* ------------------------------------------------------------------ the copy */

struct copy {
    char *from, *to;
    size_t bytes;
    int threads;
    bool stop;
    pthread_barrier_t gate;
};
struct part {
    struct copy *c;
    int i;
};

static void copy_part(const struct copy *c, int i) {
    size_t n = c->bytes / (size_t)c->threads, at = n * (size_t)i;
    memcpy(c->to + at, c->from + at, i == c->threads - 1 ? c->bytes - at : n);
}

static void *copy_thread(void *arg) {
    struct part *p = arg;
    for (;;) {
        pthread_barrier_wait(&p->c->gate);
        if (p->c->stop) return NULL;
        copy_part(p->c, p->i);
        pthread_barrier_wait(&p->c->gate);
    }
}

static int time_copies(struct copy *c, double *t) {
    pthread_t id[64];
    struct part part[64];
    int n = 0;
    if (c->threads > 64) c->threads = 64;
    pthread_barrier_init(&c->gate, NULL, (unsigned)c->threads);
    for (int i = 1; i < c->threads; i++) {
        part[i] = (struct part){c, i};
        pthread_create(&id[i], NULL, copy_thread, &part[i]);
    }
    for (double end = now_seconds() + BUDGET; n < RUNS && (n < 5 || now_seconds() < end); n++) {
        double t0 = now_seconds();
        if (c->threads > 1) pthread_barrier_wait(&c->gate);
        copy_part(c, 0);
        if (c->threads > 1) pthread_barrier_wait(&c->gate);
        t[n] = now_seconds() - t0;
    }
    c->stop = true;
    if (c->threads > 1) pthread_barrier_wait(&c->gate);
    for (int i = 1; i < c->threads; i++) pthread_join(id[i], NULL);
    pthread_barrier_destroy(&c->gate);
    return n;
}

/* ------------------------------------------------------------------ the kernel */

static int time_compiles(struct session *s, double *t, double *plan) {
    int n = 0;
    for (double end = now_seconds() + BUDGET; n < COMPILES && (n < 5 || now_seconds() < end); n++) {
        dvm_kernel *k = NULL;
        dvm_stats st = {0};
        double t0 = now_seconds();
        if (dvm_compile(s->graph, &k)) return 0;
        t[n] = now_seconds() - t0;
        if (dvm_run(k, s->nin, s->in, s->nout, s->out)) n = -1;
        dvm_kernel_stats(k, &st);
        dvm_kernel_destroy(&k);
        if (n < 0) return 0;
        plan[n] = (double)st.compile_ns * 1e-9;
    }
    return n;
}

static int time_runs(struct session *s, double *t) {
    int n = 0;
    for (double end = now_seconds() + BUDGET; n < RUNS && (n < 5 || now_seconds() < end); n++) {
        double t0 = now_seconds();
        if (dvm_run(s->kernel, s->nin, s->in, s->nout, s->out)) return 0;
        t[n] = now_seconds() - t0;
    }
    return n;
}

static int bench(struct session *s) {
    static double t[RUNS], plan[RUNS];
    dvm_stats st = {0};
    double t0 = now_seconds();
    if (!session_bind(s) || !session_run(s)) return EXIT_INPUT;
    double first = now_seconds() - t0;
    printf("kernel %s (%s, %d thread%s)\n", oracle_name(s->oracle), dvm_ctx_device(s->ctx),
           dvm_ctx_threads(s->ctx), dvm_ctx_threads(s->ctx) == 1 ? "" : "s");
    int n = time_compiles(s, t, plan);
    if (n <= 0) return complain_dvm(NULL), EXIT_INPUT;
    printf("  first     %10.2f us  (sizes, arguments, compile and run)\n", first * 1e6);
    print_times("compile", t, n, 0);
    print_times("plan", plan, n, 0);
    dvm_kernel_stats(s->kernel, &st);
    double bytes = (double)st.bytes_minimum;
    if ((n = time_runs(s, t)) <= 0) return complain_dvm(NULL), EXIT_INPUT;
    print_times("run", t, n, bytes);
    double run = t[0];
    struct copy c = {.bytes = (size_t)(bytes / 2) + 1, .threads = dvm_ctx_threads(s->ctx)};
    c.from = malloc(c.bytes);
    c.to = malloc(c.bytes);
    if (!c.from || !c.to) return complain("out of memory"), EXIT_INPUT;
    memset(c.from, 1, c.bytes);
    memset(c.to, 2, c.bytes);
    n = time_copies(&c, t);
    print_times("copy", t, n, bytes);
    printf("  the run takes %.2f x the time of the copy of its %.0f bytes; moved %lld, unfused "
           "%lld; %lld kernel%s\n",
           run / t[0], bytes, (long long)st.bytes_moved, (long long)st.bytes_unfused,
           (long long)st.kernels, st.kernels == 1 ? "" : "s");
    free(c.from);
    free(c.to);
    return EXIT_OK;
}

int cmd_bench(const struct options *o) {
    struct session s;
    int code = session_open(&s, o) ? bench(&s) : EXIT_INPUT;
    session_close(&s);
    return code;
}
