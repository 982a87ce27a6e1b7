/* Micro benchmark of the machine-code tier, one thread: how long emission takes, and how the code compares with the
 * same chain of operations written as one fused C loop and compiled by the system's compiler (-O3 -march=native,
 * contraction off so that both compute the same bits; "fast" is the compiler free to contract).
 *
 *   cc -O2 -std=gnu17 -Isrc -Iinclude bench/jit_micro.c build/libdvm.a -lm -lpthread -ldl -o jit_micro
 *   ./jit_micro [emit|chain|fold|fn|stride] [avx2|avx512] [part of a case's name] */
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cpuflags.h"
#include "base/err.h"
#include "timing.h"
#include "vm/cpu/jit/jit.h"

static const struct dvm_mem mem = {dvm_mem_system, NULL};
static int isa;
static char folder[] = "/tmp/dvm-jit-micro-XXXXXX";

/* ---- strips by hand */

struct prog {
    struct dvm_opnd opnd[64];
    struct dvm_ins ins[1024];
    uint64_t lit[256];
    struct dvm_strip s;
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
static int opnd(struct prog *p, int dtype, int kind, int role) {
    p->opnd[p->s.nopnd] = (struct dvm_opnd){(uint8_t)dtype, (uint8_t)kind, (uint8_t)role, 0};
    return p->s.nopnd++;
}
static int load(struct prog *p, int dtype, int kind) {
    return ins(p, DVM_BC_LOAD, dvm_vt_of(dtype), opnd(p, dtype, kind, DVM_ROLE_LOAD), 0, 0);
}
static void store(struct prog *p, int dtype, int v) {
    ins(p, DVM_BC_STORE, dvm_vt_of(dtype), opnd(p, dtype, DVM_OPND_CONTIG, DVM_ROLE_STORE), v, 0);
}
static int lit(struct prog *p, float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    p->lit[p->s.nlit] = u;
    return ins(p, DVM_BC_LIT, DVM_VT_F32, p->s.nlit++, 0, 0);
}

/* ---- chains: v = v op (x0 | x1 | constant), again and again */

enum { CHAIN_OPS = 7 };

static float constant(int i) { return 0.75f + 0.03125f * (float)(i % 16); }

static int chain_step(struct prog *p, int i, int v, const int x[2]) {
    switch (i % CHAIN_OPS) {
    case 0: return ins(p, DVM_OP_ADD, DVM_VT_F32, v, x[1], 0);
    case 1: return ins(p, DVM_OP_MUL, DVM_VT_F32, v, lit(p, constant(i)), 0);
    case 2: return ins(p, DVM_OP_SUB, DVM_VT_F32, v, x[0], 0);
    case 3: return ins(p, DVM_OP_MUL, DVM_VT_F32, v, x[1], 0);
    case 4: return ins(p, DVM_OP_ABS, DVM_VT_F32, v, 0, 0);
    case 5: return ins(p, DVM_OP_ADD, DVM_VT_F32, v, lit(p, constant(i)), 0);
    default: return ins(p, DVM_OP_NEG, DVM_VT_F32, v, 0, 0);
    }
}

static const char *chain_text(int i, char *buf, size_t n) {
    static const char *const steps[CHAIN_OPS] = {
        "v + x1", "v * %a", "v - x0", "v * x1", "__builtin_fabsf(v)", "v + %a", "-v"};
    snprintf(buf, n, "        v = ");
    size_t k = strlen(buf);
    snprintf(buf + k, n - k, steps[i % CHAIN_OPS], (double)constant(i));
    k = strlen(buf);
    snprintf(buf + k, n - k, "%s;\n", i % CHAIN_OPS == 1 || i % CHAIN_OPS == 5 ? "f" : "");
    return buf;
}

static void chain(struct prog *p, int ops) {
    start(p, DVM_MODE_MAP);
    int x[2] = {load(p, DVM_F32, DVM_OPND_CONTIG), load(p, DVM_F32, DVM_OPND_CONTIG)}, v = x[0];
    for (int i = 0; i < ops; i++) v = chain_step(p, i, v, x);
    store(p, DVM_F32, v);
}

typedef void chain_fn(const float *x0, const float *x1, float *y, long n);

/* All chains in one library; fast: the compiler may contract. */
static void *compile_chains(const int *ops, int count, bool fast) {
    char path[128], command[600], line[200];
    snprintf(path, sizeof path, "%s/chain%d.c", folder, fast);
    FILE *f = fopen(path, "w");
    if (!f) return NULL;
    for (int k = 0; k < count; k++) {
        fprintf(f,
                "void chain%d(const float *restrict p0, const float *restrict p1, float *restrict "
                "y, long n) {\n",
                ops[k]);
        fprintf(
            f,
            "    for (long i = 0; i < n; i++) {\n        float x0 = p0[i], x1 = p1[i], v = x0;\n");
        for (int i = 0; i < ops[k]; i++) fputs(chain_text(i, line, sizeof line), f);
        fprintf(f, "        y[i] = v;\n    }\n}\n");
    }
    fclose(f);
    snprintf(command, sizeof command, "gcc -O3 -march=native %s -shared -fPIC %s -o %s/chain%d.so",
             fast ? "" : "-ffp-contract=off", path, folder, fast);
    if (system(command) != 0) return NULL;
    snprintf(path, sizeof path, "%s/chain%d.so", folder, fast);
    return dlopen(path, RTLD_NOW);
}

static chain_fn *find_chain(void *lib, int ops) {
    char name[32];
    chain_fn *fn;
    snprintf(name, sizeof name, "chain%d", ops);
    void *p = lib ? dlsym(lib, name) : NULL;
    memcpy(&fn, &p, sizeof fn);
    return fn;
}

struct run {
    const struct dvm_code *code;
    struct dvm_strip_args args;
    struct dvm_opnd_arg opnd[64];
    chain_fn *fn;
    const float *x0, *x1;
    float *y;
    long n;
};

static void once(const struct run *r) {
    if (r->fn)
        r->fn(r->x0, r->x1, r->y, r->n);
    else
        r->code->run(r->code, &r->args);
}

static double burst(const struct run *r, long reps) {
    double t = now();
    for (long k = 0; k < reps; k++) once(r);
    return (now() - t) / (double)reps;
}

/* Best of several bursts, the contestants in turn. */
static void compete(struct run *const r[], int n, double best[]) {
    long reps[4];
    for (int k = 0; k < n; k++) {
        once(r[k]);
        double t = burst(r[k], 1);
        reps[k] = (long)(300e3 / (t + 1)) + 1;
        best[k] = 1e30;
    }
    for (int round = 0; round < 15; round++) /* who comes next finds what the one before has read */
        for (int i = 0; i < n; i++) {
            int k = (round + i) % n;
            best[k] = fmin(best[k], burst(r[k], reps[k]));
        }
}

static struct dvm_code *compile(const struct dvm_strip *s) {
    struct dvm_code *c = NULL;
    if (dvm_jit_compile(&mem, s, isa, &c) != DVM_OK) {
        fprintf(stderr, "jit_micro: %s\n", dvm_error_text());
        exit(1);
    }
    return c;
}

static void *block(size_t n) {
    float *p = dvm_mem_new(&mem, n);
    for (size_t k = 0; k < n / 4; k++) p[k] = (float)(k % 1000) * 0.001f;
    return p;
}

static void bench_chains(void) {
    static const int ops[] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 40};
    static const long bytes[] = {4 << 10, 16 << 10, 256 << 10, 2 << 20, 16 << 20, 64 << 20};
    void *exact = compile_chains(ops, DVM_COUNT(ops), false),
         *fast = compile_chains(ops, DVM_COUNT(ops), true);
    float *x0 = block(64 << 20), *x1 = block(64 << 20), *y = block(64 << 20), *z = block(64 << 20),
          *w = block(64 << 20);
    static struct prog p;
    double sum = 0, sum_fast = 0, worst = 1e9;
    int count = 0;
    printf("%6s %10s %12s %12s %12s %8s %8s\n", "ops", "KiB", "ours ns", "gcc ns", "gcc fast ns",
           "speed", "vs fast");
    for (size_t k = 0; k < DVM_COUNT(ops); k++) {
        chain(&p, ops[k]);
        struct dvm_code *code = compile(&p.s);
        void *scratch = block(code->scratch);
        for (size_t b = 0; b < DVM_COUNT(bytes); b++) {
            long n = bytes[b] / 4;
            struct run ours = {.code = code},
                       gcc = {.fn = find_chain(exact, ops[k]), .x0 = x0, .x1 = x1, .y = y, .n = n};
            struct run free_gcc = gcc;
            free_gcc.fn = find_chain(fast, ops[k]);
            free_gcc.y = w;
            void *ptr[3] = {x0, x1, z};
            for (int o = 0; o < 3; o++)
                ours.opnd[o] = (struct dvm_opnd_arg){.ptr = ptr[o], .rs = n * 4, .cs = 4};
            ours.args = (struct dvm_strip_args){.opnd = ours.opnd,
                                                .m = 1,
                                                .n = n,
                                                .scratch = scratch,
                                                .stream = bytes[b] > 16 << 20};
            struct run *all[] = {&ours, &gcc, &free_gcc};
            double t[3];
            compete(all, 3, t);
            if (memcmp(y, z, (size_t)bytes[b]) != 0) {
                fprintf(stderr, "jit_micro: %d operations: other bits than the C loop\n", ops[k]);
                exit(1);
            }
            double speed = t[1] / t[0];
            sum += log(speed);
            sum_fast += log(t[2] / t[0]);
            worst = fmin(worst, speed);
            count++;
            printf("%6d %10ld %12.1f %12.1f %12.1f %8.2f %8.2f\n", ops[k], bytes[b] >> 10, t[0],
                   t[1], t[2], speed, t[2] / t[0]);
        }
        dvm_mem_free(&mem, scratch, code->scratch);
        dvm_jit_destroy(&mem, code);
    }
    printf("geometric mean %.3f (against contracting %.3f), worst %.2f\n", exp(sum / count),
           exp(sum_fast / count), worst);
    dvm_mem_free(&mem, x0, 64 << 20);
    dvm_mem_free(&mem, x1, 64 << 20);
    dvm_mem_free(&mem, y, 64 << 20);
    dvm_mem_free(&mem, z, 64 << 20);
    dvm_mem_free(&mem, w, 64 << 20);
}

