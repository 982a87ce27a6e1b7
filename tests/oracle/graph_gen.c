/* Bytes to a graph text that is right in types and shapes. Each decision takes a byte; when they end, zeros follow,
 * and the first choice everywhere is a small one, so that cut inputs give small graphs. */
#include "graph_gen.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <dvm/dvm.h>

#include "graph_io.h"

enum { MAX_VALUES = 256, LONG = 1000 /* bytes: as many operations as the values allow */, RANK = 5 };

struct val {
    dvm_dtype t;
    int rank;
    bool scalar;
    int64_t d[RANK];
    char name[8];
};
struct gen {
    struct graph_io io;
    struct val v[MAX_VALUES];
    int nv, next_name;
    int64_t size[4];
    bool declared[4], symbolic;
    int64_t most; /* elements of a value */
};

static unsigned pick(struct gen *g, unsigned n) { return graph_io_pick(&g->io, n); }
#define put(g, ...) graph_io_put(&(g)->io, __VA_ARGS__)

/* ------------------------------------------------------------------ kinds of values */

static bool is_f(dvm_dtype t) { return t == DVM_F16 || t == DVM_BF16 || t == DVM_F32; }
static bool is_i(dvm_dtype t) { return t == DVM_I32 || t == DVM_I64; }
enum class { F, I, N, B, L, W, A };
static bool fits(enum class c, dvm_dtype t) {
    bool b = t == DVM_BOOL;
    switch (c) {
    case F: return is_f(t);
    case I: return is_i(t);
    case N: return is_f(t) || is_i(t);
    case B: return b;
    case L: return b || is_i(t);
    case W: return b || is_f(t) || is_i(t);
    default: return true;
    }
}

static int64_t count(int rank, const int64_t *d) {
    int64_t n = 1;
    for (int i = 0; i < rank; i++) n *= d[i];
    return n;
}

/* Shape of a op b; false when they do not broadcast. */
static bool broadcast(const struct gen *g, const struct val *a, const struct val *b,
                      struct val *r) {
    r->rank = a->rank > b->rank ? a->rank : b->rank;
    for (int i = 0; i < r->rank; i++) {
        int64_t x = i < r->rank - a->rank ? 1 : a->d[i - (r->rank - a->rank)];
        int64_t y = i < r->rank - b->rank ? 1 : b->d[i - (r->rank - b->rank)];
        if (x != y && x != 1 && y != 1) return false;
        r->d[i] = x == 1 ? y : x;
    }
    return count(r->rank, r->d) <= g->most;
}

/* A value of the class, newer ones first; -1: none. */
static int choose(struct gen *g, enum class c, bool tensor) {
    int from = g->nv - 1 - (int)pick(g, (unsigned)g->nv);
    for (int k = 0; k < g->nv; k++) {
        int i = (from + g->nv - k) % g->nv;
        if (fits(c, g->v[i].t) && !(tensor && g->v[i].scalar)) return i;
    }
    return -1;
}

static int partner(struct gen *g, int a, dvm_dtype t) {
    int from = g->nv - 1 - (int)pick(g, (unsigned)g->nv);
    for (int k = 0; k < g->nv; k++) {
        int i = (from + g->nv - k) % g->nv;
        struct val r;
        if (g->v[i].t == t && broadcast(g, &g->v[a], &g->v[i], &r)) return i;
    }
    return -1;
}

static struct val *fresh(struct gen *g, dvm_dtype t, int rank, const int64_t *d) {
    struct val *v = &g->v[g->nv++];
    *v = (struct val){.t = t, .rank = rank};
    memcpy(v->d, d, (size_t)rank * sizeof *d);
    snprintf(v->name, sizeof v->name, "v%d", g->next_name++);
    put(g, "  %%%s = ", v->name);
    return v;
}

