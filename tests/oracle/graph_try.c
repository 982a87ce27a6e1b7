/* One text on every tier: they have to agree with each other bit for bit, and with the oracle. */
#include "graph_gen.h"

#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle.h"
#include "oracle_memory.h"

uint64_t graph_number(const char *variable, uint64_t otherwise) {
    const char *s = getenv(variable);
    return s ? strtoull(s, NULL, 10) : otherwise;
}

static const struct {
    const char *device, *isa;
    int threads;
} tiers[] = {
    {"ref", NULL, 1}, {"cpu", NULL, 1}, {"cpu", NULL, 3}, {"cpu", "base", 2}, {"cpu", "avx2", 1}};
enum { NTIERS = sizeof tiers / sizeof *tiers, FEW = 16 };

struct trial {
    oracle *o;
    int nin, nout;
    dvm_arg in[FEW], out[FEW], first[FEW];
    int64_t in_strides[FEW][DVM_MAX_RANK], out_strides[FEW][DVM_MAX_RANK];
    struct oracle_memory in_mem[FEW], out_mem[FEW], first_mem[FEW];
    int alias_in, alias_out; /* this output is written over this input; -1 */
    uint64_t seed;
    struct graph_trial *r;
};

static int say(struct trial *t, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(t->r->why, sizeof t->r->why, fmt, ap);
    va_end(ap);
    return -1;
}

static uint64_t next(struct trial *t) {
    t->seed ^= t->seed << 13;
    t->seed ^= t->seed >> 7;
    t->seed ^= t->seed << 17;
    return t->seed >> 11;
}

/* ------------------------------------------------------------------ arguments */

/* The "# shape:" line of the text. */
static void set_sizes(oracle *o, const char *text) {
    const char *p = strstr(text, "# shape:");
    if (!p) return;
    char line[256], *save = NULL;
    snprintf(line, sizeof line, "%.*s", (int)strcspn(p, "\n") - 8, p + 8);
    for (char *w = strtok_r(line, " ,", &save); w; w = strtok_r(NULL, " ,", &save)) {
        char *eq = strchr(w, '=');
        if (!eq) continue;
        *eq = 0;
        oracle_set(o, w, strtod(eq + 1, NULL));
    }
}

/* Declared strides, or others that no two elements share; inputs may repeat elements. */
static void choose_strides(struct trial *t, const struct oracle_io *io, bool input, int64_t *s) {
    uint64_t how = next(t) % 8;
    memcpy(s, io->strides, sizeof io->strides);
    if (how < 5 || io->rank == 0) return;
    int order[DVM_MAX_RANK];
    for (int i = 0; i < io->rank; i++) order[i] = i;
    for (int i = io->rank - 1; i > 0 && how == 5; i--) {
        int j = (int)(next(t) % (uint64_t)(i + 1)), k = order[i];
        order[i] = order[j];
        order[j] = k;
    }
    int64_t step = how == 6 ? 2 : 1;
    for (int i = io->rank - 1; i >= 0; i--) {
        s[order[i]] = step;
        step *= io->dims[order[i]] > 0 ? io->dims[order[i]] : 1;
        step += how == 6 ? (int64_t)(next(t) % 3) : 0;
    }
    int axis = (int)(next(t) % (uint64_t)io->rank);
    if (how == 7) s[axis] = input && next(t) % 2 ? 0 : -s[axis];
}

/* At times an output is written exactly over an input of its type. */
static void choose_alias(struct trial *t) {
    t->alias_in = t->alias_out = -1;
    if (next(t) % 4 || t->nout == 0) return;
    int out = (int)(next(t) % (uint64_t)t->nout);
    const struct oracle_io *o = oracle_output(t->o, out);
    for (int i = 0; i < t->nin; i++) {
        const struct oracle_io *io = oracle_input(t->o, i);
        bool same = !io->scalar && io->dtype == o->dtype && io->rank == o->rank;
        for (int k = 0; same && k < o->rank; k++)
            same = io->dims[k] == o->dims[k] && (t->in_strides[i][k] || io->dims[k] == 1);
        if (!same) continue;
        memcpy(t->out_strides[out], t->in_strides[i], sizeof t->in_strides[i]);
        t->alias_in = i;
        t->alias_out = out;
        return;
    }
}