/* ---- emission */

/* 60 operations, every `each`-th one a function. */
static void mixed(struct prog *p, int mode, int each) {
    static const uint8_t fns[] = {DVM_OP_EXP, DVM_OP_TANH, DVM_OP_SIGMOID, DVM_OP_ERF,
                                  DVM_OP_RSQRT};
    start(p, mode);
    int x[2] = {load(p, DVM_BF16, DVM_OPND_CONTIG), load(p, DVM_BF16, DVM_OPND_ROW)}, v = x[0];
    for (int i = 0; i < 60; i++)
        v = i % each == each - 1 ? ins(p, fns[i / each % (int)DVM_COUNT(fns)], DVM_VT_F32, v, 0, 0)
                                 : chain_step(p, i, v, x);
    if (mode == DVM_MODE_ROW) {
        int o = opnd(p, DVM_F32, DVM_OPND_ROW, DVM_ROLE_FOLD);
        ins(p, DVM_BC_FOLD, DVM_VT_F32, v, DVM_OP_SUM, o);
    } else {
        store(p, DVM_BF16, v);
    }
}

static void time_emission(const char *name, const struct dvm_strip *s) {
    double best = 1e30, sum = 0;
    enum { N = 2000 };
    const void *bytes;
    size_t size = 0;
    for (int k = 0; k < N; k++) {
        double t = now();
        struct dvm_code *c = compile(s);
        t = now() - t;
        best = fmin(best, t);
        sum += t;
        size = dvm_jit_code(c, &bytes);
        dvm_jit_destroy(&mem, c);
    }
    printf("%-32s %4u instructions %6zu bytes  best %6.2f us  mean %6.2f us\n", name, s->nins, size,
           best / 1e3, sum / N / 1e3);
}