static const char *literal(struct gen *g, dvm_dtype t) {
    static const char *const f[] = {"2.0",  "0.5", "-1.0", "0.0", "3.0",  "0.1",  "-2.5",
                                    "1e-3", "7",   "inf",  "nan", "-0.0", "100.0"};
    static const char *const i[] = {"2",  "1",  "-1",      "0",           "3",         "7",
                                    "-5", "31", "1000000", "-2147483648", "2147483647"};
    if (t == DVM_BOOL) return pick(g, 2) ? "true" : "false";
    if (is_f(t)) return f[pick(g, sizeof f / sizeof *f)];
    return i[pick(g, sizeof i / sizeof *i)];
}

/* A size in the text: its symbol where an argument named one. */
static void put_size(struct gen *g, int64_t d) {
    for (int k = 0; k < 4 && g->symbolic; k++)
        if (g->declared[k] && g->size[k] == d && d != 1) {
            put(g, "n%d", k);
            return;
        }
    put(g, "%lld", (long long)d);
}
static void put_sizes(struct gen *g, int rank, const int64_t *d) {
    put(g, "[");
    for (int i = 0; i < rank; i++) {
        put(g, "%s", i ? ", " : "");
        put_size(g, d[i]);
    }
    put(g, "]");
}

/* ------------------------------------------------------------------ arguments */

static void argument(struct gen *g, bool first) {
    static const dvm_dtype types[] = {DVM_F32,  DVM_F32, DVM_F16, DVM_BF16, DVM_I32, DVM_I64,
                                      DVM_BOOL, DVM_F32, DVM_U8,  DVM_I8,   DVM_F64};
    struct val *v = &g->v[g->nv++];
    *v = (struct val){.t = types[pick(g, sizeof types / sizeof *types)]};
    snprintf(v->name, sizeof v->name, "a%d", g->next_name++);
    put(g, "%s%s: ", first ? "" : ", ", v->name);
    if (pick(g, 8) == 7 && !first) {
        v->scalar = true;
        if (v->t == DVM_BOOL || v->t == DVM_F64 || v->t == DVM_U8 || v->t == DVM_I8) v->t = DVM_F32;
        put(g, "scalar %s", dvm_dtype_name(v->t));
        v->d[0] = (int64_t)pick(g, 9) - 4;
        return;
    }
    static const int ranks[] = {2, 1, 2, 3, 2, 0, 4, 1};
    int rank = ranks[pick(g, 8)], which[RANK];
    for (int i = 0; i < rank; i++) {
        unsigned c = pick(g, 7);
        which[i] = c < 6 ? (int)(c % 4) : -1;
        v->d[i] = which[i] >= 0 ? g->size[which[i]] : 1;
    }
    for (v->rank = rank; count(v->rank, v->d) > g->most; v->rank--) continue;
    put(g, "%s[", dvm_dtype_name(v->t));
    for (int i = 0; i < v->rank; i++) {
        bool name = which[i] >= 0 && g->symbolic;
        if (name)
            put(g, "%sn%d", i ? ", " : "", which[i]);
        else
            put(g, "%s%lld", i ? ", " : "", (long long)v->d[i]);
        if (name) g->declared[which[i]] = true;
    }
    put(g, "]");
}

/* ------------------------------------------------------------------ operations */

static void unary(struct gen *g) {
    static const struct {
        const char *op;
        enum class c;
    } ops[] = {{"relu", N},       {"neg", N},  {"abs", N},     {"exp", F},   {"sqrt", F},
               {"reciprocal", F}, {"tanh", F}, {"sigmoid", F}, {"log", F},   {"rsqrt", F},
               {"erf", F},        {"sin", F},  {"cos", F},     {"floor", F}, {"round", F},
               {"sign", N},       {"not", L},  {"exp2", F},    {"expm1", F}, {"log2", F},
               {"log1p", F},      {"ceil", F}, {"trunc", F},   {"isnan", F}, {"isfinite", F},
               {"copy", A}};
    unsigned k = pick(g, sizeof ops / sizeof *ops);
    int x = choose(g, ops[k].c, false);
    if (x < 0 || g->v[x].t == DVM_F64) return;
    struct val a = g->v[x];
    fresh(g, ops[k].op[0] == 'i' ? DVM_BOOL : a.t, a.rank, a.d);
    put(g, "%s %%%s\n", ops[k].op, a.name);
}

