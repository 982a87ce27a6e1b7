/* The writer of plans. See plan_text.h for the form. */
#include "plan/plan_text.h"

#include "code/strip_text.h"

static const char *const kinds[] = {"map", "row", "col"};
static const char *const phases[] = {"full", "vec"};
static const char *const sources[] = {"input", "output", "ws", "scratch", "iota"};
static const char *const roles[] = {"load", "store", "fold", "pick", "iota"};
static const char *const moves[] = {"unif", "row", "contig", "strided"};
static const char whole_rows[] = "whole_rows";

static bool is_numbered(int src) { return src == DVM_SRC_INPUT || src == DVM_SRC_OUTPUT; }

/* What an axis is. The last is always the strip's. */
static const char *axis_word(const struct dvm_kplan *k, int a) {
    if (a == k->naxes - 1) return "strip";
    return a >= k->naxes - 1 - k->nm ? "reduced" : "kept";
}

/* ---- writing ------------------------------------------------------------------------------------ */

#define PUT(...) dvm_text_add(t, __VA_ARGS__)

static void write_list(const int64_t *v, int n, struct dvm_text *t) {
    PUT("[");
    for (int i = 0; i < n; i++) PUT("%s%lld", i ? ", " : "", (long long)v[i]);
    PUT("]");
}

void dvm_plan_write_bind(const struct dvm_bind *b, int naxes, struct dvm_text *t) {
    PUT("%s", sources[b->src]);
    if (is_numbered(b->src)) PUT(" %u", b->index);
    if (b->offset > 0) PUT(" + %lld", (long long)b->offset);
    if (b->offset < 0) PUT(" - %llu", (unsigned long long)-(uint64_t)b->offset);
    PUT(" ");
    write_list(b->stride, naxes, t);
    if (b->gn) PUT(" pick %lld x %lld", (long long)b->gs, (long long)b->gn);
}

void dvm_plan_write_role(const struct dvm_opnd *o, struct dvm_text *t) {
    PUT("%s %s %s", roles[o->role], dvm_dtype_name((dvm_dtype)o->dtype), moves[o->kind]);
}

void dvm_plan_write_axes(const struct dvm_kplan *k, struct dvm_text *t) {
    for (int a = 0; a < k->naxes; a++)
        PUT("%s%s %lld", a ? ", " : "", axis_word(k, a), (long long)k->size[a]);
}

static void write_phase(const struct dvm_plan *p, const struct dvm_kplan *k,
                        const struct dvm_phase *f, struct dvm_text *t) {
    PUT("  phase %s strip %u", phases[f->kind], f->strip);
    for (int i = 0; i < f->nparam; i++) PUT("%s %u", i ? "," : " params", f->param[i]);
    PUT("\n");
    for (int o = 0; o < f->nbind; o++) {
        PUT("    o%d: ", o);
        dvm_plan_write_bind(&f->bind[o], k->naxes, t);
        PUT(" ; ");
        dvm_plan_write_role(&p->strip[f->strip].opnd[o], t);
        PUT("\n");
    }
}

static void write_kernel(const struct dvm_plan *p, uint32_t i, struct dvm_text *t) {
    const struct dvm_kplan *k = &p->kernel[i];
    PUT("\nkernel %u %s\n  axes ", i, kinds[k->kind]);
    dvm_plan_write_axes(k, t);
    PUT("\n  block %lld scratch %zu bytes %lld", (long long)k->block, k->scratch,
        (long long)k->bytes);
    PUT("%s%s\n", k->whole_rows ? " " : "", k->whole_rows ? whole_rows : "");
    if (k->why) PUT("  why \"%s\"\n", k->why);
    for (int f = 0; f < k->nphase; f++) write_phase(p, k, &k->phase[f], t);
}

static void write_out(const struct dvm_plan *p, uint32_t i, struct dvm_text *t) {
    const struct dvm_plan_out *o = &p->out[i];
    PUT("  out%u: %s", i, dvm_dtype_name((dvm_dtype)o->dtype));
    write_list(o->d, o->rank, t);
    PUT(" strides ");
    write_list(o->stride, o->rank, t);
    PUT("\n");
}

static void write_param(const struct dvm_plan *p, uint32_t i, struct dvm_text *t) {
    const struct dvm_pparam *q = &p->param[i];
    PUT("  p%u: %s", i, dvm_dtype_name((dvm_dtype)q->dtype));
    if (q->input >= 0)
        PUT(" input %d\n", q->input);
    else
        PUT(" bits 0x%llx\n", (unsigned long long)q->bits);
}

void dvm_plan_write(const struct dvm_plan *p, struct dvm_text *t) {
    PUT("plan workspace %zu unfused %lld minimum %lld\n", p->workspace, (long long)p->bytes_unfused,
        (long long)p->bytes_minimum);
    for (uint32_t i = 0; i < p->nout; i++) write_out(p, i, t);
    for (uint32_t i = 0; i < p->nparam; i++) write_param(p, i, t);
    for (uint32_t i = 0; i < p->nkernel; i++) write_kernel(p, i, t);
    for (uint32_t i = 0; i < p->nstrip; i++) {
        PUT("\n");
        dvm_strip_write(&p->strip[i], t);
    }
}
#undef PUT
