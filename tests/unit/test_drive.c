/* The loop driver against a driver that knows no threads, units or boxes: one element at a time for
 * maps and columns, one row at a time for rows, with the trees of tree.h spelled out. Same bits for
 * every number of threads, split or not, on kernels of all kinds, strides and sizes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "code/bc_table.h"
#include "code/strip_text.h"
#include "code/tree.h"
#include "vm/dev.h"
#include "vm/pool.h"

#include "skip.h"

static const struct dvm_mem mem = {dvm_mem_system, NULL};
static struct dvm_dev dev;

/* ---- a plan of one kernel ----------------------------------------------------------------------- */

enum { MAX_PHASES = 3, MAX_BINDS = 8, BUFFERS = 4 };

struct setup {
    struct dvm_plan plan;
    struct dvm_kplan kernel;
    struct dvm_phase phase[MAX_PHASES];
    struct dvm_bind bind[MAX_PHASES][MAX_BINDS];
    struct dvm_strip strip[MAX_PHASES];
    struct dvm_strip *owned[MAX_PHASES];
    struct dvm_code *code[MAX_PHASES];
    struct dvm_launch launch;
    char *in[BUFFERS], *out[BUFFERS];
    size_t out_bytes[BUFFERS];
    uint64_t param[1];
};

static void begin(struct setup *t, int kind, int nm, int naxes, const int64_t *size,
                  int64_t block) {
    memset(t, 0, sizeof *t);
    t->kernel = (struct dvm_kplan){.kind = (uint8_t)kind,
                                   .naxes = (uint8_t)naxes,
                                   .nm = (uint8_t)nm,
                                   .block = block,
                                   .scratch = (size_t)block * 64,
                                   .phase = t->phase};
    memcpy(t->kernel.size, size, (size_t)naxes * sizeof *size);
    t->plan = (struct dvm_plan){
        .nkernel = 1, .kernel = &t->kernel, .strip = t->strip, .code = t->code, .nparam = 1};
    t->launch = (struct dvm_launch){
        .plan = &t->plan, .in = t->in, .out = t->out, .param = t->param, .mem = &mem};
}

static struct dvm_bind *phase(struct setup *t, int kind, const char *text) {
    static const uint16_t first[1] = {0};
    int i = t->kernel.nphase++;
    assert_int_equal(dvm_strip_read(&mem, "strip", text, strlen(text), &t->owned[i]), DVM_OK);
    t->strip[i] = *t->owned[i];
    assert_int_equal(dev.compile(&dev, &mem, &t->strip[i], &t->code[i]), DVM_OK);
    t->phase[i] = (struct dvm_phase){.kind = (uint8_t)kind,
                                     .pass = t->strip[i].mode,
                                     .nbind = t->strip[i].nopnd,
                                     .nparam = t->strip[i].nparam,
                                     .strip = (uint32_t)i,
                                     .bind = t->bind[i],
                                     .param = first};
    t->kernel.whole_rows |= t->strip[i].flags;
    t->plan.nstrip = t->kernel.nphase;
    return t->bind[i];
}

static struct dvm_bind bind(int src, int index, int64_t offset) {
    return (struct dvm_bind){.src = (uint8_t)src, .index = (uint16_t)index, .offset = offset};
}

static int64_t elements(const struct setup *t) {
    int64_t n = 1;
    for (int a = 0; a < t->kernel.naxes; a++) n *= t->kernel.size[a];
    return n;
}

/* Dense strides over the axes of `mask`, in the order of the axes, or the last two swapped. */
static void dense(const struct setup *t, struct dvm_bind *b, int elem, unsigned mask, bool swap) {
    int na = t->kernel.naxes;
    int64_t step = elem;
    for (int k = na - 1; k >= 0; k--) {
        int a = swap && k >= na - 2 ? 2 * na - 3 - k : k;
        if (!(mask >> a & 1)) continue;
        b->stride[a] = step;
        step *= DVM_MAX(t->kernel.size[a], 1);
    }
}

static unsigned all_axes(const struct setup *t) { return (1u << t->kernel.naxes) - 1; }
static unsigned kept_axes(const struct setup *t) {
    unsigned m = all_axes(t);
    int na = t->kernel.naxes;
    if (t->kernel.kind == DVM_MODE_ROW) m &= ~(1u << (na - 1));
    for (int k = 0; k < t->kernel.nm; k++) m &= ~(1u << (na - 2 - k));
    return m;
}

