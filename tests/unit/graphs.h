/* Small graphs of every class of operation, and what it takes to run them: shared by the tests of plans, failing
 * memory, threads and the hot path. A program takes its memory from the system, the library through the context. */
#ifndef DVM_TESTS_UNIT_GRAPHS_H
#define DVM_TESTS_UNIT_GRAPHS_H
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/half.h"
#include "graph/graph.h"

/* Sizes of the inputs, one after the other: "8, 4; 4; =3" with the values of scalars behind =. NULL: as declared. The
 * second set is large enough for several threads. */
struct graph_case {
    const char *name, *text, *sizes[2];
};

static const struct graph_case graph_cases[] = {
    {"chain",
     "kernel vector (x: f32[?, ?], y: f32[?, ?]) { %a = mul %x, %y %b = tanh %a %c = add %b, 1.5 "
     "store %c }",
     {"3, 5; 3, 5", "300, 500; 300, 500"}},
    {"scalar",
     "kernel vector (x: bf16[?], s: scalar bf16) { %a = fma %x, %s, 2.0 %b = sigmoid %a store %b }",
     {"7; =3", "200001; =3"}},
    {"outer",
     "kernel vector (x: f32[?, 1], y: f32[?]) { %a = sub %x, %y store %a }",
     {"4, 1; 6", "400, 1; 600"}},
    {"turn",
     "kernel vector (x: f32[?, ?], y: f32[?, ?]) { %a = permute %x, [1, 0] %b = add %a, %y store "
     "%b }",
     {"4, 6; 6, 4", "300, 400; 400, 300"}},
    {"slice",
     "kernel split (x: i32[?, ?]) { %a = slice %x, start=[-1, 1], size=[-1, -1], step=[-1, 2] %b = "
     "neg %a store %b }",
     {"5, 7", "301, 500"}},
    {"reshape",
     "kernel split (x: f32[12, 10]) { %a = exp %x %b = reshape %a, [4, 30] %c = permute %b, [1, 0] "
     "%d = "
     "reshape %c, [120] store %d }",
     {NULL, NULL}},
    {"rows",
     "kernel vector (x: f32[?, ?]) { %a = mul %x, %x %b = sum %a, dims=[1] store %b }",
     {"4, 30", "200, 3000"}},
    {"columns",
     "kernel vector (x: f16[?, ?]) { %b = sum %x, dims=[0] store %b }",
     {"70, 9", "3000, 200"}},
    {"all",
     "kernel split (x: f32[?, ?, ?]) { %b = sum %x %c = max %x store %b store %c }",
     {"3, 4, 5", "30, 40, 500"}},
    {"middle",
     "kernel split (x: f32[?, ?, ?]) { %b = sum %x, dims=[1] %c = prod %x, dims=[0, 2], keep store "
     "%b store %c }",
     {"3, 4, 5", "30, 200, 50"}},
    {"softmax",
     "kernel vector (x: f32[?, ?]) { %m = max %x, dims=[1], keep %d = sub %x, %m %e = exp %d %s = "
     "sum %e, dims=[1], "
     "keep %r = div %e, %s store %r }",
     {"3, 50", "300, 1500"}},
    {"norm",
     "kernel split (x: bf16[?, n], w: f32[n]) { %f = cast %x, f32 %s = sum %f, dims=[-1], keep %k "
     "= size %x, dims=[1] "
     "%kf = cast %k, f32 %m = div %s, %kf %d = sub %f, %m %q = mul %d, %d %v = sum %q, dims=[-1], "
     "keep %e = div %v, %kf "
     "%t = add %e, 1e-5 %i = rsqrt %t %y = mul %d, %i %z = mul %y, %w %o = cast %z, bf16 store %o "
     "store %m }",
     {"3, 40; 40", "300, 1000; 1000"}},
    {"batchnorm",
     "kernel split (x: f32[?, ?]) { %m = sum %x, dims=[0], keep %d = sub %x, %m %q = mul %d, %d %v "
     "= sum %q, dims=[0], "
     "keep %r = rsqrt %v %y = mul %d, %r store %y }",
     {"70, 6", "700, 300"}},
    {"argmax",
     "kernel split (x: f32[?, ?], y: i32[?, ?]) { %a = argmax %x, dims=[1] %b = argmin %y, "
     "dims=[0], keep store %a store %b "
     "}",
     {"5, 20; 20, 3", "50, 3000; 3000, 30"}},
    {"logic",
     "kernel split (x: f32[?, ?]) { %a = greater %x, 0.0 %n = isnan %x %o = or %a, %n %b = any %o, "
     "dims=[1] %c = all %a, "
     "dims=[0] store %b store %c store %o }",
     {"5, 20", "200, 1000"}},
    {"scan",
     "kernel split (x: f32[?, ?]) { %a = exp %x %b = cumsum %a %c = mul %b, 0.5 store %c }",
     {"4, 30", "200, 1000"}},
    {"take",
     "kernel split (x: f32[?, ?], i: i64[?, ?]) { %a = exp %x %b = gather %a, %i, axis=1, "
     "mode=element store %b }",
     {"4, 6; 4, 3", "200, 100; 200, 600"}},
    {"embed",
     "kernel split (w: bf16[?, ?], i: i32[?, ?]) { %b = gather %w, %i, axis=0, mode=slice %c = mul "
     "%b, 2.0 store %c }",
     {"6, 8; 2, 3", "100, 256; 20, 30"}},
    {"concat",
     "kernel split (x: f32[?, n], y: f32[?, n], z: f32[?, n]) { %a = exp %x %b = concat %a, %y, "
     "%z, axis=0 store %b }",
     {"2, 5; 3, 5; 1, 5", "100, 500; 200, 500; 1, 500"}},
    {"concat_inside",
     "kernel split (x: f32[m, ?], y: f32[m, ?]) { %b = concat %x, %y, axis=-1 %s = sum %b, "
     "dims=[1], keep %c = "
     "div %b, %s store %c }",
     {"4, 5; 4, 6", "100, 500; 100, 600"}},
    {"strided",
     "kernel split (x: f32[m, n]) { %a = exp %x store %a, strides=[1, m] %b = add %a, 1.0 store %b "
     "}",
     {"4, 6", "300, 400"}},
    {"integers",
     "kernel split (x: i64[?], y: i32[?], u: u8[?]) { %a = cast %y, i64 %b = add %x, %a %c = cast "
     "%u, i64 %d = floordiv %b, 3 "
     "%e = xor %d, %c store %e %f = cast %e, i8 store %f }",
     {"9; 9; 9", "100000; 100000; 100000"}},
    {"index",
     "kernel split (s: scalar i64) { %a = iota i64[s, 4], axis=0 %b = iota i64[s, 4], axis=1 %c = "
     "mul %a, 10 %d = add %c, "
     "%b store %d }",
     {"=5", "=30000"}},
    {"strict",
     "kernel split:strict (x: f16[?, ?], y: f16[?]) { %a = mul %x, %y %b = exp %a %c = sub %b, %x "
     "%s = sum %c, dims=[1] "
     "store %c store %s }",
     {"4, 30; 30", "300, 400; 400"}},
    {"anyrank",
     "kernel vector:dyn (x: f32[*], y: f32[*]) { %a = maximum %x, %y %b = relu %a store %b }",
     {"2, 3, 4; 4", "20, 30, 400; 400"}},
    {"product",
     "kernel split (x: f32[?, k], y: f32[k, ?], r: f32[?, ?]) { %a = matmul %x, %y %t = tanh %a %o "
     "= add %t, %r store %o }",
     {"5, 7; 7, 6; 5, 6", "200, 300; 300, 170; 200, 170"}},
    {"products",
     "kernel split (q: bf16[?, ?, d], k: bf16[?, ?, d], v: f16[?, e]) { %a = matmul %q, %k, "
     "trans_b, dtype=f32 %m = max %a, dims=[-1], keep %b = sub %a, %m %e = exp %b %h = cast %e, "
     "f16 %o = matmul %h, %v store %o }",
     {"2, 3, 4; 1, 5, 4; 5, 6", "3, 60, 300; 3, 50, 300; 50, 70"}},
    {"linear",
     "kernel split (x: f32[b, s, k], w: f32[n, k], c: f32[n], h: f32[b, 1, n]) { %d = mul %x, 2.0 "
     "%e = reshape %d, [-1, k] %m = matmul %e, %w, trans_b %a = add %m, %c %t = reshape %a, [b, s, "
     "n] %r = relu %t %o = mul %r, %h %p = permute %o, [0, 2, 1] store %p }",
     {"2, 3, 5; 4, 5; 4; 2, 1, 4", "3, 70, 300; 90, 300; 90; 3, 1, 90"}},
    {"groups",
     "kernel split (x: f16[m, k], w: f16[3, k, n]) { %i = iota i64[3], axis=0 %j = add %i, 1 %a = "
     "grouped_matmul %x, %w, %j, groups=m, list=ends %b = grouped_matmul %x, %x, %j, trans_a, "
     "groups=k, list=sizes store %a store %b }",
     {"6, 7; 3, 7, 5", "300, 70; 3, 70, 50"}},
    {"parallel",
     "kernel parallel () { next vector %x = load f32[100] %a = exp %x store %a next vector %y = "
     "load f32[7, 9] %b = sum "
     "%y, dims=[1] store %b }",
     {NULL, NULL}},
    {"sequence",
     "kernel seq (x: f32[?, ?]) { %a = exp %x next vector %b = sum %a, dims=[0] store %b next "
     "vector %c = log %a "
     "store %c }",
     {"5, 6", "300, 400"}},
    {"twice",
     "kernel split (x: f32[?, ?]) { %a = sum %x, dims=[1], keep %b = sub %x, %a %c = sum %b, "
     "dims=[0], keep %d = sub %b, %c "
     "%e = sum %d, dims=[1], keep %f = mul %d, %e store %f }",
     {"5, 6", "300, 400"}},
    {"empty",
     "kernel split (x: f32[?, ?]) { %a = exp %x %b = sum %x, dims=[1] store %a store %b }",
     {"0, 6", "4, 0"}},
    {"point",
     "kernel split (x: f32[], s: scalar f32) { %a = add %x, %s store %a store 2:i64 store %s }",
     {"; =2", "; =2"}},
    {"doubles",
     "kernel split (x: f64[?]) { %a = cast %x, f32 %b = sqrt %a %c = cast %b, f64 store %c store "
     "%x }",
     {"5", "50000"}},
};
enum { GRAPH_CASES = sizeof graph_cases / sizeof *graph_cases };