static int make_inputs(struct trial *t) {
    for (int i = 0; i < t->nin; i++) {
        const struct oracle_io *io = oracle_input(t->o, i);
        t->in[i] = (dvm_arg){.dtype = io->dtype, .rank = -1, .num = io->num};
        if (io->scalar) continue;
        choose_strides(t, io, true, t->in_strides[i]);
        if (oracle_alloc(&t->in_mem[i], io->dtype, io->rank, io->dims, t->in_strides[i]))
            return say(t, "out of memory");
        struct oracle_fill f = {(enum oracle_style)(next(t) % 4), 0, next(t), io->limit};
        oracle_fill(&t->in_mem[i], io->dtype, io->rank, io->dims, t->in_strides[i], &f);
        t->in[i].rank = io->rank;
        t->in[i].dims = io->dims;
        t->in[i].strides = t->in_strides[i];
        t->in[i].data = t->in_mem[i].data;
        if (oracle_feed(t->o, i, t->in_mem[i].data, t->in_strides[i]))
            return say(t, "out of memory");
    }
    for (int i = 0; i < t->nout; i++)
        choose_strides(t, oracle_output(t->o, i), false, t->out_strides[i]);
    choose_alias(t);
    return 0;
}

static int make_outputs(struct trial *t, dvm_kernel *k) {
    int ranks[FEW];
    dvm_dtype types[FEW];
    int64_t dims[FEW * DVM_MAX_RANK];
    if (dvm_kernel_infer(k, t->nin, t->in, t->nout, ranks, dims, types))
        return say(t, "infer: %s", dvm_error_text());
    for (int i = 0; i < t->nout; i++) {
        const struct oracle_io *io = oracle_output(t->o, i);
        bool same = ranks[i] == io->rank && types[i] == io->dtype;
        for (int j = 0; same && j < io->rank; j++) same = dims[i * DVM_MAX_RANK + j] == io->dims[j];
        if (!same) return say(t, "output %d: the library infers another type than the oracle", i);
        t->out[i] = (dvm_arg){
            .dtype = io->dtype, .rank = io->rank, .dims = io->dims, .strides = t->out_strides[i]};
        if (oracle_alloc(&t->out_mem[i], io->dtype, io->rank, io->dims, t->out_strides[i]))
            return say(t, "out of memory");
        t->out[i].data = t->out_mem[i].data;
    }
    int i = t->alias_in;
    if (i < 0) return 0;
    const struct oracle_memory *to = &t->out_mem[t->alias_out];
    memcpy(to->block, t->in_mem[i].block, to->total);
    t->in[i].data = to->data;
    return 0;
}

/* ------------------------------------------------------------------ judging */

static int judge(struct trial *t) {
    for (int i = 0; i < t->nout; i++) {
        const struct oracle_io *io = oracle_output(t->o, i);
        struct oracle_verdict v;
        oracle_judge(t->o, i, t->out_mem[i].data, t->out_strides[i], &v);
        t->r->elements += v.n;
        t->r->undecided += v.undecided;
        if (v.bad)
            return say(
                t,
                "output %d%s %s: %lld of %lld differ from the oracle; element %lld is %.17g, "
                "expected %.17g within %.3g",
                i, i == t->alias_out ? " (in place)" : "", dvm_dtype_name(io->dtype),
                (long long)v.bad, (long long)v.n, (long long)v.at, v.got, v.want, v.slack);
    }
    return 0;
}

struct compare {
    dvm_dtype t;
    const char *a, *b;
    size_t es;
    int64_t bad;
    double va, vb;
};
static void compare_one(void *arg, int64_t k, int64_t offset) {
    struct compare *c = arg;
    const char *a = c->a + offset * (int64_t)c->es, *b = c->b + offset * (int64_t)c->es;
    double x = oracle_get(c->t, a), y = oracle_get(c->t, b);
    if (!memcmp(a, b, c->es) || (isnan(x) && isnan(y)) || c->bad >= 0) return;
    c->bad = k;
    c->va = x;
    c->vb = y;
}

static int compare(struct trial *t, int tier) {
    for (int i = 0; i < t->nout; i++) {
        const struct oracle_io *io = oracle_output(t->o, i);
        struct compare c = {
            io->dtype, t->first_mem[i].data, t->out_mem[i].data, dvm_dtype_size(io->dtype), -1, 0,
            0};
        oracle_each(io->rank, io->dims, t->out_strides[i], compare_one, &c);
        if (c.bad >= 0)
            return say(
                t, "output %d %s: element %lld is %.17g on %s and %.17g on %s %s with %d threads",
                i, dvm_dtype_name(io->dtype), (long long)c.bad, c.va, tiers[0].device, c.vb,
                tiers[tier].device, tiers[tier].isa ? tiers[tier].isa : "", tiers[tier].threads);
    }
    return 0;
}

