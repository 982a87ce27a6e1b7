/* What became of a kernel, as text: the graph as built and in normal form, the plan, its bytecode, and an account for
 * people. Plans are those of the newest shape. */
#include <string.h>

#include "base/fpenv.h"
#include "code/strip_text.h"
#include "graph/graph_text.h"
#include "plan/plan_text.h"
#include "rt/run.h"

#define PUT(...) dvm_text_add(t, __VA_ARGS__)

/* ---- bytecode ------------------------------------------------------------------------------------- */

/* First kernel and phase that run strip s. */
static void first_use(const struct dvm_plan *p, uint32_t s, uint32_t *kernel, int *phase) {
    for (*kernel = 0; *kernel < p->nkernel; ++*kernel)
        for (*phase = 0; *phase < p->kernel[*kernel].nphase; ++*phase)
            if (p->kernel[*kernel].phase[*phase].strip == s) return;
}

static void write_phase_code(const struct dvm_plan *p, uint32_t i, int f, struct dvm_text *t) {
    static const char *const kinds[] = {"map", "row", "col", "gemm"};
    const struct dvm_kplan *k = &p->kernel[i];
    const struct dvm_phase *ph = &k->phase[f];
    uint32_t kernel = 0;
    int phase = 0;
    PUT("; kernel %u %s, phase %d %s, strip %u: %s\n", i, kinds[k->kind], f,
        ph->kind == DVM_PHASE_VEC ? "vec" : "full", ph->strip, p->code[ph->strip]->tier);
    for (int o = 0; o < ph->nbind; o++) {
        PUT(";   o%d: ", o);
        dvm_plan_write_bind(&ph->bind[o], k->naxes, t);
        PUT("\n");
    }
    for (int q = 0; q < ph->nparam; q++)
        PUT(";   p%d: parameter %u of the plan\n", q, ph->param[q]);
    first_use(p, ph->strip, &kernel, &phase);
    if (kernel == i && phase == f)
        dvm_strip_write(&p->strip[ph->strip], t);
    else
        PUT("; the strip of kernel %u, phase %d\n", kernel, phase);
    PUT("\n");
}

static void write_code(const struct dvm_plan *p, struct dvm_text *t) {
    for (uint32_t i = 0; i < p->nkernel; i++)
        for (int f = 0; f < p->kernel[i].nphase; f++) write_phase_code(p, i, f, t);
}

/* ---- machine code --------------------------------------------------------------------------------- */

static const struct dvm_dev *tier_of(const struct dvm_ctx *c, const char *name) {
    int i = 0;
    while (strcmp(c->tier[i].name, name)) i++;
    return &c->tier[i];
}

/* Every strip once: kernels share them. */
static dvm_status write_native(const struct dvm_kernel *k, const struct dvm_plan *p,
                               struct dvm_text *t) {
    for (uint32_t s = 0; s < p->nstrip; s++) {
        const struct dvm_code *code = p->code[s];
        const struct dvm_dev *dev = tier_of(k->ctx, code->tier);
        uint32_t kernel = 0;
        int phase = 0;
        first_use(p, s, &kernel, &phase);
        PUT("; strip %u, kernel %u, phase %d: %s\n", s, kernel, phase, code->tier);
        if (code->refused[0]) PUT("; refused by %s\n", code->refused);
        if (dev->list)
            DVM_TRY(dev->list(dev, &k->mem, &p->strip[s], t));
        else
            PUT("; %s\n", k->ctx->no_jit[0] ? k->ctx->no_jit : "no machine code");
        PUT("\n");
    }
    return DVM_OK;
}

/* ---- for people ------------------------------------------------------------------------------------ */

static void write_bytes(int64_t n, struct dvm_text *t) {
    static const char *const unit[] = {"B", "KB", "MB", "GB", "TB"};
    int u = 0;
    double v = (double)n;
    for (; v >= 9999.5 && u < 4; u++) v /= 1000;
    PUT(u ? "%.1f %s" : "%.0f %s", v, unit[u]);
}

/* "f32[64, 512]" */
static void write_type(int dtype, int rank, const int64_t *d, struct dvm_text *t) {
    PUT("%s[", dvm_dtype_name((dvm_dtype)dtype));
    for (int i = 0; i < rank; i++) PUT("%s%lld", i ? ", " : "", (long long)d[i]);
    PUT("]");
}

static bool is_dense(const struct dvm_plan_arg *a) {
    int64_t step = 1;
    for (int j = a->rank - 1; j >= 0; j--) {
        if (a->stride[j] != step) return false;
        step *= a->d[j];
    }
    return true;
}