static void binary(struct gen *g) {
    static const struct {
        const char *op;
        enum class c;
        bool test;
    } ops[] = {
        {"add", W, 0},      {"mul", W, 0},          {"sub", W, 0},       {"div", F, 0},
        {"maximum", W, 0},  {"minimum", W, 0},      {"less", W, 1},      {"equal", A, 1},
        {"pow", N, 0},      {"floordiv", N, 0},     {"remainder", N, 0}, {"fmod", N, 0},
        {"truncdiv", N, 0}, {"and", L, 0},          {"or", L, 0},        {"xor", L, 0},
        {"shl", I, 0},      {"shr", I, 0},          {"not_equal", A, 1}, {"less_equal", W, 1},
        {"greater", W, 1},  {"greater_equal", W, 1}};
    unsigned k = pick(g, sizeof ops / sizeof *ops);
    int x = choose(g, ops[k].c, false);
    if (x < 0 || !fits(W, g->v[x].t)) return;
    struct val a = g->v[x], r = a;
    dvm_dtype t = ops[k].test ? DVM_BOOL : a.t;
    if (pick(g, 4) == 3) {
        bool left = pick(g, 2);
        const char *lit = literal(g, a.t);
        fresh(g, t, a.rank, a.d);
        if (left)
            put(g, "%s %s, %%%s\n", ops[k].op, lit, a.name);
        else
            put(g, "%s %%%s, %s\n", ops[k].op, a.name, lit);
        return;
    }
    int y = partner(g, x, a.t);
    if (y < 0) return;
    struct val b = g->v[y];
    broadcast(g, &a, &b, &r);
    fresh(g, t, r.rank, r.d);
    put(g, "%s %%%s, %%%s\n", ops[k].op, a.name, b.name);
}

static void ternary(struct gen *g) {
    bool sel = pick(g, 2);
    int x = choose(g, sel ? W : N, false);
    if (x < 0) return;
    struct val a = g->v[x], r = a, out;
    if (sel) {
        int c = choose(g, B, false), y = partner(g, x, a.t);
        if (c < 0 || y < 0) return;
        broadcast(g, &a, &g->v[y], &r);
        if (!broadcast(g, &g->v[c], &r, &out)) return;
        struct val cond = g->v[c], b = g->v[y];
        fresh(g, a.t, out.rank, out.d);
        put(g, "select %%%s, %%%s, %%%s\n", cond.name, a.name, b.name);
        return;
    }
    int y = partner(g, x, a.t);
    if (y < 0) return;
    struct val b = g->v[y];
    broadcast(g, &a, &b, &r);
    const char *lit = literal(g, a.t);
    fresh(g, a.t, r.rank, r.d);
    put(g, "%s %%%s, %%%s, %s\n", fits(I, a.t) ? "philox" : "fma", a.name, b.name, lit);
}

static void cast(struct gen *g) {
    static const dvm_dtype types[] = {DVM_F32, DVM_F16, DVM_I32, DVM_BF16, DVM_BOOL,
                                      DVM_I64, DVM_U8,  DVM_I8,  DVM_F64};
    dvm_dtype t = types[pick(g, 9)];
    int x = choose(g, A, false);
    struct val a = g->v[x];
    fresh(g, t, a.rank, a.d);
    put(g, "cast %%%s, %s\n", a.name, dvm_dtype_name(t));
}