static uint64_t seed = 1;
static uint32_t random_bits(void) {
    seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (uint32_t)(seed >> 32);
}

static char *floats(int64_t n) {
    float *x = malloc((size_t)DVM_MAX(n, 1) * sizeof *x);
    for (int64_t i = 0; i < n; i++) x[i] = (float)(int32_t)random_bits() * 0x1p-24f;
    return (char *)x;
}

static void output(struct setup *t, int i, int64_t n, int elem) {
    t->out_bytes[i] = (size_t)(n * elem);
    t->out[i] = malloc(t->out_bytes[i] + 1);
}

static void end(struct setup *t) {
    for (int i = 0; i < t->kernel.nphase; i++) {
        dev.destroy(&dev, &mem, t->code[i]);
        dvm_strip_free(&mem, &t->owned[i]);
    }
    for (int i = 0; i < BUFFERS; i++) {
        free(t->in[i]);
        free(t->out[i]);
    }
}

/* ---- the naive driver --------------------------------------------------------------------------- */

struct naive {
    const struct setup *t;
    char *scratch, *tier;
    int64_t idx[DVM_MAX_AXES]; /* current element */
    int64_t start;             /* of the block, on its axis */
};

static int block_axis(const struct setup *t) {
    return t->kernel.naxes - (t->kernel.kind == DVM_MODE_COL ? 1 : 2);
}

static struct dvm_opnd_arg element(const struct naive *v, const struct dvm_bind *b) {
    const struct setup *t = v->t;
    uintptr_t p = (uintptr_t)b->offset;
    if (b->src == DVM_SRC_INPUT) p += (uintptr_t)t->in[b->index];
    if (b->src == DVM_SRC_OUTPUT) p += (uintptr_t)t->out[b->index];
    if (b->src == DVM_SRC_SCRATCH) p += (uintptr_t)v->scratch;
    for (int a = 0; a < t->kernel.naxes; a++) {
        int64_t i = v->idx[a];
        if (b->src == DVM_SRC_SCRATCH)
            i = a == block_axis(t) ? i - v->start : a > block_axis(t) ? i : 0;
        p += (uintptr_t)(i * b->stride[a]);
    }
    return (struct dvm_opnd_arg){.ptr = (char *)p, .gs = b->gs, .gn = b->gn};
}

static void run_box(const struct naive *v, int phase_index, struct dvm_opnd_arg *o, int64_t m,
                    int64_t n, int64_t pos) {
    const struct setup *t = v->t;
    struct dvm_fault fault = {0};
    struct dvm_strip_args a = {.opnd = o,
                               .param = t->param,
                               .m = m,
                               .n = n,
                               .pos = pos,
                               .scratch = v->tier,
                               .fault = &fault};
    t->code[phase_index]->run(t->code[phase_index], &a);
}

static void run_element(struct naive *v, int p) {
    struct dvm_opnd_arg o[MAX_BINDS];
    for (int k = 0; k < v->t->phase[p].nbind; k++) o[k] = element(v, &v->t->bind[p][k]);
    run_box(v, p, o, 1, 1, 0);
}

static void run_row(struct naive *v, int p) {
    int last = v->t->kernel.naxes - 1;
    struct dvm_opnd_arg o[MAX_BINDS];
    v->idx[last] = 0;
    for (int k = 0; k < v->t->phase[p].nbind; k++) {
        o[k] = element(v, &v->t->bind[p][k]);
        o[k].cs = v->t->bind[p][k].stride[last];
    }
    run_box(v, p, o, 1, v->t->kernel.size[last], 0);
}

static int64_t rows_of_column(const struct setup *t) {
    int64_t n = 1;
    for (int k = 0; k < t->kernel.nm; k++) n *= t->kernel.size[t->kernel.naxes - 2 - k];
    return n;
}

static void seek_row(struct naive *v, int64_t row) {
    for (int k = 0, a = v->t->kernel.naxes - 2; k < v->t->kernel.nm; k++, a--) {
        int64_t n = DVM_MAX(v->t->kernel.size[a], 1);
        v->idx[a] = row % n;
        row /= n;
    }
}

