/* The machine-code tier and the tile VM against the scalar reference, bit for bit (NaNs count as one value): random
 * programs of up to 200 operations over all dtypes, operand kinds, modes and odd sizes, on every level of this
 * processor. Every operand lies flush with a page that cannot be touched. Then what random programs do not show: threads, no growth, failing
 * allocations, and that AVX2 code holds no AVX-512 instruction. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <float.h>
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/cpuflags.h"
#include "base/err.h"
#include "code/bc_table.h"
#include "code/strip_text.h"
#include "vm/cpu/jit/code_mem.h"
#include "vm/cpu/jit/jit.h"
#include "vm/cpu/jit/jit_code.h"
#include "vm/dev.h"
#include "vm/ref/ref.h"

#include "skip.h"

enum { MAX_OPND = 40, MAX_INS = 400, PAGE = 4096, REGION = 4 << 20 };

static const struct dvm_mem mem = {dvm_mem_system, NULL};
static struct dvm_dev ref, tiles; /* tiles: the best level of the tile VM */

static _Thread_local uint64_t rng;
static uint64_t next(void) {
    uint64_t z = rng += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}
static int below(int n) { return (int)((next() >> 33) % (uint64_t)n); }

/* ---- programs */

struct prog {
    struct dvm_strip s;
    struct dvm_opnd opnd[MAX_OPND];
    struct dvm_ins ins[MAX_INS];
    uint64_t lit[64], param[8];
    struct dvm_opnd_arg arg[MAX_OPND];
    int alias[MAX_OPND]; /* store: 1 + load that it overwrites */
    int64_t m, n;
};

static int add_opnd(struct prog *p, int dtype, int kind, int role) {
    p->opnd[p->s.nopnd] = (struct dvm_opnd){(uint8_t)dtype, (uint8_t)kind, (uint8_t)role, 0};
    return p->s.nopnd++;
}

static int add(struct prog *p, int op, int type, int a, int b, int c) {
    p->ins[p->s.nins] =
        (struct dvm_ins){(uint8_t)op, (uint8_t)type, (uint16_t)a, (uint16_t)b, (uint16_t)c};
    return p->s.nins++;
}

static bool only_bf16; /* programs that read and write nothing else */

static int dtype_of(int vt) {
    int t;
    if (only_bf16 && vt == DVM_VT_F32) return DVM_BF16;
    do t = below(DVM_NDTYPE);
    while ((int)dvm_vt_of(t) != vt);
    return t;
}

static uint64_t random_bits(int dtype) {
    static const float floats[] = {0,        -0.0f,     1,   -1,    0.5f,  3.25f, 1e-40f,
                                   INFINITY, -INFINITY, NAN, 1e30f, -2.5f, 65520, 2147483648.0f};
    uint64_t x = next();
    float f = below(4) ? ((float)(x >> 40) * 0x1p-22f - 2) : floats[below((int)DVM_COUNT(floats))];
    double d = (double)f * 1.0000001;
    uint32_t u;
    memcpy(&u, &f, 4);
    switch (dtype) {
    case DVM_BOOL: return below(16) ? x & 1 : x & 255;
    case DVM_F32: return below(8) ? u : (uint32_t)x;
    case DVM_BF16: return u >> 16;
    case DVM_F16: return x & (below(4) ? 0xbfff : 0xffff);
    case DVM_F64: memcpy(&x, &d, 8); return x;
    default: return below(3) ? (uint64_t)((int64_t)(x & 63) - 30) : x >> below(64);
    }
}

static int literal(struct prog *p, int vt) {
    uint64_t bits = random_bits(dvm_vt_dtype((enum dvm_vt)vt));
    if (vt == DVM_VT_B1) bits &= 1;
    if (vt != DVM_VT_I64) bits = (uint32_t)bits;
    if (below(3) == 0 && p->s.nparam < 8) {
        p->param[p->s.nparam] = bits;
        return add(p, DVM_BC_PARAM, vt, p->s.nparam++, 0, 0);
    }
    if (p->s.nlit == 64) return add(p, DVM_BC_LIT, vt, 0, 0, 0);
    p->lit[p->s.nlit] = bits;
    return add(p, DVM_BC_LIT, vt, p->s.nlit++, 0, 0);
}

static int load(struct prog *p, int vt) {
    static const uint8_t kinds[] = {DVM_OPND_CONTIG, DVM_OPND_CONTIG, DVM_OPND_CONTIG,
                                    DVM_OPND_ROW,    DVM_OPND_UNIF,   DVM_OPND_STRIDED};
    int kind = kinds[below((int)DVM_COUNT(kinds))];
    if (only_bf16 && vt == DVM_VT_B1) return literal(p, vt);
    if (p->s.nopnd >= MAX_OPND - 8) return vt == DVM_VT_F64 ? -1 : literal(p, vt);
    if ((vt == DVM_VT_I32 || vt == DVM_VT_I64) && below(6) == 0) {
        int o = add_opnd(p, dvm_vt_dtype((enum dvm_vt)vt),
                         kind == DVM_OPND_CONTIG ? DVM_OPND_STRIDED : kind, DVM_ROLE_IOTA);
        return add(p, DVM_BC_LOAD, vt, o, 0, 0);
    }
    return add(p, DVM_BC_LOAD, vt, add_opnd(p, dtype_of(vt), kind, DVM_ROLE_LOAD), 0, 0);
}

/* Newest values are likelier, but old ones keep registers busy. */
static int value(struct prog *p, int vt) {
    int n = p->s.nins, at = below(3) && n > 6 ? n - 1 - below(6) : below(n);
    for (int k = 0; k < n; k++) {
        const struct dvm_ins *i = &p->ins[(at + k) % n];
        if (i->type == vt && dvm_bc_is_value(i->op) && below(12)) return (at + k) % n;
    }
    return below(2) && vt != DVM_VT_F64 ? literal(p, vt) : load(p, vt);
}

static bool wanted(int op) {
    if (!dvm_bc_is_ew(op) || (op == DVM_OP_POW && below(4))) return false;
    return !only_bf16 || (op != DVM_OP_CAST && dvm_bc_types(op) >> DVM_VT_F32 & 1);
}

static void operation(struct prog *p) {
    int op, vt, v[3] = {0};
    do op = below(DVM_NOP);
    while (!wanted(op));
    do vt = only_bf16 || below(3) ? DVM_VT_F32 : below(DVM_NVT);
    while (!(dvm_bc_types(op) >> vt & 1) && (vt = below(DVM_NVT), !(dvm_bc_types(op) >> vt & 1)));
    int arity = dvm_op_table[op].arity;
    for (int k = 0; k < arity; k++) {
        v[k] = value(p, op == DVM_OP_SELECT && k == 0 ? DVM_VT_B1 : vt);
        if (v[k] < 0) return;
    }
    add(p, op, op == DVM_OP_CAST ? below(DVM_NVT) : (int)dvm_bc_result(op, (enum dvm_vt)vt), v[0],
        v[1], v[2]);
}

