/* Micro benchmark of the CPU tile VM: one thread, strips built by hand, each against one fused C loop that the
 * compiler vectorised for this processor (the floor), and against memcpy. Built by hand, with the flags of the floor:
 *
 *   cc -O3 -march=native -mprefer-vector-width=512 -ffp-contract=off -fno-math-errno -fno-trapping-math -std=gnu17 \
 *      -Isrc -Iinclude bench/vm_micro.c build/libdvm.a -lm -lpthread -ldl -o vm_micro
 *   ./vm_micro [isa|all] [part of a case's name] */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "timing.h"
#include "vm/dev.h"

/* ---- strips by hand */

struct prog {
    struct dvm_opnd opnd[16];
    struct dvm_ins ins[256];
    uint64_t lit[16];
    struct dvm_strip s;
    struct dvm_opnd_arg arg[16];
};

static void start(struct prog *p, int mode) {
    memset(p, 0, sizeof *p);
    p->s = (struct dvm_strip){.mode = (uint8_t)mode, .opnd = p->opnd, .lit = p->lit, .ins = p->ins};
}
static int ins(struct prog *p, int op, int type, int a, int b, int c) {
    p->ins[p->s.nins] =
        (struct dvm_ins){(uint8_t)op, (uint8_t)type, (uint16_t)a, (uint16_t)b, (uint16_t)c};
    return p->s.nins++;
}
static int opnd(struct prog *p, int dtype, int kind, int role, void *ptr, int64_t rs, int64_t cs) {
    p->opnd[p->s.nopnd] = (struct dvm_opnd){(uint8_t)dtype, (uint8_t)kind, (uint8_t)role, 0};
    p->arg[p->s.nopnd] = (struct dvm_opnd_arg){.ptr = ptr, .rs = rs, .cs = cs};
    return p->s.nopnd++;
}
static int load(struct prog *p, int dtype, void *ptr, int64_t n) {
    int64_t e = (int64_t)dvm_dtype_size((dvm_dtype)dtype);
    return ins(p, DVM_BC_LOAD, dvm_vt_of(dtype),
               opnd(p, dtype, DVM_OPND_CONTIG, DVM_ROLE_LOAD, ptr, n * e, e), 0, 0);
}
static void store(struct prog *p, int dtype, int v, void *ptr, int64_t n) {
    int64_t e = (int64_t)dvm_dtype_size((dvm_dtype)dtype);
    ins(p, DVM_BC_STORE, dvm_vt_of(dtype),
        opnd(p, dtype, DVM_OPND_CONTIG, DVM_ROLE_STORE, ptr, n * e, e), v, 0);
}
static int lit(struct prog *p, float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    p->lit[p->s.nlit] = u;
    return ins(p, DVM_BC_LIT, DVM_VT_F32, p->s.nlit++, 0, 0);
}
static int f1(struct prog *p, int op, int a) { return ins(p, op, DVM_VT_F32, a, 0, 0); }
static int f2(struct prog *p, int op, int a, int b) { return ins(p, op, DVM_VT_F32, a, b, 0); }
static void fold(struct prog *p, int red, int v, void *ptr, int64_t rs, int64_t cs) {
    ins(p, DVM_BC_FOLD, DVM_VT_F32, v, red,
        opnd(p, DVM_F32, rs ? DVM_OPND_ROW : DVM_OPND_CONTIG, DVM_ROLE_FOLD, ptr, rs, cs));
}

/* ---- memory */

enum { BIG = 1 << 24 };
static float *X, *Y, *Z, *W;
static uint16_t *HX, *HY, *HZ;
static float *V; /* short vectors */

static void *big(size_t bytes) {
    char *p = aligned_alloc(64, bytes);
    memset(p, 0, bytes);
    return p;
}

/* ---- cases: build a strip for m x n and run the same as a loop */

#define NOINLINE __attribute__((noinline))

