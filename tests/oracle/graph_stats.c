/* Bytes to a graph text of statistics: values of one space, masks and weights that lack some of its axes, reductions over
 * any of them whose results meet the space again. What the planner has to cut and order most is made of these. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <dvm/dvm.h>

#include "graph_gen.h"
#include "graph_io.h"

enum { RANK = 4, MOST = 120 };

/* A value; its axes are those of the space, 1 where it lacks one. */
struct val {
    dvm_dtype t;
    unsigned mask; /* axes that it has */
    bool odd;      /* of another rank: for the next line only */
};
struct gen {
    struct graph_io io;
    int rank;
    int64_t d[RANK];
    struct val v[MOST];
    int nv;
};

static unsigned pick(struct gen *g, unsigned n) { return graph_io_pick(&g->io, n); }
#define put(g, ...) graph_io_put(&(g)->io, __VA_ARGS__)

static void put_dims(struct gen *g, unsigned mask) {
    put(g, "[");
    for (int i = 0; i < g->rank; i++)
        put(g, "%s%lld", i ? ", " : "", mask >> i & 1 ? (long long)g->d[i] : 1LL);
    put(g, "]");
}

static bool is_f(dvm_dtype t) { return t == DVM_F32 || t == DVM_F16 || t == DVM_BF16; }
static bool is_b(dvm_dtype t) { return t == DVM_BOOL; }
static bool is_any(dvm_dtype t) { return t < DVM_NDTYPE; }

/* Newer ones are likelier. */
static int choose(struct gen *g, bool (*fits)(dvm_dtype)) {
    int back = (int)pick(g, (unsigned)(pick(g, 2) ? g->nv : 1 + g->nv / 4));
    for (int k = 0; k < g->nv; k++) {
        int i = (2 * g->nv - 1 - back - k) % g->nv;
        if (!g->v[i].odd && fits(g->v[i].t)) return i;
    }
    return -1;
}

static int fresh(struct gen *g, dvm_dtype t, unsigned mask) {
    g->v[g->nv] = (struct val){.t = t, .mask = mask};
    put(g, "  %%v%d = ", g->nv);
    return g->nv++;
}

/* Value x as type t. */
static int as(struct gen *g, int x, dvm_dtype t) {
    if (g->v[x].t == t) return x;
    int r = fresh(g, t, g->v[x].mask);
    put(g, "cast %%v%d, %s\n", x, dvm_dtype_name(t));
    return r;
}

static void unary(struct gen *g) {
    static const char *const ops[] = {"neg", "exp",  "sqrt", "abs", "reciprocal", "sigmoid",
                                      "log", "relu", "tanh", "sin", "copy",       "sign"};
    int x = choose(g, is_f);
    fresh(g, g->v[x].t, g->v[x].mask);
    put(g, "%s %%v%d\n", ops[pick(g, sizeof ops / sizeof *ops)], x);
}

static void binary(struct gen *g) {
    static const char *const ops[] = {"mul", "sub", "add", "div", "maximum", "less"};
    unsigned k = pick(g, 6);
    int x = choose(g, is_f), y = choose(g, is_f);
    y = as(g, y, g->v[x].t);
    fresh(g, k == 5 ? DVM_BOOL : g->v[x].t, g->v[x].mask | g->v[y].mask);
    put(g, "%s %%v%d, %%v%d\n", ops[k], x, y);
}

static void mask(struct gen *g) {
    int c = choose(g, is_b), x = choose(g, is_f);
    if (c < 0) return;
    unsigned both = g->v[c].mask | g->v[x].mask;
    bool zero = pick(g, 3) == 0;
    int y = zero ? -1 : as(g, choose(g, is_f), g->v[x].t);
    if (!zero) both |= g->v[y].mask;
    fresh(g, g->v[x].t, both);
    if (zero)
        put(g, "select %%v%d, %%v%d, 0.0\n", c, x);
    else
        put(g, "select %%v%d, %%v%d, %%v%d\n", c, x, y);
}

static void cast(struct gen *g) {
    static const dvm_dtype to[] = {DVM_F32, DVM_BF16, DVM_F16, DVM_I64};
    int x = choose(g, is_any);
    dvm_dtype t = to[pick(g, g->v[x].t == DVM_BOOL ? 4 : 3)];
    as(g, x, t);
}