static void store(struct prog *p, int v) {
    int vt = p->ins[v].type;
    if (p->s.nopnd >= MAX_OPND - 3) return;
    for (int o = 0; o < p->s.nopnd && below(3) == 0; o++) {
        const struct dvm_opnd in = p->opnd[o];
        bool taken = in.role != DVM_ROLE_LOAD || in.kind != DVM_OPND_CONTIG ||
                     (int)dvm_vt_of(in.dtype) != vt;
        for (int k = 0; k < p->s.nopnd; k++) taken |= p->alias[k] == o + 1;
        if (taken) continue;
        int s = add_opnd(p, in.dtype, in.kind, DVM_ROLE_STORE);
        p->alias[s] = o + 1;
        add(p, DVM_BC_STORE, vt, s, v, 0);
        return;
    }
    int o =
        add_opnd(p, dtype_of(vt), below(5) ? DVM_OPND_CONTIG : DVM_OPND_STRIDED, DVM_ROLE_STORE);
    add(p, DVM_BC_STORE, vt, o, v, 0);
}

static void fold(struct prog *p) {
    int red, vt;
    do red = below(DVM_NOP);
    while (!dvm_bc_is_red(red) || (only_bf16 && !(dvm_bc_types(red) >> DVM_VT_F32 & 1)));
    do vt = only_bf16 ? DVM_VT_F32 : below(DVM_VT_F64);
    while (!(dvm_bc_types(red) >> vt & 1));
    int v = value(p, vt), kind = p->s.mode == DVM_MODE_ROW ? DVM_OPND_ROW
                                 : below(4)                ? DVM_OPND_CONTIG
                                                           : DVM_OPND_STRIDED;
    if (p->s.nopnd >= MAX_OPND - 4) return;
    int o = add_opnd(p, dvm_bc_is_arg(red) ? DVM_I64 : dvm_vt_dtype((enum dvm_vt)vt), kind,
                     DVM_ROLE_FOLD);
    if (dvm_bc_is_arg(red)) add_opnd(p, dvm_vt_dtype((enum dvm_vt)vt), kind, DVM_ROLE_FOLD);
    add(p, DVM_BC_FOLD, vt, v, red, o);
}

static void random_program(struct prog *p) {
    static const int lengths[] = {1, 3, 8, 20, 60, 200};
    int count = 1 + below(lengths[below((int)DVM_COUNT(lengths))]), modes = below(4);
    only_bf16 = below(4) == 0;
    memset(p, 0, sizeof *p);
    p->s.mode = (uint8_t)(modes == 1 ? DVM_MODE_ROW : modes == 2 ? DVM_MODE_COL : DVM_MODE_MAP);
    p->s.opnd = p->opnd;
    p->s.ins = p->ins;
    p->s.lit = p->lit;
    if (p->s.mode != DVM_MODE_COL && below(10) == 0) p->s.flags = DVM_STRIP_WHOLE_ROWS;
    load(p, only_bf16 || below(2) ? DVM_VT_F32 : below(DVM_VT_F64));
    for (int k = 0; k < count; k++) {
        operation(p);
        if (p->s.flags && k < 100 && below(8) == 0) { /* no more than the tier takes */
            int vt = only_bf16 || below(2) ? DVM_VT_F32 : DVM_VT_I64, v = value(p, vt);
            if (v >= 0) add(p, DVM_BC_SCAN, vt, v, 0, 0);
        }
        if (below(25) == 0) store(p, value(p, only_bf16 ? DVM_VT_F32 : below(DVM_VT_F64)));
        if (p->s.mode != DVM_MODE_MAP && below(20) == 0) fold(p);
    }
    int last = p->s.nins - 1;
    while (!dvm_bc_is_value(p->ins[last].op) || (only_bf16 && p->ins[last].type != DVM_VT_F32))
        last--;
    store(p, last);
    if (p->s.mode != DVM_MODE_MAP) fold(p);
}

/* ---- memory */

struct place {
    char *region, *win; /* pages; what is compared */
    size_t n;
    char *init, *want;
};
static struct place places[MAX_OPND + 1];

static char *region(int i) {
    if (places[i].region) return places[i].region;
    char *p = mmap(NULL, REGION + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);
    assert_true(p != MAP_FAILED);
    assert_int_equal(mprotect(p + PAGE, REGION, PROT_READ | PROT_WRITE), 0);
    places[i].init = malloc(REGION);
    places[i].want = malloc(REGION);
    return places[i].region = p + PAGE;
}

static bool written(const struct prog *p, int o) {
    if (p->opnd[o].role == DVM_ROLE_STORE || p->opnd[o].role == DVM_ROLE_FOLD) return true;
    for (int k = 0; k < p->s.nopnd; k++)
        if (p->alias[k] == o + 1) return true;
    return false;
}

static void strides(struct prog *p, int o, int64_t e) {
    struct dvm_opnd_arg *a = &p->arg[o];
    bool fold = p->opnd[o].role == DVM_ROLE_FOLD, out = written(p, o);
    int64_t pad = e * below(3);
    a->cs = e;
    a->rs = p->n * e + pad;
    if (fold && p->s.mode == DVM_MODE_ROW) a->rs = e + pad;
    if (p->opnd[o].kind == DVM_OPND_UNIF) a->rs = a->cs = 0;
    if (p->opnd[o].kind == DVM_OPND_ROW && !fold) a->cs = 0, a->rs = pad;
    if (p->opnd[o].kind != DVM_OPND_STRIDED) return;
    int what = below(out ? 3 : 4);
    if (what == 0) a->cs = 2 * e, a->rs = 2 * p->n * e + pad;
    if (what == 1 && !fold) a->cs = p->m * e + pad, a->rs = e;
    if (what == 2) a->cs = -e;
    if (what == 3) a->cs = 0;
}

static void lay_operand(struct prog *p, int o) {
    struct dvm_opnd_arg *a = &p->arg[o];
    struct place *q = &places[o];
    int64_t e = (int64_t)dvm_dtype_size((dvm_dtype)p->opnd[o].dtype), m = p->m, n = p->n, lo = 0,
            hi = 0;
    q->n = 0;
    *a = (struct dvm_opnd_arg){0};
    if (p->opnd[o].role == DVM_ROLE_IOTA) {
        int kind = p->opnd[o].kind;
        a->ptr = (char *)(uintptr_t)next();
        a->rs = kind == DVM_OPND_UNIF ? 0 : below(100) - 50;
        a->cs = kind == DVM_OPND_STRIDED ? below(9) - 4 : 0;
        return;
    }
    if (p->alias[o]) {
        *a = p->arg[p->alias[o] - 1];
        return;
    }
    strides(p, o, e);
    if (p->opnd[o].role == DVM_ROLE_FOLD) {
        if (p->s.mode == DVM_MODE_ROW)
            n = 1;
        else
            m = 1;
    }
    if (m > 0 && n > 0) {
        const int64_t steps[2] = {(m - 1) * a->rs, (n - 1) * a->cs};
        for (int k = 0; k < 2; k++) {
            lo += DVM_MIN(steps[k], 0);
            hi += DVM_MAX(steps[k], 0);
        }
        hi += e;
    }
    char *base = region(o), *first = below(2) ? base : base + REGION - (hi - lo);
    assert_true(hi - lo < REGION);
    if (below(3) == 0 && hi - lo + 640 < REGION) first = base + (below(2) ? 64 : e * below(64));
    a->ptr = first - lo;
    q->win = first;
    q->n = (size_t)(hi - lo);
    for (int64_t k = 0; k < hi - lo; k += e) {
        uint64_t bits = random_bits(p->opnd[o].dtype);
        memcpy(first + k, &bits, (size_t)e);
    }
    memcpy(q->init, q->win, q->n);
}

