/* Matrix products in a plan: kernels of their own (plan.h, DVM_KIND_GEMM). A factor is read where it lies, through any
 * views that are steps; one that is computed goes to memory first, or, where that is little work, is made by a strip while
 * the product packs it. Needs nodes at concrete shapes; what follows the product joins its kernel in group.c. */
#include <string.h>

#include "plan/emit.h"
#include "plan/plan_int.h"

enum { SIDE_A, SIDE_B, SIDE_LIST };

static const struct dvm_shape *shape_of(const struct planner *p, uint32_t n) {
    return &p->shape.p[p->node.p[n].shape];
}
static bool is_half(int t) { return t == DVM_F16 || t == DVM_BF16; }

/* ---- factors as the product takes them ------------------------------------------------------------------ */

/* Do the values of x have bits that its 16-bit dtype holds, wherever they are computed? */
static bool is_rounded(const struct planner *p, uint32_t n) {
    for (;;) {
        const struct pnode *x = &p->node.p[n];
        if (x->op == DVM_OP_LOAD || x->op == DVM_OP_CAST || x->op == DVM_OP_CONST) return true;
        if (x->cls != DVM_CLS_VIEW && x->op != DVM_OP_GATHER && x->op != DVM_OP_STORE) return false;
        n = x->in[0];
    }
}

static uint32_t cast_to(struct planner *p, uint32_t n, int dtype) {
    const struct pnode *x = &p->node.p[n];
    return dvm_plan_new_node(p, (struct pnode){.op = DVM_OP_CAST,
                                               .dtype = (uint8_t)dtype,
                                               .nin = 1,
                                               .in = {n},
                                               .gref = x->gref,
                                               .shape = x->shape});
}

/* Views stay on top, so that what is kept in memory is what was computed. */
uint32_t dvm_plan_factor(struct planner *p, uint32_t n) {
    struct pnode x = p->node.p[n];
    if (x.op == DVM_OP_STORE) return dvm_plan_factor(p, x.in[0]);
    if (x.cls == DVM_CLS_VIEW) {
        uint32_t y = dvm_plan_factor(p, x.in[0]);
        if (y == x.in[0] || !y) return y ? n : 0;
        x.in[0] = y;
        x.dtype = p->node.p[y].dtype;
        return dvm_plan_new_node(p, x);
    }
    if (x.op == DVM_OP_CAST && x.dtype == DVM_F32 && is_half(p->node.p[x.in[0]].dtype) &&
        is_rounded(p, x.in[0]))
        return dvm_plan_factor(p, x.in[0]);
    if (!is_half(x.dtype) || is_rounded(p, n)) return n;
    uint32_t wide = cast_to(p, n, DVM_F32);
    return wide ? cast_to(p, wide, x.dtype) : 0;
}

/* ---- spaces --------------------------------------------------------------------------------------------- */

/* Axes of the space: those that move, and the last `keep`. */
static void set_axes(const struct planner *p, struct group *g, int keep) {
    const struct dvm_shape *s = &p->shape.p[g->shape];
    g->naxes = 0;
    g->rank = s->rank;
    for (int d = 0; d < s->rank; d++)
        if (s->d[d] != 1 || d >= s->rank - keep)
            g->ax[g->naxes++] = (struct axis){.size = s->d[d], .dim = d, .mult = 1};
}

static struct group *new_side(struct planner *p, const struct group *g, const struct dvm_shape *s,
                              int keep) {
    struct group *side = dvm_arena_new(p->a, sizeof *side);
    int32_t shape = dvm_plan_shape(p, s);
    if (!side || shape < 0) {
        p->st = DVM_ERR_NOMEM;
        p->stop = STOP_ERROR;
        return NULL;
    }
    side->index = g->index;
    side->kind = DVM_MODE_MAP;
    side->gemm = g->gemm;
    side->shape = shape;
    set_axes(p, side, keep);
    return side;
}

/* Map of factor x: its last two axes are those of the space, exchanged when it is stored transposed; batch axes are
 * aligned to the right. */