static void b_mul_add(struct prog *p, int64_t m, int64_t n) {
    (void)m;
    start(p, DVM_MODE_MAP);
    int x = load(p, DVM_F32, X, n), y = load(p, DVM_F32, Y, n);
    store(p, DVM_F32, f2(p, DVM_OP_ADD, f2(p, DVM_OP_MUL, x, y), x), Z, n);
}
static NOINLINE void c_mul_add(int64_t m, int64_t n) {
    float *restrict x = X, *restrict y = Y, *restrict z = Z;
    for (int64_t i = 0; i < m * n; i++) z[i] = x[i] * y[i] + x[i];
}

static void b_relu3(struct prog *p, int64_t m, int64_t n) {
    (void)m;
    start(p, DVM_MODE_MAP);
    int x = load(p, DVM_F32, X, n), y = load(p, DVM_F32, Y, n);
    store(p, DVM_F32, f1(p, DVM_OP_RELU, f2(p, DVM_OP_ADD, f2(p, DVM_OP_MUL, x, y), x)), Z, n);
}
static NOINLINE void c_relu3(int64_t m, int64_t n) {
    float *restrict x = X, *restrict y = Y, *restrict z = Z;
    for (int64_t i = 0; i < m * n; i++) {
        float t = x[i] * y[i] + x[i];
        z[i] = t <= 0 ? 0 : t;
    }
}

static void b_ops8(struct prog *p, int64_t m, int64_t n) {
    (void)m;
    start(p, DVM_MODE_MAP);
    int x = load(p, DVM_F32, X, n), y = load(p, DVM_F32, Y, n);
    int a = f2(p, DVM_OP_MUL, x, y), b = f2(p, DVM_OP_ADD, a, x), c = f2(p, DVM_OP_SUB, b, y),
        d = f2(p, DVM_OP_MUL, c, c);
    int e = f2(p, DVM_OP_MAX, d, a), f = f2(p, DVM_OP_ADD, e, b), g = f1(p, DVM_OP_SQRT, f);
    store(p, DVM_F32, f2(p, DVM_OP_MUL, g, lit(p, 0.5f)), Z, n);
}
static NOINLINE void c_ops8(int64_t m, int64_t n) {
    float *restrict x = X, *restrict y = Y, *restrict z = Z;
    for (int64_t i = 0; i < m * n; i++) {
        float a = x[i] * y[i], b = a + x[i], c = b - y[i], d = c * c, e = d > a || d != d ? d : a;
        z[i] = sqrtf(e + b) * 0.5f;
    }
}

static void b_copy(struct prog *p, int64_t m, int64_t n) {
    (void)m;
    start(p, DVM_MODE_MAP);
    store(p, DVM_F32, load(p, DVM_F32, X, n), Z, n);
}
static NOINLINE void c_copy(int64_t m, int64_t n) { memcpy(Z, X, (size_t)(m * n) * 4); }

static void b_bf16_add(struct prog *p, int64_t m, int64_t n) {
    (void)m;
    start(p, DVM_MODE_MAP);
    int x = load(p, DVM_BF16, HX, n), y = load(p, DVM_BF16, HY, n);
    store(p, DVM_BF16, f2(p, DVM_OP_ADD, x, y), HZ, n);
}
static NOINLINE void c_bf16_add(int64_t m, int64_t n) {
    uint16_t *restrict x = HX, *restrict y = HY, *restrict z = HZ;
    for (int64_t i = 0; i < m * n; i++) {
        uint32_t ux = (uint32_t)x[i] << 16, uy = (uint32_t)y[i] << 16, u;
        float fx, fy, f;
        memcpy(&fx, &ux, 4);
        memcpy(&fy, &uy, 4);
        f = fx + fy;
        memcpy(&u, &f, 4);
        z[i] = (uint16_t)((u & 0x7fffffff) > 0x7f800000 ? 0x7fc0
                                                        : (u + 0x7fff + ((u >> 16) & 1)) >> 16);
    }
}