static bool is_nan(int dtype, uint64_t u) {
    switch (dtype) {
    case DVM_F16: return (u & 0x7fff) > 0x7c00;
    case DVM_BF16: return (u & 0x7fff) > 0x7f80;
    case DVM_F32: return (u & 0x7fffffff) > 0x7f800000;
    case DVM_F64: return u << 1 > UINT64_C(0xffe0000000000000);
    default: return false;
    }
}

static bool same(int dtype, const char *x, const char *y) {
    uint64_t a = 0, b = 0;
    size_t e = dvm_dtype_size((dvm_dtype)dtype);
    memcpy(&a, x, e);
    memcpy(&b, y, e);
    return a == b || (is_nan(dtype, a) && is_nan(dtype, b));
}

/* Columns of a COL strip know nothing of each other: as many boxes of fewer columns give the same. */
static void cut_to_boxes(const struct prog *p, const struct dvm_code *code,
                         struct dvm_opnd_arg *opnd, int64_t *step, struct dvm_strip_args *a) {
    static const uint8_t counts[] = {2, 3, 5, 64};
    if (!code->boxes || p->s.flags & DVM_STRIP_WHOLE_ROWS) return;
    for (size_t k = 0; k < DVM_COUNT(counts) && a->boxes == 0; k++) {
        if (p->n == 0 || p->n % counts[k]) continue;
        a->boxes = counts[k];
        a->n = p->n / counts[k];
    }
    for (int o = 0; o < p->s.nopnd; o++) {
        opnd[o] = p->arg[o];
        step[o] = a->n * opnd[o].cs;
    }
    a->opnd = opnd;
    a->step = step;
}

static int boxed; /* runs of several boxes */

static void run(struct prog *p, const struct dvm_code *code, bool stream) {
    struct dvm_opnd_arg opnd[MAX_OPND];
    int64_t step[MAX_OPND];
    struct dvm_fault fault = {0};
    bool alias = false;
    for (int o = 0; o < p->s.nopnd; o++) {
        if (places[o].n) memcpy(places[o].win, places[o].init, places[o].n);
        alias |= p->alias[o] != 0;
    }
    size_t size = (code->scratch + 63) & ~(size_t)63;
    char *scratch = region(MAX_OPND) + REGION - size;
    assert_true(size <= REGION);
    memset(scratch, 0xcd, size);
    struct dvm_strip_args a = {.opnd = p->arg,
                               .param = p->param,
                               .m = p->m,
                               .n = p->n,
                               .pos = 1000,
                               .scratch = scratch,
                               .fault = &fault,
                               .stream = stream,
                               .far = stream,
                               .alias = alias};
    if (stream) cut_to_boxes(p, code, opnd, step, &a);
    boxed += a.boxes > 1;
    code->run(code, &a);
    assert_int_equal(fault.any, 0);
}

static void print_program(const struct prog *p, const char *what, uint64_t seed) {
    struct dvm_text t;
    char *text;
    dvm_text_init(&t, &mem);
    dvm_strip_write(&p->s, &t);
    print_message("%s, seed %llu, %lld x %lld\n", what, (unsigned long long)seed, (long long)p->m,
                  (long long)p->n);
    if (dvm_text_take(&t, &text) != DVM_OK) return;
    fputs(text, stderr); /* messages are cut */
    dvm_string_free(&text);
}

static bool compare(const struct prog *p) {
    for (int o = 0; o < p->s.nopnd; o++) {
        size_t e = dvm_dtype_size((dvm_dtype)p->opnd[o].dtype);
        for (size_t k = 0; written(p, o) && k < places[o].n; k += e)
            if (!same(p->opnd[o].dtype, places[o].win + k, places[o].want + k)) {
                print_message("operand o%d differs at element %zu\n", o, k / e);
                return false;
            }
    }
    return true;
}

static int tiled; /* programs that the tile VM took */

static enum dvm_jit_isa best(void) { return dvm_jit_isa_of(dvm_cpu_flags()); }
/* The lowest level that can run here. */
static enum dvm_jit_isa lowest(void) {
    return best() == DVM_JIT_NEON ? DVM_JIT_NEON : DVM_JIT_AVX2;
}
static const char *isa_name(int isa) {
    static const char *const names[] = {"none", "avx2", "avx512", "neon"};
    return names[isa];
}

/* The tile VM may refuse a program (too long, too many operands alive). */
static void check_tiles(struct prog *p, uint64_t seed) {
    struct dvm_code *code = NULL;
    dvm_status st = tiles.compile(&tiles, &mem, &p->s, &code);
    if (st == DVM_ERR_UNSUPPORTED) return;
    assert_int_equal(st, DVM_OK);
    run(p, code, false);
    if (!compare(p)) {
        print_program(p, "tile VM", seed);
        fail();
    }
    tiles.destroy(&tiles, &mem, code);
    tiled++;
}

static void check_program(struct prog *p, uint64_t seed) {
    struct dvm_code *code = NULL;
    if (dvm_strip_verify(&p->s) != DVM_OK) {
        print_program(p, dvm_error_text(), seed);
        fail();
    }
    assert_int_equal(ref.compile(&ref, &mem, &p->s, &code), DVM_OK);
    run(p, code, false);
    ref.destroy(&ref, &mem, code);
    for (int o = 0; o < p->s.nopnd; o++)
        if (places[o].n) memcpy(places[o].want, places[o].win, places[o].n);
    check_tiles(p, seed);
    bool stream = below(2);
    for (int isa = lowest(); isa <= (int)best(); isa++) {
        if (dvm_jit_compile(&mem, &p->s, isa, &code) != DVM_OK) {
            print_program(p, dvm_error_text(), seed);
            fail();
        }
        run(p, code, stream);
        if (!compare(p)) {
            print_program(p, isa_name(isa), seed);
            fail();
        }
        dvm_jit_destroy(&mem, code);
    }
}

static void pick_size(struct prog *p) {
    static const int16_t edge[] = {0, 1, 1023, 1024, 1025, 1040, 2047, 2100};
    p->n = below(6) ? below(131) : edge[below((int)DVM_COUNT(edge))];
    p->m = p->s.mode == DVM_MODE_COL ? below(8) ? 1 + below(9) : below(65) : 1 + below(5);
    if (p->n > 130 || p->s.nins > 100) p->m = DVM_MIN(p->m, 2);
}

