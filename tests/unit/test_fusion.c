/* Fusion never changes a bit: random graphs run as one program on the CPU device and node by node, each operation a
 * kernel of its own, on the scalar reference. Values of f32, i32, i64 and bool are exact in memory, and f16 and bf16
 * are in strict graphs, so both ways must agree bit for bit (NaN is NaN). DVM_SEED and DVM_CASES in the environment choose others. */
// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
// clang-format on
#include <dvm/dvm.h>
#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_VAL = 64, MAX_OUT = 8, MAX_IN = 4 };

static uint64_t state;
static uint32_t rnd(uint32_t n) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((state >> 33) % n);
}

struct value {
    dvm_val v;
    dvm_dtype t;
    int rank;
    int64_t d[DVM_MAX_RANK];
    void *data; /* dense, from the reference */
};

struct program {
    dvm_ctx *cpu, *ref;
    dvm_graph *g;
    struct value val[MAX_VAL];
    int n, nin;
    uint32_t flags;
    dvm_arg in[MAX_IN];
};

#define OK(e) assert_int_equal_msg((e), #e)
static void assert_int_equal_msg(dvm_status st, const char *what) {
    if (st != DVM_OK) fail_msg("%s: %s: %s", what, dvm_status_name(st), dvm_error_text());
}

static int64_t numel(const struct value *x) {
    int64_t n = 1;
    for (int i = 0; i < x->rank; i++) n *= x->d[i];
    return n;
}

static size_t bytes(const struct value *x) { return (size_t)numel(x) * dvm_dtype_size(x->t); }

static float random_float(void) {
    static const float odd[] = {0.0f, -0.0f, INFINITY, -INFINITY, NAN, 1e-40f, 3e38f, 1.0f};
    return rnd(40) == 0 ? odd[rnd(8)] : (float)((int)rnd(4001) - 2000) / 500.0f;
}

/* Any bits are a 16-bit float; small exponents are drawn more often. */
static uint16_t random_half(dvm_dtype t) {
    uint32_t sign = rnd(2) << 15;
    if (rnd(20) == 0) return (uint16_t)(sign | rnd(0x8000));
    return (uint16_t)(sign | (t == DVM_F16 ? (13 + rnd(5)) << 10 | rnd(1024)
                                           : (125 + rnd(5)) << 7 | rnd(128)));
}

static void fill(struct value *x) {
    int64_t n = numel(x);
    x->data = malloc(bytes(x) + 1);
    for (int64_t i = 0; i < n; i++) {
        switch (x->t) {
        case DVM_F32: ((float *)x->data)[i] = random_float(); break;
        case DVM_F16:
        case DVM_BF16: ((uint16_t *)x->data)[i] = random_half(x->t); break;
        case DVM_I32: ((int32_t *)x->data)[i] = (int32_t)rnd(21) - 10; break;
        case DVM_I64: ((int64_t *)x->data)[i] = (int64_t)rnd(21) - 10; break;
        default: ((uint8_t *)x->data)[i] = (uint8_t)rnd(2); break;
        }
    }
}

static bool is_float(dvm_dtype t) { return t == DVM_F32 || t == DVM_F16 || t == DVM_BF16; }

/* One operation on values a, b, c: the same call builds the whole program and the single kernels. */
struct step {
    int kind, op, nin, a[3];
    int64_t p[3 * DVM_MAX_RANK];
    int q[DVM_MAX_RANK], n, keep;
    dvm_dtype t;
};
enum {
    S_EW,
    S_CAST,
    S_RED,
    S_RESHAPE,
    S_PERMUTE,
    S_SLICE,
    S_BROADCAST,
    S_CUMSUM,
    S_CONCAT,
    S_GATHER,
    S_PRODUCT,
    S_IOTA
};