static int inside(struct trial *t) {
    for (int i = 0; i < t->nout; i++) {
        const struct oracle_io *io = oracle_output(t->o, i);
        if (!oracle_inside(&t->out_mem[i], io->dtype, io->rank, io->dims, t->out_strides[i]))
            return say(t, "output %d: memory beside it was written, or a bool is neither 0 nor 1",
                       i);
    }
    return 0;
}

/* ------------------------------------------------------------------ tiers */

static dvm_ctx *context(int tier) {
    static dvm_ctx *ctx[NTIERS];
    static bool tried[NTIERS];
    dvm_options o = {
        .device = tiers[tier].device, .isa = tiers[tier].isa, .threads = tiers[tier].threads};
    if (!tried[tier] && dvm_ctx_create(&o, &ctx[tier])) ctx[tier] = NULL;
    tried[tier] = true;
    return ctx[tier];
}

/* What is printed reads back as what is printed. */
static int check_text(struct trial *t, dvm_ctx *c, dvm_graph *g) {
    char *once = NULL, *twice = NULL;
    dvm_graph *again = NULL;
    int bad = 0;
    if (dvm_graph_text(g, &once) || dvm_graph_parse(c, "printed", once, strlen(once), &again) ||
        dvm_graph_text(again, &twice))
        bad = say(t, "the printed text is refused: %s", dvm_error_text());
    else if (strcmp(once, twice))
        bad = say(t, "printing, reading and printing changes the text");
    dvm_string_free(&once);
    dvm_string_free(&twice);
    dvm_graph_destroy(&again);
    return bad;
}

static int run_kernel(struct trial *t, dvm_kernel *k, const char *text, int tier) {
    if (make_outputs(t, k)) return -1;
    dvm_status st = dvm_run(k, t->nin, t->in, t->nout, t->out);
    if (st == DVM_ERR_KIND && strstr(text, "kernel vector")) return 1;
    if (st) return say(t, "run on %s: %s", tiers[tier].device, dvm_error_text());
    if (inside(t)) return -1;
    return tier == 0 ? judge(t) : compare(t, tier);
}

static int run_tier(struct trial *t, const char *text, int tier) {
    dvm_ctx *c = context(tier);
    dvm_graph *g = NULL;
    dvm_kernel *k = NULL;
    int bad = 0;
    if (!c) return 0; /* not a level of this processor */
    if (dvm_graph_parse(c, "generated", text, strlen(text), &g))
        bad = say(t, "%s", dvm_error_text());
    if (!bad && tier == 0) bad = check_text(t, c, g);
    if (!bad) {
        dvm_status st = dvm_compile(g, &k);
        bool may = strstr(text, "kernel vector") != NULL;
        if (st == DVM_ERR_KIND && may)
            bad = 1;
        else if (st)
            bad = say(t, "compile: %s", dvm_error_text());
    }
    if (!bad) bad = run_kernel(t, k, text, tier);
    dvm_kernel_destroy(&k);
    dvm_graph_destroy(&g);
    return bad;
}

int graph_try(const char *text, uint64_t seed, struct graph_trial *r) {
    struct trial t = {.seed = seed | 1, .r = r};
    int bad = 0;
    *r = (struct graph_trial){0};
    for (int i = 0; i < 8; i++) next(&t);
    t.o = oracle_read(text, strlen(text), r->why, sizeof r->why);
    if (!t.o) return -1;
    set_sizes(t.o, text);
    if (oracle_bind(t.o, r->why, sizeof r->why)) bad = -1;
    t.nin = oracle_inputs(t.o);
    t.nout = oracle_outputs(t.o);
    if (!bad && (t.nin > FEW || t.nout > FEW)) bad = say(&t, "too many arguments");
    if (!bad) bad = make_inputs(&t);
    if (!bad && oracle_run(t.o, r->why, sizeof r->why)) bad = -1;
    for (int tier = 0; !bad && tier < NTIERS; tier++) {
        bad = run_tier(&t, text, tier);
        struct oracle_memory *keep = tier == 0 ? t.first_mem : NULL;
        for (int i = 0; i < t.nout; i++) {
            if (keep)
                keep[i] = t.out_mem[i];
            else
                oracle_release(&t.out_mem[i]);
            t.out_mem[i] = (struct oracle_memory){0};
        }
    }
    for (int i = 0; i < t.nin && i < FEW; i++) oracle_release(&t.in_mem[i]);
    for (int i = 0; i < t.nout && i < FEW; i++) oracle_release(&t.first_mem[i]);
    oracle_free(t.o);
    return bad;
}