static void programs(uint64_t first, int count) {
    static struct prog p;
    for (int k = 0; k < count; k++) {
        uint64_t seed = first + (uint64_t)k;
        rng = seed * 77777;
        random_program(&p);
        for (int again = 0; again < 2; again++) {
            pick_size(&p);
            for (int o = 0; o < p.s.nopnd; o++)
                for (int s = 0; s < p.s.nopnd; s++)
                    if (p.alias[s] == o + 1) p.opnd[o].kind = DVM_OPND_CONTIG;
            for (int o = 0; o < p.s.nopnd; o++) lay_operand(&p, o);
            check_program(&p, seed);
        }
    }
}

static void test_programs(void **state) {
    (void)state;
    const char *count = getenv("DVM_JIT_PROGRAMS"), *seed = getenv("DVM_JIT_SEED");
    int n = count ? atoi(count) : 1500;
    programs(seed ? strtoull(seed, NULL, 0) : 1, n);
    print_message("%d of %d runs in the tile VM too\n", tiled, 2 * n);
    if (n > 100) assert_true(tiled > n); /* that is half of them */
    if (n > 100) assert_true(boxed > n / 20);
}

/* A number of its own for each box: sums over 3 rows of 5 columns, times 1, 2, .. */
static void test_boxes(void **state) {
    (void)state;
    enum { BOXES = 7, M = 3, N = 5 };
    static struct prog p;
    float x[BOXES][M][N], factor[BOXES], y[BOXES][N];
    memset(&p, 0, sizeof p);
    p.s = (struct dvm_strip){.mode = DVM_MODE_COL, .opnd = p.opnd, .ins = p.ins, .lit = p.lit};
    int a = add_opnd(&p, DVM_F32, DVM_OPND_CONTIG, DVM_ROLE_LOAD),
        b = add_opnd(&p, DVM_F32, DVM_OPND_UNIF, DVM_ROLE_LOAD),
        c = add_opnd(&p, DVM_F32, DVM_OPND_CONTIG, DVM_ROLE_FOLD);
    int v = add(&p, DVM_BC_LOAD, DVM_VT_F32, a, 0, 0),
        w = add(&p, DVM_BC_LOAD, DVM_VT_F32, b, 0, 0);
    add(&p, DVM_BC_FOLD, DVM_VT_F32, add(&p, DVM_OP_MUL, DVM_VT_F32, v, w, 0), DVM_OP_SUM, c);
    for (int k = 0; k < BOXES * M * N; k++) (&x[0][0][0])[k] = (float)k;
    for (int k = 0; k < BOXES; k++) factor[k] = (float)(k + 1);
    for (int isa = lowest(); isa <= (int)best(); isa++) {
        struct dvm_code *code;
        const int64_t step[] = {sizeof x[0], sizeof factor[0], sizeof y[0]};
        struct dvm_opnd_arg opnd[] = {{.ptr = (char *)x, .rs = sizeof x[0][0], .cs = 4},
                                      {.ptr = (char *)factor},
                                      {.ptr = (char *)y, .cs = 4}};
        assert_int_equal(dvm_jit_compile(&mem, &p.s, isa, &code), DVM_OK);
        assert_true(code->boxes);
        struct dvm_strip_args args = {.opnd = opnd,
                                      .m = M,
                                      .n = N,
                                      .boxes = BOXES,
                                      .step = step,
                                      .scratch =
                                          aligned_alloc(64, (code->scratch + 63) & ~(size_t)63)};
        memset(y, 0xff, sizeof y);
        code->run(code, &args);
        for (int k = 0; k < BOXES; k++)
            for (int j = 0; j < N; j++) {
                float want = 0;
                for (int i = 0; i < M; i++) want += x[k][i][j] * factor[k];
                assert_true(y[k][j] == want);
            }
        free(args.scratch);
        dvm_jit_destroy(&mem, code);
    }
}

/* Folds of rows without anything per row, or of columns: 0 a sum; 1 a maximum and a sum; 2 a sum of squares, which are
 * stored; 3 a sum of products. */
static void fold_program(struct prog *p, int mode, int dtype, int kind) {
    memset(p, 0, sizeof *p);
    p->s = (struct dvm_strip){.mode = (uint8_t)mode, .opnd = p->opnd, .ins = p->ins, .lit = p->lit};
    int type = dvm_vt_of(dtype), in = add_opnd(p, dtype, DVM_OPND_CONTIG, DVM_ROLE_LOAD);
    int x = add(p, DVM_BC_LOAD, type, in, 0, 0), y = x;
    int other = kind == 3 ? add_opnd(p, dtype, DVM_OPND_CONTIG, DVM_ROLE_LOAD) : 0;
    if (kind == 3) y = add(p, DVM_BC_LOAD, type, other, 0, 0);
    if (kind >= 2) x = add(p, DVM_OP_MUL, type, x, y, 0);
    if (kind == 2)
        add(p, DVM_BC_STORE, type, add_opnd(p, dtype, DVM_OPND_CONTIG, DVM_ROLE_STORE), x, 0);
    int folds[] = {DVM_OP_SUM, DVM_OP_RMAX};
    for (int k = kind == 1; k >= 0; k--) {
        int out =
            add_opnd(p, type == DVM_VT_F32 ? DVM_F32 : DVM_I64, DVM_OPND_CONTIG, DVM_ROLE_FOLD);
        if (mode == DVM_MODE_ROW) p->opnd[out].kind = DVM_OPND_ROW;
        add(p, DVM_BC_FOLD, type, x, folds[k], out);
    }
}

/* Rows far from the core are read four at a time. */
static void test_rows_by_turns(void **state) {
    (void)state;
    static const int16_t cols[] = {64, 128, 960, 1024, 1088, 2048, 3072};
    static const uint8_t rows[] = {1, 3, 4, 5, 8, 11, 70};
    static struct prog p;
    for (int k = 0; k < 4 * 3 * 7 * 7 * 2; k++) {
        static const uint8_t dtypes[] = {DVM_F32, DVM_BF16, DVM_I64};
        rng = (uint64_t)k + 5;
        fold_program(&p, DVM_MODE_ROW, dtypes[k / 4 % 3], k % 4);
        p.n = cols[k / 12 % 7];
        p.m = rows[k / 84 % 7];
        for (int o = 0; o < p.s.nopnd; o++) lay_operand(&p, o);
        check_program(&p, (uint64_t)k);
    }
}

enum { BOX_ROWS = 64, BOX_COLS = 2080, BOXES = 4, ALL_BOXES = 6 };
static char box_mem[3][ALL_BOXES * BOX_ROWS * BOX_COLS * 4],
    box_out[2][ALL_BOXES * 2 * BOX_COLS * 4];

/* A thousand numbers again and again. */
static void fill_boxes(int dtype) {
    enum { NUMBERS = 997 };
    size_t e = dvm_dtype_size((dvm_dtype)dtype), some = NUMBERS * e;
    for (size_t i = 0; i < 2 * some; i += e) {
        uint64_t bits = random_bits(dtype);
        memcpy(box_mem[i / some] + i % some, &bits, e);
    }
    for (int which = 0; which < 2; which++)
        for (size_t i = some; i < sizeof box_mem[0]; i += e)
            memcpy(box_mem[which] + i, box_mem[which] + i - some, e);
}

