/* Dead code. Needs a verified graph; afterwards every node is used by a store or a dimension, and references are dense.
 * Arguments keep their numbers; the entry of one that nothing reads becomes 0. */
#include "base/err.h"
#include "opt/opt.h"

static void mark_dims(const struct dvm_graph *g, const struct dvm_node *n, uint8_t *live);

static void mark_expr(const struct dvm_graph *g, int64_t d, uint8_t *live) {
    if (!dvm_dim_is_expr(d)) return;
    const struct dvm_dim_expr *x = &g->expr.p[dvm_dim_expr_id(d)];
    if (x->kind == DVM_DIMX_SCALAR || x->kind == DVM_DIMX_OF) {
        live[x->a] = 1;
    } else if (x->kind != DVM_DIMX_CONST) {
        mark_expr(g, x->a, live); /* depth bounded by DVM_DIM_MAX_WEIGHT */
        mark_expr(g, x->b, live);
    }
}

static void mark_dims(const struct dvm_graph *g, const struct dvm_node *n, uint8_t *live) {
    if (!dvm_op_has_dims(n->op)) return;
    for (uint32_t i = 0; i < n->nattr; i++) mark_expr(g, g->attr.p[n->attr + i], live);
}

dvm_status dvm_opt_dce(struct dvm_graph *g, struct dvm_arena *a) {
    uint8_t *live = dvm_arena_new(a, g->node.n);
    dvm_ref *to = dvm_arena_new(a, g->node.n * sizeof *to);
    if (!live || !to) return DVM_ERR_NOMEM;
    for (uint32_t i = 0; i < g->output.n; i++) live[g->output.p[i]] = 1;
    for (dvm_ref r = g->node.n; r-- > 1;) {
        const struct dvm_node *n = &g->node.p[r];
        if (!live[r]) continue;
        for (int i = 0; i < n->nin; i++) live[n->in[i]] = 1;
        for (uint32_t i = 1; n->op == DVM_OP_CONCAT && i < n->nattr; i++)
            live[g->attr.p[n->attr + i]] = 1;
        mark_dims(g, n, live);
    }
    uint32_t w = 1;
    for (dvm_ref r = 1; r < g->node.n; r++) {
        if (!live[r]) continue;
        struct dvm_node n = g->node.p[r];
        for (int i = 0; i < n.nin; i++) n.in[i] = to[n.in[i]];
        for (uint32_t i = 1; n.op == DVM_OP_CONCAT && i < n.nattr; i++)
            g->attr.p[n.attr + i] = to[g->attr.p[n.attr + i]];
        to[r] = w;
        g->node.p[w++] = n;
    }
    g->node.n = w;
    for (uint32_t i = 0; i < g->output.n; i++) g->output.p[i] = to[g->output.p[i]];
    for (uint32_t i = 0; i < g->input.n; i++) g->input.p[i] = to[g->input.p[i]];
    for (uint32_t i = 0; i < g->expr.n; i++) {
        struct dvm_dim_expr *x = &g->expr.p[i];
        if (x->kind == DVM_DIMX_SCALAR || x->kind == DVM_DIMX_OF) x->a = to[x->a];
    }
    return DVM_OK;
}