/* One column: each row alone through the strip, then groups of 64 in order, then the counter. */
static void run_column(struct naive *v, int p) {
    const struct dvm_strip *s = &v->t->strip[p];
    struct dvm_tree tree[8] = {{0}};
    struct dvm_part acc[8];
    int64_t rows = rows_of_column(v->t), value[MAX_BINDS];
    for (int64_t r = 0; r < DVM_MAX(rows, 1); r++) {
        struct dvm_opnd_arg o[MAX_BINDS];
        seek_row(v, rows ? r : 0);
        for (int k = 0; k < s->nopnd; k++) {
            o[k] = element(v, &v->t->bind[p][k]);
            if (s->opnd[k].role == DVM_ROLE_FOLD) o[k].ptr = (char *)&value[k];
        }
        memset(value, 0, sizeof value);
        run_box(v, p, o, rows ? 1 : 0, 1, r);
        for (int i = 0, f = 0; i < s->nins; i++) {
            const struct dvm_ins *ins = &s->ins[i];
            if (ins->op != DVM_BC_FOLD) continue;
            bool arg = dvm_bc_is_arg(ins->b);
            enum dvm_vt t = (enum dvm_vt)ins->type;
            struct dvm_part x = {.v.i64 = value[ins->c + arg], .idx = value[ins->c]};
            if (r % 64 == 0) acc[f] = dvm_part_identity(ins->b, t);
            if (rows) acc[f] = dvm_part_join(ins->b, t, acc[f], x);
            if (r % 64 == 63 || r + 1 >= rows) dvm_tree_push(&tree[f], ins->b, t, acc[f]);
            f++;
        }
    }
    seek_row(v, 0);
    for (int i = 0, f = 0; i < s->nins; i++) {
        const struct dvm_ins *ins = &s->ins[i];
        if (ins->op != DVM_BC_FOLD) continue;
        struct dvm_part r = dvm_tree_end(&tree[f++], ins->b, (enum dvm_vt)ins->type);
        int o = ins->c;
        if (dvm_bc_is_arg(ins->b)) memcpy(element(v, &v->t->bind[p][o++]).ptr, &r.idx, 8);
        memcpy(element(v, &v->t->bind[p][o]).ptr, &r.v, dvm_dtype_size(s->opnd[o].dtype));
    }
}

/* Runs f for every index of axes [from, to). */
static void each(struct naive *v, int from, int to, int p, void (*f)(struct naive *, int)) {
    if (from == to) {
        f(v, p);
        return;
    }
    for (int64_t i = 0; i < v->t->kernel.size[from]; i++) {
        v->idx[from] = i;
        each(v, from + 1, to, p, f);
    }
    v->idx[from] = 0;
}

static void run_phase(struct naive *v, int p) {
    const struct setup *t = v->t;
    int na = t->kernel.naxes;
    bool vec = t->phase[p].kind == DVM_PHASE_VEC;
    if (t->phase[p].pass == DVM_MODE_COL)
        run_column(v, p);
    else if (t->kernel.kind == DVM_MODE_COL)
        each(v, na - 1 - (vec ? 0 : t->kernel.nm), na - 1, p, run_element);
    else if (vec)
        run_element(v, p);
    else if (t->phase[p].pass == DVM_MODE_ROW || (t->strip[p].flags & DVM_STRIP_WHOLE_ROWS))
        run_row(v, p);
    else
        each(v, na - 1, na, p, run_element);
}

static void run_block(struct naive *v, int p) {
    const struct setup *t = v->t;
    int axis = block_axis(t);
    int64_t n = t->kernel.size[axis], block = DVM_MAX(t->kernel.block, 1);
    (void)p;
    for (v->start = 0; v->start < n; v->start += block)
        for (int q = 0; q < t->kernel.nphase; q++)
            for (int64_t i = v->start; i < DVM_MIN(v->start + block, n); i++) {
                v->idx[axis] = i;
                run_phase(v, q);
            }
    v->idx[axis] = 0;
}

static void naive(const struct setup *t) {
    struct naive v = {.t = t};
    size_t tier = 0;
    for (int p = 0; p < t->kernel.nphase; p++) tier = DVM_MAX(tier, t->code[p]->scratch);
    v.scratch = malloc(t->kernel.scratch + 64);
    v.tier = aligned_alloc(64, (tier + 127) & ~(size_t)63);
    each(&v, 0, t->kernel.naxes - 1 - (t->kernel.kind == DVM_MODE_COL ? t->kernel.nm : 1), 0,
         run_block);
    free(v.scratch);
    free(v.tier);
}