static void explain_tensor(const struct dvm_plan_arg *a, struct dvm_text *t) {
    write_type(a->dtype, a->rank, a->d, t);
    if (is_dense(a)) return;
    for (int j = 0; j < a->rank; j++)
        PUT("%s%lld", j ? ", " : " strides [", (long long)a->stride[j]);
    PUT("]");
}

/* The shapes this plan is for. */
static void explain_args(const struct dvm_kernel *k, const struct launch_record *r,
                         struct dvm_text *t) {
    for (uint32_t i = 0; i < r->plan->nin; i++) {
        const struct arg_info *a = &k->arg[i];
        PUT("  %s%u  ", a->scalar ? "s" : "x", i);
        if (a->scalar)
            PUT("scalar %s%s", dvm_dtype_name((dvm_dtype)a->dtype),
                a->in_dims ? ", in the shapes" : "");
        else if (a->live)
            explain_tensor(&r->plan->in[i], t);
        PUT("%s\n", a->live ? "" : "not used");
    }
    for (uint32_t i = 0; i < r->plan->nout; i++) {
        PUT("  out%u  ", i);
        explain_tensor(&r->plan->out[i], t);
        PUT("\n");
    }
}

static void write_place(const struct dvm_kernel *k, const struct dvm_bind *b, struct dvm_text *t) {
    switch (b->src) {
    case DVM_SRC_INPUT: PUT("%s%u", k->arg[b->index].scalar ? "s" : "x", b->index); return;
    case DVM_SRC_OUTPUT: PUT("out%u", b->index); return;
    case DVM_SRC_WS: PUT("workspace + %lld", (long long)b->offset); return;
    case DVM_SRC_SCRATCH: PUT("scratch + %lld", (long long)b->offset); return;
    case DVM_SRC_TILE: PUT("the tile"); return;
    default: PUT("index"); return;
    }
}

/* Operands of one role, a line. */
static void explain_role(const struct dvm_kernel *k, const struct dvm_plan *p,
                         const struct dvm_phase *f, int role, struct dvm_text *t) {
    static const char *const verb[] = {"reads", "writes", "folds into", "gathers from", "counts"};
    static const char *const move[] = {"one element", "one a row", "contiguous", "strided"};
    const char *sep = NULL;
    for (int o = 0; o < f->nbind; o++) {
        const struct dvm_opnd *d = &p->strip[f->strip].opnd[o];
        if (d->role != role) continue;
        if (!sep) PUT("      %s ", verb[role]);
        PUT("%s", sep ? sep : "");
        write_place(k, &f->bind[o], t);
        PUT(" (%s", dvm_dtype_name((dvm_dtype)d->dtype));
        if (role != DVM_ROLE_FOLD) PUT(", %s", move[d->kind]);
        PUT(")");
        sep = ", ";
    }
    if (sep) PUT("\n");
}

static void explain_phase(const struct dvm_kernel *k, const struct dvm_plan *p,
                          const struct dvm_kplan *kp, int i, struct dvm_text *t) {
    static const char *const over[3][2] = {
        {"every element", ""}, {"rows", "one number a row"}, {"columns", "one number a column"}};
    const struct dvm_phase *f = &kp->phase[i];
    const struct dvm_strip *s = &p->strip[f->strip];
    bool vec = f->kind == DVM_PHASE_VEC;
    PUT("    phase %d: ", i);
    if (kp->gemm)
        PUT("%s", vec                           ? "one number a row of the block"
                  : f->pass == DVM_MODE_ROW     ? "folds finished rows"
                  : f->kind == DVM_PHASE_FULL   ? "every finished tile"
                  : f->kind == DVM_PHASE_PACK_A ? "the first factor, while it is packed"
                                                : "the second factor, while it is packed");
    else if (vec)
        PUT("%s of the block", over[kp->kind][1]);
    else
        PUT("%s%s", f->pass == DVM_MODE_MAP ? "" : "folds ",
            f->pass == DVM_MODE_MAP ? over[0][0] : over[f->pass][0]);
    PUT(", %u instruction%s, strip %u (%s)\n", s->nins, s->nins == 1 ? "" : "s", f->strip,
        p->code[f->strip]->tier);
    if (p->code[f->strip]->refused[0]) PUT("      refused by %s\n", p->code[f->strip]->refused);
    for (int role = DVM_ROLE_LOAD; role <= DVM_ROLE_IOTA; role++) explain_role(k, p, f, role, t);
}