static dvm_status build(dvm_graph *g, const struct step *s, const dvm_val *in, dvm_val *out) {
    switch (s->kind) {
    case S_EW: return dvm_graph_op(g, (dvm_op)s->op, s->nin, in, out);
    case S_CAST: return dvm_graph_cast(g, in[0], s->t, out);
    case S_RED: return dvm_graph_reduce(g, (dvm_op)s->op, in[0], s->n, s->q, s->keep, s->t, out);
    case S_RESHAPE: return dvm_graph_reshape(g, in[0], s->n, s->p, out);
    case S_PERMUTE: return dvm_graph_permute(g, in[0], s->n, s->q, out);
    case S_SLICE: return dvm_graph_slice(g, in[0], s->n, s->p, s->p + s->n, s->p + 2 * s->n, out);
    case S_BROADCAST: return dvm_graph_broadcast(g, in[0], s->n, s->p, out);
    case S_CUMSUM: return dvm_graph_cumsum(g, in[0], out);
    case S_CONCAT: return dvm_graph_concat(g, s->nin, in, s->n, out);
    case S_GATHER: return dvm_graph_gather(g, in[0], in[1], s->n, s->keep, out);
    case S_PRODUCT: return dvm_graph_matmul(g, in[0], in[1], s->q[0], s->q[1], 0, s->t, out);
    default: return dvm_graph_iota(g, s->t, s->n, s->p, s->q[0], out);
    }
}

/* The step alone, on the reference. */
static void run_single(struct program *p, const struct step *s, struct value *res) {
    dvm_graph *g;
    dvm_kernel *k;
    dvm_val in[3], v;
    dvm_arg arg[3] = {0}, out = {0};
    OK(dvm_graph_create(p->ref, DVM_SPLIT, p->flags, &g));
    for (int i = 0; i < s->nin; i++) {
        const struct value *x = &p->val[s->a[i]];
        OK(dvm_graph_load(g, x->t, x->rank, x->d, NULL, &in[i]));
        arg[i] = (dvm_arg){.data = x->data, .dims = x->d, .rank = x->rank, .dtype = x->t};
    }
    OK(build(g, s, in, &v));
    OK(dvm_graph_store(g, v, NULL, NULL));
    OK(dvm_compile(g, &k));
    dvm_dtype t;
    OK(dvm_kernel_infer(k, s->nin, arg, 1, &res->rank, res->d, &t));
    res->t = t;
    res->data = malloc(bytes(res) + 1);
    memset(res->data, 0xa5, bytes(res));
    out = (dvm_arg){.data = res->data, .dims = res->d, .rank = res->rank, .dtype = t};
    OK(dvm_run(k, s->nin, arg, 1, &out));
    dvm_kernel_destroy(&k);
    dvm_graph_destroy(&g);
}

static int pick_value(const struct program *p, int want) {
    for (int tries = 0; tries < 20; tries++) {
        int i = rnd(3) ? p->n - 1 - (int)rnd((uint32_t)(p->n < 5 ? p->n : 5))
                       : (int)rnd((uint32_t)p->n);
        if (want < 0 || (int)p->val[i].t == want) return i;
    }
    return -1;
}

static bool broadcasts(const struct value *a, const struct value *b) {
    for (int i = 1; i <= a->rank && i <= b->rank; i++) {
        int64_t x = a->d[a->rank - i], y = b->d[b->rank - i];
        if (x != y && x != 1 && y != 1) return false;
    }
    return true;
}

static int pick_mate(const struct program *p, int a, int t) {
    for (int tries = 0; tries < 30; tries++) {
        int i = (int)rnd((uint32_t)p->n);
        if ((int)p->val[i].t == t && broadcasts(&p->val[a], &p->val[i])) return i;
    }
    return -1;
}

