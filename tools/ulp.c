/*
 * ulp - how far the expansions are from the truth, over every fp32 input.
 *
 *   ulp [NAME|all] [--stride N] [--threads N] [--pairs N]
 *
 * One line a function: largest error in units in the last place of the exact value, the input that
 * has it, the bound of the function's class, a verdict, and a hash of all results (NaNs alike), by
 * which two builds or two machines are compared. The reference is the C library in double, in long
 * double wherever a new maximum is about to be recorded. A wrong NaN, infinity, sign of zero or
 * conversion counts as an infinite error. Exit status 1 when a bound is broken.
 *
 * --stride N takes one input of N, at a pseudo-random place within each N. pow takes --pairs random
 * pairs (200 million by default, divided by the stride) and all pairs of a list of special values.
 */
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define XFN(n) xc_##n
#include "code/expand_c.h"
#include "code/expand.h"

enum { BLOCK = 4096 };

/* ------------------------------------------------------------------------------- references */

static double ref_sigmoid(double x) {
    double e = exp(x);
    return x >= 0 ? 1 / (1 + exp(-x)) : x < 0 ? e / (1 + e) : x;
}

static long double ref_sigmoidl(long double x) {
    long double e = expl(x);
    return x >= 0 ? 1 / (1 + expl(-x)) : x < 0 ? e / (1 + e) : x;
}

static double ref_rsqrt(double x) { return 1 / sqrt(x); }

static long double ref_rsqrtl(long double x) { return 1 / sqrtl(x); }

/* Rounding to p bits with least exponent emin, half to even, infinity from max up. */
static double round_to(double x, int p, int emin, double max) {
    if (!(fabs(x) < INFINITY) || x == 0) return x;
    int e = ilogb(x);
    int q = (e < emin ? emin : e) - p + 1;
    double r = ldexp(rint(ldexp(x, -q)), q);
    return fabs(r) > max ? copysign(INFINITY, x) : r;
}

static double f16_value(uint32_t h) {
    int e = (int)(h >> 10 & 31), m = (int)(h & 1023);
    double v = e == 31 ? (m ? NAN : INFINITY) : e ? ldexp(1024 + m, e - 25) : ldexp(m, -24);
    return h & 0x8000 ? -v : v;
}

static double bf16_value(uint32_t h) {
    int e = (int)(h >> 7 & 255), m = (int)(h & 127);
    double v = e == 255 ? (m ? NAN : INFINITY) : e ? ldexp(128 + m, e - 134) : ldexp(m, -133);
    return h & 0x8000 ? -v : v;
}

static int same(double a, double b) {
    return a == b ? !signbit(a) == !signbit(b) : a != a && b != b;
}

/* --------------------------------------------------------------------------------- functions */

#define KERNEL(name)                                                     \
    static void run_##name(const float *restrict x, float *restrict r) { \
        for (int i = 0; i < BLOCK; i++) r[i] = xc_##name(x[i]);          \
    }
KERNEL(exp)
KERNEL(exp2)
KERNEL(expm1)
KERNEL(log)
KERNEL(log2)
KERNEL(log1p)
KERNEL(tanh)
KERNEL(sigmoid)
KERNEL(erf)
KERNEL(rsqrt)
KERNEL(sin)
KERNEL(cos)
KERNEL(sin_small)
KERNEL(cos_small)

static void run_pow(const float *restrict x, const float *restrict y, float *restrict r) {
    for (int i = 0; i < BLOCK; i++) r[i] = xc_pow(x[i], y[i]);
}

struct func {
    const char *name;
    double bound;
    void (*run)(const float *restrict, float *restrict);
    double (*ref)(double);
    long double (*refl)(long double);
    float limit; /* inputs beyond this magnitude are not asked for */
};