static void bench_emission(void) {
    static struct prog p;
    chain(&p, 1);
    time_emission("chain of 1", &p.s);
    chain(&p, 8);
    time_emission("chain of 8", &p.s);
    chain(&p, 64);
    time_emission("chain of 64", &p.s);
    mixed(&p, DVM_MODE_MAP, 12);
    time_emission("64 with 5 transcendentals", &p.s);
    mixed(&p, DVM_MODE_ROW, 12);
    time_emission("64 with 5 transcendentals, sum", &p.s);
    mixed(&p, DVM_MODE_MAP, 3);
    time_emission("64 with 20 transcendentals", &p.s);
}

/* ---- reductions and functions: nanoseconds and bytes read a nanosecond */

static void time_box(const char *name, struct prog *p, long m, long n, const int *sizes) {
    struct dvm_code *code = compile(&p->s);
    struct run r = {.code = code};
    void *scratch = block(code->scratch + 64), *data[64];
    double bytes = 0, best = 1e30;
    for (int o = 0; o < p->s.nopnd; o++) {
        int role = p->opnd[o].role, kind = p->opnd[o].kind;
        bool fold = role == DVM_ROLE_FOLD, row = kind == DVM_OPND_ROW;
        long count = fold ? (p->s.mode == DVM_MODE_ROW ? m : n) : row ? m : m * n;
        data[o] = block((size_t)count * (size_t)sizes[o] + 64);
        r.opnd[o] = (struct dvm_opnd_arg){
            .ptr = data[o], .rs = row ? sizes[o] : n * sizes[o], .cs = row ? 0 : sizes[o]};
        if (!fold) bytes += (double)count * sizes[o];
    }
    struct dvm_fault fault = {0};
    r.args = (struct dvm_strip_args){
        .opnd = r.opnd, .m = m, .n = n, .scratch = scratch, .fault = &fault};
    once(&r);
    double t = burst(&r, 1);
    long reps = (long)(200e3 / (t + 1)) + 1;
    for (int round = 0; round < 15; round++) best = fmin(best, burst(&r, reps));
    printf("%-28s %6ld x %-7ld %12.1f ns %8.2f B/ns %8.3f ns/element\n", name, m, n, best,
           bytes / best, best / (double)m / (double)n);
    for (int o = 0; o < p->s.nopnd; o++) dvm_mem_free(&mem, data[o], 0);
    dvm_mem_free(&mem, scratch, code->scratch);
    dvm_jit_destroy(&mem, code);
}