static bool random_ew(struct program *p, struct step *s) {
    static const uint8_t un[] = {DVM_OP_NEG,  DVM_OP_ABS,  DVM_OP_RELU,  DVM_OP_SIGN,  DVM_OP_EXP,
                                 DVM_OP_TANH, DVM_OP_SQRT, DVM_OP_FLOOR, DVM_OP_ISNAN, DVM_OP_COPY};
    static const uint8_t bi[] = {DVM_OP_ADD, DVM_OP_SUB, DVM_OP_MUL, DVM_OP_MAX, DVM_OP_MIN,
                                 DVM_OP_DIV, DVM_OP_LT,  DVM_OP_EQ,  DVM_OP_REM};
    int a = pick_value(p, -1), t = (int)p->val[a].t;
    s->kind = S_EW;
    s->a[0] = a;
    if (rnd(3) == 0) {
        s->op = un[rnd(sizeof un)];
        s->nin = 1;
        if (t == DVM_BOOL)
            s->op = DVM_OP_NOT;
        else if (!is_float((dvm_dtype)t) && s->op > DVM_OP_RELU)
            s->op = DVM_OP_NEG;
        return true;
    }
    s->op = bi[rnd(sizeof bi)];
    s->nin = 2;
    if (t == DVM_BOOL && s->op == DVM_OP_REM) s->op = DVM_OP_ADD;
    if (!is_float((dvm_dtype)t) && s->op == DVM_OP_DIV) s->op = DVM_OP_MUL;
    if (t == DVM_BOOL && rnd(2)) { /* select */
        int f = pick_mate(p, a, p->flags ? DVM_BF16 : DVM_F32);
        if (f < 0) return false;
        int g2 = pick_mate(p, f, p->flags ? DVM_BF16 : DVM_F32);
        if (g2 < 0 || !broadcasts(&p->val[a], &p->val[g2])) return false;
        s->op = DVM_OP_SELECT;
        s->nin = 3;
        s->a[1] = f;
        s->a[2] = g2;
        return true;
    }
    s->a[1] = pick_mate(p, a, t);
    return s->a[1] >= 0;
}

static bool random_red(struct program *p, struct step *s) {
    static const uint8_t red[] = {DVM_OP_SUM,  DVM_OP_SUM,    DVM_OP_RMAX,
                                  DVM_OP_RMIN, DVM_OP_ARGMAX, DVM_OP_PROD};
    int a = pick_value(p, -1);
    const struct value *x = &p->val[a];
    s->kind = S_RED;
    s->nin = 1;
    s->a[0] = a;
    s->op = x->t == DVM_BOOL ? (rnd(2) ? DVM_OP_ANY : DVM_OP_ALL) : red[rnd(sizeof red)];
    s->t = is_float(x->t) ? x->t : DVM_I64;
    s->keep = (int)rnd(2);
    for (int i = 0; i < x->rank; i++)
        if (rnd(2)) s->q[s->n++] = i;
    if (s->op == DVM_OP_ARGMAX && s->n > 1) s->n = 1;
    if (x->rank && numel(x) == 0) return false;
    return true;
}

static bool random_reshape(struct program *p, struct step *s) {
    int a = pick_value(p, -1);
    const struct value *x = &p->val[a];
    int64_t n = numel(x);
    s->kind = S_RESHAPE;
    s->nin = 1;
    s->a[0] = a;
    if (n == 0) return false;
    while (n > 1 && s->n < 3) {
        int64_t f = 1 + (int64_t)rnd(12);
        while (n % f) f--;
        s->p[s->n++] = f;
        n /= f;
    }
    s->p[s->n++] = n;
    return true;
}

static bool random_view(struct program *p, struct step *s) {
    int a = pick_value(p, -1);
    const struct value *x = &p->val[a];
    s->nin = 1;
    s->a[0] = a;
    switch (rnd(4)) {
    case 0: return random_reshape(p, s);
    case 1:
        s->kind = S_PERMUTE;
        s->n = x->rank;
        for (int i = 0; i < x->rank; i++) s->q[i] = i;
        for (int i = x->rank - 1; i > 0; i--) {
            int j = (int)rnd((uint32_t)i + 1), t = s->q[i];
            s->q[i] = s->q[j];
            s->q[j] = t;
        }
        return true;
    case 2:
        s->kind = S_SLICE;
        s->n = x->rank;
        for (int i = 0; i < x->rank; i++) {
            bool back = rnd(6) == 0;
            s->p[i] = rnd(2) ? 0 : (int64_t)rnd((uint32_t)x->d[i] + 1) - (rnd(4) == 0);
            s->p[x->rank + i] = rnd(3) ? -1 : 1 + (int64_t)rnd(5);
            s->p[2 * x->rank + i] = back ? -1 : 1 + (int64_t)(rnd(4) == 0);
            if (back) s->p[i] = x->d[i] - 1;
        }
        return true;
    default:
        s->kind = S_BROADCAST;
        if (x->rank > 3) return false;
        s->n = x->rank + (int)rnd(2);
        for (int i = 0; i < s->n; i++) {
            int j = i - (s->n - x->rank);
            s->p[i] = j < 0 || x->d[j] == 1 ? 1 + (int64_t)rnd(5) : -1;
        }
        return true;
    }
}

