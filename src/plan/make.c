/* Entry of the planner: graph and shapes to plan. See plan_int.h for the path. */
#include "plan/make.h"

#include <string.h>

#include "plan/plan_int.h"
#include "plan/plan_text.h"

/* A vector graph is one kernel. The second half of a reduction over inner and outer axes does not count: to the user it
 * is one reduction. */
static dvm_status check_kind(const struct planner *p, uint32_t kernels) {
    const struct dvm_graph *g = p->g;
    for (uint32_t i = 0; i < p->group.n; i++) kernels -= p->group.p[i]->second;
    const bool one = g->kind == DVM_VECTOR && !(g->flags & DVM_SPEC) && kernels > 1;
    if (one && p->cut_full)
        DVM_FAIL(KIND,
                 "a vector kernel is one fused kernel, but this graph needs %u, because a kernel "
                 "reads and writes at most %d tensors or views of them, with %d instructions; use "
                 "kind split, or the spec flag",
                 kernels, DVM_STRIP_MAX_OPND, DVM_STRIP_MAX_INS);
    if (one)
        DVM_FAIL(KIND,
                 "a vector kernel is one fused kernel, but this graph needs %u (a value after a "
                 "reduction, or shapes "
                 "without one common iteration space); use kind split, or the spec flag",
                 kernels);
    return DVM_OK;
}

static dvm_status make(struct planner *p, const struct dvm_mem *mem, struct dvm_plan **out) {
    DVM_TRY(dvm_plan_nodes(p));
    DVM_TRY(dvm_plan_args(p));
    DVM_TRY(dvm_plan_groups(p));
    dvm_plan_direct(p);
    DVM_TRY(dvm_plan_layout(p, mem, out));
    (*out)->work = p->work;
    return check_kind(p, (*out)->nkernel);
}

dvm_status dvm_plan_make(const struct dvm_plan_in *in, struct dvm_arena *a,
                         const struct dvm_mem *mem, struct dvm_plan **out) {
    struct planner p = {.g = in->g, .in = in, .a = a, .keep = a};
    *out = NULL;
    dvm_arena_init(&p.grouping, mem);
    dvm_status st = make(&p, mem, out);
    dvm_arena_drop(&p.grouping);
#ifdef DVM_DEBUG
    for (uint32_t i = 0; st == DVM_OK && i < (*out)->nstrip; i++)
        st = dvm_strip_verify(&(*out)->strip[i]);
    if (st == DVM_OK) st = dvm_plan_verify(*out, NULL);
#endif
    if (st != DVM_OK) dvm_plan_destroy(out);
    return st;
}

dvm_status dvm_plan_infer(const struct dvm_plan_in *in, struct dvm_arena *a,
                          struct dvm_plan_arg *out) {
    struct planner p = {.g = in->g, .in = in, .a = a, .keep = a};
    DVM_TRY(dvm_plan_nodes(&p));
    for (int i = 0; i < in->g->n_out; i++) {
        const struct pnode *n = &p.node.p[p.pref[in->g->output.p[i]]];
        const struct dvm_shape *s = &p.shape.p[n->shape];
        out[i].rank = s->rank;
        out[i].dtype = n->dtype;
        memcpy(out[i].d, s->d, sizeof out[i].d);
    }
    return DVM_OK;
}

void dvm_plan_destroy(struct dvm_plan **pp) {
    if (!pp || !*pp) return;
    struct dvm_mem mem = (*pp)->mem;
    dvm_mem_free(&mem, *pp, (*pp)->total);
    *pp = NULL;
}