/* Does kernel a write what r reads? */
static bool writes(const struct dvm_plan *p, const struct dvm_kplan *a, const struct dvm_bind *r) {
    for (int e = 0; e < a->nphase; e++)
        for (int q = 0; q < a->phase[e].nbind; q++) {
            const struct dvm_bind *w = &a->phase[e].bind[q];
            if (p->strip[a->phase[e].strip].opnd[q].role != DVM_ROLE_STORE || w->src != r->src)
                continue;
            if (w->src == DVM_SRC_WS ? w->offset == r->offset : w->index == r->index) return true;
        }
    return false;
}

static bool is_kept(const struct dvm_bind *b) {
    return b->src == DVM_SRC_WS || b->src == DVM_SRC_OUTPUT;
}

/* Does kernel b read what kernel a wrote? */
static bool feeds(const struct dvm_plan *p, const struct dvm_kplan *a, const struct dvm_kplan *b,
                  const struct dvm_bind **what) {
    const struct dvm_gplan *m = b->gemm;
    const struct dvm_bind *factor[] = {m ? &m->a : NULL, m ? &m->b : NULL, m ? &m->list : NULL};
    for (int i = 0; i < 3; i++)
        if (factor[i] && is_kept(factor[i]) && writes(p, a, factor[i])) {
            *what = factor[i];
            return true;
        }
    for (int f = 0; f < b->nphase; f++)
        for (int o = 0; o < b->phase[f].nbind; o++) {
            const struct dvm_bind *r = &b->phase[f].bind[o];
            int role = p->strip[b->phase[f].strip].opnd[o].role;
            if (!is_kept(r) || (role != DVM_ROLE_LOAD && role != DVM_ROLE_PICK)) continue;
            if (!writes(p, a, r)) continue;
            *what = r;
            return true;
        }
    return false;
}

static int64_t elements(const struct dvm_kplan *k) {
    int64_t n = 1;
    for (int a = 0; a < k->naxes; a++) n *= k->size[a];
    return n;
}

/* Why kernel i is not part of an earlier one. */
static void explain_cut(const struct dvm_kernel *k, const struct dvm_plan *p, uint32_t i,
                        struct dvm_text *t) {
    const struct dvm_bind *what;
    for (uint32_t e = i; e-- > 0;)
        if (feeds(p, &p->kernel[e], &p->kernel[i], &what)) {
            PUT("  cut here because it needs all of what kernel %u wrote to ", e);
            write_place(k, what, t);
            PUT("\n");
            return;
        }
    const struct dvm_kplan *a = &p->kernel[i - 1], *b = &p->kernel[i];
    if (b->gemm) {
        PUT("  cut here because a product is a kernel of its own\n");
        return;
    }
    if (elements(a) != elements(b))
        PUT("  cut here because its space has %lld elements, that of kernel %u %lld\n",
            (long long)elements(b), i - 1, (long long)elements(a));
    else
        PUT("  cut here because it walks or reduces other axes than kernel %u, or would be too "
            "large with it\n",
            i - 1);
}

static void explain_kernel(const struct dvm_kernel *k, const struct dvm_plan *p, uint32_t i,
                           struct dvm_text *t) {
    static const char *const kinds[] = {"map", "row", "col", "gemm"};
    const struct dvm_kplan *kp = &p->kernel[i];
    PUT("\nkernel %u: %s, %s\n", i, kinds[kp->kind], kp->why ? kp->why : "");
    if (i) explain_cut(k, p, i, t);
    PUT("  axes: ");
    dvm_plan_write_axes(kp, t);
    if (kp->kind == DVM_MODE_ROW) PUT(" (reduced)");
    PUT("\n");
    if (kp->gemm) dvm_plan_write_product(kp, t);
    if (kp->kind == DVM_MODE_ROW || kp->kind == DVM_MODE_COL) {
        PUT("  block: %lld %s, ", (long long)kp->block,
            kp->kind == DVM_MODE_ROW ? "rows" : "columns");
        write_bytes((int64_t)kp->scratch, t);
        PUT(" of scratch%s\n", kp->whole_rows ? ", rows are never cut" : "");
    }
    PUT("  moves ");
    write_bytes(kp->bytes, t);
    PUT("\n");
    for (int f = 0; f < kp->nphase; f++) explain_phase(k, p, kp, f, t);
}