/* Both drivers on fresh outputs; every number of threads. */
static void same_as_naive(struct setup *t) {
    static const int threads[] = {1, 2, 3, 16};
    char *want[BUFFERS] = {NULL};
    for (int i = 0; i < BUFFERS; i++)
        if (t->out[i]) memset(t->out[i], 0x77, t->out_bytes[i]);
    naive(t);
    for (int i = 0; i < BUFFERS; i++)
        if (t->out[i]) {
            want[i] = malloc(t->out_bytes[i] + 1);
            memcpy(want[i], t->out[i], t->out_bytes[i]);
        }
    for (size_t k = 0; k < DVM_COUNT(threads); k++) {
        struct dvm_pool *pool;
        assert_int_equal(dvm_pool_create(&mem, threads[k], NULL, NULL, &pool), DVM_OK);
        dvm_pool_set_eager(pool, true);
        t->launch.pool = pool;
        for (int i = 0; i < BUFFERS; i++)
            if (t->out[i]) memset(t->out[i], 0x77, t->out_bytes[i]);
        assert_int_equal(dvm_drive(&t->launch), DVM_OK);
        for (int i = 0; i < BUFFERS; i++)
            if (t->out[i]) assert_memory_equal(t->out[i], want[i], t->out_bytes[i]);
        dvm_pool_destroy(&pool);
    }
    t->launch.pool = NULL;
    for (int i = 0; i < BUFFERS; i++) free(want[i]);
}

/* ---- maps --------------------------------------------------------------------------------------- */

static void map_case(int naxes, const int64_t *size, bool swap) {
    struct setup t;
    begin(&t, DVM_MODE_MAP, 0, naxes, size, 1);
    struct dvm_bind *b = phase(&t, DVM_PHASE_FULL,
                               "strip map params 1\n"
                               "o0: load f32 strided\no1: load f32 strided\no2: iota i32 strided\n"
                               "o3: store f32 strided\n"
                               "%0 = load.f32 o0\n%1 = load.f32 o1\n%2 = load.i32 o2\n"
                               "%3 = cast.f32 %2\n%4 = param.f32 p0\n%5 = mul.f32 %0, %4\n"
                               "%6 = add.f32 %5, %1\n%7 = add.f32 %6, %3\nstore.f32 o3, %7\n");
    float two = 2.5f;
    memcpy(t.param, &two, sizeof two);
    b[0] = bind(DVM_SRC_INPUT, 0, 4);
    dense(&t, &b[0], 4, all_axes(&t), swap);
    b[1] = bind(DVM_SRC_INPUT, 1, 0);
    dense(&t, &b[1], 4, 1u << (naxes - 1), false); /* broadcast along the others */
    b[2] = bind(DVM_SRC_NONE, 0, -3);
    b[2].stride[naxes - 1] = 2;
    b[2].stride[0] += 7;
    b[3] = bind(DVM_SRC_OUTPUT, 0, 0);
    dense(&t, &b[3], 4, all_axes(&t), false);
    t.in[0] = floats(elements(&t) + 1);
    t.in[1] = floats(size[naxes - 1]);
    output(&t, 0, elements(&t), 4);
    same_as_naive(&t);
    end(&t);
}

static void maps(void **state) {
    static const int64_t sizes[][5] = {
        {2, 3, 5},     {4, 3, 5, 7, 11},   {2, 1, 100000},     {2, 70000, 1},
        {2, 40000, 3}, {4, 2, 3, 4, 5000}, {2, 300, 300},      {2, 0, 7},
        {2, 7, 0},     {3, 0, 5, 6},       {4, 200, 13, 3, 8}, {2, 1, 1},
    };
    (void)state;
    for (size_t i = 0; i < DVM_COUNT(sizes); i++)
        for (int swap = 0; swap < 2; swap++) map_case((int)sizes[i][0], sizes[i] + 1, swap);
}

/* A running sum needs whole rows, however long. */
static void scans(void **state) {
    static const int64_t sizes[][2] = {{5, 10}, {2, 60000}, {600, 100}};
    (void)state;
    for (size_t i = 0; i < DVM_COUNT(sizes); i++) {
        struct setup t;
        begin(&t, DVM_MODE_MAP, 0, 2, sizes[i], 1);
        struct dvm_bind *b =
            phase(&t, DVM_PHASE_FULL,
                  "strip map whole_rows\no0: load f32 strided\no1: store f32 strided\n"
                  "%0 = load.f32 o0\n%1 = scan.f32 %0\nstore.f32 o1, %1\n");
        b[0] = bind(DVM_SRC_INPUT, 0, 0);
        b[1] = bind(DVM_SRC_OUTPUT, 0, 0);
        dense(&t, &b[0], 4, 3, false);
        dense(&t, &b[1], 4, 3, false);
        t.in[0] = floats(elements(&t));
        output(&t, 0, elements(&t), 4);
        same_as_naive(&t);
        end(&t);
    }
}

