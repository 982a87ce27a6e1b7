/* Graph nodes at concrete shapes: shape inference with numbers, and the normal form of reductions. */
#include <string.h>

#include "plan/plan_int.h"

bool dvm_plan_grow(struct planner *p, void **q, uint32_t *cap, uint32_t want, size_t elem) {
    uint32_t ncap = *cap ? *cap * 2 : 16;
    while (ncap < want) ncap *= 2;
    void *n = dvm_arena_raw(p->a, ncap * elem);
    if (!n) {
        p->st = DVM_ERR_NOMEM;
        p->stop = STOP_ERROR;
        return false;
    }
    if (*q) memcpy(n, *q, *cap * elem);
    *q = n;
    *cap = ncap;
    return true;
}

bool dvm_plan_grow_kept(struct planner *p, void **q, uint32_t *cap, uint32_t want, size_t elem) {
    struct dvm_arena *current = p->a;
    p->a = p->keep;
    const bool grown = dvm_plan_grow(p, q, cap, want, elem);
    p->a = current;
    return grown;
}

static bool same_shape(const struct dvm_shape *a, const struct dvm_shape *b) {
    if (a->rank != b->rank) return false;
    for (int i = 0; i < a->rank; i++)
        if (a->d[i] != b->d[i]) return false;
    return true;
}

int32_t dvm_plan_shape(struct planner *p, const struct dvm_shape *s) {
    for (uint32_t i = p->shape.n; i-- > 0;)
        if (same_shape(&p->shape.p[i], s)) return (int32_t)i;
    struct dvm_shape *q = PUSH_KEPT(p, p->shape);
    int64_t *n = PUSH_KEPT(p, p->numel);
    if (!q || !n) return -1;
    *q = *s;
    *n = 1;
    for (int i = 0; i < s->rank; i++) *n *= s->d[i];
    return (int32_t)p->shape.n - 1;
}

struct env {
    struct dvm_dim_env e;
    const struct planner *p;
};

static const struct dvm_shape *env_shape(const struct dvm_dim_env *e, dvm_ref r) {
    const struct planner *p = ((const struct env *)e->user)->p;
    return &p->shape.p[p->node.p[p->pref[r]].shape];
}

static bool env_scalar(const struct dvm_dim_env *e, dvm_ref r, int64_t *v) {
    const struct planner *p = ((const struct env *)e->user)->p;
    *v = p->in->scalar[dvm_node_attr(p->g, &p->g->node.p[r])[0]].i;
    return true;
}

/* Attributes with numbers for expressions; NULL (st set) when one has no value. */
static const int64_t *attrs(struct planner *p, const struct dvm_node *nd) {
    const int64_t *at = dvm_node_attr(p->g, nd);
    if (!dvm_op_has_dims(nd->op)) return at;
    uint32_t i = 0;
    while (i < nd->nattr && !dvm_dim_is_expr(at[i])) i++;
    if (i == nd->nattr) return at;
    int64_t *r = dvm_arena_raw(p->a, nd->nattr * sizeof *r);
    if (!r) {
        p->st = DVM_ERR_NOMEM;
        return NULL;
    }
    struct env e = {.e = {.g = p->g, .shape_of = env_shape, .scalar = env_scalar}, .p = p};
    e.e.user = &e;
    for (i = 0; i < nd->nattr; i++) {
        r[i] = dvm_dim_value(&e.e, at[i]);
        if (r[i] == DVM_DIM_UNKNOWN) {
            p->st = dvm_err_set(
                DVM_ERR_SHAPE,
                "a dimension expression overflows, divides by zero or names a missing axis");
            return NULL;
        }
    }
    return r;
}

static dvm_status load_shape(struct planner *p, const struct dvm_node *nd, const int64_t *at,
                             struct dvm_shape *s) {
    int arg = (int)at[0];
    *s = p->in->shape[arg];
    if (nd->rank < 0 || (p->g->flags & DVM_DYN)) return DVM_OK;
    char have[256], want[256];
    struct dvm_shape decl = {.rank = nd->rank};
    bool ok = s->rank == nd->rank;
    for (int i = 0; i < nd->rank; i++) {
        decl.d[i] = at[2 + i];
        if (ok && decl.d[i] >= 0 && decl.d[i] != s->d[i]) ok = false;
    }
    if (!ok)
        DVM_FAIL(SHAPE, "input %d has shape %s, the kernel takes %s", arg,
                 dvm_shape_str(s, have, sizeof have), dvm_shape_str(&decl, want, sizeof want));
    return DVM_OK;
}