static const struct view *factor_view(struct planner *p, const struct group *side,
                                      const struct dvm_shape *x, bool trans, bool *ok) {
    struct view *v = dvm_view_new(p, x->rank);
    *ok = v != NULL;
    if (!v) return NULL;
    for (int a = 0; a < side->naxes; a++) {
        int j = side->ax[a].dim - (side->rank - x->rank);
        if (trans && j >= x->rank - 2) j = 2 * x->rank - 3 - j;
        if (j >= 0 && x->d[j] != 1) v->inc[a][j] = 1;
    }
    return dvm_view_intern(side, v, x);
}

/* What a factor is computed from, below its views. */
static uint32_t base_of(const struct planner *p, const struct group *g, uint32_t n) {
    for (;;) {
        const struct pnode *x = &p->node.p[n];
        bool kept = x->mat && x->group != NO_GROUP && x->group < g->index;
        if (x->cls != DVM_CLS_VIEW || kept) return n;
        n = x->in[0];
    }
}

static bool in_memory(const struct planner *p, const struct group *g, uint32_t n) {
    const struct pnode *x = &p->node.p[n];
    if (x->op == DVM_OP_LOAD) return true;
    bool held = x->mat || x->home >= 0 || x->cls == DVM_CLS_RED || x->op == DVM_OP_CUMSUM ||
                x->op == DVM_OP_CONCAT || dvm_is_product(x->op);
    return held && x->group != NO_GROUP && x->group < g->index;
}

static bool stop_for(struct planner *p, uint32_t node) {
    p->stop = STOP_MAT;
    p->stop_node = node;
    return false;
}

static bool emit_side(struct planner *p, struct group *g, struct group *side, uint32_t n,
                      bool trans) {
    uint32_t base = base_of(p, g, n);
    bool ok;
    const struct dvm_shape s = *shape_of(p, n);
    const struct view *v = factor_view(p, side, &s, trans, &ok);
    struct sb *b = ok ? dvm_plan_new_sb(p, side, 0, false) : NULL;
    if (!b) return false;
    if (!in_memory(p, g, base)) return stop_for(p, base);
    return dvm_plan_emit_memory(p, b, n, v) != NULL;
}

/* ---- entry ---------------------------------------------------------------------------------------------- */

int64_t dvm_plan_depth(const struct planner *p, const struct group *g) {
    const struct pnode *x = &p->node.p[g->gemm];
    const struct dvm_shape *a = shape_of(p, x->in[0]);
    return a->d[a->rank - (x->at[0] ? 2 : 1)];
}

bool dvm_plan_emit_factors(struct planner *p, struct group *g, uint32_t n) {
    const struct pnode x = p->node.p[n];
    bool rows = x.op == DVM_OP_GROUPED && x.at[2] == DVM_GROUP_M;
    set_axes(p, g, 2);
    int64_t k = dvm_plan_depth(p, g);
    struct dvm_shape a = *shape_of(p, n), b = a;
    a.d[a.rank - 1] = k;
    b.d[b.rank - 2] = k;
    if (rows) b = (struct dvm_shape){.rank = 3, .d = {shape_of(p, x.in[1])->d[0], k, a.d[1]}};
    if (rows) b.d[2] = shape_of(p, n)->d[1];
    for (int s = SIDE_A; s <= SIDE_B && k; s++) {
        if (rows && s == SIDE_B && b.d[0] == 0) break; /* no group: every row is 0 */
        g->side[s] = new_side(p, g, s == SIDE_A ? &a : &b, rows && s == SIDE_B ? 3 : 2);
        if (!g->side[s] || !emit_side(p, g, g->side[s], x.in[s], x.at[s] != 0)) return false;
    }
    if (x.op == DVM_OP_MATMUL) return true;
    const struct dvm_shape list = *shape_of(p, x.in[2]);
    if (list.d[0] == 0) return true;
    g->side[SIDE_LIST] = new_side(p, g, &list, 1);
    return g->side[SIDE_LIST] && emit_side(p, g, g->side[SIDE_LIST], x.in[2], false);
}