/* Operands of a box: two inputs or the memory that is stored to, then results. */
static void box_operands(const struct prog *p, int box, int to, struct dvm_opnd_arg *a) {
    int in = 0, out = 0;
    for (int o = 0; o < p->s.nopnd; o++) {
        int64_t e = (int64_t)dvm_dtype_size((dvm_dtype)p->opnd[o].dtype), row = (p->n + 3) * e;
        if (p->opnd[o].role == DVM_ROLE_FOLD) {
            a[o] =
                (struct dvm_opnd_arg){box_out[to] + (box * 2 + out++) * BOX_COLS * 4, 0, e, 0, 0};
            continue;
        }
        int which = p->opnd[o].role == DVM_ROLE_STORE ? 1 + to : in++;
        a[o] = (struct dvm_opnd_arg){box_mem[which] + box * p->m * row, row, e, 0, 0};
    }
}

static void same_boxes(const struct prog *p, bool stores) {
    int dtype = p->opnd[p->s.nopnd - 1].dtype, stored = p->opnd[0].dtype;
    int64_t e = (int64_t)dvm_dtype_size((dvm_dtype)dtype);
    for (int64_t i = 0; i < (int64_t)sizeof box_out[0]; i += e)
        assert_true(same(dtype, box_out[0] + i, box_out[1] + i));
    e = (int64_t)dvm_dtype_size((dvm_dtype)stored);
    for (int64_t i = 0; stores && i < (int64_t)sizeof box_mem[0]; i += e)
        assert_true(same(stored, box_mem[1] + i, box_mem[2] + i));
}

/* Four at a time where the code can, then each alone. */
static void run_together(const struct prog *p, const struct dvm_code *code,
                         struct dvm_strip_args a) {
    struct dvm_opnd_arg opnd[ALL_BOXES * MAX_OPND];
    for (int box = 0; box < ALL_BOXES; box++) box_operands(p, box, 1, opnd + box * p->s.nopnd);
    a.opnd = opnd;
    a.together = code->together ? BOXES : 0;
    if (a.together) code->run(code, &a);
    for (int box = a.together; box < ALL_BOXES; box++) {
        a.together = 0;
        a.opnd = opnd + box * p->s.nopnd;
        code->run(code, &a);
    }
}

/* All of them in one call, one behind the other. */
static void run_in_a_row(const struct prog *p, const struct dvm_code *code,
                         struct dvm_strip_args a) {
    struct dvm_opnd_arg opnd[MAX_OPND], next[MAX_OPND];
    int64_t step[MAX_OPND];
    box_operands(p, 0, 1, opnd);
    box_operands(p, 1, 1, next);
    for (int o = 0; o < p->s.nopnd; o++) step[o] = next[o].ptr - opnd[o].ptr;
    a.opnd = opnd;
    a.step = step;
    a.boxes = ALL_BOXES;
    code->run(code, &a);
}

/* A column kernel's groups of rows, far from the core, four at a time; and boxes one behind the other. */
static void test_boxes_by_turns(void **state) {
    (void)state;
    static const int16_t cols[] = {64, 128, 200, 960, 1024, 1088, 2048};
    static const uint8_t rows[] = {1, 5, 64};
    static const uint8_t dtypes[] = {DVM_F32, DVM_BF16, DVM_I64};
    static struct prog p;
    char *scratch = aligned_alloc(64, 1 << 20);
    int taken = 0;
    for (int k = 0; k < 4 * 3 * 7 * 3; k++) {
        struct dvm_opnd_arg opnd[MAX_OPND];
        struct dvm_code *code[2];
        rng = (uint64_t)k + 99;
        fold_program(&p, DVM_MODE_COL, dtypes[k / 4 % 3], k % 4);
        p.n = cols[k / 12 % 7] / (p.opnd[0].dtype == DVM_I64 ? 2 : 1); /* room */
        p.m = rows[k / 84 % 3];
        fill_boxes(p.opnd[0].dtype);
        assert_int_equal(ref.compile(&ref, &mem, &p.s, &code[0]), DVM_OK);
        assert_int_equal(dvm_jit_compile(&mem, &p.s, best(), &code[1]), DVM_OK);
        assert_true(code[1]->scratch <= 1 << 20);
        taken += code[1]->together;
        memset(box_out[0], 0x55, sizeof box_out[0]);
        struct dvm_strip_args a = {.m = p.m, .n = p.n, .scratch = scratch, .far = true};
        bool stores = k % 4 == 2;
        if (stores) memset(box_mem[1], 0x55, sizeof box_mem[1]);
        for (int box = 0; box < ALL_BOXES; box++) {
            box_operands(&p, box, 0, opnd);
            a.opnd = opnd;
            code[0]->run(code[0], &a);
        }
        for (int way = 0; way < 2; way++) {
            memset(box_out[1], 0x55, sizeof box_out[1]);
            if (stores) memset(box_mem[2], 0x55, sizeof box_mem[2]);
            memset(scratch, 0xcd, code[1]->scratch);
            if (way == 0)
                run_together(&p, code[1], a);
            else
                run_in_a_row(&p, code[1], a);
            same_boxes(&p, stores);
        }
        ref.destroy(&ref, &mem, code[0]);
        dvm_jit_destroy(&mem, code[1]);
    }
    free(scratch);
    if (best() != DVM_JIT_NEON) assert_true(taken > 50);
}

/* ---- divisions */

enum { PAIRS = 4096 };

/* What divisions are made of: small numbers; numbers of any size; and numbers at the edges of what f64 holds, beside
 * zeros, NaN and infinities. Every vector of the first kind is without the others. */
static float some_f32(int kind, int i) {
    static const float odd[] = {0,        -0.0f,     1,         -1,        0x1p28f, 0x1p-149f,
                                0x1p-20f, INFINITY,  -INFINITY, NAN,       3,       -7.5f,
                                0x1p27f,  0x1.8p28f, 0x1p100f,  FLT_MAX,   0.1f,    -FLT_MIN,
                                0x1p24f,  16777215,  -0x1p29f,  268435455, 0.5f,    -2};
    uint32_t bits = (uint32_t)(next() >> 16);
    float x;
    if (kind == 0) return ((float)(int32_t)below(200001) - 100000.5f) * (i % 3 ? 0.125f : 1);
    if (kind == 2) return odd[below(DVM_COUNT(odd))];
    memcpy(&x, &bits, 4);
    return x;
}

static int64_t some_i64(int kind, bool wide) {
    static const int64_t odd[] = {0,
                                  1,
                                  -1,
                                  2,
                                  7,
                                  -3,
                                  INT32_MAX,
                                  INT32_MIN,
                                  INT64_MAX,
                                  INT64_MIN,
                                  INT64_MIN + 1,
                                  (INT64_C(1) << 51) - 1,
                                  INT64_C(1) << 51,
                                  -(INT64_C(1) << 51),
                                  -(INT64_C(1) << 51) - 1,
                                  (INT64_C(1) << 53) + 1,
                                  (INT64_C(1) << 50) + 1,
                                  INT64_C(94906267),
                                  INT64_C(94906265)};
    int64_t x = (int64_t)next();
    if (kind == 0) x = x >> (wide ? 13 : 40) | 1; /* never 0 */
    if (kind == 2) x = odd[below(DVM_COUNT(odd))];
    return x;
}