static dvm_status infer(struct planner *p, const struct dvm_node *nd, const int64_t *at,
                        struct pnode *pn) {
    if (dvm_op_table[nd->op].cls == DVM_CLS_EW) {
        int32_t s = p->node.p[pn->in[0]].shape;
        bool same = true;
        for (int i = 1; i < nd->nin; i++) {
            int32_t t = p->node.p[pn->in[i]].shape;
            if (t == s) continue;
            if (p->shape.p[t].rank == 0) continue;
            if (p->shape.p[s].rank == 0)
                s = t;
            else
                same = false;
        }
        if (same) {
            pn->shape = s;
            return DVM_OK;
        }
    }
    struct dvm_shape s;
    if (nd->op == DVM_OP_LOAD) {
        DVM_TRY(load_shape(p, nd, at, &s));
    } else if (nd->op == DVM_OP_CONCAT) {
        int n = (int)nd->nattr - 1;
        const struct dvm_shape **in = dvm_arena_raw(p->a, sizeof *in * (size_t)n);
        if (!in) return DVM_ERR_NOMEM;
        for (int i = 0; i < n; i++) in[i] = &p->shape.p[p->node.p[p->pref[at[1 + i]]].shape];
        DVM_TRY(dvm_shape_rule(nd, at, n, in, &s));
    } else {
        const struct dvm_shape *in[3];
        for (int i = 0; i < nd->nin; i++) in[i] = &p->shape.p[p->node.p[pn->in[i]].shape];
        DVM_TRY(dvm_shape_rule(nd, at, nd->nin, in, &s));
    }
    pn->shape = dvm_plan_shape(p, &s);
    return pn->shape < 0 ? DVM_ERR_NOMEM : DVM_OK;
}

/* Scalar leaf made while planning. */
uint32_t dvm_plan_new_node(struct planner *p, struct pnode n) {
    struct pnode *q = PUSH(p, p->node);
    if (!q) return 0;
    n.home = -1;
    n.group = NO_GROUP;
    n.cls = dvm_op_table[n.op].cls;
    *q = n;
    return p->node.n - 1;
}

static uint32_t new_const(struct planner *p, int dtype, dvm_ref gref, int64_t bits) {
    int64_t *at = dvm_arena_raw(p->a, sizeof *at);
    int32_t s = dvm_plan_shape(p, &(struct dvm_shape){.rank = 0});
    if (!at || s < 0) return 0;
    *at = bits;
    return dvm_plan_new_node(p, (struct pnode){.op = DVM_OP_CONST,
                                               .dtype = (uint8_t)dtype,
                                               .gref = gref,
                                               .shape = s,
                                               .at = at,
                                               .nat = 1});
}

/* A reshape or broadcast of node x (0: none) to the shape of n. */
static uint32_t view_as(struct planner *p, const struct pnode *n, int op, uint32_t x) {
    const struct dvm_shape *s = &p->shape.p[n->shape];
    int64_t *dims = dvm_arena_raw(p->a, sizeof *dims * (DVM_MAX_RANK + 1));
    if (!dims || !x) return 0;
    memcpy(dims, s->d, sizeof s->d);
    return dvm_plan_new_node(p, (struct pnode){.op = (uint16_t)op,
                                               .dtype = n->dtype,
                                               .nin = 1,
                                               .in = {x},
                                               .gref = n->gref,
                                               .at = dims,
                                               .nat = (uint32_t)s->rank,
                                               .shape = n->shape});
}

static uint32_t in_shape(struct planner *p, const struct pnode *n, uint32_t x) {
    return !x || p->node.p[x].shape == n->shape ? x : view_as(p, n, DVM_OP_RESHAPE, x);
}

/* A reduction of nothing but axes of size 1: the tree of one element, that is identity op x. */
static uint32_t red_single(struct planner *p, const struct pnode *n) {
    uint32_t x = n->in[0], c;
    struct pnode r = {.op = DVM_OP_COPY,
                      .dtype = n->dtype,
                      .nin = 1,
                      .in = {x},
                      .gref = n->gref,
                      .shape = p->node.p[x].shape};
    if (n->op == DVM_OP_ARGMAX || n->op == DVM_OP_ARGMIN) {
        if (!(c = new_const(p, DVM_I64, n->gref, 0))) return 0;
        return view_as(p, n, DVM_OP_BROADCAST, c);
    }
    if (n->op == DVM_OP_SUM) {
        if (!(c = new_const(p, n->dtype, n->gref, 0))) return 0;
        r = (struct pnode){.op = DVM_OP_ADD,
                           .dtype = n->dtype,
                           .nin = 2,
                           .in = {x, c},
                           .gref = n->gref,
                           .shape = p->node.p[x].shape};
    }
    return in_shape(p, n, dvm_plan_new_node(p, r));
}

/* The reduction with exactly these axes, sizes kept as 1, then a view to the wanted shape. */
static uint32_t red_over(struct planner *p, const struct pnode *n, uint32_t x, uint32_t mask,
                         bool inner) {
    struct dvm_shape s = p->shape.p[p->node.p[x].shape];
    for (int i = 0; i < s.rank; i++)
        if (mask >> i & 1) s.d[i] = 1;
    struct pnode r = {.op = n->op,
                      .dtype = n->dtype,
                      .nin = 1,
                      .in = {x},
                      .gref = n->gref,
                      .mask = mask,
                      .inner = inner};
    r.shape = dvm_plan_shape(p, &s);
    return r.shape < 0 ? 0 : dvm_plan_new_node(p, r);
}

