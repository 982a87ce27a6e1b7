/* The compiler: compile() shows every pass. Shapes come later, at run time: record.c. */
#include "base/fpenv.h"
#include "opt/opt.h"
#include "rt/rt.h"

/* Sections of a parallel kernel run side by side: no value may go from one to another. */
static dvm_status check_sections(const struct dvm_graph *g) {
    for (dvm_ref r = 1; g->kind == DVM_PARALLEL && r < g->node.n; r++) {
        const struct dvm_node *n = &g->node.p[r];
        int count = n->op == DVM_OP_CONCAT ? (int)n->nattr - 1 : n->nin;
        for (int i = 0; i < count; i++) {
            dvm_ref x =
                n->op == DVM_OP_CONCAT ? (dvm_ref)g->attr.p[n->attr + 1 + (uint32_t)i] : n->in[i];
            const struct dvm_node *o = &g->node.p[x];
            if (o->section == n->section || dvm_op_table[o->op].cls == DVM_CLS_LEAF) continue;
            return dvm_graph_blame(
                g, r,
                dvm_err_set(DVM_ERR_KIND,
                            "operand %d is a value of section %d, used in section %d; sections of "
                            "a parallel kernel are independent (use kind seq)",
                            i, o->section, n->section));
        }
    }
    return DVM_OK;
}

static dvm_status check_source(const struct dvm_graph *g) {
    if (g->n_out == 0) DVM_FAIL(KIND, "the kernel has no store");
    DVM_TRY(dvm_graph_check_kinds(g));
    return check_sections(g);
}

static dvm_status compile(struct dvm_graph *g, struct dvm_arena *a) {
    DVM_TRY(dvm_opt_simplify(g, a));
    DVM_TRY(dvm_opt_cse(g, a));
    DVM_TRY(dvm_opt_dce(g, a));
    return DVM_OK;
}

/* Dtypes of all arguments, declared strides, and the use of scalars as dimensions. */
static dvm_status describe_args(struct dvm_kernel *k) {
    const struct dvm_graph *s = k->source, *g = k->g;
    k->arg = dvm_mem_new(&k->mem, sizeof *k->arg * (size_t)(s->n_in + s->n_out + 1));
    if (!k->arg) return DVM_ERR_NOMEM;
    for (int i = 0; i < s->n_in; i++) {
        const struct dvm_node *n = &s->node.p[s->input.p[i]];
        bool scalar = n->op == DVM_OP_SCALAR;
        k->arg[i] =
            (struct arg_info){.scalar = scalar, .dtype = n->dtype, .live = g->input.p[i] != 0};
        k->arg[i].strided = !scalar && dvm_node_attr(s, n)[1] != 0;
    }
    for (int i = 0; i < s->n_out; i++) {
        const struct dvm_node *n = &s->node.p[s->output.p[i]];
        k->arg[s->n_in + i] =
            (struct arg_info){.dtype = n->dtype, .live = true, .strided = n->nattr > 1};
    }
    for (uint32_t i = 0; i < g->expr.n; i++) {
        const struct dvm_dim_expr *x = &g->expr.p[i];
        if (x->kind == DVM_DIMX_SCALAR && x->a)
            k->arg[dvm_node_attr(g, &g->node.p[x->a])[0]].in_dims = true;
    }
    return DVM_OK;
}

/* Every shape is known without arguments. */
static bool is_static(const struct dvm_graph *g) {
    if (g->flags & DVM_DYN) return false;
    for (uint32_t i = 0; i < g->input.n; i++) {
        if (!g->input.p[i]) continue;
        const struct dvm_node *n = &g->node.p[g->input.p[i]];
        if (n->op == DVM_OP_SCALAR) continue;
        for (int j = 0; j < n->rank; j++)
            if (g->dims.p[n->dims + (uint32_t)j] < 0) return false;
    }
    for (uint32_t i = 0; i < g->expr.n; i++)
        if (g->expr.p[i].kind == DVM_DIMX_SCALAR) return false;
    return true;
}

static dvm_status plan_static(struct dvm_kernel *k) {
    const struct dvm_graph *s = k->source;
    dvm_arg *arg = dvm_mem_new(&k->mem, sizeof *arg * (size_t)(s->n_in + s->n_out + 1));
    if (!arg) return DVM_ERR_NOMEM;
    for (int i = 0; i < s->n_in; i++) {
        const struct dvm_node *n = &s->node.p[s->input.p[i]];
        arg[i].rank = n->op == DVM_OP_SCALAR ? -1 : n->rank;
        arg[i].dtype = n->dtype;
        if (n->rank > 0) arg[i].dims = s->dims.p + n->dims;
    }
    struct launch_record *r = NULL;
    dvm_status st = dvm_kernel_record(k, s->n_in, arg, NULL, &r);
    dvm_mem_free(&k->mem, arg, sizeof *arg * (size_t)(s->n_in + s->n_out + 1));
    if (st == DVM_OK) dvm_record_unref(k, r);
    return st;
}

static dvm_status compile_graph(struct dvm_graph *g, struct dvm_kernel **out) {
    if (!out) DVM_FAIL(ARG, "result pointer is NULL");
    *out = NULL;
    if (!g) DVM_FAIL(ARG, "graph is NULL");
    DVM_TRY(check_source(g));
    struct dvm_kernel *k = dvm_mem_new(&g->mem, sizeof *k);
    if (!k) return DVM_ERR_NOMEM;
    k->mem = g->mem;
    k->ctx = g->ctx;
    dvm_ctx_ref(k->ctx);
    dvm_arena_init(&k->arena, &k->mem);
    pthread_mutex_init(&k->lock, NULL);
    dvm_status st = dvm_graph_copy(g, &k->source);
    if (st == DVM_OK) st = dvm_graph_copy(g, &k->g);
    if (st == DVM_OK) st = compile(k->g, &k->arena);
    if (st == DVM_OK) st = describe_args(k);
    dvm_arena_reset(&k->arena);
    if (st == DVM_OK && is_static(k->g)) st = plan_static(k);
    if (st != DVM_OK) {
        dvm_kernel_destroy(&k);
        return st;
    }
    *out = k;
    return DVM_OK;
}

dvm_status dvm_compile(dvm_graph *g, dvm_kernel **out) {
    struct dvm_fpenv env = dvm_fpenv_enter();
    dvm_status st = compile_graph(g, out);
    dvm_fpenv_leave(&env);
    return st;
}