static void reduce(struct gen *g) {
    static const struct {
        const char *op;
        enum class c;
        int result; /* 0 same, 1 sum, 2 index */
    } ops[] = {{"sum", W, 1}, {"max", W, 0}, {"min", W, 0},    {"prod", W, 1},
               {"any", B, 0}, {"all", B, 0}, {"argmax", N, 2}, {"argmin", N, 2}};
    unsigned k = pick(g, 8), mask = pick(g, 8);
    int x = choose(g, ops[k].c, true);
    if (x < 0) return;
    struct val a = g->v[x], r = a;
    bool keep = pick(g, 2), empty = count(a.rank, a.d) == 0,
         to_f32 = ops[k].result == 1 && pick(g, 4) == 3;
    mask &= (1u << a.rank) - 1;
    if (ops[k].result != 1 && ops[k].c != B && empty) return;
    if (ops[k].result == 2 && mask) mask &= 0u - mask;
    r.rank = 0;
    for (int i = 0; i < a.rank; i++) {
        if (mask && !(mask >> i & 1))
            r.d[r.rank++] = a.d[i];
        else if (keep)
            r.d[r.rank++] = 1;
    }
    dvm_dtype t = ops[k].result == 2 ? DVM_I64 : ops[k].result == 1 && !is_f(a.t) ? DVM_I64 : a.t;
    fresh(g, to_f32 ? DVM_F32 : t, r.rank, r.d);
    put(g, "%s %%%s", ops[k].op, a.name);
    for (int i = 0, first = 1; i < a.rank; i++) {
        if (!(mask >> i & 1)) continue;
        put(g, first ? ", dims=[%d" : ", %d", i % 2 ? i - a.rank : i);
        first = 0;
    }
    put(g, "%s%s%s\n", mask ? "]" : "", keep ? ", keep" : "", to_f32 ? ", dtype=f32" : "");
}

static void view(struct gen *g) {
    int x = choose(g, A, true);
    if (x < 0) return;
    struct val a = g->v[x], r = a;
    int perm[RANK];
    switch (pick(g, 5)) {
    case 0: /* permute */
        for (int i = 0; i < a.rank; i++) perm[i] = i;
        for (int i = a.rank - 1; i > 0; i--) {
            int j = (int)pick(g, (unsigned)i + 1), p = perm[i];
            perm[i] = perm[j];
            perm[j] = p;
        }
        for (int i = 0; i < a.rank; i++) r.d[i] = a.d[perm[i]];
        fresh(g, a.t, r.rank, r.d);
        put(g, "permute %%%s, [", a.name);
        for (int i = 0; i < a.rank; i++) put(g, "%s%d", i ? ", " : "", perm[i]);
        put(g, "]\n");
        return;
    case 1: /* flatten, or merge the last two */
        if (a.rank > 2 && pick(g, 2)) {
            r.rank = a.rank - 1;
            r.d[r.rank - 1] = a.d[a.rank - 2] * a.d[a.rank - 1];
        } else {
            r.rank = 1;
            r.d[0] = count(a.rank, a.d);
        }
        fresh(g, a.t, r.rank, r.d);
        put(g, "reshape %%%s, ", a.name);
        if (count(r.rank - 1, r.d) == 0)
            put_sizes(g, r.rank, r.d);
        else {
            put(g, "[");
            for (int i = 0; i < r.rank - 1; i++) {
                put_size(g, r.d[i]);
                put(g, ", ");
            }
            put(g, "-1]");
        }
        put(g, "\n");
        return;
    case 2: { /* broadcast */
        if (a.rank == RANK) return;
        int64_t lead = 1 + (int64_t)pick(g, 3);
        r.rank = a.rank + 1;
        r.d[0] = lead;
        for (int i = 0; i < a.rank; i++)
            r.d[i + 1] = a.d[i] == 1 && pick(g, 2) ? g->size[pick(g, 4)] : a.d[i];
        if (count(r.rank, r.d) > g->most) return;
        fresh(g, a.t, r.rank, r.d);
        put(g, "broadcast %%%s, ", a.name);
        put_sizes(g, r.rank, r.d);
        put(g, "\n");
        return;
    }
    case 3: { /* split an axis in two */
        int at = a.rank ? (int)pick(g, (unsigned)a.rank) : 0;
        if (a.rank == 0 || a.rank == RANK || a.d[at] % 2 || a.d[at] == 0) return;
        for (int i = a.rank; i > at + 1; i--) r.d[i] = a.d[i - 1];
        r.d[at] = 2;
        r.d[at + 1] = a.d[at] / 2;
        r.rank = a.rank + 1;
        fresh(g, a.t, r.rank, r.d);
        put(g, "reshape %%%s, ", a.name);
        put_sizes(g, r.rank, r.d);
        put(g, "\n");
        return;
    }
    default: { /* slice */
        int start[RANK], size[RANK], step[RANK];
        for (int i = 0; i < a.rank; i++) {
            int64_t d = a.d[i];
            start[i] = (int)pick(g, 5) - 2;
            size[i] = (int)pick(g, 4) ? -1 : (int)pick(g, 9);
            step[i] = (int[]){1, 1, 2, 3, -1, -2}[pick(g, 6)];
            int64_t s = start[i] < 0 ? start[i] + d : start[i], n = 0;
            if (step[i] > 0)
                s = s < 0 ? 0 : s > d ? d : s;
            else
                s = s < -1 ? -1 : s > d - 1 ? d - 1 : s;
            for (; s >= 0 && s < d && (size[i] < 0 || n < size[i]); s += step[i]) n++;
            r.d[i] = n;
        }
        fresh(g, a.t, r.rank, r.d);
        put(g, "slice %%%s", a.name);
        const int *lists[] = {start, size, step};
        static const char *const names[] = {"start", "size", "step"};
        for (int k = 0; k < 3; k++) {
            put(g, ", %s=[", names[k]);
            for (int i = 0; i < a.rank; i++) put(g, "%s%d", i ? ", " : "", lists[k][i]);
            put(g, "]");
        }
        put(g, "\n");
    }
    }
}