/* Over any axes of the space; those that the value lacks have size 1. With and without them in the result. */
static void reduce(struct gen *g) {
    static const char *const ops[] = {"sum", "max", "min", "sum", "prod"};
    int x = choose(g, is_f);
    unsigned all = (1u << g->rank) - 1, over = 1 + pick(g, all), how = pick(g, 4);
    if (!(over & g->v[x].mask)) over = all;
    dvm_dtype t = g->v[x].t;
    const char *op = ops[pick(g, sizeof ops / sizeof *ops)];
    int r = fresh(g, t, g->v[x].mask & ~over);
    put(g, "%s %%v%d, dims=[", op, x);
    for (int i = 0, n = 0; i < g->rank; i++)
        if (over >> i & 1) put(g, "%s%d", n++ ? ", " : "", i);
    put(g, how == 3 ? "]\n" : "], keep\n");
    if (how != 3) return;
    const unsigned left = g->v[r].mask;
    g->v[r].odd = true;
    fresh(g, t, left);
    put(g, "reshape %%v%d, ", r);
    put_dims(g, left);
    put(g, "\n");
}

static void view(struct gen *g) {
    int x = choose(g, is_any);
    const unsigned m = g->v[x].mask, all = (1u << g->rank) - 1;
    if (pick(g, 2)) { /* axes it lacks */
        unsigned to = m | pick(g, all + 1);
        fresh(g, g->v[x].t, to);
        put(g, "broadcast %%v%d, ", x);
        put_dims(g, to);
        put(g, "\n");
        return;
    }
    /* Turned round along one axis, or flat and back. */
    int axis = (int)pick(g, (unsigned)g->rank);
    if (pick(g, 2)) {
        fresh(g, g->v[x].t, m);
        put(g, "slice %%v%d, start=[", x);
        for (int i = 0; i < g->rank; i++) put(g, "%s%d", i ? ", " : "", i == axis ? -1 : 0);
        put(g, "], size=[");
        for (int i = 0; i < g->rank; i++) put(g, "%s-1", i ? ", " : "");
        put(g, "], step=[");
        for (int i = 0; i < g->rank; i++) put(g, "%s%d", i ? ", " : "", i == axis ? -1 : 1);
        put(g, "]\n");
        return;
    }
    int flat = fresh(g, g->v[x].t, m);
    g->v[flat].odd = true;
    put(g, "reshape %%v%d, [-1]\n", x);
    fresh(g, g->v[x].t, m);
    put(g, "reshape %%v%d, ", flat);
    put_dims(g, m);
    put(g, "\n");
}

static void argument(struct gen *g, int i) {
    static const dvm_dtype types[] = {DVM_F32, DVM_BF16, DVM_F16, DVM_F32};
    const unsigned all = (1u << g->rank) - 1;
    struct val v = {.t = types[pick(g, 4)], .mask = all};
    if (i == 1) v = (struct val){.t = DVM_BOOL, .mask = pick(g, all + 1)};
    if (i > 1) v.mask = pick(g, all + 1);
    g->v[g->nv] = v;
    put(g, "%sv%d: %s", i ? ", " : "", g->nv++, dvm_dtype_name(v.t));
    put_dims(g, v.mask);
}

char *graph_gen_stats(const uint8_t *bytes, size_t n) {
    static const int64_t sizes[] = {5, 5, 3, 4, 2, 7, 1, 9};
    static void (*const make[])(struct gen *) = {unary,  binary, binary, mask,
                                                 reduce, reduce, view,   cast};
    struct gen g = {.io = {.p = bytes, .end = bytes + n}};
    g.rank = 2 + (int)pick(&g, 3);
    for (int i = 0; i < g.rank; i++) g.d[i] = sizes[pick(&g, 8)];
    put(&g, "kernel split%s (", pick(&g, 4) == 3 ? ":strict" : "");
    for (int i = 0, args = 2 + (int)pick(&g, 3); i < args; i++) argument(&g, i);
    put(&g, ") {\n");
    while (g.io.p < g.io.end && g.nv + 4 < MOST) make[pick(&g, 8)](&g);
    for (int i = g.nv, stores = 0; i-- > 0 && stores < 5;) {
        if (g.v[i].odd || (stores && pick(&g, 6) != 0)) continue;
        put(&g, "  store %%v%d\n", i);
        stores++;
    }
    put(&g, "}\n");
    return g.io.text;
}