static void divide_program(struct prog *p, int op, int dtype, int way) {
    int type = dvm_vt_of(dtype);
    memset(p, 0, sizeof *p);
    p->s = (struct dvm_strip){.mode = DVM_MODE_MAP, .opnd = p->opnd, .ins = p->ins, .lit = p->lit};
    int a = add_opnd(p, dtype, DVM_OPND_CONTIG, DVM_ROLE_LOAD),
        b = add_opnd(p, dtype, way == 1 ? DVM_OPND_UNIF : DVM_OPND_CONTIG, DVM_ROLE_LOAD),
        c = add_opnd(p, dtype, DVM_OPND_CONTIG, DVM_ROLE_STORE);
    int x = add(p, DVM_BC_LOAD, type, a, 0, 0), y = add(p, DVM_BC_LOAD, type, b, 0, 0);
    if (way == 2) { /* several, with values that live on over the call */
        int z = add(p, op, type, y, x, 0);
        x = add(p, DVM_OP_ADD, type, add(p, op, type, x, y, 0), z, 0);
    }
    add(p, DVM_BC_STORE, type, c, add(p, op, type, x, y, 0), 0);
}

/* Runs a program of one row of n elements by the code of a level; below lowest() by the reference. */
static void run_at(struct prog *p, int isa, const struct dvm_opnd_arg *opnd, int64_t n) {
    struct dvm_code *code;
    bool by_ref = isa < (int)lowest();
    if (by_ref)
        assert_int_equal(ref.compile(&ref, &mem, &p->s, &code), DVM_OK);
    else
        assert_int_equal(dvm_jit_compile(&mem, &p->s, isa, &code), DVM_OK);
    size_t room = (code->scratch + 127) & ~(size_t)63;
    struct dvm_strip_args a = {.opnd = opnd, .m = 1, .n = n, .scratch = aligned_alloc(64, room)};
    memset(a.scratch, 0xcd, room);
    code->run(code, &a);
    free(a.scratch);
    if (by_ref)
        ref.destroy(&ref, &mem, code);
    else
        dvm_jit_destroy(&mem, code);
}

/* Every division at every level gives what the reference gives. */
static void test_divisions(void **state) {
    (void)state;
    static const uint8_t ops[] = {DVM_OP_FMOD, DVM_OP_REM, DVM_OP_FLOORDIV, DVM_OP_TRUNCDIV};
    static const uint8_t dtypes[] = {DVM_F32, DVM_I64, DVM_I32};
    static int64_t in[2][PAIRS], out[2][PAIRS];
    static struct prog p;
    rng = 77;
    for (int k = 0; k < 4 * 3 * 3 * 4; k++) {
        int op = ops[k % 4], dtype = dtypes[k / 4 % 3], way = k / 12 % 3, kind = k / 36;
        int64_t e = (int64_t)dvm_dtype_size((dvm_dtype)dtype), n = PAIRS - 3;
        for (int i = 0; i < 2 * PAIRS; i++) {
            int of = kind == 3 ? i / 2 % 97 ? 0 : 2 : kind; /* 3: few are odd */
            float f = some_f32(of, i);
            int64_t w = some_i64(of, i % 5 == 0);
            char *to = (char *)in[i % 2] + i / 2 * e;
            if (dtype == DVM_F32)
                memcpy(to, &f, 4);
            else
                memcpy(to, &w, (size_t)e);
        }
        divide_program(&p, op, dtype, way);
        for (int isa = (int)lowest() - 1; isa <= (int)best(); isa++) {
            bool first = isa < (int)lowest();
            struct dvm_opnd_arg opnd[] = {{.ptr = (char *)in[0], .cs = e},
                                          {.ptr = (char *)in[1], .cs = way == 1 ? 0 : e},
                                          {.ptr = (char *)out[!first], .cs = e}};
            memset(out[!first], 0x55, sizeof out[0]);
            run_at(&p, isa, opnd, n);
            for (int64_t i = 0; i < n && !first; i++)
                if (!same(dtype, (char *)out[0] + i * e, (char *)out[1] + i * e))
                    fail_msg("op %d dtype %d way %d kind %d level %d: element %d", op, dtype, way,
                             kind, isa, (int)i);
        }
    }
}

/* Powers by constants are products; the others are a C function's. */
static void test_powers(void **state) {
    (void)state;
    static const int64_t exponents[] = {0, 1, 2, 3, 7, 10, 31, 62, 63, 64, 1000, -1, -2, INT32_MIN};
    static int64_t in[64], out[2][64];
    static struct prog p;
    rng = 78;
    for (size_t k = 0; k < 2 * DVM_COUNT(exponents); k++) {
        int dtype = k % 2 ? DVM_I64 : DVM_I32, type = dvm_vt_of(dtype);
        int64_t e = (int64_t)dvm_dtype_size((dvm_dtype)dtype), n = 61;
        memset(&p, 0, sizeof p);
        p.s = (struct dvm_strip){
            .mode = DVM_MODE_MAP, .opnd = p.opnd, .ins = p.ins, .lit = p.lit, .nlit = 1};
        p.lit[0] = (uint64_t)exponents[k / 2];
        if (dtype == DVM_I32) p.lit[0] = (uint32_t)p.lit[0];
        int a = add_opnd(&p, dtype, DVM_OPND_CONTIG, DVM_ROLE_LOAD),
            c = add_opnd(&p, dtype, DVM_OPND_CONTIG, DVM_ROLE_STORE);
        int x = add(&p, DVM_BC_LOAD, type, a, 0, 0), y = add(&p, DVM_BC_LIT, type, 0, 0, 0);
        add(&p, DVM_BC_STORE, type, c, add(&p, DVM_OP_POW, type, x, y, 0), 0);
        for (int i = 0; i < n; i++) {
            int64_t w = i < 7 ? i - 3 : some_i64(i % 3, false);
            memcpy((char *)in + i * e, &w, (size_t)e);
        }
        for (int isa = (int)lowest() - 1; isa <= (int)best(); isa++) {
            bool first = isa < (int)lowest();
            struct dvm_opnd_arg opnd[] = {{.ptr = (char *)in, .cs = e},
                                          {.ptr = (char *)out[!first], .cs = e}};
            memset(out[!first], 0x55, sizeof out[0]);
            run_at(&p, isa, opnd, n);
            if (!first) assert_memory_equal(out[0], out[1], sizeof out[0]);
        }
    }
}

/* ---- the rest */