/* An index in range: iota modulo the size. */
static void gather(struct gen *g) {
    int x = choose(g, A, true);
    if (x < 0 || g->v[x].rank == 0 || g->nv + 4 > MAX_VALUES || g->v[x].t == DVM_F64) return;
    struct val a = g->v[x], r = a, index = {.rank = 1};
    int axis = (int)pick(g, (unsigned)a.rank), slices = (int)pick(g, 2);
    if (a.d[axis] == 0) return;
    if (slices) {
        index.rank = (int)pick(g, 3);
        for (int i = 0; i < index.rank; i++) index.d[i] = 1 + (int64_t)pick(g, 6);
        r.rank = a.rank - 1 + index.rank;
        if (r.rank > RANK) return;
        for (int i = 0; i < index.rank; i++) r.d[axis + i] = index.d[i];
        for (int i = axis + 1; i < a.rank; i++) r.d[i - 1 + index.rank] = a.d[i];
    } else {
        index = a;
        index.d[axis] = 1 + (int64_t)pick(g, 9);
        r.d[axis] = index.d[axis];
    }
    if (count(r.rank, r.d) > g->most) return;
    dvm_dtype t = pick(g, 2) ? DVM_I64 : DVM_I32;
    char name[8];
    if (index.rank) {
        int along = (int)pick(g, (unsigned)index.rank);
        struct val *i0 = fresh(g, t, index.rank, index.d);
        snprintf(name, sizeof name, "%s", i0->name);
        put(g, "iota %s", dvm_dtype_name(t));
        put_sizes(g, index.rank, index.d);
        put(g, ", axis=%d\n", along);
        struct val *i1 = fresh(g, t, index.rank, index.d);
        put(g, "mul %%%s, %u\n", name, 1 + pick(g, 7));
        snprintf(name, sizeof name, "%s", i1->name);
        i1 = fresh(g, t, index.rank, index.d);
        put(g, "%s %%%s, %lld\n", pick(g, 2) ? "remainder" : "fmod", name, (long long)a.d[axis]);
        snprintf(name, sizeof name, "%s", i1->name);
        fresh(g, a.t, r.rank, r.d);
        put(g, "gather %%%s, %%%s", a.name, name);
    } else {
        fresh(g, a.t, r.rank, r.d);
        put(g, "gather %%%s, %d:%s", a.name, pick(g, 2) ? -1 : 0, dvm_dtype_name(t));
    }
    put(g, ", axis=%d, mode=%s\n", pick(g, 2) ? axis : axis - a.rank, slices ? "slice" : "element");
}

