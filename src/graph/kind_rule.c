/* What a kind of graph, or of a section, may hold. A vector kernel has no matrix product; a cube kernel is one, with its
 * bias, casts and views on the way to its stores; a mix kernel has at most one. Which section a value comes from does
 * not matter here: to a section, values of earlier ones are like arguments. */
#include "base/err.h"
#include "graph/graph.h"

static bool is_product(int op) { return op == DVM_OP_MATMUL || op == DVM_OP_GROUPED; }
enum { WHOLE = -1 }; /* instead of a section: the graph */
static bool inside(const struct dvm_node *n, int section) {
    return section == WHOLE || n->section == section;
}

static dvm_status wrong(const struct dvm_graph *g, dvm_ref r, const char *text) {
    return dvm_graph_blame(g, r, dvm_err_set(DVM_ERR_KIND, "%s", text));
}

/* A value that stands for a product in a cube kernel: the product, cast, viewed, stored, or with its bias. */
struct cube {
    const struct dvm_graph *g;
    uint8_t *of; /* by node: 1 rests on the product, 2 and its bias is added */
    int section;
    dvm_ref product;
};

static bool is_argument(const struct cube *c, dvm_ref r) {
    for (;;) {
        const struct dvm_node *n = &c->g->node.p[r];
        if (n->op == DVM_OP_LOAD || !inside(n, c->section)) return true;
        bool through = dvm_op_table[n->op].cls == DVM_CLS_VIEW || n->op == DVM_OP_CAST;
        if (!through) return false;
        r = n->in[0];
    }
}

static dvm_status cube_product(struct cube *c, dvm_ref r) {
    const struct dvm_node *n = &c->g->node.p[r];
    if (c->product) return wrong(c->g, r, "a cube kernel has one matrix product, this is a second");
    c->product = r;
    c->of[r] = 1;
    for (int i = 0; i < n->nin; i++)
        if (!is_argument(c, n->in[i]))
            return wrong(c->g, r,
                         "the operands of a cube kernel are arguments and views of them; "
                         "what is computed before the product needs kind mix or split");
    return DVM_OK;
}

static dvm_status cube_node(struct cube *c, dvm_ref r) {
    const struct dvm_node *n = &c->g->node.p[r];
    int on = 0;
    if (is_product(n->op)) return cube_product(c, r);
    for (int i = 0; i < n->nin; i++) on = DVM_MAX(on, c->of[n->in[i]]);
    for (uint32_t i = 1; n->op == DVM_OP_CONCAT && i < n->nattr; i++)
        on = DVM_MAX(on, c->of[dvm_node_attr(c->g, n)[i]]);
    bool passes = dvm_op_table[n->op].cls == DVM_CLS_VIEW || n->op == DVM_OP_CAST ||
                  n->op == DVM_OP_STORE || n->op == DVM_OP_SIZE;
    bool bias = n->op == DVM_OP_ADD && on == 1 && !c->of[n->in[1]];
    if (on && !passes && !bias)
        return wrong(c->g, r,
                     "a cube kernel ends with its product; what is computed from that "
                     "needs kind mix or split");
    if (n->op == DVM_OP_STORE && !on)
        return wrong(c->g, r, "a cube kernel stores its product and nothing else");
    c->of[r] = (uint8_t)(bias ? 2 : on);
    return DVM_OK;
}

/* What stands before the first section that the text opens. */
static bool only_arguments(const struct dvm_graph *g, int section) {
    for (dvm_ref r = 1; r < g->node.n; r++)
        if (inside(&g->node.p[r], section) && dvm_op_table[g->node.p[r].op].cls != DVM_CLS_LEAF)
            return false;
    return true;
}

static dvm_status check_cube(const struct dvm_graph *g, int section, struct dvm_arena *a) {
    struct cube c = {.g = g, .of = dvm_arena_new(a, g->node.n), .section = section};
    if (!c.of) return DVM_ERR_NOMEM;
    for (dvm_ref r = 1; r < g->node.n; r++)
        if (inside(&g->node.p[r], section)) DVM_TRY(cube_node(&c, r));
    if (!c.product && (section == WHOLE || !only_arguments(g, section)))
        DVM_FAIL(KIND, "a cube kernel is one matmul, and this one has none");
    return DVM_OK;
}

static dvm_status check_part(const struct dvm_graph *g, int kind, int section,
                             struct dvm_arena *a) {
    int products = 0;
    if (kind == DVM_CUBE) return check_cube(g, section, a);
    for (dvm_ref r = 1; (kind == DVM_VECTOR || kind == DVM_MIX) && r < g->node.n; r++) {
        if (!inside(&g->node.p[r], section) || !is_product(g->node.p[r].op)) continue;
        if (kind == DVM_VECTOR)
            return wrong(g, r, "a vector kernel has no matrix product; use kind mix or split");
        if (++products > 1)
            return wrong(g, r,
                         "a mix kernel has one matrix product, this is a second; use kind "
                         "split, or a section for each");
    }
    return DVM_OK;
}

dvm_status dvm_graph_check_kinds(const struct dvm_graph *g) {
    struct dvm_arena a;
    dvm_arena_init(&a, &g->mem);
    bool parts = g->kind == DVM_SEQ || g->kind == DVM_PARALLEL;
    dvm_status st = parts ? DVM_OK : check_part(g, g->kind, WHOLE, &a);
    for (uint32_t s = 0; st == DVM_OK && parts && s < g->section.n; s++)
        st = check_part(g, g->section.p[s].kind, (int)s, &a);
    dvm_arena_drop(&a);
    return st;
}