static void small_program(struct prog *p, uint64_t seed, int count) {
    rng = seed;
    memset(p, 0, sizeof *p);
    p->s.opnd = p->opnd;
    p->s.ins = p->ins;
    p->s.lit = p->lit;
    int x = add(p, DVM_BC_LOAD, DVM_VT_F32, add_opnd(p, DVM_F32, DVM_OPND_CONTIG, DVM_ROLE_LOAD), 0,
                0),
        v = x;
    for (int k = 0; k < count; k++)
        v = add(p, k % 2 ? DVM_OP_MUL : DVM_OP_ADD, DVM_VT_F32, v, x, 0);
    add(p, DVM_BC_STORE, DVM_VT_F32, add_opnd(p, DVM_F32, DVM_OPND_CONTIG, DVM_ROLE_STORE), v, 0);
}

static void *compile_and_run(void *arg) {
    struct prog *p = malloc(sizeof *p);
    float *x = malloc(4000), *y = malloc(4000);
    intptr_t bad = 0;
    for (int k = 0; k < 1000; k++) {
        int count = 1 + (k + (int)(intptr_t)arg * 7) % 30;
        struct dvm_code *code;
        small_program(p, 1, count);
        if (dvm_jit_compile(&mem, &p->s, best(), &code) != DVM_OK) return (void *)1;
        for (int i = 0; i < 1000; i++) x[i] = (float)i * 0.001f;
        p->arg[0] = (struct dvm_opnd_arg){.ptr = (char *)x, .cs = 4};
        p->arg[1] = (struct dvm_opnd_arg){.ptr = (char *)y, .cs = 4};
        struct dvm_strip_args a = {.opnd = p->arg,
                                   .m = 1,
                                   .n = 1000,
                                   .scratch =
                                       aligned_alloc(64, (code->scratch + 63) & ~(size_t)63)};
        code->run(code, &a);
        for (int i = 0; i < 1000; i += 111) {
            float v = x[i];
            for (int s = 0; s < count; s++) v = s % 2 ? v * x[i] : v + x[i];
            bad += memcmp(&v, &y[i], 4) != 0;
        }
        free(a.scratch);
        dvm_jit_destroy(&mem, code);
    }
    free(p);
    free(x);
    free(y);
    return (void *)bad;
}

static void test_threads(void **state) {
    (void)state;
    pthread_t t[8];
    for (intptr_t k = 0; k < 8; k++) pthread_create(&t[k], NULL, compile_and_run, (void *)k);
    for (int k = 0; k < 8; k++) {
        void *bad;
        pthread_join(t[k], &bad);
        assert_null(bad);
    }
    assert_int_equal(dvm_code_mem_used(), 0);
}

struct counter {
    long left, live;
};
static void *counting(void *user, void *old, size_t old_size, size_t new_size) {
    struct counter *c = user;
    if (new_size && c->left-- <= 0) return NULL;
    void *p = dvm_mem_system(NULL, old, old_size, new_size);
    c->live += (new_size && p) - (!new_size && old);
    return p;
}

static void test_no_growth(void **state) {
    (void)state;
    static struct prog p;
    struct counter c = {LONG_MAX, 0};
    struct dvm_mem m = {counting, &c};
    for (int k = 0; k < 100000; k++) {
        struct dvm_code *code;
        if (k % 1000 == 0) small_program(&p, 1, 1 + k / 1000 % 20);
        assert_int_equal(dvm_jit_compile(&m, &p.s, best(), &code), DVM_OK);
        dvm_jit_destroy(&m, code);
    }
    assert_int_equal(c.live, 0);
    assert_int_equal(dvm_code_mem_used(), 0);
}

static void test_failing_allocations(void **state) {
    (void)state;
    static struct prog p;
    rng = 5;
    do random_program(&p);
    while (p.s.nins < 100);
    for (long n = 0;; n++) {
        struct counter c = {n, 0};
        struct dvm_mem m = {counting, &c};
        struct dvm_code *code = NULL;
        dvm_status st = dvm_jit_compile(&m, &p.s, best(), &code);
        if (st == DVM_OK) {
            dvm_jit_destroy(&m, code);
            assert_int_equal(c.live, 0);
            assert_true(n > 1);
            return;
        }
        assert_int_equal(c.live, 0);
        assert_int_equal(st, DVM_ERR_NOMEM);
        assert_true(n < 100);
    }
}

static void test_switched_off(void **state) {
    (void)state;
    static struct prog p;
    struct dvm_code *code;
    small_program(&p, 1, 3);
    setenv("DVM_JIT", "0", 1);
    assert_non_null(dvm_jit_refused());
    assert_int_equal(dvm_jit_compile(&mem, &p.s, best(), &code), DVM_ERR_UNSUPPORTED);
    unsetenv("DVM_JIT");
    assert_null(dvm_jit_refused());
    assert_int_equal(dvm_jit_compile(&mem, &p.s, DVM_JIT_NONE, &code), DVM_ERR_UNSUPPORTED);
}

/* Registers above 15, zmm and masks do not exist on AVX2. */
static bool avx512_text(const char *line) {
    static const char *const words[] = {"zmm",  "{k",   "{evex}", "(bad)", "mm16", "mm17", "mm18",
                                        "mm19", "mm20", "mm21",   "mm22",  "mm23", "mm24", "mm25",
                                        "mm26", "mm27", "mm28",   "mm29",  "mm30", "mm31", "\tk"};
    for (size_t k = 0; k < DVM_COUNT(words); k++)
        if (strstr(line, words[k])) return true;
    return false;
}