static void b_bias(struct prog *p, int64_t m, int64_t n) {
    (void)m;
    start(p, DVM_MODE_MAP);
    int x = load(p, DVM_F32, X, n), v = load(p, DVM_F32, V, 0);
    store(p, DVM_F32, f1(p, DVM_OP_RELU, f2(p, DVM_OP_ADD, x, v)), Z, n);
}
static NOINLINE void c_bias(int64_t m, int64_t n) {
    float *restrict x = X, *restrict v = V, *restrict z = Z;
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            float t = x[i * n + j] + v[j];
            z[i * n + j] = t <= 0 ? 0 : t;
        }
}

static void b_row_scale(struct prog *p, int64_t m, int64_t n) {
    (void)m;
    start(p, DVM_MODE_MAP);
    int x = load(p, DVM_F32, X, n);
    int v = ins(p, DVM_BC_LOAD, DVM_VT_F32, opnd(p, DVM_F32, DVM_OPND_ROW, DVM_ROLE_LOAD, V, 4, 0),
                0, 0);
    store(p, DVM_F32, f2(p, DVM_OP_MUL, x, f1(p, DVM_OP_RECIP, v)), Z, n);
}
static NOINLINE void c_row_scale(int64_t m, int64_t n) {
    float *restrict x = X, *restrict v = V, *restrict z = Z;
    for (int64_t i = 0; i < m; i++) {
        float s = 1 / v[i];
        for (int64_t j = 0; j < n; j++) z[i * n + j] = x[i * n + j] * s;
    }
}

static void b_row_sum(struct prog *p, int64_t m, int64_t n) {
    (void)m;
    start(p, DVM_MODE_ROW);
    fold(p, DVM_OP_SUM, load(p, DVM_F32, X, n), Z, 4, 0);
}
static NOINLINE void c_row_sum(int64_t m, int64_t n) {
    float *restrict x = X, *restrict z = Z;
    for (int64_t i = 0; i < m; i++, x += n) {
        float acc[64] = {0}, s = 0;
        int64_t j = 0;
        for (; j + 64 <= n; j += 64)
            for (int l = 0; l < 64; l++) acc[l] += x[j + l];
        for (; j < n; j++) s += x[j];
        for (int l = 0; l < 64; l++) s += acc[l];
        z[i] = s;
    }
}

static void b_sumsq(struct prog *p, int64_t m, int64_t n) {
    (void)m;
    start(p, DVM_MODE_ROW);
    int x = load(p, DVM_F32, X, n);
    fold(p, DVM_OP_SUM, f2(p, DVM_OP_MUL, x, x), Z, 4, 0);
}
static NOINLINE void c_sumsq(int64_t m, int64_t n) {
    float *restrict x = X, *restrict z = Z;
    for (int64_t i = 0; i < m; i++, x += n) {
        float acc[64] = {0}, s = 0;
        int64_t j = 0;
        for (; j + 64 <= n; j += 64)
            for (int l = 0; l < 64; l++) acc[l] += x[j + l] * x[j + l];
        for (; j < n; j++) s += x[j] * x[j];
        for (int l = 0; l < 64; l++) s += acc[l];
        z[i] = s;
    }
}

static void b_row_max(struct prog *p, int64_t m, int64_t n) {
    (void)m;
    start(p, DVM_MODE_ROW);
    fold(p, DVM_OP_RMAX, load(p, DVM_F32, X, n), Z, 4, 0);
}
static void b_argmax(struct prog *p, int64_t m, int64_t n) {
    (void)m;
    start(p, DVM_MODE_ROW);
    int v = load(p, DVM_F32, X, n), o = opnd(p, DVM_I64, DVM_OPND_ROW, DVM_ROLE_FOLD, W, 8, 0);
    opnd(p, DVM_F32, DVM_OPND_ROW, DVM_ROLE_FOLD, Z, 4, 0);
    ins(p, DVM_BC_FOLD, DVM_VT_F32, v, DVM_OP_ARGMAX, o);
}