/* ---- programs ------------------------------------------------------------------------------------------- */

enum { PROG_IO = 8, PROG_GUARD = 64 };
struct prog {
    dvm_kernel *k;
    int nin, nout;
    dvm_arg in[PROG_IO], out[PROG_IO];
    int64_t in_dims[PROG_IO][DVM_MAX_RANK], out_dims[PROG_IO][DVM_MAX_RANK];
    char *in_block[PROG_IO], *out_block[PROG_IO], *out_data[PROG_IO];
    size_t out_bytes[PROG_IO];
};

static inline int64_t prog_count(const dvm_arg *a) {
    int64_t n = 1;
    for (int j = 0; j < a->rank; j++) n *= a->dims[j];
    return n;
}

static inline void prog_put(dvm_dtype t, char *p, int64_t i, int64_t r) {
    float f = (float)(r % 2001 - 1000) / 500.0f;
    double d = f;
    uint16_t h;
    int32_t w = (int32_t)(r % 3);
    int64_t l = r % 3 - (r % 7 == 0);
    switch (t) {
    case DVM_F32: memcpy(p + 4 * i, &f, 4); return;
    case DVM_F64: memcpy(p + 8 * i, &d, 8); return;
    case DVM_F16:
        h = dvm_f32_to_f16(f);
        memcpy(p + 2 * i, &h, 2);
        return;
    case DVM_BF16:
        h = dvm_f32_to_bf16(f);
        memcpy(p + 2 * i, &h, 2);
        return;
    case DVM_I32: memcpy(p + 4 * i, &w, 4); return;
    case DVM_I64: memcpy(p + 8 * i, &l, 8); return;
    case DVM_BOOL: p[i] = (char)(r & 1); return;
    default: p[i] = (char)r; return;
    }
}