static const struct func funcs[] = {
    {"exp", 1, run_exp, exp, expl, INFINITY},
    {"exp2", 1, run_exp2, exp2, exp2l, INFINITY},
    {"expm1", 1, run_expm1, expm1, expm1l, INFINITY},
    {"log", 1, run_log, log, logl, INFINITY},
    {"log2", 1, run_log2, log2, log2l, INFINITY},
    {"log1p", 1, run_log1p, log1p, log1pl, INFINITY},
    {"tanh", 1, run_tanh, tanh, tanhl, INFINITY},
    {"sigmoid", 1, run_sigmoid, ref_sigmoid, ref_sigmoidl, INFINITY},
    {"erf", 1, run_erf, erf, erfl, INFINITY},
    {"rsqrt", 1, run_rsqrt, ref_rsqrt, ref_rsqrtl, INFINITY},
    {"sin", 2, run_sin, sin, sinl, INFINITY},
    {"cos", 2, run_cos, cos, cosl, INFINITY},
    {"sin_small", 2, run_sin_small, sin, sinl, X_TRIG_BOUND},
    {"cos_small", 2, run_cos_small, cos, cosl, X_TRIG_BOUND},
};
enum { NFUNC = sizeof funcs / sizeof *funcs };

/* The conversions: 1 when right. */
static int ok_f16(uint32_t u) {
    float x = xc_float((int32_t)u);
    uint32_t h = (uint32_t)xc_f32_to_f16(x);
    return x != x ? h == 0x7e00 : h < 65536 && same(f16_value(h), round_to(x, 11, -14, 65504));
}

static int ok_bf16(uint32_t u) {
    float x = xc_float((int32_t)u);
    uint32_t h = (uint32_t)xc_f32_to_bf16(x);
    double max = ldexp(255, 120);
    return x != x ? h == 0x7fc0 : h < 65536 && same(bf16_value(h), round_to(x, 8, -126, max));
}

static int ok_from_f16(uint32_t u) {
    return same(xc_f16_to_f32((int32_t)(u & 0xffff)), f16_value(u & 0xffff));
}

static int ok_from_bf16(uint32_t u) {
    return same(xc_bf16_to_f32((int32_t)(u & 0xffff)), bf16_value(u & 0xffff));
}

static int ok_i32(uint32_t u) {
    float x = xc_float((int32_t)u);
    int32_t want = x != x ? 0 : x >= 0x1p31f ? INT32_MAX : x < -0x1p31f ? INT32_MIN : (int32_t)x;
    return xc_f32_to_i32(x) == want;
}

static int ok_i64(uint32_t u) {
    float x = xc_float((int32_t)u);
    int64_t want = x != x ? 0 : x >= 0x1p63f ? INT64_MAX : x < -0x1p63f ? INT64_MIN : (int64_t)x;
    return xc_f32_to_i64(x) == want;
}

static const struct conv {
    const char *name;
    int (*ok)(uint32_t);
} convs[] = {
    {"f32_to_f16", ok_f16},        {"f16_to_f32", ok_from_f16}, {"f32_to_bf16", ok_bf16},
    {"bf16_to_f32", ok_from_bf16}, {"f32_to_i32", ok_i32},      {"f32_to_i64", ok_i64},
};
enum { NCONV = sizeof convs / sizeof *convs };

/* -------------------------------------------------------------------------------- error of r */

/* |r - ref| in units in the last place of ref; an infinite result stands at 2^128. */
static long double error_of(float r, long double ref) {
    if (ref != ref || r != r) return ref != ref && r != r ? 0 : INFINITY;
    if (!signbit(ref) != !signbit(r)) return INFINITY;
    long double a = fabsl(ref), b = r < 0 ? -r : r;
    if (a == 0 || a == INFINITY) return b == a ? 0 : INFINITY;
    if (b == INFINITY) {
        if (a >= 0x1p128L) return 0;
        b = 0x1p128L;
    }
    int e = ilogbl(a);
    e = e < -126 ? -126 : e > 127 ? 127 : e;
    return ldexpl(fabsl(a - b), 23 - e);
}

