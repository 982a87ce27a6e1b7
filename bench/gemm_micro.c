/* The matrix-multiply engine for bench/gemm_bench.py: a small shared library around dvm_gemm_run, and the rate at which
 * this core does fused multiply-adds when nothing else is asked of it; for bench/attn_bench.py also what an exponential of its
 * tile loop takes.
 *
 *   cc -O2 -std=gnu17 -shared -fPIC -Isrc -Iinclude bench/gemm_micro.c build/libdvm.a -lm -lpthread -o gemm_micro.so */
#include <string.h>
#include <time.h>

#include "base/cpuflags.h"
#include "ops/attn/attn_call.h"
#include "ops/gemm/gemm.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define EXPORT __attribute__((visibility("default")))

static const struct dvm_mem mem = {dvm_mem_system, NULL};
static struct dvm_gemm_isa isa;
static struct dvm_pool *pool;

EXPORT int gm_open(const char *level, int threads) {
    if (pool) dvm_pool_destroy(&pool);
    if (dvm_gemm_isa(level, &isa) != DVM_OK) return 1;
    return dvm_pool_create(&mem, threads, NULL, NULL, &pool) != DVM_OK;
}
EXPORT int gm_dot(int on) { return isa.dot = isa.dot && on; }

static double now(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Best of reps, in seconds: processor time of this thread, or of the clock if wall. */
static double best_of(const struct dvm_gemm *g, int wall, int reps) {
    clockid_t clock = wall ? CLOCK_MONOTONIC : CLOCK_THREAD_CPUTIME_ID;
    double best = 1e30;
    for (int r = 0; r < reps; r++) {
        double t = now(clock);
        if (dvm_gemm_run(g, &isa, pool, &mem, NULL) != DVM_OK) return -1;
        t = now(clock) - t;
        if (t < best) best = t;
    }
    return best;
}

/* Element strides. */
EXPORT double gm_mm(const void *a, int64_t ars, int64_t acs, const void *b, int64_t brs,
                    int64_t bcs, void *c, int dtype, int64_t m, int64_t n, int64_t k, int64_t batch,
                    int wall, int reps) {
    int64_t e = (int64_t)dvm_dtype_size((dvm_dtype)dtype);
    struct dvm_gemm g = {.m = m,
                         .n = n,
                         .k = k,
                         .lanes = m == 1 || n == 1,
                         .nbatch = 1,
                         .bdim = {batch},
                         .a = {a, ars * e, acs * e, {m * k * e}, (dvm_dtype)dtype},
                         .b = {b, brs * e, bcs * e, {k * n * e}, (dvm_dtype)dtype},
                         .out = {c, n * e, e, {m * n * e}, (dvm_dtype)dtype}};
    return best_of(&g, wall, reps);
}

/* Groups of rows: ends of each in a, one matrix of b (k x n, dense) a group. */
EXPORT double gm_groups(const void *a, const void *b, void *c, int dtype, const int64_t *ends,
                        int64_t groups, int64_t m, int64_t n, int64_t k, int wall, int reps) {
    int64_t e = (int64_t)dvm_dtype_size((dvm_dtype)dtype);
    struct dvm_gemm g = {.m = m,
                         .n = n,
                         .k = k,
                         .form = DVM_GEMM_GROUPM,
                         .ends = ends,
                         .ngroup = groups,
                         .a = {a, k * e, e, {0}, (dvm_dtype)dtype},
                         .b = {b, n * e, e, {k * n * e}, (dvm_dtype)dtype},
                         .out = {c, n * e, e, {0}, (dvm_dtype)dtype}};
    return best_of(&g, wall, reps);
}

/* ---- floor: independent multiply-adds in registers, flop per second */

#if defined(__x86_64__)
#define PEAK(name, isa_, V, zero, op, flop)                                              \
    __attribute__((target(isa_))) static double name(void) {                             \
        enum { N = 200000 };                                                             \
        V a0 = zero, a1 = zero, a2 = zero, a3 = zero, a4 = zero, a5 = zero, a6 = zero;   \
        V a7 = zero, a8 = zero, a9 = zero, x = zero;                                     \
        double best = 1e30;                                                              \
        for (int r = 0; r < 30; r++) {                                                   \
            double t = now(CLOCK_THREAD_CPUTIME_ID);                                     \
            for (int i = 0; i < N; i++) {                                                \
                a0 = op(a0), a1 = op(a1), a2 = op(a2), a3 = op(a3), a4 = op(a4);         \
                a5 = op(a5), a6 = op(a6), a7 = op(a7), a8 = op(a8), a9 = op(a9);         \
                __asm__ volatile("" : "+v"(a0), "+v"(a1), "+v"(a2), "+v"(a3), "+v"(a4)); \
                __asm__ volatile("" : "+v"(a5), "+v"(a6), "+v"(a7), "+v"(a8), "+v"(a9)); \
            }                                                                            \
            t = now(CLOCK_THREAD_CPUTIME_ID) - t;                                        \
            if (t < best) best = t;                                                      \
        }                                                                                \
        return 10.0 * N * (flop) / best;                                                 \
    }
#define F512(v) _mm512_fmadd_ps(x, x, v)
#define F256(v) _mm256_fmadd_ps(x, x, v)
#define D512(v)                                                                             \
    _mm512_dpbf16_ps(v, (__m512bh)_mm512_castps_si512(x), (__m512bh)_mm512_castps_si512(x))
PEAK(peak512, "avx512f", __m512, _mm512_setzero_ps(), F512, 32)
PEAK(peak256, "avx2,fma", __m256, _mm256_setzero_ps(), F256, 16)
PEAK(peak_dot, "avx512f,avx512bf16", __m512, _mm512_setzero_ps(), D512, 64)

EXPORT double gm_peak(int dtype) {
    uint32_t f = dvm_cpu_flags();
    if (dtype == DVM_BF16 && (f & DVM_CPU_AVX512_BF16)) return peak_dot();
    if (f & DVM_CPU_AVX512) return peak512();
    return f & DVM_CPU_AVX2 ? peak256() : 0;
}
#else
EXPORT double gm_peak(int dtype) {
    (void)dtype;
    return 0;
}
#endif

/* Seconds for one exponential of attention's weights, in the first-level cache. */
EXPORT double gm_exps(void) {
    enum { N = 2048, TIMES = 200 };
    static float s[N];
    struct attn_isa at;
    if (dvm_attn_isa(NULL, &at) != DVM_OK) return -1;
    double t = now(CLOCK_THREAD_CPUTIME_ID);
    for (int i = 0; i < TIMES; i++) at.k->exps(s, 1, N);
    return (now(CLOCK_THREAD_CPUTIME_ID) - t) / (TIMES * N);
}