/* ---- rows and columns --------------------------------------------------------------------------- */

/* Statistics, a vector of them, and a map that uses it. Kind K of the vectors is `row` or `contig`. */
static const char folds[] = "strip %s\no0: load f32 strided\no1: fold f32 %s\no2: fold f32 %s\n"
                            "o3: fold i64 %s\no4: fold f32 %s\n"
                            "%%0 = load.f32 o0\nfold.f32 %%0, sum, o1\nfold.f32 %%0, max, o2\n"
                            "fold.f32 %%0, argmin, o3\n";
static const char vector[] = "strip map\no0: load f32 strided\no1: load f32 strided\n"
                             "o2: store f32 strided\no3: load i64 strided\no4: store i64 strided\n"
                             "%0 = load.f32 o0\n%1 = load.f32 o1\n%2 = add.f32 %0, %1\n"
                             "store.f32 o2, %2\n%4 = load.i64 o3\nstore.i64 o4, %4\n";
static const char apply[] = "strip map\no0: load f32 strided\no1: load f32 strided\n"
                            "o2: store f32 strided\n"
                            "%0 = load.f32 o0\n%1 = load.f32 o1\n%2 = sub.f32 %0, %1\n"
                            "store.f32 o2, %2\n";

static void reduce_case(int kind, int nm, int naxes, const int64_t *size, int64_t block,
                        bool swap) {
    struct setup t;
    char text[512];
    bool row = kind == DVM_MODE_ROW;
    const char *k = row ? "row" : "contig";
    begin(&t, kind, nm, naxes, size, block);
    unsigned kept = kept_axes(&t), axis = (unsigned)block_axis(&t);
    int64_t results = 1;
    for (int a = 0; a < naxes; a++) results *= kept >> a & 1 ? size[a] : 1;

    snprintf(text, sizeof text, folds, row ? "row" : "col", k, k, k, k);
    struct dvm_bind *b = phase(&t, DVM_PHASE_FULL, text);
    b[0] = bind(DVM_SRC_INPUT, 0, 0);
    dense(&t, &b[0], 4, all_axes(&t), swap);
    b[1] = bind(DVM_SRC_SCRATCH, 0, 0);
    b[2] = bind(DVM_SRC_SCRATCH, 0, block * 8);
    b[3] = bind(DVM_SRC_SCRATCH, 0, block * 16);
    b[4] = bind(DVM_SRC_OUTPUT, 1, 0);
    dense(&t, &b[4], 4, kept, false);
    b[1].stride[axis] = b[2].stride[axis] = 4;
    b[3].stride[axis] = 8;

    struct dvm_bind *v = phase(&t, DVM_PHASE_VEC, vector);
    v[0] = b[1];
    v[1] = b[2];
    v[2] = bind(DVM_SRC_SCRATCH, 0, block * 24);
    v[2].stride[axis] = 4;
    v[3] = b[3];
    v[4] = bind(DVM_SRC_OUTPUT, 2, 0);
    dense(&t, &v[4], 8, kept, false);

    struct dvm_bind *m = phase(&t, DVM_PHASE_FULL, apply);
    m[0] = b[0];
    m[1] = v[2];
    m[2] = bind(DVM_SRC_OUTPUT, 0, 0);
    dense(&t, &m[2], 4, all_axes(&t), false);

    t.in[0] = floats(elements(&t));
    output(&t, 0, elements(&t), 4);
    output(&t, 1, results, 4);
    output(&t, 2, results, 8);
    same_as_naive(&t);
    end(&t);
}

static void rows(void **state) {
    static const int64_t cases[][5] = {
        /* axes, block, sizes */
        {2, 7, 300, 200},  {2, 4, 2, 100000},  {2, 4, 1, 131077},   {3, 8, 3, 4, 1},
        {2, 4, 4, 0},      {2, 4, 0, 5},       {3, 1, 2, 3, 70000}, {2, 64, 64, 5000},
        {2, 16, 70000, 1}, {3, 3, 50, 10, 90}, {2, 2, 5, 65536},
    };
    (void)state;
    for (size_t i = 0; i < DVM_COUNT(cases); i++)
        reduce_case(DVM_MODE_ROW, 0, (int)cases[i][0], cases[i] + 2, cases[i][1], i % 2);
}

