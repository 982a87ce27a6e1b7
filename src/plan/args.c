/* Arguments at concrete shapes. Needs nodes; guarantees for every tensor argument the strides that hold: the caller's,
 * else those the graph declares, else dense; steps of axes that do not move are dense. Refuses outputs of another shape
 * than the graph gives, outputs that reach an element twice, and strides beyond all memory. */
#include "base/meet.h"
#include "plan/plan_int.h"

bool dvm_plan_span(struct dvm_plan_arg *a) {
    int64_t es = (int64_t)dvm_dtype_size((dvm_dtype)a->dtype), reach;
    a->lo = a->hi = 0;
    for (int j = 0; j < a->rank; j++)
        if (a->d[j] == 0) return true;
    a->hi = es;
    for (int j = 0; j < a->rank; j++) {
        if (!dvm_mul_ok(a->stride[j], a->d[j] - 1, &reach) || !dvm_mul_ok(reach, es, &reach))
            return false;
        if (!dvm_add_ok(reach < 0 ? a->lo : a->hi, reach, reach < 0 ? &a->lo : &a->hi))
            return false;
    }
    return a->lo > -INT64_MAX / 4 && a->hi < INT64_MAX / 4;
}

static bool fill(struct dvm_plan_arg *a, const struct dvm_shape *s, int dtype,
                 const int64_t *given) {
    int64_t step = 1;
    bool empty = false;
    *a = (struct dvm_plan_arg){.rank = s->rank, .dtype = dtype};
    for (int j = 0; j < s->rank; j++) empty |= s->d[j] == 0;
    for (int j = s->rank - 1; j >= 0; j--) {
        a->d[j] = s->d[j];
        a->stride[j] = given && !empty && s->d[j] != 1 ? given[j] : step;
        step *= s->d[j];
    }
    return dvm_plan_span(a);
}

static dvm_status too_far(const char *what, int i) {
    DVM_FAIL(LIMIT, "the strides of %s %d reach beyond 2^61 bytes", what, i);
}

static dvm_status inputs(struct planner *p) {
    const struct dvm_graph *g = p->g;
    for (int i = 0; i < g->n_in; i++) {
        p->in_arg[i] = (struct dvm_plan_arg){.rank = -1};
        uint32_t n = p->pref[g->input.p[i]];
        if (!g->input.p[i] || p->node.p[n].op != DVM_OP_LOAD) continue;
        const struct pnode *x = &p->node.p[n];
        const struct dvm_shape *s = &p->shape.p[x->shape];
        const struct dvm_node *nd = &g->node.p[x->gref];
        const int64_t *given = p->in->in_stride ? p->in->in_stride[i] : NULL;
        if (!given && x->at[1] && nd->rank == s->rank) given = x->at + 2 + s->rank;
        if (!fill(&p->in_arg[i], s, x->dtype, given)) return too_far("input", i);
    }
    return DVM_OK;
}

static bool overlaps_itself(const struct dvm_plan_arg *a) {
    for (int j = 0; j < a->rank; j++)
        if (a->d[j] == 0) return false;
    return dvm_strides_meet(a->rank, a->d, a->stride);
}

dvm_status dvm_plan_check_output(int i, const struct dvm_shape *have,
                                 const struct dvm_shape *want) {
    char a[256], b[256];
    bool ok = have->rank == want->rank;
    for (int j = 0; ok && j < want->rank; j++) ok = have->d[j] == want->d[j];
    if (ok) return DVM_OK;
    DVM_FAIL(SHAPE, "output %d has shape %s, the kernel gives %s", i,
             dvm_shape_str(have, a, sizeof a), dvm_shape_str(want, b, sizeof b));
}

static dvm_status outputs(struct planner *p) {
    for (int i = 0; i < p->g->n_out; i++) {
        const struct pnode *n = &p->node.p[p->pref[p->g->output.p[i]]];
        const struct dvm_shape *s = &p->shape.p[n->shape];
        const int64_t *given = p->in->out_stride ? p->in->out_stride[i] : NULL;
        if (p->in->out_shape) DVM_TRY(dvm_plan_check_output(i, &p->in->out_shape[i], s));
        if (!given && n->nat > 1) given = n->at + 1;
        if (!fill(&p->out_arg[i], s, n->dtype, given)) return too_far("output", i);
        if (given && overlaps_itself(&p->out_arg[i]))
            DVM_FAIL(OVERLAP, "output %d overlaps itself: its strides reach one element twice", i);
    }
    return DVM_OK;
}

dvm_status dvm_plan_args(struct planner *p) {
    p->in_arg = dvm_arena_raw(p->a, sizeof *p->in_arg * (size_t)(p->g->n_in + 1));
    p->out_arg = dvm_arena_raw(p->a, sizeof *p->out_arg * (size_t)(p->g->n_out + 1));
    if (!p->in_arg || !p->out_arg) return DVM_ERR_NOMEM;
    DVM_TRY(inputs(p));
    return outputs(p);
}