static void other(struct gen *g) {
    int x = choose(g, A, true);
    if (x < 0) return;
    struct val a = g->v[x], r = a;
    switch (pick(g, 4)) {
    case 0: { /* concat */
        if (a.rank == 0) return;
        int axis = (int)pick(g, (unsigned)a.rank), n = 1 + (int)pick(g, 3);
        r.d[axis] *= n;
        if (count(r.rank, r.d) > g->most) return;
        fresh(g, a.t, r.rank, r.d);
        put(g, "concat ");
        for (int i = 0; i < n; i++) put(g, "%%%s, ", a.name);
        put(g, "axis=%d\n", axis);
        return;
    }
    case 1:
        if (a.rank == 0 || !fits(N, a.t)) return;
        fresh(g, a.t, a.rank, a.d);
        put(g, "cumsum %%%s\n", a.name);
        return;
    case 2: {
        if (a.rank == 0) return;
        dvm_dtype t = pick(g, 2) ? DVM_I64 : DVM_I32;
        unsigned axis = pick(g, (unsigned)a.rank);
        fresh(g, t, a.rank, a.d);
        put(g, "iota %s", dvm_dtype_name(t));
        put_sizes(g, a.rank, a.d);
        put(g, ", axis=%u\n", axis);
        return;
    }
    default:
        fresh(g, DVM_I64, 0, a.d)->scalar = true;
        put(g, "size %%%s%s\n", a.name, a.rank ? ", dims=[-1]" : "");
    }
}

/* Products of any two matrices that meet, else of one with itself. */
static void product(struct gen *g) {
    int x = choose(g, F, true);
    if (x < 0 || g->v[x].rank < 2) return;
    int y = x;
    unsigned way = pick(g, 4), from = pick(g, (unsigned)g->nv);
    for (int k = 0; k < g->nv; k++) {
        int i = ((int)from + k) % g->nv;
        if (g->v[i].t == g->v[x].t && g->v[i].rank >= 2 && !g->v[i].scalar) {
            y = i;
            break;
        }
    }
    struct val a = g->v[x], b = g->v[y], r, ba, bb;
    bool fits_, ta = false, tb = false;
    for (int tries = 0;; tries++, way = (way + 1) % 4) {
        if (tries == 4) {
            if (y == x) return;
            b = g->v[y = x];
            tries = 0;
        }
        ta = way & 1;
        tb = way >> 1;
        ba = a, bb = b;
        ba.rank -= 2, bb.rank -= 2;
        fits_ = a.d[a.rank - 1 - ta] == b.d[b.rank - 2 + tb] && broadcast(g, &ba, &bb, &r);
        if (fits_) break;
    }
    int64_t m = a.d[a.rank - 2 + ta], n = b.d[b.rank - 1 - tb], k = a.d[a.rank - 1 - ta];
    r.d[r.rank++] = m;
    r.d[r.rank++] = n;
    if (count(r.rank, r.d) > g->most || count(r.rank, r.d) * k > 40 * g->most) return;
    bool wide = pick(g, 4) == 3;
    fresh(g, wide ? DVM_F32 : a.t, r.rank, r.d);
    put(g, "matmul %%%s, %%%s%s%s%s\n", a.name, b.name, ta ? ", trans_a" : "",
        tb ? ", trans_b" : "", wide ? ", dtype=f32" : "");
}