static inline void prog_fill(dvm_arg *a, uint64_t seed) {
    int64_t n = prog_count(a);
    for (int64_t i = 0; i < n; i++) {
        seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        prog_put((dvm_dtype)a->dtype, a->data, i, (int64_t)(seed >> 33));
    }
}

/* The inputs of g with these sizes. */
static inline void prog_inputs(struct prog *p, const struct dvm_graph *g, const char *sizes) {
    p->nin = g->n_in;
    for (int i = 0; i < p->nin; i++) {
        const struct dvm_node *n = &g->node.p[g->input.p[i]];
        dvm_arg *a = &p->in[i];
        *a = (dvm_arg){.dims = p->in_dims[i], .rank = n->rank, .dtype = n->dtype};
        if (n->op == DVM_OP_SCALAR) a->rank = -1;
        for (int j = 0; !sizes && j < n->rank; j++)
            p->in_dims[i][j] = g->dims.p[n->dims + (uint32_t)j];
        while (sizes && *sizes == ' ') sizes++;
        if (sizes && *sizes == '=') {
            long v = strtol(sizes + 1, (char **)(uintptr_t)&sizes, 10);
            if (dvm_is_float(n->dtype))
                a->num.f = (double)v;
            else
                a->num.i = v;
        } else if (sizes && n->op != DVM_OP_SCALAR) {
            for (a->rank = 0; *sizes && *sizes != ';'; sizes += *sizes == ',')
                p->in_dims[i][a->rank++] = strtol(sizes, (char **)(uintptr_t)&sizes, 10);
        }
        if (sizes && *sizes == ';') sizes++;
        if (a->rank < 0) continue;
        size_t bytes = (size_t)prog_count(a) * dvm_dtype_size((dvm_dtype)a->dtype);
        p->in_block[i] = malloc(bytes + 64);
        a->data = p->in_block[i] + (64 - (uintptr_t)p->in_block[i] % 64) % 64;
        prog_fill(a, (uint64_t)i + 1);
    }
}