/* The same in double, fast, or negative where only error_of can tell. */
static double error_fast(float r, double ref) {
    if (!(r - r == 0)) return r == (float)ref || (r != r && ref != ref) ? 0 : -1;
    uint64_t u;
    memcpy(&u, &ref, sizeof u);
    int e = (int)(u >> 52 & 2047) - 1023;
    if (e > 127 || u >> 63 != (uint32_t)xc_bits(r) >> 31) return -1;
    uint64_t s = (uint64_t)(1023 + 23 - (e < -126 ? -126 : e)) << 52;
    double scale;
    memcpy(&scale, &s, sizeof scale);
    return fabs((double)r - ref) * scale;
}

struct worst {
    long double err;
    float x, y;
    uint64_t hash;
};

static uint64_t mix(uint32_t in, uint32_t in2, float r) {
    uint32_t u = r != r ? 0x7fc00000u : (uint32_t)xc_bits(r);
    uint64_t h = ((uint64_t)in << 32 | u) ^ (uint64_t)in2 * 0x9e3779b97f4a7c15u;
    h *= 0xff51afd7ed558ccdu;
    h ^= h >> 32;
    return h * 0xc4ceb9fe1a85ec53u;
}

/* ------------------------------------------------------------------------------------ inputs */

static const float specials[] = {
    0.0f,
    0x1p-149f,
    0x1p-148f,
    0x1.8p-140f,
    0x1.fffffcp-127f,
    0x1p-126f,
    0x1.8p-126f,
    0x1p-100f,
    0x1p-64f,
    0x1p-25f,
    0x1p-24f,
    0x1p-23f,
    1e-10f,
    1e-5f,
    0.1f,
    0.25f,
    1.0f / 3,
    0.5f,
    0x1.6a09e6p-1f,
    0.75f,
    0x1.fffffcp-1f,
    0x1.fffffep-1f,
    1.0f,
    0x1.000002p0f,
    0x1.000004p0f,
    0x1.6a09e6p0f,
    1.5f,
    0x1.fffffep0f,
    2.0f,
    2.5f,
    3.0f,
    4.0f,
    5.0f,
    7.0f,
    10.0f,
    33.0f,
    126.0f,
    127.0f,
    128.0f,
    149.0f,
    150.0f,
    151.0f,
    1000.0f,
    65519.996f,
    65520.0f,
    0x1p22f,
    0x1.000001p22f,
    0x1.000002p23f,
    0x1.fffffep23f,
    0x1p24f,
    0x1.000002p24f,
    0x1p30f,
    0x1.fffffep30f,
    0x1p31f,
    0x1p32f,
    0x1p62f,
    0x1p63f,
    0x1p64f,
    0x1p100f,
    0x1.fffffep126f,
    0x1p127f,
    0x1.fffffep127f,
    INFINITY,
};
enum { NSPEC = sizeof specials / sizeof *specials, NSPECIAL = 2 * NSPEC + 1 };

static float special(uint64_t i) {
    return i >= 2 * NSPEC ? NAN : i & 1 ? -specials[i / 2] : specials[i / 2];
}