static void fold_of(struct prog *p, int mode, int dtype, int before, int red) {
    start(p, mode);
    int v = load(p, dtype, DVM_OPND_CONTIG);
    if (before) v = ins(p, before, dvm_vt_of(dtype), v, 0, 0);
    bool arg = red == DVM_OP_ARGMAX;
    int kind = mode == DVM_MODE_ROW ? DVM_OPND_ROW : DVM_OPND_CONTIG;
    int o = opnd(p,
                 arg                              ? DVM_I64
                 : dvm_vt_of(dtype) == DVM_VT_F32 ? DVM_F32
                                                  : dtype,
                 kind, DVM_ROLE_FOLD);
    if (arg) opnd(p, DVM_F32, kind, DVM_ROLE_FOLD);
    ins(p, DVM_BC_FOLD, dvm_vt_of(dtype), v, red, o);
}

static void bench_folds(void) {
    static struct prog p;
    static const long rows[][2] = {{4096, 16}, {1024, 64}, {256, 256},  {64, 1000},
                                   {16, 4096}, {1, 65536}, {1024, 4096}};
    static const long cols[][2] = {{64, 1024}, {16, 1024},  {8, 1024}, {64, 1000},
                                   {64, 64},   {64, 16384}, {8, 4096}};
    static const int f32[] = {4, 4, 4}, bf16[] = {2, 4}, i64[] = {8, 8}, arg[] = {4, 8, 4};
    for (size_t k = 0; k < DVM_COUNT(rows); k++) {
        fold_of(&p, DVM_MODE_ROW, DVM_F32, 0, DVM_OP_SUM),
            time_box("row sum f32", &p, rows[k][0], rows[k][1], f32);
        fold_of(&p, DVM_MODE_ROW, DVM_F32, 0, DVM_OP_RMAX),
            time_box("row max f32", &p, rows[k][0], rows[k][1], f32);
        fold_of(&p, DVM_MODE_ROW, DVM_F32, DVM_OP_EXP, DVM_OP_SUM),
            time_box("row sum exp f32", &p, rows[k][0], rows[k][1], f32);
        fold_of(&p, DVM_MODE_ROW, DVM_BF16, 0, DVM_OP_SUM),
            time_box("row sum bf16", &p, rows[k][0], rows[k][1], bf16);
        fold_of(&p, DVM_MODE_ROW, DVM_I64, 0, DVM_OP_SUM),
            time_box("row sum i64", &p, rows[k][0], rows[k][1], i64);
        fold_of(&p, DVM_MODE_ROW, DVM_F32, 0, DVM_OP_ARGMAX),
            time_box("row argmax f32", &p, rows[k][0], rows[k][1], arg);
    }
    for (size_t k = 0; k < DVM_COUNT(cols); k++) {
        fold_of(&p, DVM_MODE_COL, DVM_F32, 0, DVM_OP_SUM),
            time_box("col sum f32", &p, cols[k][0], cols[k][1], f32);
        fold_of(&p, DVM_MODE_COL, DVM_F32, 0, DVM_OP_RMAX),
            time_box("col max f32", &p, cols[k][0], cols[k][1], f32);
        fold_of(&p, DVM_MODE_COL, DVM_F32, DVM_OP_EXP, DVM_OP_SUM),
            time_box("col sum exp f32", &p, cols[k][0], cols[k][1], f32);
        fold_of(&p, DVM_MODE_COL, DVM_BF16, 0, DVM_OP_SUM),
            time_box("col sum bf16", &p, cols[k][0], cols[k][1], bf16);
        fold_of(&p, DVM_MODE_COL, DVM_F32, 0, DVM_OP_ARGMAX),
            time_box("col argmax f32", &p, cols[k][0], cols[k][1], arg);
    }
}