static void columns(void **state) {
    static const int64_t cases[][7] = {
        /* reduced axes, axes, block, sizes */
        {1, 2, 300, 200, 1000},   {1, 2, 16, 9000, 8},    {1, 3, 64, 3, 5000, 40},
        {1, 2, 16, 0, 9},         {1, 2, 16, 5, 0},       {1, 2, 4, 100000, 1},
        {1, 2, 64, 64, 64},       {1, 2, 64, 65, 10},     {2, 4, 16, 2, 50, 49, 30},
        {2, 3, 7, 500, 3, 20},    {2, 3, 64, 40, 64, 50}, {2, 3, 16, 7, 1000, 16},
        {3, 4, 8, 10, 11, 60, 9}, {2, 3, 8, 0, 7, 3},     {2, 3, 8, 7, 0, 3},
        {1, 2, 512, 129, 3000},
    };
    (void)state;
    for (size_t i = 0; i < DVM_COUNT(cases); i++)
        reduce_case(DVM_MODE_COL, (int)cases[i][0], (int)cases[i][1], cases[i] + 3, cases[i][2],
                    false);
}

/* Against loops that share nothing with the library: sums of small integers are exact. */
static void sums_are_sums(void **state) {
    (void)state;
    for (int kind = DVM_MODE_ROW; kind <= DVM_MODE_COL; kind++) {
        const int64_t row_size[] = {3, 70000}, col_size[] = {70000, 3};
        bool row = kind == DVM_MODE_ROW;
        struct setup t;
        begin(&t, kind, !row, 2, row ? row_size : col_size, 2);
        struct dvm_bind *b = phase(&t, DVM_PHASE_FULL,
                                   row ? "strip row\no0: load f32 contig\no1: fold f32 row\n"
                                         "%0 = load.f32 o0\nfold.f32 %0, sum, o1\n"
                                       : "strip col\no0: load f32 contig\no1: fold f32 contig\n"
                                         "%0 = load.f32 o0\nfold.f32 %0, sum, o1\n");
        b[0] = bind(DVM_SRC_INPUT, 0, 0);
        dense(&t, &b[0], 4, 3, false);
        b[1] = bind(DVM_SRC_OUTPUT, 0, 0);
        dense(&t, &b[1], 4, kept_axes(&t), false);
        t.in[0] = floats(elements(&t));
        float *x = (float *)(void *)t.in[0], want[3] = {0};
        for (int i = 0; i < 210000; i++) {
            x[i] = (float)(i * 7 % 13 - 5);
            want[row ? i / 70000 : i % 3] += x[i];
        }
        output(&t, 0, 3, 4);
        same_as_naive(&t);
        assert_memory_equal(t.out[0], want, sizeof want);
        end(&t);
    }
}

/* From here on plans run as machine code; returns the device to go back to. */
static struct dvm_dev with_machine_code(void) {
    struct dvm_dev keep = dev, cpu;
    if (dvm_dev_cpu(NULL, &cpu) != DVM_OK || dvm_dev_jit(cpu.isa, &dev) != DVM_OK) {
        dev = keep;
        skip_because("no machine code here");
    }
    return keep;
}

/* Code that goes from box to box by itself, with a factor of its own for each box; boxes of the last outer axis only. */
static void boxes(void **state) {
    static const int64_t cases[][5] = {{7, 2, 3, 16, 64},
                                       {1, 3, 5, 64, 7},
                                       {2, 1, 9, 1, 130},
                                       {4, 4, 4, 20, 200},
                                       {2, 2, 2, 0, 5}};
    struct dvm_dev keep = with_machine_code();
    (void)state;
    for (size_t i = 0; i < DVM_COUNT(cases); i++) {
        struct setup t;
        begin(&t, DVM_MODE_COL, 1, 5, cases[i], 256);
        struct dvm_bind *b = phase(&t, DVM_PHASE_FULL,
                                   "strip col\no0: load f32 contig\no1: load f32 unif\n"
                                   "o2: fold f32 contig\n%0 = load.f32 o0\n%1 = load.f32 o1\n"
                                   "%2 = mul.f32 %0, %1\nfold.f32 %2, sum, o2\n");
        int64_t factors = cases[i][0] * cases[i][1] * cases[i][2];
        b[0] = bind(DVM_SRC_INPUT, 0, 0);
        dense(&t, &b[0], 4, all_axes(&t), false);
        b[1] = bind(DVM_SRC_INPUT, 1, 0);
        dense(&t, &b[1], 4, 7, false);
        b[2] = bind(DVM_SRC_OUTPUT, 0, 0);
        dense(&t, &b[2], 4, kept_axes(&t), false);
        t.in[0] = floats(elements(&t));
        t.in[1] = floats(factors);
        output(&t, 0, factors * cases[i][4], 4);
        same_as_naive(&t);
        end(&t);
    }
    dev = keep;
}