/* Dense outputs between guards, for shapes as inferred. */
static inline dvm_status prog_outputs(struct prog *p) {
    int rank[PROG_IO];
    dvm_dtype dtype[PROG_IO];
    p->nout = dvm_kernel_outputs(p->k);
    dvm_status st = dvm_kernel_infer(p->k, p->nin, p->in, p->nout, rank, &p->out_dims[0][0], dtype);
    if (st != DVM_OK) return st;
    for (int i = 0; i < p->nout; i++) {
        dvm_arg *a = &p->out[i];
        *a = (dvm_arg){.dims = p->out_dims[i], .rank = rank[i], .dtype = (int32_t)dtype[i]};
        p->out_bytes[i] = (size_t)prog_count(a) * dvm_dtype_size(dtype[i]);
        free(p->out_block[i]);
        p->out_block[i] = malloc(p->out_bytes[i] + 2 * PROG_GUARD + 64);
        a->data = p->out_data[i] =
            p->out_block[i] + PROG_GUARD + (64 - (uintptr_t)p->out_block[i] % 64) % 64;
    }
    return DVM_OK;
}

static inline void prog_poison(struct prog *p) {
    for (int i = 0; i < p->nout; i++)
        memset(p->out_data[i] - PROG_GUARD, 0xa5, p->out_bytes[i] + 2 * PROG_GUARD);
}

/* The guards are as they were; all: the outputs as well. */
static inline bool prog_untouched(const struct prog *p, bool all) {
    for (int i = 0; i < p->nout; i++) {
        const unsigned char *b = (const unsigned char *)p->out_data[i] - PROG_GUARD;
        for (size_t j = 0; j < p->out_bytes[i] + 2 * PROG_GUARD; j++) {
            bool guard = j < PROG_GUARD || j >= p->out_bytes[i] + PROG_GUARD;
            if ((all || guard) && b[j] != 0xa5) return false;
        }
    }
    return true;
}

static inline uint64_t prog_hash(const struct prog *p) {
    uint64_t h = 1469598103934665603u;
    for (int i = 0; i < p->nout; i++)
        for (size_t j = 0; j < p->out_bytes[i]; j++)
            h = (h ^ ((const unsigned char *)p->out[i].data)[j]) * 1099511628211u;
    return h;
}

static inline void prog_close(struct prog *p) {
    for (int i = 0; i < PROG_IO; i++) {
        free(p->in_block[i]);
        free(p->out_block[i]);
    }
    dvm_kernel_destroy(&p->k);
    memset(p, 0, sizeof *p);
}

/* Parses, compiles and fills; the outputs are poisoned. */
static inline dvm_status prog_open(struct prog *p, dvm_ctx *ctx, const char *text,
                                   const char *sizes) {
    dvm_graph *g;
    memset(p, 0, sizeof *p);
    dvm_status st = dvm_graph_parse(ctx, "graph", text, strlen(text), &g);
    if (st != DVM_OK) return st;
    prog_inputs(p, g, sizes);
    st = dvm_compile(g, &p->k);
    dvm_graph_destroy(&g);
    if (st == DVM_OK) st = prog_outputs(p);
    if (st == DVM_OK)
        prog_poison(p);
    else
        prog_close(p);
    return st;
}

static inline dvm_status prog_run(struct prog *p) {
    return dvm_run(p->k, p->nin, p->in, p->nout, p->out);
}

/* ---- an allocator that counts and fails ----------------------------------------------------------------------- */

struct balance {
    _Atomic long bytes, blocks, calls;
    long fail; /* number of the allocation that fails; 0: none */
};

static inline void *balance_alloc(void *user, void *old, size_t old_size, size_t new_size) {
    struct balance *b = user;
    if (!new_size) {
        b->bytes -= (long)old_size;
        b->blocks -= old != NULL;
        return dvm_mem_system(NULL, old, old_size, 0);
    }
    if (++b->calls == b->fail) return NULL;
    b->bytes += (long)new_size;
    b->blocks++;
    return dvm_mem_system(NULL, NULL, 0, new_size);
}
#endif