static bool random_other(struct program *p, struct step *s) {
    int a = pick_value(p, -1);
    const struct value *x = &p->val[a];
    s->nin = 1;
    s->a[0] = a;
    switch (rnd(5)) {
    case 0: s->kind = S_CUMSUM; return x->rank > 0 && x->t != DVM_BOOL;
    case 1: {
        int b = pick_mate(p, a, (int)x->t);
        s->kind = S_CONCAT;
        s->nin = 2;
        s->a[1] = b;
        if (b < 0 || x->rank == 0 || p->val[b].rank != x->rank) return false;
        s->n = (int)rnd((uint32_t)x->rank);
        for (int i = 0; i < x->rank; i++)
            if (i != s->n && p->val[b].d[i] != x->d[i]) return false;
        return true;
    }
    case 2: {
        int b = pick_value(p, rnd(2) ? DVM_I32 : DVM_I64);
        s->kind = S_GATHER;
        s->nin = 2;
        s->a[1] = b;
        s->keep = 1;
        if (b < 0 || x->rank == 0 || x->rank + p->val[b].rank > 4) return false;
        s->n = (int)rnd((uint32_t)x->rank);
        for (int64_t i = 0; i < numel(&p->val[b]); i++) {
            int64_t v = p->val[b].t == DVM_I32 ? ((int32_t *)p->val[b].data)[i]
                                               : ((int64_t *)p->val[b].data)[i];
            if (v < -x->d[s->n] || v >= x->d[s->n]) return false;
        }
        return true;
    }
    case 3:
        s->kind = S_IOTA;
        s->nin = 0;
        s->t = rnd(2) ? DVM_I32 : DVM_I64;
        s->n = x->rank;
        for (int i = 0; i < x->rank; i++) s->p[i] = x->d[i];
        if (x->rank == 0) return false;
        s->q[0] = (int)rnd((uint32_t)x->rank);
        return true;
    default: {
        static const uint8_t t[] = {DVM_F32, DVM_I32, DVM_I64, DVM_BOOL, DVM_F16, DVM_BF16};
        s->kind = S_CAST;
        s->t = (dvm_dtype)t[rnd(p->flags ? 6 : 4)];
        return true;
    }
    }
}

/* Any two matrices whose sizes meet. */
static bool random_product(struct program *p, struct step *s) {
    int a = pick_value(p, -1);
    const struct value *x = &p->val[a];
    int b = pick_value(p, (int)x->t);
    if (b < 0 || !is_float(x->t) || x->rank < 2 || p->val[b].rank < 2) return false;
    const struct value *y = &p->val[b];
    *s = (struct step){.kind = S_PRODUCT, .nin = 2, .a = {a, b}, .t = x->t};
    for (int i = 3; i <= x->rank && i <= y->rank; i++) {
        int64_t d = x->d[x->rank - i], e = y->d[y->rank - i];
        if (d != e && d != 1 && e != 1) return false;
    }
    for (int f = (int)rnd(4), tries = 0; tries < 4; tries++, f = (f + 1) % 4) {
        s->q[0] = f & 1;
        s->q[1] = f >> 1;
        if (x->d[x->rank - 1 - s->q[0]] == y->d[y->rank - 2 + s->q[1]]) return true;
    }
    return false;
}

static bool random_step(struct program *p, struct step *s) {
    memset(s, 0, sizeof *s);
    uint32_t r = rnd(22);
    return r > 19   ? random_product(p, s)
           : r < 10 ? random_ew(p, s)
           : r < 13 ? random_red(p, s)
           : r < 17 ? random_view(p, s)
                    : random_other(p, s);
}

