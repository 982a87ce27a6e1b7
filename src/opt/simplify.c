/* Rewrites. Needs a verified graph; guarantees that every value keeps its dtype, its shape and its bits (NaN payloads
 * aside; pow by 2 becomes a product, which is the more accurate of two results inside its tolerance). Every rule
 * makes the graph smaller or cheaper, so one walk from operands to users is enough and a second finds nothing. */
#include <math.h>
#include <string.h>

#include "base/err.h"
#include "opt/opt.h"

struct walk {
    struct dvm_graph *g;
    dvm_ref *to; /* what stands for each node */
};

static const struct dvm_node *in_of(const struct walk *w, const struct dvm_node *n, int i) {
    return &w->g->node.p[n->in[i]];
}

/* Is operand i a literal of value v (bit for bit for floats, so that 0.0 is not -0.0)? */
static bool is_lit(const struct walk *w, const struct dvm_node *n, int i, double v) {
    const struct dvm_node *c = in_of(w, n, i);
    if (c->op != DVM_OP_CONST) return false;
    int64_t bits = w->g->attr.p[c->attr], want = (int64_t)v;
    if (dvm_is_float(c->dtype)) memcpy(&want, &v, 8);
    return bits == want;
}

/* Each rule answers the node that stands for n, or 0; it may change n itself. */
typedef dvm_ref (*rule)(const struct walk *w, struct dvm_node *n);

static dvm_ref twice(const struct walk *w, struct dvm_node *n) {
    const struct dvm_node *x = in_of(w, n, 0);
    return x->op == n->op ? x->in[0] : 0;
}

static dvm_ref operand(const struct walk *w, struct dvm_node *n) {
    (void)w;
    return n->in[0];
}

static dvm_ref mul_one(const struct walk *w, struct dvm_node *n) {
    return is_lit(w, n, 1, 1) ? n->in[0] : is_lit(w, n, 0, 1) ? n->in[1] : 0;
}

static dvm_ref right_one(const struct walk *w, struct dvm_node *n) {
    return is_lit(w, n, 1, 1) ? n->in[0] : 0;
}

/* x - 0 keeps -0; x + 0 does not, x + -0 does. */
static dvm_ref right_zero(const struct walk *w, struct dvm_node *n) {
    double z = n->op == DVM_OP_ADD && dvm_is_float(n->dtype) ? -0.0 : 0.0;
    return is_lit(w, n, 1, z) ? n->in[0] : 0;
}

static dvm_ref pow_small(const struct walk *w, struct dvm_node *n) {
    if (is_lit(w, n, 1, 1)) return n->in[0];
    if (!is_lit(w, n, 1, 2)) return 0;
    n->op = DVM_OP_MUL;
    n->in[1] = n->in[0];
    return 0;
}

/* The wider type holds every number of the narrower, so narrow -> wide -> narrow changes nothing. */
static bool holds(int wide, int narrow) {
    if (wide == narrow) return true;
    switch (narrow) {
    case DVM_BOOL: return true;
    case DVM_F16:
    case DVM_BF16: return wide == DVM_F32 || wide == DVM_F64;
    case DVM_F32: return wide == DVM_F64;
    case DVM_I32: return wide == DVM_I64 || wide == DVM_F64;
    case DVM_U8:
    case DVM_I8: return wide == DVM_I32 || wide == DVM_I64 || wide == DVM_F32 || wide == DVM_F64;
    default: return false;
    }
}

static dvm_ref cast_rule(const struct walk *w, struct dvm_node *n) {
    const struct dvm_node *x = in_of(w, n, 0);
    if (x->dtype == n->dtype) return n->in[0];
    if (x->op != DVM_OP_CAST) return 0;
    const struct dvm_node *y = in_of(w, x, 0);
    if (!holds(x->dtype, y->dtype) || y->dtype == DVM_BOOL || x->dtype == DVM_BOOL) return 0;
    if (y->dtype == n->dtype) return x->in[0];
    if (dvm_is_float(y->dtype) && dvm_is_float(x->dtype) && dvm_is_float(n->dtype))
        n->in[0] = x->in[0];
    return 0;
}

static dvm_ref reshape_rule(const struct walk *w, struct dvm_node *n) {
    const struct dvm_node *x = in_of(w, n, 0);
    if (x->op == DVM_OP_RESHAPE) n->in[0] = x->in[0];
    return 0;
}

static dvm_ref permute_rule(const struct walk *w, struct dvm_node *n) {
    int64_t *p = w->g->attr.p + n->attr;
    const struct dvm_node *x = in_of(w, n, 0);
    if (x->op == DVM_OP_PERMUTE && x->nattr == n->nattr) {
        const int64_t *q = w->g->attr.p + x->attr;
        for (uint32_t i = 0; i < n->nattr; i++) p[i] = q[p[i]];
        n->in[0] = x->in[0];
    }
    for (uint32_t i = 0; i < n->nattr; i++)
        if (p[i] != (int64_t)i) return 0;
    return n->in[0];
}

static const struct {
    uint8_t op;
    rule f;
} rules[] = {
    {DVM_OP_COPY, operand},
    {DVM_OP_NEG, twice},
    {DVM_OP_NOT, twice},
    {DVM_OP_MUL, mul_one},
    {DVM_OP_DIV, right_one},
    {DVM_OP_SUB, right_zero},
    {DVM_OP_ADD, right_zero},
    {DVM_OP_POW, pow_small},
    {DVM_OP_CAST, cast_rule},
    {DVM_OP_RESHAPE, reshape_rule},
    {DVM_OP_PERMUTE, permute_rule},
};

dvm_status dvm_opt_simplify(struct dvm_graph *g, struct dvm_arena *a) {
    struct walk w = {g, dvm_arena_raw(a, g->node.n * sizeof(dvm_ref))};
    uint8_t row[DVM_NOP] = {0};
    if (!w.to) return DVM_ERR_NOMEM;
    for (uint32_t i = 0; i < DVM_COUNT(rules); i++) row[rules[i].op] = (uint8_t)(i + 1);
    w.to[0] = 0;
    for (dvm_ref r = 1; r < g->node.n; r++) {
        struct dvm_node *n = &g->node.p[r];
        for (int i = 0; i < n->nin; i++) n->in[i] = w.to[n->in[i]];
        for (uint32_t i = 1; n->op == DVM_OP_CONCAT && i < n->nattr; i++)
            g->attr.p[n->attr + i] = w.to[g->attr.p[n->attr + i]];
        dvm_ref s = row[n->op] ? rules[row[n->op] - 1].f(&w, n) : 0;
        w.to[r] = s ? s : r;
    }
    for (uint32_t i = 0; i < g->expr.n; i++)
        if (g->expr.p[i].kind == DVM_DIMX_OF) g->expr.p[i].a = w.to[g->expr.p[i].a];
    return DVM_OK;
}