static void b_col_sum(struct prog *p, int64_t m, int64_t n) {
    (void)m;
    start(p, DVM_MODE_COL);
    fold(p, DVM_OP_SUM, load(p, DVM_F32, X, n), Z, 0, 4);
}
static NOINLINE void c_col_sum(int64_t m, int64_t n) {
    float *restrict x = X, *restrict z = Z;
    for (int64_t j = 0; j < n; j++) z[j] = 0;
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) z[j] += x[i * n + j];
}

/* The middle pass of a softmax: e = exp(x - max), stored, and its sum. */
static void b_softmax2(struct prog *p, int64_t m, int64_t n) {
    (void)m;
    start(p, DVM_MODE_ROW);
    int x = load(p, DVM_F32, X, n);
    int v = ins(p, DVM_BC_LOAD, DVM_VT_F32, opnd(p, DVM_F32, DVM_OPND_ROW, DVM_ROLE_LOAD, V, 4, 0),
                0, 0);
    int e = f1(p, DVM_OP_EXP, f2(p, DVM_OP_SUB, x, v));
    store(p, DVM_F32, e, Z, n);
    fold(p, DVM_OP_SUM, e, W, 4, 0);
}

static void b_transpose_add(struct prog *p, int64_t m, int64_t n) {
    start(p, DVM_MODE_MAP);
    int x = load(p, DVM_F32, X, n);
    int t = ins(p, DVM_BC_LOAD, DVM_VT_F32,
                opnd(p, DVM_F32, DVM_OPND_STRIDED, DVM_ROLE_LOAD, Y, 4, m * 4), 0, 0);
    store(p, DVM_F32, f2(p, DVM_OP_ADD, x, t), Z, n);
}
static NOINLINE void c_transpose_add(int64_t m, int64_t n) {
    float *restrict x = X, *restrict y = Y, *restrict z = Z;
    for (int64_t i0 = 0; i0 < m; i0 += 16)
        for (int64_t j0 = 0; j0 < n; j0 += 16)
            for (int64_t i = i0; i < i0 + 16; i++)
                for (int64_t j = j0; j < j0 + 16; j++) z[i * n + j] = x[i * n + j] + y[j * m + i];
}

static void b_cumsum(struct prog *p, int64_t m, int64_t n) {
    (void)m;
    start(p, DVM_MODE_MAP);
    p->s.flags = DVM_STRIP_WHOLE_ROWS;
    store(p, DVM_F32, ins(p, DVM_BC_SCAN, DVM_VT_F32, load(p, DVM_F32, X, n), 0, 0), Z, n);
}

#define UNARY(name, OP)                                             \
    static void b_##name(struct prog *p, int64_t m, int64_t n) {    \
        (void)m;                                                    \
        start(p, DVM_MODE_MAP);                                     \
        store(p, DVM_F32, f1(p, OP, load(p, DVM_F32, X, n)), Z, n); \
    }
UNARY(exp, DVM_OP_EXP)
UNARY(log, DVM_OP_LOG)
UNARY(tanh, DVM_OP_TANH)
UNARY(sigmoid, DVM_OP_SIGMOID)
UNARY(erf, DVM_OP_ERF)
UNARY(sin, DVM_OP_SIN)

struct bench {
    const char *name;
    void (*build)(struct prog *p, int64_t m, int64_t n);
    void (*loop)(int64_t m, int64_t n);
    int64_t m, n;
    double bytes; /* an element of the box */
};