static uint32_t red_normal(struct planner *p, const struct pnode *n) {
    const struct dvm_shape *xs = &p->shape.p[p->node.p[n->in[0]].shape];
    uint32_t want = n->nat == 1 ? ~0u : 0, mask = 0, kept = 0, suffix = 0;
    for (uint32_t i = 1; i < n->nat; i++)
        want |= 1u << (n->at[i] < 0 ? n->at[i] + xs->rank : n->at[i]);
    for (int i = 0; i < xs->rank; i++) {
        if (xs->d[i] == 1) continue;
        if (want >> i & 1)
            mask |= 1u << i;
        else
            kept |= 1u << i;
    }
    if (!mask) return red_single(p, n);
    for (int i = xs->rank - 1; i >= 0 && !(kept >> i & 1); i--) suffix |= mask & 1u << i;
    uint32_t outer = mask & ~suffix, x = n->in[0];
    if (suffix) x = red_over(p, n, x, suffix, true);
    if (x && outer && suffix) p->node.p[x].first = 1;
    if (x && outer) {
        x = red_over(p, n, x, outer, false);
        if (x) p->node.p[x].second = suffix != 0;
    }
    return in_shape(p, n, x);
}

static uint32_t size_const(struct planner *p, const struct pnode *n) {
    const struct dvm_shape *s = &p->shape.p[p->node.p[n->in[0]].shape];
    int64_t v = 1;
    for (uint32_t i = 0; i < n->nat; i++) v *= s->d[n->at[i] < 0 ? n->at[i] + s->rank : n->at[i]];
    for (int i = 0; n->nat == 0 && i < s->rank; i++) v *= s->d[i];
    uint32_t c = new_const(p, DVM_I64, n->gref, v);
    if (c)
        p->node.p[c].op =
            DVM_OP_SIZE; /* a number fixed by shapes: a parameter, not a literal of the bytecode */
    return c;
}

static const struct dvm_shape *known_shape(const struct planner *p, dvm_ref r) {
    return &p->shape.p[p->node.p[p->pref[r]].shape];
}

/* The product whose sum node n adds `to`, or 0. */
static dvm_ref product_of(const struct dvm_graph *g, const struct dvm_node *n, dvm_ref to) {
    if (n->op != DVM_OP_ADD) return 0;
    dvm_ref r = n->in[n->in[0] == to];
    while (g->node.p[r].op == DVM_OP_CAST) r = g->node.p[r].in[0];
    return dvm_is_product(g->node.p[r].op) ? r : 0;
}

/* What cannot be broadcast on its way into the sum of a product is its bias (graph_matmul.c): the factors' shapes belong to the
 * text, as where all sizes are known while building. */
static dvm_status with_factors(const struct planner *p, dvm_ref r, dvm_status st) {
    const struct dvm_graph *g = p->g;
    char sa[256], sb[256];
    if (g->node.p[r].op != DVM_OP_BROADCAST) return st;
    for (dvm_ref on = r, i = r + 1; i < g->node.n; i++) {
        const struct dvm_node *n = &g->node.p[i];
        bool uses = false;
        for (int j = 0; j < n->nin; j++) uses |= n->in[j] == on;
        dvm_ref f = uses ? product_of(g, n, on) : 0;
        if (f && f < r)
            return dvm_err_context(
                st, "the bias of a product of operands of shapes %s and %s: ",
                dvm_shape_str(known_shape(p, g->node.p[f].in[0]), sa, sizeof sa),
                dvm_shape_str(known_shape(p, g->node.p[f].in[1]), sb, sizeof sb));
        if (uses) on = i;
    }
    return st;
}

dvm_status dvm_plan_nodes(struct planner *p) {
    const struct dvm_graph *g = p->g;
    p->pref = dvm_arena_new(p->a, sizeof *p->pref * g->node.n);
    if (!p->pref || !dvm_plan_new_node(p, (struct pnode){.op = DVM_OP_CONST})) {
        if (!p->pref || p->node.n == 0) return DVM_ERR_NOMEM;
    }
    for (dvm_ref r = 1; r < g->node.n; r++) {
        const struct dvm_node *nd = &g->node.p[r];
        struct pnode n = {
            .op = nd->op, .dtype = nd->dtype, .nin = nd->nin, .gref = r, .nat = nd->nattr};
        for (int i = 0; i < nd->nin; i++) n.in[i] = p->pref[nd->in[i]];
        n.at = attrs(p, nd);
        if (!n.at) return dvm_graph_blame(g, r, p->st);
        dvm_status st = infer(p, nd, n.at, &n);
        if (st != DVM_OK) return dvm_graph_blame(g, r, with_factors(p, r, st));
        int cls = dvm_op_table[nd->op].cls;
        for (int i = 0; dvm_is_product(nd->op) && i < nd->nin; i++)
            if (!(n.in[i] = dvm_plan_factor(p, n.in[i]))) return DVM_ERR_NOMEM;
        p->pref[r] = cls == DVM_CLS_RED      ? red_normal(p, &n)
                     : nd->op == DVM_OP_SIZE ? size_const(p, &n)
                                             : dvm_plan_new_node(p, n);
        if (!p->pref[r]) return DVM_ERR_NOMEM;
    }
    return DVM_OK;
}