/* Folds of a box, then a phase over its columns with a factor of the box: many boxes at a time. */
static void boxes_of_two_phases(void **state) {
    static const int64_t cases[][5] = {{7, 2, 3, 16, 64},  {1, 1, 150, 5, 7}, {2, 1, 9, 1, 130},
                                       {4, 4, 4, 20, 200}, {3, 1, 70, 64, 1}, {1, 2, 40, 64, 64}};
    struct dvm_dev keep = with_machine_code();
    (void)state;
    for (size_t i = 0; i < DVM_COUNT(cases); i++) {
        const int64_t boxes = cases[i][0] * cases[i][1] * cases[i][2], n = cases[i][4];
        struct setup t;
        begin(&t, DVM_MODE_COL, 1, 5, cases[i], n);
        struct dvm_bind *b =
            phase(&t, DVM_PHASE_FULL,
                  "strip col\no0: load f32 contig\no1: fold f32 contig\no2: fold f32 contig\n"
                  "%0 = load.f32 o0\nfold.f32 %0, sum, o1\nfold.f32 %0, max, o2\n");
        b[0] = bind(DVM_SRC_INPUT, 0, 0);
        dense(&t, &b[0], 4, all_axes(&t), false);
        b[1] = bind(DVM_SRC_SCRATCH, 0, 0);
        b[2] = bind(DVM_SRC_SCRATCH, 0, n * 8);
        b[1].stride[4] = b[2].stride[4] = 4;
        struct dvm_bind *v =
            phase(&t, DVM_PHASE_VEC,
                  "strip map\no0: load f32 contig\no1: load f32 contig\no2: load f32 row\n"
                  "o3: store f32 contig\n%0 = load.f32 o0\n%1 = load.f32 o1\n%2 = load.f32 o2\n"
                  "%3 = mul.f32 %0, %2\n%4 = add.f32 %3, %1\nstore.f32 o3, %4\n");
        v[0] = b[1];
        v[1] = b[2];
        v[2] = bind(DVM_SRC_INPUT, 1, 0);
        for (int a = 0, step = 4; a < 3; step *= (int)cases[i][a++]) v[2].stride[a] = step;
        v[3] = bind(DVM_SRC_OUTPUT, 0, 0);
        dense(&t, &v[3], 4, kept_axes(&t), false);
        t.in[0] = floats(elements(&t));
        t.in[1] = floats(boxes);
        output(&t, 0, boxes * n, 4);
        same_as_naive(&t);
        end(&t);
    }
    dev = keep;
}

/* ---- errors ------------------------------------------------------------------------------------- */

static void index_out_of_range(void **state) {
    const int64_t size[] = {4, 20000};
    (void)state;
    for (int threads = 1; threads <= 4; threads += 3) {
        struct setup t;
        begin(&t, DVM_MODE_MAP, 0, 2, size, 1);
        struct dvm_bind *b =
            phase(&t, DVM_PHASE_FULL,
                  "strip map\no0: load i32 contig\no1: pick f32 unif\no2: store f32 contig\n"
                  "%0 = load.i32 o0\n%1 = pick.f32 o1, %0\nstore.f32 o2, %1\n");
        b[0] = bind(DVM_SRC_INPUT, 0, 0);
        dense(&t, &b[0], 4, 3, false);
        b[1] = bind(DVM_SRC_INPUT, 1, 0);
        b[1].gs = 4;
        b[1].gn = 10;
        b[2] = bind(DVM_SRC_OUTPUT, 0, 0);
        dense(&t, &b[2], 4, 3, false);
        t.in[0] = calloc(80000, 4);
        t.in[1] = floats(10);
        output(&t, 0, 80000, 4);
        struct dvm_pool *pool;
        assert_int_equal(dvm_pool_create(&mem, threads, NULL, NULL, &pool), DVM_OK);
        dvm_pool_set_eager(pool, true);
        t.launch.pool = pool;
        int32_t *index = (int32_t *)(void *)t.in[0];
        index[70000] = -10;
        assert_int_equal(dvm_drive(&t.launch), DVM_OK);
        index[70000] = -11;
        index[3] = 10; /* the smallest is reported, whichever thread meets which */
        assert_int_equal(dvm_drive(&t.launch), DVM_ERR_INDEX);
        assert_string_equal(dvm_error_text(),
                            "index -11 is out of range: the gathered axis of input 1 has 10 "
                            "elements, so -10 to 9 are allowed");
        index[3] = 0;
        dvm_pool_destroy(&pool);
        end(&t);
    }
}