static const struct bench benches[] = {
    {"copy", b_copy, c_copy, 128, 128, 8},
    {"copy", b_copy, c_copy, 4096, 4096, 8},
    {"mul_add", b_mul_add, c_mul_add, 1, 1024, 12},
    {"mul_add", b_mul_add, c_mul_add, 128, 128, 12},
    {"mul_add", b_mul_add, c_mul_add, 1024, 256, 12},
    {"mul_add", b_mul_add, c_mul_add, 4096, 4096, 12},
    {"relu3", b_relu3, c_relu3, 1, 16, 12},
    {"relu3", b_relu3, c_relu3, 1, 1024, 12},
    {"relu3", b_relu3, c_relu3, 1, 4096, 12},
    {"relu3", b_relu3, c_relu3, 128, 128, 12},
    {"relu3", b_relu3, c_relu3, 256, 256, 12},
    {"relu3", b_relu3, c_relu3, 1024, 256, 12},
    {"relu3", b_relu3, c_relu3, 1024, 1024, 12},
    {"relu3", b_relu3, c_relu3, 4096, 4096, 12},
    {"ops8", b_ops8, c_ops8, 128, 128, 12},
    {"ops8", b_ops8, c_ops8, 1024, 1024, 12},
    {"ops8", b_ops8, c_ops8, 4096, 4096, 12},
    {"bf16_add", b_bf16_add, c_bf16_add, 128, 128, 6},
    {"bf16_add", b_bf16_add, c_bf16_add, 4096, 4096, 6},
    {"bias_relu", b_bias, c_bias, 4096, 64, 8},
    {"bias_relu", b_bias, c_bias, 1024, 256, 8},
    {"bias_relu", b_bias, c_bias, 1024, 1000, 8},
    {"row_scale", b_row_scale, c_row_scale, 4096, 64, 8},
    {"row_scale", b_row_scale, c_row_scale, 1024, 1024, 8},
    {"row_sum", b_row_sum, c_row_sum, 16384, 16, 4},
    {"row_sum", b_row_sum, c_row_sum, 4096, 64, 4},
    {"row_sum", b_row_sum, c_row_sum, 1024, 1024, 4},
    {"row_sum", b_row_sum, c_row_sum, 4096, 4096, 4},
    {"row_max", b_row_max, NULL, 1024, 1024, 4},
    {"row_sumsq", b_sumsq, c_sumsq, 1024, 1024, 4},
    {"argmax", b_argmax, NULL, 1024, 1024, 4},
    {"col_sum", b_col_sum, c_col_sum, 64, 16, 4},
    {"col_sum", b_col_sum, c_col_sum, 64, 1024, 4},
    {"col_sum", b_col_sum, c_col_sum, 64, 65536, 4},
    {"softmax2", b_softmax2, NULL, 1024, 1024, 8},
    {"softmax2", b_softmax2, NULL, 8192, 64, 8},
    {"transpose_add", b_transpose_add, c_transpose_add, 512, 512, 12},
    {"transpose_add", b_transpose_add, c_transpose_add, 4096, 4096, 12},
    {"cumsum", b_cumsum, NULL, 256, 1024, 8},
    {"exp", b_exp, NULL, 128, 128, 8},
    {"log", b_log, NULL, 128, 128, 8},
    {"tanh", b_tanh, NULL, 128, 128, 8},
    {"sigmoid", b_sigmoid, NULL, 128, 128, 8},
    {"erf", b_erf, NULL, 128, 128, 8},
    {"sin", b_sin, NULL, 128, 128, 8},
};

/* ---- measuring: the smallest of several rounds, each long enough for the clock */

struct job {
    const struct dvm_code *code;
    struct dvm_strip_args args;
    const struct bench *b;
};
static void once(const struct job *j, bool loop) {
    if (loop)
        j->b->loop(j->b->m, j->b->n);
    else
        j->code->run(j->code, &j->args);
}
static double measure(const struct job *j, bool loop) {
    double best = 1e30, t = 0;
    int64_t reps = 1;
    for (;; reps *= 4) {
        double t0 = now();
        for (int64_t i = 0; i < reps; i++) once(j, loop);
        t = now() - t0;
        if (t > 1e6) break;
    }
    for (int round = 0; round < (t > 2e7 ? 5 : 25); round++) {
        double t0 = now();
        for (int64_t i = 0; i < reps; i++) once(j, loop);
        best = DVM_MIN(best, (now() - t0) / (double)reps);
    }
    return best;
}