static void test_avx2_only(void **state) {
    (void)state;
    static struct prog p;
    char path[] = "/tmp/dvm-jit-XXXXXX", command[160], line[256];
    if (lowest() != DVM_JIT_AVX2) skip_because("no machine code of AVX2 here");
    if (system("objdump --version >/dev/null 2>&1") != 0) skip_because("no objdump");
    int fd = mkstemp(path), bad = 0;
    assert_true(fd >= 0);
    for (int k = 0; k < 400; k++) {
        struct dvm_code *code;
        const void *bytes;
        rng = (uint64_t)k + 9000;
        random_program(&p);
        assert_int_equal(dvm_jit_compile(&mem, &p.s, DVM_JIT_AVX2, &code), DVM_OK);
        size_t n = dvm_jit_code(code, &bytes), entry = dvm_jit_entry(code);
        assert_int_equal(write(fd, (const char *)bytes + entry, n - entry), (ssize_t)(n - entry));
        dvm_jit_destroy(&mem, code);
    }
    close(fd);
    snprintf(command, sizeof command,
             "objdump -D -b binary -mi386:x86-64 -Mintel --no-show-raw-insn %s", path);
    FILE *f = popen(command, "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f))
        if (line[0] == ' ' && avx512_text(line) && bad++ < 5) print_message("%s", line);
    pclose(f);
    unlink(path);
    assert_int_equal(bad, 0);
}

/* A listing shows every byte of the function, and nothing else. */
static void test_listing(void **state) {
    (void)state;
    static struct prog p;
    for (int k = 0; k < 50; k++) {
        struct dvm_text t;
        struct dvm_code *code;
        const void *bytes;
        char *text;
        size_t shown = 0;
        rng = (uint64_t)k + 4000;
        random_program(&p);
        dvm_text_init(&t, &mem);
        assert_int_equal(dvm_jit_list(&mem, &p.s, best(), &t), DVM_OK);
        assert_int_equal(dvm_text_take(&t, &text), DVM_OK);
        for (const char *at = text; (at = strstr(at, "\n      ")); at++) {
            const char *end = strchr(at + 1, '\n');
            shown += (size_t)(end - at - 13) / 3; /* "\n      00040 " and " 62" for each */
        }
        assert_int_equal(dvm_jit_compile(&mem, &p.s, best(), &code), DVM_OK);
        assert_int_equal(shown, dvm_jit_code(code, &bytes) - dvm_jit_entry(code));
        dvm_jit_destroy(&mem, code);
        dvm_string_free(&text);
    }
}

/* Turned matrices of every element size to dense rows and back: each element where it belongs, nothing written beside. */
static void test_turned(void **state) {
    (void)state;
    enum { MOST = 70, PAD = 3, GUARD = 64, BYTES = MOST * (MOST + PAD) * 8 };
    static char from[BYTES], to[BYTES + 2 * GUARD], back[BYTES + 2 * GUARD];
    rng = 11;
    for (int k = 0; k < BYTES; k++) from[k] = (char)below(255);
    for (int k = 0; k < 600; k++) {
        int64_t size = INT64_C(1) << k % 4, rows = 1 + below(MOST), cols = 1 + below(MOST);
        if (k < 64) rows = 1 + k / 4 * 4, cols = 32;
        int64_t cs = (rows + below(PAD + 1)) * size;
        memset(to, 0x55, sizeof to);
        memset(back, 0x55, sizeof back);
        int64_t pitch = (cols + below(PAD + 1)) * size;
        dvm_jit_gather(to + GUARD, pitch, from, size, cs, rows, cols, (int)size, cols % 2 ? 16 : 0);
        dvm_jit_scatter(back + GUARD, size, cs, to + GUARD, pitch, rows, cols, (int)size);
        for (int64_t i = 0; i < rows; i++)
            for (int64_t j = 0; j < cols; j++)
                assert_memory_equal(to + GUARD + i * pitch + j * size, from + i * size + j * cs,
                                    (size_t)size);
        for (int64_t n = 0; n < (int64_t)sizeof to; n++) {
            int64_t at = n - GUARD;
            if (at < 0 || at >= rows * pitch || at % pitch >= cols * size)
                assert_int_equal(to[n], 0x55);
            bool element = at >= 0 && at / cs < cols && at % cs < rows * size;
            assert_int_equal(back[n], element ? from[at] : 0x55);
        }
    }
}

/* Matrices that are turned on the way in or out, far larger than the caches, plus one that is not. */
static void test_turned_far(void **state) {
    (void)state;
    enum { FAR = 9 << 20, COLS = 2100, ROWS = 130 };
    static const uint8_t dtypes[] = {DVM_F32, DVM_BF16, DVM_I64, DVM_I32, DVM_U8};
    static const int16_t rows[] = {1, 63, 128, ROWS}, cols[] = {1030, 1041, COLS};
    static struct prog p;
    char *x = malloc(FAR), *y = malloc(ROWS * COLS * 8), *z[2] = {malloc(FAR), malloc(FAR)};
    for (int k = 0; k < 5 * 4 * 3 * 2; k++) {
        int dtype = dtypes[k % 5], type = dvm_vt_of(dtype);
        bool out = k / 60;
        struct dvm_code *code[2];
        int64_t m = rows[k / 5 % 4], n = cols[k / 20 % 3],
                e = (int64_t)dvm_dtype_size((dvm_dtype)dtype), step = ((8 << 20) / n / e + 1) * e;
        memset(&p, 0, sizeof p);
        p.s = (struct dvm_strip){.mode = DVM_MODE_MAP, .opnd = p.opnd, .ins = p.ins, .lit = p.lit};
        int strided = DVM_OPND_STRIDED, contig = DVM_OPND_CONTIG;
        int a = add(&p, DVM_BC_LOAD, type,
                    add_opnd(&p, dtype, out ? contig : strided, DVM_ROLE_LOAD), 0, 0);
        int b = add(&p, DVM_BC_LOAD, type, add_opnd(&p, dtype, contig, DVM_ROLE_LOAD), 0, 0);
        int v = add(&p, DVM_OP_ADD, type, a, b, 0);
        add(&p, DVM_BC_STORE, type, add_opnd(&p, dtype, out ? strided : contig, DVM_ROLE_STORE), v,
            0);
        rng = (uint64_t)k + 3;
        assert_true(m * e <= step && step * n <= FAR);
        for (int64_t j = 0; j < n; j++)
            for (int64_t i = 0; i < m; i++) {
                uint64_t bits[2] = {random_bits(dtype), random_bits(dtype)};
                memcpy(out ? x + (i * n + j) * e : x + j * step + i * e, &bits[0], (size_t)e);
                memcpy(y + (i * n + j) * e, &bits[1], (size_t)e);
            }
        assert_int_equal(ref.compile(&ref, &mem, &p.s, &code[0]), DVM_OK);
        assert_int_equal(dvm_jit_compile(&mem, &p.s, best(), &code[1]), DVM_OK);
        for (int which = 0; which < 2; which++) {
            struct dvm_opnd_arg dense = {.rs = n * e, .cs = e}, turned = {.rs = e, .cs = step};
            struct dvm_opnd_arg opnd[3] = {out ? dense : turned, dense, out ? turned : dense};
            struct dvm_strip_args args = {.opnd = opnd, .m = m, .n = n, .stream = k % 3 == 0};
            opnd[0].ptr = x;
            opnd[1].ptr = y;
            opnd[2].ptr = z[which];
            args.scratch = aligned_alloc(64, (code[which]->scratch + 64) & ~(size_t)63);
            memset(z[which], 0x55, (size_t)(out ? step * n : (m + 1) * n * e));
            code[which]->run(code[which], &args);
            free(args.scratch);
        }
        for (int64_t i = 0; i < (out ? step * n : (m + 1) * n * e); i += e)
            assert_true(same(dtype, z[0] + i, z[1] + i));
        ref.destroy(&ref, &mem, code[0]);
        dvm_jit_destroy(&mem, code[1]);
    }
    free(x);
    free(y);
    free(z[0]);
    free(z[1]);
}

int main(void) {
    if (dvm_jit_refused() || best() == DVM_JIT_NONE) {
        print_message("1..0 # SKIP no machine code here\n");
        return 0;
    }
    if (dvm_dev_ref(&ref) != DVM_OK || dvm_dev_cpu(NULL, &tiles) != DVM_OK) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_programs),       cmocka_unit_test(test_threads),
        cmocka_unit_test(test_no_growth),      cmocka_unit_test(test_failing_allocations),
        cmocka_unit_test(test_switched_off),   cmocka_unit_test(test_avx2_only),
        cmocka_unit_test(test_divisions),      cmocka_unit_test(test_powers),
        cmocka_unit_test(test_listing),        cmocka_unit_test(test_boxes),
        cmocka_unit_test(test_turned),         cmocka_unit_test(test_rows_by_turns),
        cmocka_unit_test(test_boxes_by_turns), cmocka_unit_test(test_turned_far),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