/* "tiers: jit 3 strips, vm 1 strip (1 refused by a faster tier)" */
static void explain_tiers(const struct dvm_kernel *k, const struct dvm_plan *p,
                          struct dvm_text *t) {
    const struct dvm_ctx *c = k->ctx;
    uint32_t refused = 0;
    const char *sep = "tiers: ";
    for (uint32_t s = 0; s < p->nstrip; s++) refused += p->code[s]->refused[0] != 0;
    for (int i = 0; i < c->ntier; i++) {
        uint32_t n = 0;
        for (uint32_t s = 0; s < p->nstrip; s++) n += !strcmp(p->code[s]->tier, c->tier[i].name);
        if (!n) continue;
        PUT("%s%s %u strip%s", sep, c->tier[i].name, n, n == 1 ? "" : "s");
        sep = ", ";
    }
    if (refused) PUT(" (%u refused by a faster tier)", refused);
    if (c->no_jit[0]) PUT("; %s", c->no_jit);
    PUT("\n");
}

static void write_explain(const struct dvm_kernel *k, const struct launch_record *r,
                          const dvm_stats *s, struct dvm_text *t) {
    const struct dvm_plan *p = r->plan;
    PUT("%s: %u kernel%s, %u strip%s, %lld instructions on %s\n",
        k->source->name[0] ? k->source->name : "kernel", p->nkernel, p->nkernel == 1 ? "" : "s",
        p->nstrip, p->nstrip == 1 ? "" : "s", (long long)p->ninstructions, k->ctx->device);
    explain_args(k, r, t);
    PUT("moves ");
    write_bytes(p->bytes_moved, t);
    PUT("; reading and writing every argument once would be ");
    write_bytes(p->bytes_minimum, t);
    PUT(", one operation at a time ");
    write_bytes(p->bytes_unfused, t);
    PUT("\nworkspace ");
    write_bytes((int64_t)p->workspace, t);
    PUT("; newest plan made in %.1f us, %lld plans for %lld shapes, %lld strips compiled\n",
        (double)s->compile_ns / 1e3, (long long)s->plans, (long long)s->shapes,
        (long long)s->strips);
    if (p->nstrip) explain_tiers(k, p, t);
    for (uint32_t i = 0; i < p->nkernel; i++) explain_kernel(k, p, i, t);
}

/* ---- entry ------------------------------------------------------------------------------------------ */

static struct launch_record *newest(struct dvm_kernel *k, dvm_stats *s) {
    pthread_mutex_lock(&k->lock);
    struct launch_record *r = k->table;
    if (r) atomic_fetch_add(&r->refs, 1);
    *s = k->stats;
    pthread_mutex_unlock(&k->lock);
    return r;
}

static dvm_status write_planned(struct dvm_kernel *k, enum dvm_stage stage, struct dvm_text *t) {
    dvm_stats s;
    struct launch_record *r = newest(k, &s);
    if (!r)
        DVM_FAIL(STATE, "no shape has been planned yet: run the kernel once, or declare loads with "
                        "static shapes");
    if (stage == DVM_TEXT_PLAN) dvm_plan_write(r->plan, t);
    if (stage == DVM_TEXT_CODE) write_code(r->plan, t);
    if (stage == DVM_TEXT_EXPLAIN) write_explain(k, r, &s, t);
    dvm_status st = stage == DVM_TEXT_NATIVE ? write_native(k, r->plan, t) : DVM_OK;
    dvm_record_unref(k, r);
    return st;
}

dvm_status dvm_kernel_text(const dvm_kernel *k, enum dvm_stage stage, char **out) {
    if (!out) DVM_FAIL(ARG, "result pointer is NULL");
    *out = NULL;
    if (!k) DVM_FAIL(ARG, "kernel is NULL");
    if ((unsigned)stage > DVM_TEXT_NATIVE) DVM_FAIL(ARG, "%d is no stage of a kernel", (int)stage);
    struct dvm_kernel *w =
        (struct dvm_kernel *)(uintptr_t)k; /* the lock and the count of a record change */
    struct dvm_text t;
    dvm_text_init(&t, &k->mem);
    dvm_status st;
    struct dvm_fpenv env = dvm_fpenv_enter();
    if (stage == DVM_TEXT_GRAPH)
        st = dvm_graph_write(k->source, 0, &t);
    else if (stage == DVM_TEXT_OPT)
        st = dvm_graph_write(k->g, DVM_WRITE_SHAPES, &t);
    else
        st = write_planned(w, stage, &t);
    dvm_fpenv_leave(&env);
    if (st == DVM_OK) return dvm_text_take(&t, out);
    dvm_text_drop(&t);
    return st;
}