static void fill_inputs(void) {
    X = big(BIG * 4), Y = big(BIG * 4), Z = big(BIG * 4), W = big(1 << 20), V = big(1 << 20);
    HX = big(BIG * 2), HY = big(BIG * 2), HZ = big(BIG * 2);
    for (int i = 0; i < BIG; i++) {
        X[i] = (float)((int64_t)i * 7919 % 2001 - 1000) / 250.0f;
        Y[i] = (float)((int64_t)i * 104729 % 1999 - 1000) / 333.0f;
        uint32_t u;
        memcpy(&u, &X[i], 4);
        HX[i] = (uint16_t)(u >> 16);
        memcpy(&u, &Y[i], 4);
        HY[i] = (uint16_t)(u >> 16);
    }
    for (int i = 0; i < 1 << 18; i++) V[i] = (float)(i % 13 + 1);
}

static void run_case(const struct dvm_dev *dev, const struct dvm_mem *mem, const struct bench *b) {
    static struct prog p;
    struct dvm_code *code;
    struct dvm_fault fault = {0};
    b->build(&p, b->m, b->n);
    if (dvm_strip_verify(&p.s) != DVM_OK || dev->compile(dev, mem, &p.s, &code) != DVM_OK) {
        printf("%s: %s\n", b->name, dvm_error_text());
        return;
    }
    double elements = (double)b->m * (double)b->n;
    struct job j = {.code = code, .b = b};
    j.args = (struct dvm_strip_args){.opnd = p.arg,
                                     .m = b->m,
                                     .n = b->n,
                                     .scratch = big(code->scratch + 64),
                                     .fault = &fault,
                                     .stream = elements >= 1 << 23};
    double vm = measure(&j, false), loop = b->loop ? measure(&j, true) : 0;
    printf("%-14s %-7s %5lld x %-5lld %12.0f ns  %6.3f ns/el %6.1f GB/s", b->name, dev->isa,
           (long long)b->m, (long long)b->n, vm, vm / elements, b->bytes * elements / vm);
    if (loop > 0) printf("   loop %12.0f ns   x %.2f", loop, vm / loop);
    printf("\n");
    free(j.args.scratch);
    dev->destroy(dev, mem, code);
}

/* A chain of n instructions over two inputs. */
static void chain(struct prog *p, int n) {
    start(p, DVM_MODE_MAP);
    int x = load(p, DVM_F32, X, 1024), y = load(p, DVM_F32, Y, 1024), v = x;
    while (p->s.nins < n - 1)
        v = f2(p, p->s.nins % 3 ? DVM_OP_ADD : DVM_OP_MUL, v, p->s.nins % 2 ? x : y);
    store(p, DVM_F32, v, Z, 1024);
}

static void compile_times(const struct dvm_dev *dev, const struct dvm_mem *mem) {
    static struct prog p;
    for (int n = 4; n <= 256; n *= 4) {
        double best = 1e30;
        chain(&p, n);
        for (int round = 0; round < 50; round++) {
            double t0 = now();
            for (int i = 0; i < 100; i++) {
                struct dvm_code *code;
                if (dev->compile(dev, mem, &p.s, &code) != DVM_OK) return;
                dev->destroy(dev, mem, code);
            }
            best = DVM_MIN(best, (now() - t0) / 100);
        }
        printf("compile %3d instructions %8.0f ns\n", n, best);
    }
}

int main(int argc, char **argv) {
    static const char *const all[] = {"base", "avx2", "avx512"};
    struct dvm_mem mem = {dvm_mem_system, NULL};
    bool every = argc > 1 && strcmp(argv[1], "all") == 0;
    fill_inputs();
    for (int l = 0; l < (every ? 3 : 1); l++) {
        struct dvm_dev dev;
        const char *isa = every ? all[l] : argc > 1 && strcmp(argv[1], "best") ? argv[1] : NULL;
        if (dvm_dev_cpu(isa, &dev) != DVM_OK) {
            printf("%s\n", dvm_error_text());
            continue;
        }
        for (size_t i = 0; i < DVM_COUNT(benches); i++)
            if (argc < 3 || strstr(benches[i].name, argv[2])) run_case(&dev, &mem, &benches[i]);
        if (argc < 3 || strstr("compile", argv[2])) compile_times(&dev, &mem);
    }
    return 0;
}