static void bench_functions(void) {
    static const uint8_t fns[] = {DVM_OP_RSQRT, DVM_OP_EXP,   DVM_OP_EXP2,    DVM_OP_EXPM1,
                                  DVM_OP_LOG,   DVM_OP_LOG2,  DVM_OP_LOG1P,   DVM_OP_SIN,
                                  DVM_OP_COS,   DVM_OP_TANH,  DVM_OP_SIGMOID, DVM_OP_ERF,
                                  DVM_OP_SQRT,  DVM_OP_RECIP, DVM_OP_RELU,    DVM_OP_SIGN,
                                  DVM_OP_POW,   DVM_OP_DIV,   DVM_OP_MAX,     DVM_OP_REM};
    static const int f32[] = {4, 4, 4, 4}, bf16[] = {2, 2, 2};
    static struct prog p;
    for (size_t k = 0; k < DVM_COUNT(fns); k++) {
        bool two = fns[k] == DVM_OP_POW || fns[k] == DVM_OP_DIV || fns[k] == DVM_OP_MAX ||
                   fns[k] == DVM_OP_REM;
        start(&p, DVM_MODE_MAP);
        int x = load(&p, DVM_F32, DVM_OPND_CONTIG),
            y = two ? load(&p, DVM_F32, DVM_OPND_CONTIG) : 0;
        store(&p, DVM_F32, ins(&p, fns[k], DVM_VT_F32, x, y, 0));
        time_box(dvm_op_name((dvm_op)fns[k]), &p, 1, 4096, f32);
    }
    mixed(&p, DVM_MODE_MAP, 12);
    p.opnd[1].kind = DVM_OPND_CONTIG;
    time_box("60 with 5 functions", &p, 1, 4096, bf16);
    mixed(&p, DVM_MODE_MAP, 3);
    p.opnd[1].kind = DVM_OPND_CONTIG;
    time_box("60 with 20 functions", &p, 1, 4096, bf16);
    start(&p, DVM_MODE_MAP);
    store(&p, DVM_BF16,
          ins(&p, DVM_OP_RELU, DVM_VT_F32, load(&p, DVM_BF16, DVM_OPND_CONTIG), 0, 0));
    time_box("relu bf16", &p, 1, 4096, bf16);
    start(&p, DVM_MODE_MAP);
    store(&p, DVM_F16, ins(&p, DVM_OP_RELU, DVM_VT_F32, load(&p, DVM_F16, DVM_OPND_CONTIG), 0, 0));
    time_box("relu f16", &p, 1, 4096, bf16);
}