/* Groups of rows of a matrix times its transpose, cut by a list of ends or sizes that is made of an iota. */
static void groups(struct gen *g) {
    int x = choose(g, F, true);
    if (x < 0 || g->v[x].rank != 2 || g->nv + 5 > MAX_VALUES) return;
    struct val a = g->v[x];
    int64_t n = 1 + (int64_t)pick(g, 4), each;
    bool rows = pick(g, 2), sizes = pick(g, 2), flip = pick(g, 2);
    int64_t m = a.d[flip], k = a.d[!flip], cut = rows ? m : k;
    if (count(2, a.d) * n > g->most || m * m * n > g->most) return;
    each = cut / n;
    char name[8];
    dvm_dtype t = pick(g, 2) ? DVM_I64 : DVM_I32;
    snprintf(name, sizeof name, "%s", fresh(g, t, 1, &n)->name);
    put(g, "iota %s[%lld], axis=0\n", dvm_dtype_name(t), (long long)n);
    if (!sizes) {
        char one[8];
        snprintf(one, sizeof one, "%s", fresh(g, t, 1, &n)->name);
        put(g, "add %%%s, 1\n", name);
        snprintf(name, sizeof name, "%s", one);
    }
    struct val *list = fresh(g, t, 1, &n);
    put(g, sizes ? "minimum %%%s, %lld\n" : "mul %%%s, %lld\n", name, (long long)each);
    snprintf(name, sizeof name, "%s", list->name);
    const char *of = list->name;
    struct val b = a;
    if (rows) {
        b.rank = 3;
        b.d[0] = n;
        b.d[1] = a.d[0];
        b.d[2] = a.d[1];
        struct val *v = fresh(g, a.t, 3, b.d);
        put(g, "broadcast %%%s, [%lld, -1, -1]\n", a.name, (long long)n);
        memcpy(b.name, v->name, sizeof b.name);
    }
    fresh(g, a.t, rows ? 2 : 3, rows ? (int64_t[]){m, m} : (int64_t[]){n, m, m});
    put(g, "grouped_matmul %%%s, %%%s, %%%s%s, groups=%s, list=%s\n", a.name, b.name, of,
        flip ? ", trans_a" : ", trans_b", rows ? "m" : "k", sizes ? "sizes" : "ends");
}

static void store(struct gen *g, int i) {
    const struct val *v = &g->v[i];
    put(g, "  store %%%s", v->name);
    if (v->rank && pick(g, 4) == 3) {
        int64_t s[RANK], step = 1 + (int64_t)pick(g, 2);
        for (int k = v->rank - 1; k >= 0; k--) {
            s[k] = step;
            step *= v->d[k] + (int64_t)pick(g, 2);
        }
        put(g, ", strides=[");
        for (int k = 0; k < v->rank; k++) put(g, "%s%lld", k ? ", " : "", (long long)s[k]);
        put(g, "]");
    }
    put(g, "\n");
}

char *graph_gen(const uint8_t *bytes, size_t n) {
    static const char *const kinds[] = {"split",        "split",  "vector:spec", "eager",
                                        "split:strict", "vector", "seq",         "split:unify_ws"};
    static const int64_t sizes[] = {4,  3,   8, 1, 17,  64,  2,    65,   5,    16,
                                    33, 130, 0, 7, 100, 300, 1024, 1030, 2049, 4100};
    struct gen g = {.io = {.p = bytes, .end = bytes + n}, .most = 8000};
    const char *kind = kinds[pick(&g, 8)];
    bool big = pick(&g, 24) == 23; /* few operations on enough elements for several threads */
    if (big) g.most = 150000;
    g.symbolic = pick(&g, 2);
    for (int k = 0; k < 4; k++) g.size[k] = sizes[pick(&g, 20)];
    put(&g, "kernel %s (", kind);
    int args = 1 + (int)pick(&g, 4);
    for (int k = 0; k < args; k++) argument(&g, k == 0);
    put(&g, ") {\n");
    static void (*const make[])(struct gen *) = {binary, unary, binary, reduce,  view,
                                                 cast,   unary, binary, ternary, other,
                                                 gather, view,  reduce,  product, groups};
    int ops = 1 + (int)pick(&g, big ? 5 : n >= LONG ? 200 : 20);
    for (int k = 0; k < ops && g.nv < MAX_VALUES - 4; k++) make[pick(&g, 15)](&g);
    put(&g, "# shape:");
    for (int k = 0; k < 4; k++)
        if (g.declared[k]) put(&g, " n%d=%lld", k, (long long)g.size[k]);
    for (int k = 0; k < args; k++)
        if (g.v[k].scalar) put(&g, " %s=%lld", g.v[k].name, (long long)g.v[k].d[0]);
    put(&g, "\n");
    store(&g, g.nv - 1);
    for (int k = (int)pick(&g, 3); k > 0; k--) store(&g, (int)pick(&g, (unsigned)g.nv));
    put(&g, "}\n");
    return g.io.text;
}