static void add_input(struct program *p, const int64_t *dims, int rank) {
    static const uint8_t types[] = {DVM_F32,  DVM_F32, DVM_F32,  DVM_I32, DVM_I64,
                                    DVM_BOOL, DVM_F16, DVM_BF16, DVM_BF16};
    struct value *x = &p->val[p->n++];
    x->t = (dvm_dtype)types[rnd(p->flags ? 9 : 6)];
    x->rank = 0;
    int drop = (int)rnd(3) == 0 ? (int)rnd((uint32_t)rank + 1) : 0;
    for (int i = drop; i < rank; i++) x->d[x->rank++] = rnd(5) == 0 ? 1 : dims[i];
    OK(dvm_graph_load(p->g, x->t, x->rank, x->d, NULL, &x->v));
    fill(x);
    p->in[p->nin++] = (dvm_arg){.data = x->data, .dims = x->d, .rank = x->rank, .dtype = x->t};
}

static bool same_bits(const struct value *x, const void *got) {
    if (x->t == DVM_F16 || x->t == DVM_BF16) {
        const uint16_t *a = x->data, *b = got;
        uint16_t inf = x->t == DVM_F16 ? 0x7c00 : 0x7f80;
        for (int64_t i = 0; i < numel(x); i++)
            if (a[i] != b[i] && !((a[i] & 0x7fff) > inf && (b[i] & 0x7fff) > inf)) return false;
        return true;
    }
    if (x->t != DVM_F32) return !memcmp(x->data, got, bytes(x));
    const float *a = x->data, *b = got;
    for (int64_t i = 0; i < numel(x); i++)
        if (memcmp(&a[i], &b[i], 4) && !(isnan(a[i]) && isnan(b[i]))) return false;
    return true;
}

static void check(struct program *p, const int *outs, int nout, uint64_t seed) {
    dvm_kernel *k;
    dvm_arg arg[MAX_OUT];
    dvm_status made = dvm_compile(p->g, &k);
    if (made != DVM_OK) {
        char *text = NULL;
        dvm_graph_text(p->g, &text);
        fail_msg("seed %llu: %s: %s\n%s", (unsigned long long)seed, dvm_status_name(made),
                 dvm_error_text(), text);
    }
    for (int i = 0; i < nout; i++) {
        const struct value *x = &p->val[outs[i]];
        arg[i] =
            (dvm_arg){.data = malloc(bytes(x) + 64), .dims = x->d, .rank = x->rank, .dtype = x->t};
        memset(arg[i].data, 0x5a, bytes(x) + 64);
    }
    dvm_status st = dvm_run(k, p->nin, p->in, nout, arg);
    char *text = NULL;
    for (int i = 0; i < nout; i++) {
        const struct value *x = &p->val[outs[i]];
        const unsigned char *end = (unsigned char *)arg[i].data + bytes(x);
        bool canary = true;
        for (int j = 0; j < 64; j++) canary &= end[j] == 0x5a;
        if (st == DVM_OK && same_bits(x, arg[i].data) && canary) continue;
        dvm_graph_text(p->g, &text);
        fail_msg("seed %llu output %d differs (%s %s)\n%s", (unsigned long long)seed, i,
                 dvm_status_name(st), dvm_error_text(), text);
    }
    for (int i = 0; i < nout; i++) free(arg[i].data);
    dvm_kernel_destroy(&k);
}