static void *no_memory(void *user, void *old, size_t old_size, size_t new_size) {
    (void)user, (void)old_size, (void)new_size;
    free(old);
    return NULL;
}

static void scratch_may_be_missing(void **state) {
    const int64_t size[] = {40, 1000};
    static const struct dvm_mem none = {no_memory, NULL};
    (void)state;
    struct setup t;
    begin(&t, DVM_MODE_COL, 1, 2, size, 1000);
    struct dvm_bind *b = phase(&t, DVM_PHASE_FULL,
                               "strip col\no0: load f32 contig\no1: fold f32 contig\n"
                               "%0 = load.f32 o0\nfold.f32 %0, sum, o1\n");
    b[0] = bind(DVM_SRC_INPUT, 0, 0);
    dense(&t, &b[0], 4, 3, false);
    b[1] = bind(DVM_SRC_OUTPUT, 0, 0);
    b[1].stride[1] = 4;
    t.in[0] = floats(40000);
    output(&t, 0, 1000, 4);
    t.launch.mem = &none;
    assert_int_equal(dvm_drive(&t.launch), DVM_ERR_NOMEM);
    t.launch.mem = &mem;
    assert_int_equal(dvm_drive(&t.launch), DVM_OK);
    end(&t);
}

/* ---- many at once ------------------------------------------------------------------------------- */

struct call {
    struct dvm_launch launch;
    char *out[1];
    dvm_status st;
};

static void *call(void *arg) {
    struct call *c = arg;
    for (int k = 0; k < 3 && c->st == DVM_OK; k++) c->st = dvm_drive(&c->launch);
    return NULL;
}

/* One plan and one pool, several threads that run it: split and unsplit kernels. */
static void many_callers(void **state) {
    static const int64_t sizes[][2] = {{1, 70000}, {400, 150}};
    enum { CALLERS = 4 };
    (void)state;
    for (size_t i = 0; i < DVM_COUNT(sizes); i++) {
        struct setup t;
        struct call c[CALLERS];
        pthread_t id[CALLERS];
        begin(&t, DVM_MODE_ROW, 0, 2, sizes[i], 8);
        struct dvm_bind *b = phase(&t, DVM_PHASE_FULL,
                                   "strip row\no0: load f32 contig\no1: fold f32 row\n"
                                   "%0 = load.f32 o0\nfold.f32 %0, sum, o1\n");
        b[0] = bind(DVM_SRC_INPUT, 0, 0);
        dense(&t, &b[0], 4, 3, false);
        b[1] = bind(DVM_SRC_OUTPUT, 0, 0);
        b[1].stride[0] = 4;
        t.in[0] = floats(elements(&t));
        output(&t, 0, sizes[i][0], 4);
        same_as_naive(&t);
        assert_int_equal(dvm_pool_create(&mem, 3, NULL, NULL, &t.launch.pool), DVM_OK);
        dvm_pool_set_eager(t.launch.pool, true);
        for (int k = 0; k < CALLERS; k++) {
            c[k] = (struct call){.launch = t.launch, .out = {calloc(t.out_bytes[0], 1)}};
            c[k].launch.out = c[k].out;
            assert_int_equal(pthread_create(&id[k], NULL, call, &c[k]), 0);
        }
        for (int k = 0; k < CALLERS; k++) {
            pthread_join(id[k], NULL);
            assert_int_equal(c[k].st, DVM_OK);
            assert_memory_equal(c[k].out[0], t.out[0], t.out_bytes[0]);
            free(c[k].out[0]);
        }
        dvm_pool_destroy(&t.launch.pool);
        end(&t);
    }
}

static int group_setup(void **state) {
    (void)state;
    return dvm_dev_ref(&dev) != DVM_OK;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(maps),
        cmocka_unit_test(scans),
        cmocka_unit_test(rows),
        cmocka_unit_test(columns),
        cmocka_unit_test(sums_are_sums),
        cmocka_unit_test(boxes),
        cmocka_unit_test(boxes_of_two_phases),
        cmocka_unit_test(index_out_of_range),
        cmocka_unit_test(scratch_may_be_missing),
        cmocka_unit_test(many_callers),
    };
    return cmocka_run_group_tests(tests, group_setup, NULL);
}