/* o = a + b transposed, or with every second element of b. */
static void bench_strided(void) {
    static const long sides[] = {64, 256, 1024, 4096};
    static const int dtypes[] = {DVM_F32, DVM_BF16};
    static struct prog p;
    for (size_t d = 0; d < DVM_COUNT(dtypes); d++)
        for (size_t k = 0; k < 2 * DVM_COUNT(sides); k++) {
            long n = sides[k / 2], e = (long)dvm_dtype_size((dvm_dtype)dtypes[d]);
            start(&p, DVM_MODE_MAP);
            int a = load(&p, dtypes[d], DVM_OPND_CONTIG), b = load(&p, dtypes[d], DVM_OPND_STRIDED);
            store(&p, dtypes[d], ins(&p, DVM_OP_ADD, DVM_VT_F32, a, b, 0));
            struct dvm_code *code = compile(&p.s);
            struct run r = {.code = code};
            void *scratch = block(code->scratch), *data[3];
            for (int o = 0; o < 3; o++) {
                data[o] = block((size_t)(n * n * e) * 2);
                r.opnd[o] = (struct dvm_opnd_arg){.ptr = data[o], .rs = n * e, .cs = e};
            }
            r.opnd[1].rs = k % 2 ? 2 * n * e : e;
            r.opnd[1].cs = k % 2 ? 2 * e : n * e;
            r.args = (struct dvm_strip_args){.opnd = r.opnd, .m = n, .n = n, .scratch = scratch};
            once(&r);
            double t = burst(&r, 1), best = 1e30;
            long reps = (long)(200e3 / (t + 1)) + 1;
            for (int round = 0; round < 15; round++) best = fmin(best, burst(&r, reps));
            printf("%-12s %-5s %5ld x %-5ld %12.1f ns %8.3f ns/element\n",
                   k % 2 ? "every second" : "transposed", dvm_dtype_name((dvm_dtype)dtypes[d]), n,
                   n, best, best / (double)(n * n));
            for (int o = 0; o < 3; o++) dvm_mem_free(&mem, data[o], 0);
            dvm_mem_free(&mem, scratch, 0);
            dvm_jit_destroy(&mem, code);
        }
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    isa = dvm_jit_isa_of(dvm_cpu_flags());
    if (argc > 2 && !strcmp(argv[2], "avx2")) isa = DVM_JIT_AVX2;
    if (!mkdtemp(folder)) return 1;
    if (!*what || !strcmp(what, "emit")) bench_emission();
    if (!*what || !strcmp(what, "chain")) bench_chains();
    if (!*what || !strcmp(what, "fold")) bench_folds();
    if (!*what || !strcmp(what, "fn")) bench_functions();
    if (!*what || !strcmp(what, "stride")) bench_strided();
    char command[64];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}