static void one_case(uint64_t seed) {
    struct program p = {0};
    state = seed * 7919 + 17;
    dvm_options o = {.device = "ref"};
    dvm_options fused = {.device = getenv("DVM_DEVICE")};
    OK(dvm_ctx_create(&fused, &p.cpu));
    OK(dvm_ctx_create(&o, &p.ref));
    p.flags = rnd(2) ? DVM_STRICT : 0;
    OK(dvm_graph_create(p.cpu, DVM_SPLIT, p.flags, &p.g));
    int rank = 1 + (int)rnd(4), steps = 1 + (int)rnd(rnd(4) ? 12 : 40), outs[MAX_OUT], nout = 0;
    int64_t dims[4];
    for (int i = 0; i < rank; i++)
        dims[i] = rnd(30) == 0 ? 0 : 1 + (int64_t)rnd(rank == 1 ? 3000 : rank == 2 ? 90 : 12);
    for (int i = 0; i < MAX_IN - 1; i++) add_input(&p, dims, rank);
    for (int i = 0; i < steps && p.n < MAX_VAL; i++) {
        struct step s;
        if (!random_step(&p, &s)) continue;
        dvm_val in[3];
        struct value *res = &p.val[p.n];
        for (int j = 0; j < s.nin; j++) in[j] = p.val[s.a[j]].v;
        OK(build(p.g, &s, in, &res->v));
        run_single(&p, &s, res);
        p.n++;
        if (numel(res) > 100000) break;
    }
    for (int i = p.n - 1; i >= MAX_IN - 1 && nout < MAX_OUT; i--) {
        if (i != p.n - 1 && rnd(4)) continue;
        OK(dvm_graph_store(p.g, p.val[i].v, NULL, NULL));
        outs[nout++] = i;
    }
    if (nout) check(&p, outs, nout, seed);
    for (int i = 0; i < p.n; i++) free(p.val[i].data);
    dvm_graph_destroy(&p.g);
    dvm_ctx_destroy(&p.cpu);
    dvm_ctx_destroy(&p.ref);
}

static void test_random_graphs(void **unused) {
    (void)unused;
    const char *s = getenv("DVM_SEED"), *n = getenv("DVM_CASES");
    uint64_t from = s ? strtoull(s, NULL, 10) : 1, count = n ? strtoull(n, NULL, 10) : 1500;
    for (uint64_t i = 0; i < count; i++) one_case(from + i);
}

/* Chains longer than one kernel may be are cut, in a graph of the kind split. */
/* A chain of any length is compiled, in a thread of 2 MiB of stack: the planner goes down it by recursion. */
static void *long_chain(void *unused) {
    (void)unused;
    enum { OPS = 20000, N = 37 };
    dvm_ctx *c;
    dvm_graph *g;
    dvm_kernel *k;
    dvm_val x, v, t;
    int64_t dims[1] = {N};
    float in[N], out[N], want[N];
    OK(dvm_ctx_create(NULL, &c));
    OK(dvm_graph_create(c, DVM_SPLIT, 0, &g));
    OK(dvm_graph_load(g, DVM_F32, 1, dims, NULL, &x));
    for (int i = 0; i < N; i++) want[i] = in[i] = (float)i;
    v = x;
    for (int n = 0; n < OPS; n++) {
        OK(dvm_graph_const(g, DVM_F32, (dvm_number){.f = n % 7}, &t));
        OK(dvm_graph_op(g, n & 1 ? DVM_OP_SUB : DVM_OP_MAX, 2, (dvm_val[]){v, t}, &v));
        for (int i = 0; i < N; i++)
            want[i] = n & 1 ? want[i] - (float)(n % 7) : fmaxf(want[i], (float)(n % 7));
    }
    OK(dvm_graph_store(g, v, NULL, NULL));
    OK(dvm_compile(g, &k));
    dvm_arg a = {.data = in, .dims = dims, .rank = 1, .dtype = DVM_F32};
    dvm_arg o = {.data = out, .dims = dims, .rank = 1, .dtype = DVM_F32};
    OK(dvm_run(k, 1, &a, 1, &o));
    assert_memory_equal(out, want, sizeof out);
    dvm_kernel_destroy(&k);
    dvm_graph_destroy(&g);
    dvm_ctx_destroy(&c);
    return NULL;
}

static void test_long_chain(void **unused) {
    (void)unused;
    pthread_attr_t attr;
    pthread_t thread;
    assert_int_equal(pthread_attr_init(&attr), 0);
    assert_int_equal(pthread_attr_setstacksize(&attr, 2 << 20), 0);
    assert_int_equal(pthread_create(&thread, &attr, long_chain, NULL), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    pthread_attr_destroy(&attr);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random_graphs),
                                       cmocka_unit_test(test_long_chain)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