static uint64_t rnd(uint64_t *s) {
    uint64_t z = *s += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static float uniform(uint64_t *s, float lo, float hi) {
    return lo + (hi - lo) * ((float)(rnd(s) >> 40) * 0x1p-24f);
}

/* Input k: the special values, then one input of every stride. */
static float input(uint64_t k, uint64_t stride) {
    if (k < NSPECIAL) return special(k);
    k -= NSPECIAL;
    uint64_t s = k;
    return xc_float((int32_t)(uint32_t)(k * stride + (stride > 1 ? rnd(&s) % stride : 0)));
}

/* Pair k: all pairs of special values; any bits; results over the whole range; x near 1; simple y. */
static void input_pair(uint64_t k, float *x, float *y) {
    if (k < NSPECIAL * NSPECIAL) {
        *x = special(k / NSPECIAL);
        *y = special(k % NSPECIAL);
        return;
    }
    uint64_t s = k;
    uint64_t b = rnd(&s);
    float target = uniform(&s, -151, 129);
    switch (k % 8) {
    case 0:
        *x = xc_float((int32_t)(uint32_t)b);
        *y = xc_float((int32_t)(uint32_t)(b >> 32));
        return;
    case 1:
    case 2:
        *x = xc_float((int32_t)(b & 0x7fffffff));
        *y = target / xc_log2(*x);
        return;
    case 3:
    case 4:
        *x = uniform(&s, 0.5f, 2.0f);
        *y = target / xc_log2(*x);
        return;
    case 5:
        *x = xc_float((int32_t)(0x3f800000 + (int32_t)(b % 200001) - 100000));
        *y = target / xc_log2(*x);
        return;
    case 6:
        *x = xc_float((int32_t)(uint32_t)b);
        *y = (float)((int)(b >> 32 & 127) - 64) * 0.25f;
        return;
    default:
        *x = uniform(&s, -100, 100);
        *y = (float)((int)(b & 127) - 64);
        return;
    }
}

/* ----------------------------------------------------------------------------------- measure */

struct job {
    const struct func *f; /* a function, or */
    const struct conv *c; /* a conversion, or */
    int pow;              /* pow */
    uint64_t total, stride;
    _Atomic uint64_t next;
    pthread_mutex_t lock;
    struct worst w;
};

static void do_func(struct job *j, uint64_t base, int n, struct worst *w) {
    const struct func *f = j->f;
    float x[BLOCK], r[BLOCK];
    for (int i = 0; i < BLOCK; i++) {
        x[i] = input(base + (uint64_t)i, j->stride);
        if (f->limit < INFINITY && !(fabsf(x[i]) <= f->limit)) x[i] = 0;
    }
    f->run(x, r);
    for (int i = 0; i < n; i++) {
        w->hash += mix((uint32_t)xc_bits(x[i]), 0, r[i]);
        double e = error_fast(r[i], f->ref(x[i]));
        if (e >= 0 && e < (double)w->err - 1e-6) continue;
        long double el = error_of(r[i], f->refl(x[i]));
        if (el > w->err) w->err = el, w->x = x[i];
    }
}

static void do_pow(uint64_t base, int n, struct worst *w) {
    float x[BLOCK], y[BLOCK], r[BLOCK];
    for (int i = 0; i < BLOCK; i++) input_pair(base + (uint64_t)i, &x[i], &y[i]);
    run_pow(x, y, r);
    for (int i = 0; i < n; i++) {
        w->hash += mix((uint32_t)xc_bits(x[i]), (uint32_t)xc_bits(y[i]), r[i]);
        double e = error_fast(r[i], pow(x[i], y[i]));
        if (e >= 0 && e < (double)w->err - 1e-6) continue;
        /* glibc's powl on x86 is wrong where y does not fit 64 bits; its pow is not. */
        long double ref = fabsf(y[i]) < 0x1p62f ? powl(x[i], y[i]) : pow(x[i], y[i]);
        long double el = error_of(r[i], ref);
        if (el > w->err) w->err = el, w->x = x[i], w->y = y[i];
    }
}

static void do_conv(struct job *j, uint64_t base, int n, struct worst *w) {
    for (int i = 0; i < n; i++) {
        float x = input(base + (uint64_t)i, j->stride);
        if (!j->c->ok((uint32_t)xc_bits(x)) && w->err == 0) w->err = INFINITY, w->x = x;
    }
}

static void *work(void *arg) {
    struct job *j = arg;
    struct worst w = {0};
    for (;;) {
        uint64_t k = atomic_fetch_add(&j->next, BLOCK);
        if (k >= j->total) break;
        int n = j->total - k < BLOCK ? (int)(j->total - k) : BLOCK;
        if (j->f)
            do_func(j, k, n, &w);
        else if (j->c)
            do_conv(j, k, n, &w);
        else
            do_pow(k, n, &w);
    }
    pthread_mutex_lock(&j->lock);
    j->w.hash += w.hash;
    int first = w.err == j->w.err && w.err > 0 && xc_bits(w.x) < xc_bits(j->w.x);
    if (w.err > j->w.err || first) j->w.err = w.err, j->w.x = w.x, j->w.y = w.y;
    pthread_mutex_unlock(&j->lock);
    return NULL;
}

/* Row number i of the table: its name and bound; with threads > 0 also its measurement. */
enum { NROW = NFUNC + 1 + NCONV };

static const char *row(int i, int threads, uint64_t stride, uint64_t pairs, double *bound,
                       struct worst *w) {
    struct job j = {.stride = stride, .total = (UINT64_C(1) << 32) / stride + NSPECIAL};
    const char *name;
    if (i < NFUNC) {
        j.f = &funcs[i];
        name = j.f->name;
        *bound = j.f->bound;
    } else if (i == NFUNC) {
        j.pow = 1;
        j.total = pairs / stride + NSPECIAL * NSPECIAL;
        name = "pow";
        *bound = 2;
    } else {
        j.c = &convs[i - NFUNC - 1];
        name = j.c->name;
        *bound = 0;
    }
    if (threads == 0) return name;
    pthread_t t[64];
    int started = 0;
    pthread_mutex_init(&j.lock, NULL);
    while (started < threads - 1 && pthread_create(&t[started], NULL, work, &j) == 0) started++;
    work(&j);
    while (started > 0) pthread_join(t[--started], NULL);
    pthread_mutex_destroy(&j.lock);
    *w = j.w;
    return name;
}

#ifndef ULP_NO_MAIN
int main(int argc, char **argv) {
    const char *which = "all";
    uint64_t stride = 1, pairs = 200000000;
    int threads = 2;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--stride") && i + 1 < argc) {
            stride = strtoull(argv[++i], NULL, 0);
        } else if (!strcmp(argv[i], "--threads") && i + 1 < argc) {
            threads = atoi(argv[++i]);
        } else if (!strcmp(argv[i], "--pairs") && i + 1 < argc) {
            pairs = strtoull(argv[++i], NULL, 0);
        } else if (argv[i][0] != '-') {
            which = argv[i];
        } else {
            fprintf(stderr, "usage: ulp [NAME|all] [--stride N] [--threads N] [--pairs N]\n");
            return 2;
        }
    }
    if (stride < 1 || threads < 1 || threads > 64 || pairs < 1) {
        fprintf(stderr, "ulp: --stride and --pairs start at 1, --threads is 1 to 64\n");
        return 2;
    }

    int all = !strcmp(which, "all"), found = 0, bad = 0;
    printf("%-12s %9s  %-32s %5s  %-4s  %s\n", "function", "max ulp", "worst input", "bound", "",
           "bits");
    for (int i = 0; i < NROW; i++) {
        double bound;
        struct worst w;
        const char *name = row(i, 0, stride, pairs, &bound, &w);
        if (!all && strcmp(name, which)) continue;
        row(i, threads, stride, pairs, &bound, &w);
        int fail = !(w.err <= bound);
        char in[64];
        int len = snprintf(in, sizeof in, "%a", (double)w.x);
        if (i == NFUNC) snprintf(in + len, sizeof in - (size_t)len, ",%a", (double)w.y);
        printf("%-12s %9.6Lf  %-32s %5.1f  %-4s  %016" PRIx64 "\n", name, w.err, in, bound,
               fail ? "FAIL" : "ok", w.hash);
        fflush(stdout);
        bad |= fail;
        found = 1;
    }
    if (!found) fprintf(stderr, "ulp: no function named '%s'\n", which);
    return found ? bad : 2;
}
#endif
