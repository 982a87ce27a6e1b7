/* The builder: checks every node while it is added, infers what is known of its shape, converts scalar operands,
 * and expresses bool arithmetic by logic. A failing call leaves the graph as it was. */
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/fpenv.h"
#include "graph/graph.h"
#include "graph/graph_build.h"

#define G_CHECK(g)                                                   \
    do {                                                             \
        if (!(g)) DVM_FAIL(ARG, "graph is NULL");                    \
        if ((g)->closed) DVM_FAIL(STATE, "graph is already closed"); \
    } while (0)
#define OUT_CHECK(out)                                  \
    if (!(out)) DVM_FAIL(ARG, "result pointer is NULL")

DVM_INLINE dvm_val val_of(const struct dvm_graph *g, dvm_ref r) {
    return (uint64_t)g->serial << 32 | r;
}

static bool is_value(const struct dvm_graph *g, dvm_val v) {
    return v >> 32 == g->serial && (dvm_ref)v > 0 && (dvm_ref)v < g->node.n;
}
static dvm_status get(const struct dvm_graph *g, dvm_val v, dvm_ref *out) {
    dvm_ref r = (uint32_t)v;
    if (v == 0) DVM_FAIL(VALUE, "operand is no value (0): did an earlier call fail?");
    if (v >> 32 != g->serial) DVM_FAIL(VALUE, "operand is a value of another graph");
    if (r == 0 || r >= g->node.n) DVM_FAIL(VALUE, "operand is no value of this graph");
    *out = r;
    return DVM_OK;
}

dvm_status dvm_graph_blame(const struct dvm_graph *g, dvm_ref r, dvm_status st) {
    const struct dvm_node *n = &g->node.p[r];
    const char *where = n->where ? g->wheres.p + g->where_at.p[n->where] : NULL;
    if (where) return dvm_err_context(st, "%s: in %s: ", where, dvm_op_table[n->op].text);
    return dvm_err_context(st, "in %s (%%%u): ", dvm_op_table[n->op].text, r);
}

static struct dvm_shape node_shape(const struct dvm_graph *g, dvm_ref r) {
    const struct dvm_node *n = &g->node.p[r];
    struct dvm_shape s = {.rank = n->rank};
    for (int i = 0; i < n->rank; i++) s.d[i] = g->dims.p[n->dims + (uint32_t)i];
    return s;
}

struct build_env {
    struct dvm_dim_env e;
    struct dvm_shape tmp;
};
static const struct dvm_shape *build_shape(const struct dvm_dim_env *e, dvm_ref r) {
    struct build_env *b = (struct build_env *)(uintptr_t)e->user;
    b->tmp = node_shape(e->g, r);
    return &b->tmp;
}

/* Attributes with expressions replaced; literals stay. */
static void resolve(const struct dvm_graph *g, const int64_t *at, uint32_t n, int64_t *out) {
    struct build_env b = {.e = {.g = g, .shape_of = build_shape}};
    b.e.user = &b;
    for (uint32_t i = 0; i < n; i++) out[i] = dvm_dim_value(&b.e, at[i]);
}

/* Operands that are dimensions: an expression must be of this graph. */
static dvm_status check_dims(const struct dvm_graph *g, uint32_t n, const int64_t *d,
                             int64_t lowest, const char *what) {
    for (uint32_t i = 0; i < n; i++) {
        if (dvm_dim_is_expr(d[i])) {
            if (dvm_dim_expr_id(d[i]) >= g->expr.n)
                DVM_FAIL(VALUE, "%s %u is an expression of another graph", what, i);
        } else if (d[i] < lowest || d[i] < -INT64_MAX / 4) {
            DVM_FAIL(SHAPE, "%s %u is %lld", what, i, (long long)d[i]);
        }
    }
    return DVM_OK;
}

static dvm_status check_rank(int rank) {
    if (rank < 0 || rank > DVM_MAX_RANK)
        DVM_FAIL(LIMIT, "rank %d is not in 0 .. %d", rank, DVM_MAX_RANK);
    return DVM_OK;
}

static const char *types_text(int t) {
    static const char *const s[] = {"f16, bf16 or f32",
                                    "f16, bf16, f32, i32 or i64",
                                    "i32 or i64",
                                    "bool",
                                    "bool, i32 or i64",
                                    "any dtype",
                                    "bool, f16, bf16, f32, i32 or i64"};
    return s[t];
}

static bool type_fits(int types, int t) {
    bool f = t == DVM_F16 || t == DVM_BF16 || t == DVM_F32, i = dvm_is_int(t), b = t == DVM_BOOL;
    switch (types) {
    case DVM_TYPES_F: return f;
    case DVM_TYPES_N: return f || i;
    case DVM_TYPES_I: return i;
    case DVM_TYPES_B: return b;
    case DVM_TYPES_L: return b || i;
    case DVM_TYPES_W: return f || i || b;
    default: return true;
    }
}

static dvm_status check_type(const struct dvm_graph *g, int op, dvm_ref r) {
    const struct dvm_op_info *o = &dvm_op_table[op];
    int t = g->node.p[r].dtype;
    if (!type_fits(o->types, t))
        DVM_FAIL(DTYPE, "%s takes %s, not %s; cast the operand first", o->text,
                 types_text(o->types), dvm_dtype_name((dvm_dtype)t));
    bool cls_ew = o->cls == DVM_CLS_EW && op != DVM_OP_COPY && op != DVM_OP_CAST;
    if (cls_ew && t == DVM_F64)
        DVM_FAIL(
            DTYPE,
            "%s does not take f64, which can only be loaded, stored and cast; cast to f32 first",
            o->text);
    return DVM_OK;
}

/* The node with its shape; everything is reserved before anything is written. */
static dvm_status append(struct dvm_graph *g, struct dvm_node nd, const int64_t *at,
                         const struct dvm_shape *s, dvm_ref *out) {
    if (g->node.n >= DVM_MAX_NODES) DVM_FAIL(LIMIT, "graph has more than %d nodes", DVM_MAX_NODES);
    DVM_TRY(DVM_VEC_RESERVE(&g->mem, g->node, 1));
    DVM_TRY(DVM_VEC_RESERVE(&g->mem, g->attr, nd.nattr));
    DVM_TRY(DVM_VEC_RESERVE(&g->mem, g->dims, DVM_MAX_RANK));
    nd.where = g->where;
    nd.section = (uint16_t)(g->section.n ? g->section.n - 1 : 0);
    nd.attr = g->attr.n;
    if (nd.nattr) memcpy(g->attr.p + g->attr.n, at, nd.nattr * sizeof *at);
    g->attr.n += nd.nattr;
    nd.dims = g->dims.n;
    nd.rank = (int8_t)s->rank;
    for (int i = 0; i < s->rank; i++) g->dims.p[g->dims.n++] = s->d[i];
    *out = g->node.n;
    g->node.p[g->node.n++] = nd;
    return DVM_OK;
}

/* Adds a node whose operands and attributes are set; the shape rule is checked here. */
static dvm_status add(struct dvm_graph *g, struct dvm_node nd, const int64_t *at, dvm_ref *out) {
    int64_t res[3 * DVM_MAX_RANK + 2];
    const struct dvm_shape *in[3];
    struct dvm_shape sh[3], s = {0};
    for (int i = 0; i < nd.nin; i++) {
        sh[i] = node_shape(g, nd.in[i]);
        in[i] = &sh[i];
    }
    if (nd.nattr > DVM_COUNT(res)) DVM_FAIL(INTERNAL, "too many attributes");
    if (dvm_op_has_dims(nd.op))
        resolve(g, at, nd.nattr, res);
    else if (nd.nattr)
        memcpy(res, at, nd.nattr * sizeof *at);
    dvm_status st = dvm_shape_rule(&nd, res, nd.nin, in, &s);
    if (st != DVM_OK) return dvm_err_context(st, "in %s: ", dvm_op_table[nd.op].text);
    return append(g, nd, at, &s, out);
}

/* Prefix of an error raised while adding: the user's position. */
dvm_status dvm_graph_at_user(const struct dvm_graph *g, dvm_status st) {
    if (st == DVM_OK || !g->where) return st;
    return dvm_err_context(st, "%s: ", g->wheres.p + g->where_at.p[g->where]);
}

/* ---- life ---------------------------------------------------------------------------------------- */

dvm_status dvm_graph_new(struct dvm_ctx *ctx, const struct dvm_mem *mem, dvm_kind kind,
                         uint32_t flags, struct dvm_graph **out) {
    static _Atomic uint32_t serial;
    struct dvm_graph *g = dvm_mem_new(mem, sizeof *g);
    if (!g) return DVM_ERR_NOMEM;
    g->ctx = ctx;
    g->mem = *mem;
    g->kind = (uint8_t)kind;
    g->flags = flags;
    do g->serial = atomic_fetch_add(&serial, 1) + 1;
    while (g->serial == 0);
    dvm_status st = DVM_VEC_RESERVE(&g->mem, g->node, 64);
    if (st == DVM_OK) st = DVM_VEC_RESERVE(&g->mem, g->attr, 128);
    if (st == DVM_OK) st = DVM_VEC_RESERVE(&g->mem, g->dims, 256);
    if (st == DVM_OK) st = DVM_VEC_RESERVE(&g->mem, g->where_at, 1);
    if (st != DVM_OK) {
        dvm_graph_free(&g);
        return st;
    }
    g->node.n = 1;
    g->node.p[0].op = DVM_OP_CONST;
    g->where_at.n = 1;
    *out = g;
    return DVM_OK;
}

void dvm_graph_free(struct dvm_graph **pg) {
    if (!pg || !*pg) return;
    struct dvm_graph *g = *pg;
    struct dvm_mem mem = g->mem;
    DVM_VEC_FREE(&mem, g->node);
    DVM_VEC_FREE(&mem, g->attr);
    DVM_VEC_FREE(&mem, g->dims);
    DVM_VEC_FREE(&mem, g->expr);
    DVM_VEC_FREE(&mem, g->input);
    DVM_VEC_FREE(&mem, g->output);
    DVM_VEC_FREE(&mem, g->section);
    DVM_VEC_FREE(&mem, g->wheres);
    DVM_VEC_FREE(&mem, g->where_at);
    dvm_mem_free(&mem, g, sizeof *g);
    *pg = NULL;
}

#define COPY_VEC(v)                                                                          \
    do {                                                                                     \
        if (st == DVM_OK && src->v.n) st = DVM_VEC_RESERVE(&c->mem, c->v, src->v.n);         \
        if (st == DVM_OK && src->v.n) memcpy(c->v.p, src->v.p, src->v.n * sizeof *src->v.p); \
        if (st == DVM_OK) c->v.n = src->v.n;                                                 \
    } while (0)

dvm_status dvm_graph_copy(const struct dvm_graph *src, struct dvm_graph **out) {
    struct dvm_graph *c = dvm_mem_new(&src->mem, sizeof *c);
    if (!c) return DVM_ERR_NOMEM;
    c->ctx = src->ctx;
    c->mem = src->mem;
    c->serial = src->serial;
    c->flags = src->flags;
    c->kind = src->kind;
    c->n_in = src->n_in;
    c->n_out = src->n_out;
    memcpy(c->name, src->name, sizeof c->name);
    dvm_status st = DVM_OK;
    COPY_VEC(node);
    COPY_VEC(attr);
    COPY_VEC(dims);
    COPY_VEC(expr);
    COPY_VEC(input);
    COPY_VEC(output);
    COPY_VEC(section);
    COPY_VEC(wheres);
    COPY_VEC(where_at);
    if (st != DVM_OK) dvm_graph_free(&c);
    *out = c;
    return st;
}

dvm_status dvm_graph_set_name(struct dvm_graph *g, const char *name) {
    G_CHECK(g);
    size_t n = name ? strlen(name) : 0;
    if (n == 0 || n >= sizeof g->name)
        DVM_FAIL(ARG, "a name has 1 to %zu characters", sizeof g->name - 1);
    for (size_t i = 0; i < n; i++) {
        char c = name[i];
        bool ok = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
                  (c >= '0' && c <= '9') || c == '.';
        if (!ok)
            DVM_FAIL(ARG, "name \"%s\" has a character that is no letter, digit, '_' or '.'", name);
    }
    memcpy(g->name, name, n + 1);
    return DVM_OK;
}

dvm_status dvm_graph_at(struct dvm_graph *g, const char *where) {
    G_CHECK(g);
    if (!where || !*where) {
        g->where = 0;
        return DVM_OK;
    }
    if (g->where && !strcmp(g->wheres.p + g->where_at.p[g->where], where)) return DVM_OK;
    size_t n = strlen(where) + 1;
    if (n > 512) DVM_FAIL(ARG, "source position of more than 511 characters");
    if (g->where_at.n >= UINT16_MAX) return DVM_OK; /* positions are a courtesy */
    DVM_TRY(DVM_VEC_RESERVE(&g->mem, g->wheres, (uint32_t)n));
    DVM_TRY(DVM_VEC_RESERVE(&g->mem, g->where_at, 1));
    g->where = (uint16_t)g->where_at.n;
    g->where_at.p[g->where_at.n++] = g->wheres.n;
    memcpy(g->wheres.p + g->wheres.n, where, n);
    g->wheres.n += (uint32_t)n;
    return DVM_OK;
}

/* ---- leaves -------------------------------------------------------------------------------------- */

static dvm_status new_input(struct dvm_graph *g) {
    if (g->n_in >= DVM_MAX_ARGS) DVM_FAIL(LIMIT, "more than %d arguments", DVM_MAX_ARGS);
    return DVM_VEC_RESERVE(&g->mem, g->input, 1);
}

static dvm_status check_dtype(dvm_dtype t) {
    if ((unsigned)t >= DVM_NDTYPE) DVM_FAIL(DTYPE, "%d is no dtype", (int)t);
    return DVM_OK;
}

static dvm_status load(struct dvm_graph *g, dvm_dtype t, int rank, const dvm_dim *dims,
                       const dvm_dim *strides, dvm_ref *out) {
    int64_t at[2 + 2 * DVM_MAX_RANK];
    DVM_TRY(check_dtype(t));
    DVM_TRY(new_input(g));
    if (rank == DVM_ANY_RANK) {
        if (!(g->flags & DVM_DYN)) DVM_FAIL(SHAPE, "a load of any rank needs a graph with DVM_DYN");
        rank = -1;
    } else {
        DVM_TRY(check_rank(rank));
        if (rank && !dims) DVM_FAIL(ARG, "dims is NULL");
        DVM_TRY(check_dims(g, (uint32_t)rank, dims, -1, "size"));
        if (strides) DVM_TRY(check_dims(g, (uint32_t)rank, strides, INT64_MIN / 4, "stride"));
    }
    int n = rank < 0 ? 0 : rank;
    at[0] = g->n_in;
    at[1] = strides && rank >= 0;
    for (int i = 0; i < n; i++) at[2 + i] = dims[i];
    for (int i = 0; i < n && strides; i++) at[2 + n + i] = strides[i];
    struct dvm_node nd = {.op = DVM_OP_LOAD,
                          .dtype = (uint8_t)t,
                          .rank = (int8_t)rank,
                          .nattr = (uint32_t)(2 + n + (strides ? n : 0))};
    DVM_TRY(add(g, nd, at, out));
    g->input.p[g->input.n++] = *out;
    g->n_in++;
    return DVM_OK;
}

dvm_status dvm_graph_load(struct dvm_graph *g, dvm_dtype t, int rank, const dvm_dim *dims,
                          const dvm_dim *strides, dvm_val *out) {
    G_CHECK(g);
    OUT_CHECK(out);
    dvm_ref r;
    AT_TRY(load(g, t, rank, dims, strides, &r));
    *out = val_of(g, r);
    return DVM_OK;
}

dvm_status dvm_graph_scalar(struct dvm_graph *g, dvm_dtype t, dvm_val *out) {
    G_CHECK(g);
    OUT_CHECK(out);
    dvm_ref r;
    AT_TRY(check_dtype(t));
    AT_TRY(new_input(g));
    struct dvm_node nd = {.op = DVM_OP_SCALAR, .dtype = (uint8_t)t, .nattr = 1};
    AT_TRY(add(g, nd, &(int64_t){g->n_in}, &r));
    g->input.p[g->input.n++] = r;
    g->n_in++;
    *out = val_of(g, r);
    return DVM_OK;
}

static dvm_status add_const(struct dvm_graph *g, dvm_dtype t, dvm_number v, dvm_ref *out) {
    struct dvm_node nd = {.op = DVM_OP_CONST, .dtype = (uint8_t)t, .nattr = 1};
    int64_t bits;
    if (dvm_is_float(t)) {
        struct dvm_fpenv env = dvm_fpenv_enter();
        v.f = dvm_round_to(t, v.f);
        dvm_fpenv_leave(&env);
        memcpy(&bits, &v.f, 8);
    } else {
        bits = dvm_wrap_to(t, v.i);
    }
    return add(g, nd, &bits, out);
}

dvm_status dvm_graph_const(struct dvm_graph *g, dvm_dtype t, dvm_number v, dvm_val *out) {
    G_CHECK(g);
    OUT_CHECK(out);
    dvm_ref r;
    AT_TRY(check_dtype(t));
    if (!dvm_number_fits(t, v))
        AT_FAIL(ARG, "the constant %lld does not fit %s", (long long)v.i, dvm_dtype_name(t));
    AT_TRY(add_const(g, t, v, &r));
    *out = val_of(g, r);
    return DVM_OK;
}

dvm_status dvm_graph_iota(struct dvm_graph *g, dvm_dtype t, int rank, const dvm_dim *dims, int axis,
                          dvm_val *out) {
    G_CHECK(g);
    OUT_CHECK(out);
    dvm_ref r;
    int64_t at[1 + DVM_MAX_RANK];
    if (!dvm_is_int(t))
        AT_FAIL(DTYPE, "iota gives i32 or i64, not %s; cast the result", dvm_dtype_name(t));
    AT_TRY(check_rank(rank));
    if (rank && !dims) AT_FAIL(ARG, "dims is NULL");
    AT_TRY(check_dims(g, (uint32_t)rank, dims, 0, "size"));
    if (axis < -rank || axis >= rank)
        AT_FAIL(SHAPE, "iota axis %d is out of range for rank %d", axis, rank);
    at[0] = axis < 0 ? axis + rank : axis;
    for (int i = 0; i < rank; i++) at[1 + i] = dims[i];
    struct dvm_node nd = {.op = DVM_OP_IOTA, .dtype = (uint8_t)t, .nattr = (uint32_t)(1 + rank)};
    AT_TRY(add(g, nd, at, &r));
    *out = val_of(g, r);
    return DVM_OK;
}

/* ---- elementwise --------------------------------------------------------------------------------- */

/* A scalar leaf as dtype t: constants are converted at once, others by a cast. */
static dvm_status cast_ref(struct dvm_graph *g, dvm_ref x, dvm_dtype t, dvm_ref *out) {
    const struct dvm_node n = g->node.p[x];
    *out = x;
    if (n.dtype == t) return DVM_OK;
    if (n.op == DVM_OP_CONST) {
        dvm_number v = {.i = g->attr.p[n.attr]};
        return add_const(g, t, dvm_number_cast((dvm_dtype)n.dtype, t, v), out);
    }
    struct dvm_node nd = {.op = DVM_OP_CAST, .dtype = (uint8_t)t, .nin = 1, .in = {x}};
    return add(g, nd, NULL, out);
}

/* bool arithmetic as logic on 0/1: the result is true when the number is not 0. */
static int bool_op(int op) {
    switch (op) {
    case DVM_OP_ADD:
    case DVM_OP_MAX: return DVM_OP_OR;
    case DVM_OP_MUL:
    case DVM_OP_MIN: return DVM_OP_AND;
    case DVM_OP_SUB: return DVM_OP_XOR;
    default: return op;
    }
}

static dvm_status unify(struct dvm_graph *g, int op, int n, dvm_ref *r) {
    int first = op == DVM_OP_SELECT ? 1 : 0, lead = -1;
    for (int i = first; i < n && lead < 0; i++)
        if (!dvm_is_leaf_scalar(g->node.p[r[i]].op)) lead = i;
    if (lead < 0) lead = first;
    dvm_dtype t = (dvm_dtype)g->node.p[r[lead]].dtype;
    for (int i = first; i < n; i++) {
        const struct dvm_node *x = &g->node.p[r[i]];
        if (x->dtype == t) continue;
        if (!dvm_is_leaf_scalar(x->op))
            DVM_FAIL(DTYPE, "%s needs operands of one dtype, got %s and %s; cast one of them",
                     dvm_op_table[op].text, dvm_dtype_name(t), dvm_dtype_name((dvm_dtype)x->dtype));
        const dvm_number v = {.i = x->op == DVM_OP_CONST ? g->attr.p[x->attr] : 0};
        if (!dvm_is_float(x->dtype) && !dvm_number_fits(t, v))
            DVM_FAIL(
                ARG,
                "in %s: operand %d, the constant %lld, does not fit %s, the dtype of operand %d",
                dvm_op_table[op].text, i, (long long)v.i, dvm_dtype_name(t), lead);
        DVM_TRY(cast_ref(g, r[i], t, &r[i]));
    }
    if (op == DVM_OP_SELECT) DVM_TRY(cast_ref(g, r[0], DVM_BOOL, &r[0]));
    return DVM_OK;
}

static dvm_status ew(struct dvm_graph *g, int op, int n, dvm_ref *r, dvm_ref *out) {
    const struct dvm_op_info *o = &dvm_op_table[op];
    DVM_TRY(unify(g, op, n, r));
    int lead = op == DVM_OP_SELECT ? 1 : 0;
    for (int i = lead; i < n; i++) DVM_TRY(check_type(g, op, r[i]));
    int t = g->node.p[r[lead]].dtype;
    if (t == DVM_BOOL) {
        op = bool_op(op);
        bool order = op == DVM_OP_LT || op == DVM_OP_LE || op == DVM_OP_GT || op == DVM_OP_GE;
        for (int i = 0; order && i < n; i++) DVM_TRY(cast_ref(g, r[i], DVM_I32, &r[i]));
    }
    struct dvm_node nd = {.op = (uint8_t)op,
                          .nin = (uint8_t)n,
                          .dtype = (uint8_t)(o->result == DVM_RESULT_BOOL ? DVM_BOOL : t)};
    memcpy(nd.in, r, (size_t)n * sizeof *r);
    return add(g, nd, NULL, out);
}

dvm_status dvm_graph_op(struct dvm_graph *g, dvm_op op, int n, const dvm_val *in, dvm_val *out) {
    G_CHECK(g);
    OUT_CHECK(out);
    if ((unsigned)op >= DVM_NOP || dvm_op_table[op].cls != DVM_CLS_EW || op == DVM_OP_CAST)
        AT_FAIL(ARG, "operation %d is not elementwise; use its own function", (int)op);
    if (n != dvm_op_table[op].arity || !in)
        AT_FAIL(ARG, "%s takes %d operands, got %d", dvm_op_table[op].text, dvm_op_table[op].arity,
                n);
    dvm_ref r[3] = {0}, res;
    struct dvm_mark mark = dvm_graph_mark(g);
    for (int i = 0; i < n; i++) AT_TRY(get(g, in[i], &r[i]));
    dvm_status st = ew(g, op, n, r, &res);
    if (st != DVM_OK) {
        dvm_graph_rewind(g, mark);
        return dvm_graph_at_user(g, st);
    }
    *out = val_of(g, res);
    return DVM_OK;
}

dvm_status dvm_graph_cast(struct dvm_graph *g, dvm_val x, dvm_dtype t, dvm_val *out) {
    G_CHECK(g);
    OUT_CHECK(out);
    dvm_ref r, res;
    AT_TRY(check_dtype(t));
    AT_TRY(get(g, x, &r));
    AT_TRY(cast_ref(g, r, t, &res));
    *out = val_of(g, res);
    return DVM_OK;
}

/* ---- views --------------------------------------------------------------------------------------- */

static dvm_status view(struct dvm_graph *g, int op, dvm_val x, uint32_t n, const int64_t *at,
                       dvm_val *out) {
    dvm_ref r, res;
    DVM_TRY(get(g, x, &r));
    struct dvm_node nd = {
        .op = (uint8_t)op, .dtype = g->node.p[r].dtype, .nin = 1, .in = {r}, .nattr = n};
    DVM_TRY(add(g, nd, at, &res));
    *out = val_of(g, res);
    return DVM_OK;
}

static dvm_status dims_view(struct dvm_graph *g, int op, dvm_val x, int rank, const dvm_dim *dims,
                            dvm_val *out) {
    G_CHECK(g);
    OUT_CHECK(out);
    AT_TRY(check_rank(rank));
    if (rank && !dims) AT_FAIL(ARG, "dims is NULL");
    AT_TRY(check_dims(g, (uint32_t)rank, dims, -1, "size"));
    return dvm_graph_at_user(g, view(g, op, x, (uint32_t)rank, dims, out));
}

dvm_status dvm_graph_broadcast(struct dvm_graph *g, dvm_val x, int rank, const dvm_dim *dims,
                               dvm_val *out) {
    return dims_view(g, DVM_OP_BROADCAST, x, rank, dims, out);
}

dvm_status dvm_graph_reshape(struct dvm_graph *g, dvm_val x, int rank, const dvm_dim *dims,
                             dvm_val *out) {
    return dims_view(g, DVM_OP_RESHAPE, x, rank, dims, out);
}

dvm_status dvm_graph_permute(struct dvm_graph *g, dvm_val x, int rank, const int *perm,
                             dvm_val *out) {
    G_CHECK(g);
    OUT_CHECK(out);
    int64_t at[DVM_MAX_RANK];
    AT_TRY(check_rank(rank));
    if (rank && !perm) AT_FAIL(ARG, "perm is NULL");
    for (int i = 0; i < rank; i++)
        at[i] = perm[i] < 0 && perm[i] >= -rank ? perm[i] + rank : perm[i];
    return dvm_graph_at_user(g, view(g, DVM_OP_PERMUTE, x, (uint32_t)rank, at, out));
}

dvm_status dvm_graph_slice(struct dvm_graph *g, dvm_val x, int rank, const dvm_dim *start,
                           const dvm_dim *size, const int64_t *step, dvm_val *out) {
    G_CHECK(g);
    OUT_CHECK(out);
    int64_t at[3 * DVM_MAX_RANK];
    AT_TRY(check_rank(rank));
    if (rank && (!start || !size)) AT_FAIL(ARG, "start or size is NULL");
    AT_TRY(check_dims(g, (uint32_t)rank, start, INT64_MIN / 4, "start"));
    AT_TRY(check_dims(g, (uint32_t)rank, size, -1, "size"));
    for (int i = 0; i < rank; i++) {
        at[i] = start[i];
        at[rank + i] = size[i];
        at[2 * rank + i] = step ? step[i] : 1;
        if (at[2 * rank + i] == 0 || at[2 * rank + i] < -INT64_MAX / 4)
            AT_FAIL(SHAPE, "slice step %lld", (long long)at[2 * rank + i]);
    }
    return dvm_graph_at_user(g, view(g, DVM_OP_SLICE, x, (uint32_t)(3 * rank), at, out));
}

/* ---- reductions and the rest --------------------------------------------------------------------- */

/* SUM and PROD accumulate in f32 or i64; the result is cast to t. */
static dvm_status reduce(struct dvm_graph *g, int op, dvm_ref x, int n, const int *axes, int keep,
                         dvm_dtype t, dvm_ref *out) {
    int64_t at[1 + DVM_MAX_RANK];
    const struct dvm_op_info *o = &dvm_op_table[op];
    DVM_TRY(check_type(g, op, x));
    if (n > DVM_MAX_RANK) DVM_FAIL(LIMIT, "%d axes", n);
    bool acc = op == DVM_OP_SUM || op == DVM_OP_PROD;
    if (acc) {
        DVM_TRY(check_dtype(t));
        bool f = dvm_is_float(t), xf = dvm_is_float(g->node.p[x].dtype);
        if (t == DVM_F64) DVM_FAIL(DTYPE, "%s gives no f64; cast its f32 result", o->text);
        if (f && !xf) DVM_TRY(cast_ref(g, x, DVM_F32, &x));
        if (!f) DVM_TRY(cast_ref(g, x, DVM_I64, &x));
    }
    at[0] = keep != 0;
    for (int i = 0; i < n; i++) at[1 + i] = axes[i];
    struct dvm_node nd = {.op = (uint8_t)op,
                          .nin = 1,
                          .in = {x},
                          .nattr = (uint32_t)(1 + n),
                          .dtype = g->node.p[x].dtype};
    if (acc) nd.dtype = (uint8_t)(dvm_is_float(t) ? t : DVM_I64);
    if (o->result == DVM_RESULT_I64) nd.dtype = DVM_I64;
    DVM_TRY(add(g, nd, at, out));
    return acc ? cast_ref(g, *out, t, out) : DVM_OK;
}

dvm_status dvm_graph_reduce(struct dvm_graph *g, dvm_op op, dvm_val x, int n, const int *axes,
                            int keepdims, dvm_dtype t, dvm_val *out) {
    G_CHECK(g);
    OUT_CHECK(out);
    if ((unsigned)op >= DVM_NOP || dvm_op_table[op].cls != DVM_CLS_RED)
        AT_FAIL(ARG, "operation %d is no reduction", (int)op);
    if (n < 0 || (n && !axes)) AT_FAIL(ARG, "axes is NULL or their number negative");
    dvm_ref r, res;
    struct dvm_mark mark = dvm_graph_mark(g);
    AT_TRY(get(g, x, &r));
    dvm_status st = reduce(g, op, r, n, axes, keepdims, t, &res);
    if (st != DVM_OK) {
        dvm_graph_rewind(g, mark);
        return dvm_graph_at_user(g, st);
    }
    *out = val_of(g, res);
    return DVM_OK;
}

dvm_status dvm_graph_cumsum(struct dvm_graph *g, dvm_val x, dvm_val *out) {
    G_CHECK(g);
    OUT_CHECK(out);
    dvm_ref r, res;
    AT_TRY(get(g, x, &r));
    AT_TRY(check_type(g, DVM_OP_CUMSUM, r));
    if (g->node.p[r].rank == 0) AT_FAIL(SHAPE, "cumsum of a tensor of rank 0");
    struct dvm_node nd = {.op = DVM_OP_CUMSUM, .dtype = g->node.p[r].dtype, .nin = 1, .in = {r}};
    AT_TRY(add(g, nd, NULL, &res));
    *out = val_of(g, res);
    return DVM_OK;
}

dvm_status dvm_graph_gather(struct dvm_graph *g, dvm_val x, dvm_val index, int axis, int mode,
                            dvm_val *out) {
    G_CHECK(g);
    OUT_CHECK(out);
    dvm_ref r, i, res;
    AT_TRY(get(g, x, &r));
    AT_TRY(get(g, index, &i));
    if (!dvm_is_int(g->node.p[i].dtype))
        AT_FAIL(DTYPE, "gather index must be i32 or i64, not %s",
                dvm_dtype_name((dvm_dtype)g->node.p[i].dtype));
    if (g->node.p[r].dtype == DVM_F64)
        AT_FAIL(DTYPE, "gather does not take f64, which can only be loaded, stored and cast; cast "
                       "to f32 first");
    if (mode != 0 && mode != 1)
        AT_FAIL(ARG, "gather mode %d is neither 0 (elements) nor 1 (slices)", mode);
    struct dvm_node nd = {
        .op = DVM_OP_GATHER, .dtype = g->node.p[r].dtype, .nin = 2, .in = {r, i}, .nattr = 2};
    AT_TRY(add(g, nd, (int64_t[]){axis, mode}, &res));
    *out = val_of(g, res);
    return DVM_OK;
}

static dvm_status concat(struct dvm_graph *g, int n, const dvm_val *in, int axis, int64_t *at,
                         struct dvm_shape *sh, const struct dvm_shape **ps, dvm_ref *out) {
    dvm_ref r;
    at[0] = axis;
    for (int i = 0; i < n; i++) {
        DVM_TRY(get(g, in[i], &r));
        at[1 + i] = r;
        if (g->node.p[r].dtype != g->node.p[at[1]].dtype)
            DVM_FAIL(DTYPE, "concat operand %d is %s, operand 0 is %s", i,
                     dvm_dtype_name((dvm_dtype)g->node.p[r].dtype),
                     dvm_dtype_name((dvm_dtype)g->node.p[at[1]].dtype));
        sh[i] = node_shape(g, r);
        ps[i] = &sh[i];
    }
    struct dvm_node nd = {
        .op = DVM_OP_CONCAT, .dtype = g->node.p[at[1]].dtype, .nattr = (uint32_t)(1 + n)};
    struct dvm_shape s;
    dvm_status st = dvm_shape_rule(&nd, at, n, ps, &s);
    if (st != DVM_OK) return dvm_err_context(st, "in concat: ");
    return append(g, nd, at, &s, out);
}

dvm_status dvm_graph_concat(struct dvm_graph *g, int n, const dvm_val *in, int axis, dvm_val *out) {
    G_CHECK(g);
    OUT_CHECK(out);
    if (n < 1 || n > DVM_MAX_ARGS || !in)
        AT_FAIL(ARG, "concat takes 1 to %d operands, got %d", DVM_MAX_ARGS, n);
    struct dvm_arena tmp;
    dvm_arena_init(&tmp, &g->mem);
    int64_t *at = dvm_arena_new(&tmp, sizeof *at * (size_t)(n + 1));
    struct dvm_shape *sh = dvm_arena_new(&tmp, sizeof *sh * (size_t)n);
    const struct dvm_shape **ps = dvm_arena_new(&tmp, sizeof *ps * (size_t)n);
    dvm_ref r = 0;
    dvm_status st = at && sh && ps ? concat(g, n, in, axis, at, sh, ps, &r) : DVM_ERR_NOMEM;
    dvm_arena_drop(&tmp);
    AT_TRY(st);
    *out = val_of(g, r);
    return DVM_OK;
}

dvm_status dvm_graph_of_factors(const struct dvm_graph *g, const dvm_val *in, dvm_status st) {
    char sa[256], sb[256];
    if (st == DVM_OK || !is_value(g, in[0]) || !is_value(g, in[1])) return st;
    struct dvm_shape a = node_shape(g, (dvm_ref)in[0]), b = node_shape(g, (dvm_ref)in[1]);
    return dvm_err_context(st, "operands of shapes %s and %s: ", dvm_shape_str(&a, sa, sizeof sa),
                           dvm_shape_str(&b, sb, sizeof sb));
}

static dvm_status check_factors(const struct dvm_graph *g, int op, const dvm_ref *r, dvm_dtype t) {
    for (int i = 0; i < 2; i++) DVM_TRY(check_type(g, op, r[i]));
    dvm_dtype ta = (dvm_dtype)g->node.p[r[0]].dtype, tb = (dvm_dtype)g->node.p[r[1]].dtype;
    if (ta != tb)
        DVM_FAIL(DTYPE, "%s needs operands of one dtype, got %s and %s; cast one of them",
                 dvm_op_table[op].text, dvm_dtype_name(ta), dvm_dtype_name(tb));
    if (t != ta && t != DVM_F32)
        DVM_FAIL(DTYPE, "%s of %s gives %s or f32, not %s; cast the result", dvm_op_table[op].text,
                 dvm_dtype_name(ta), dvm_dtype_name(ta), dvm_dtype_name(t));
    return DVM_OK;
}

static dvm_status product(struct dvm_graph *g, int op, int n, const dvm_val *in, const int64_t *at,
                          dvm_dtype t, dvm_ref *out) {
    dvm_ref r[3];
    for (int i = 0; i < n; i++) DVM_TRY(get(g, in[i], &r[i]));
    DVM_TRY(dvm_graph_of_factors(g, in, check_factors(g, op, r, t)));
    struct dvm_node nd = {.op = (uint8_t)op,
                          .dtype = (uint8_t)t,
                          .nin = (uint8_t)n,
                          .nattr = op == DVM_OP_GROUPED ? 4 : 2};
    memcpy(nd.in, r, (size_t)n * sizeof *r);
    return add(g, nd, at, out);
}

dvm_status dvm_graph_product(struct dvm_graph *g, int op, int n, const dvm_val *in,
                             const int64_t *at, dvm_dtype t, dvm_val *out) {
    G_CHECK(g);
    dvm_ref res;
    AT_TRY(product(g, op, n, in, at, t, &res));
    *out = val_of(g, res);
    return DVM_OK;
}

dvm_status dvm_graph_size(struct dvm_graph *g, dvm_val x, int n, const int *axes, dvm_val *out) {
    G_CHECK(g);
    OUT_CHECK(out);
    dvm_ref r, res;
    int64_t at[DVM_MAX_RANK];
    if (n < 0 || n > DVM_MAX_RANK || (n && !axes)) AT_FAIL(ARG, "%d axes", n);
    AT_TRY(get(g, x, &r));
    for (int i = 0; i < n; i++) at[i] = axes[i];
    struct dvm_node nd = {
        .op = DVM_OP_SIZE, .dtype = DVM_I64, .nin = 1, .in = {r}, .nattr = (uint32_t)n};
    AT_TRY(add(g, nd, at, &res));
    *out = val_of(g, res);
    return DVM_OK;
}

dvm_status dvm_graph_store(struct dvm_graph *g, dvm_val x, const dvm_dim *strides, dvm_val *out) {
    G_CHECK(g);
    dvm_ref r, res;
    int64_t at[1 + DVM_MAX_RANK];
    AT_TRY(get(g, x, &r));
    int rank = g->node.p[r].rank;
    if (g->n_out >= DVM_MAX_ARGS) AT_FAIL(LIMIT, "more than %d outputs", DVM_MAX_ARGS);
    if (strides && rank < 0) AT_FAIL(SHAPE, "a strided store needs a value of known rank");
    if (strides) AT_TRY(check_dims(g, (uint32_t)rank, strides, INT64_MIN / 4, "stride"));
    AT_TRY(DVM_VEC_RESERVE(&g->mem, g->output, 1));
    at[0] = g->n_out;
    for (int i = 0; strides && i < rank; i++) at[1 + i] = strides[i];
    struct dvm_node nd = {.op = DVM_OP_STORE,
                          .dtype = g->node.p[r].dtype,
                          .nin = 1,
                          .in = {r},
                          .nattr = (uint32_t)(1 + (strides ? rank : 0))};
    AT_TRY(add(g, nd, at, &res));
    g->output.p[g->output.n++] = res;
    g->n_out++;
    if (out) *out = val_of(g, res);
    return DVM_OK;
}

dvm_status dvm_graph_section(struct dvm_graph *g, dvm_kind kind, uint32_t flags) {
    G_CHECK(g);
    bool spec = g->kind == DVM_VECTOR && (g->flags & DVM_SPEC);
    if (g->kind != DVM_PARALLEL && g->kind != DVM_SEQ && !spec)
        AT_FAIL(STATE, "sections belong to parallel, seq and vector:spec graphs");
    if (kind != DVM_VECTOR && kind != DVM_CUBE && kind != DVM_MIX &&
        !(g->kind == DVM_SEQ && kind == DVM_PARALLEL))
        AT_FAIL(KIND, "a section cannot be of kind %d", (int)kind);
    if (flags & UINT16_MAX & ~(uint32_t)(DVM_DYN | DVM_UNIFY_WS | DVM_SPEC | DVM_STRICT))
        AT_FAIL(ARG, "unknown section flags 0x%x", flags & UINT16_MAX);
    if (g->section.n >= UINT16_MAX) AT_FAIL(LIMIT, "too many sections");
    AT_TRY(DVM_VEC_RESERVE(&g->mem, g->section, 2));
    /* Nodes before the first call of a speculative graph are its first section, without a limit of threads. */
    if (g->section.n == 0 && g->node.n > 1)
        g->section.p[g->section.n++] = (struct dvm_section){(uint8_t)kind, flags & UINT16_MAX};
    g->section.p[g->section.n++] = (struct dvm_section){(uint8_t)kind, flags};
    return DVM_OK;
}

/* ---- dimensions ---------------------------------------------------------------------------------- */

static dvm_status add_expr(struct dvm_graph *g, struct dvm_dim_expr x, dvm_dim *out) {
    if (x.weight > DVM_DIM_MAX_WEIGHT)
        DVM_FAIL(LIMIT, "dimension expression with more than %d terms", DVM_DIM_MAX_WEIGHT);
    for (uint32_t i = 0; i < g->expr.n && i < 64; i++) {
        const struct dvm_dim_expr *e = &g->expr.p[i];
        if (e->kind == x.kind && e->a == x.a && e->b == x.b) {
            *out = DVM_DIM_EXPR0 + i;
            return DVM_OK;
        }
    }
    if (g->expr.n >= DVM_MAX_NODES) DVM_FAIL(LIMIT, "too many dimension expressions");
    DVM_TRY(DVM_VEC_RESERVE(&g->mem, g->expr, 1));
    *out = DVM_DIM_EXPR0 + g->expr.n;
    g->expr.p[g->expr.n++] = x;
    return DVM_OK;
}

dvm_status dvm_dim_scalar(struct dvm_graph *g, dvm_val scalar, dvm_dim *out) {
    G_CHECK(g);
    OUT_CHECK(out);
    dvm_ref r;
    AT_TRY(get(g, scalar, &r));
    const struct dvm_node *n = &g->node.p[r];
    if (n->op != DVM_OP_SCALAR || !dvm_is_int(n->dtype))
        AT_FAIL(VALUE, "a dimension must be an i32 or i64 scalar argument");
    return add_expr(g, (struct dvm_dim_expr){DVM_DIMX_SCALAR, r, 0, 1}, out);
}

dvm_status dvm_dim_of(struct dvm_graph *g, dvm_val x, int axis, dvm_dim *out) {
    G_CHECK(g);
    OUT_CHECK(out);
    dvm_ref r;
    AT_TRY(get(g, x, &r));
    int rank = g->node.p[r].rank;
    if (rank >= 0 && (axis < -rank || axis >= rank))
        AT_FAIL(SHAPE, "axis %d is out of range for rank %d", axis, rank);
    return add_expr(
        g, (struct dvm_dim_expr){DVM_DIMX_OF, r, rank >= 0 && axis < 0 ? axis + rank : axis, 1},
        out);
}

dvm_status dvm_dim_op(struct dvm_graph *g, int op, dvm_dim a, dvm_dim b, dvm_dim *out) {
    G_CHECK(g);
    OUT_CHECK(out);
    if (op < DVM_DIM_ADD || op > DVM_DIM_MIN) AT_FAIL(ARG, "%d is no operation on dimensions", op);
    AT_TRY(check_dims(g, 2, (int64_t[]){a, b}, INT64_MIN / 4, "operand"));
    int32_t w = 0;
    for (int i = 0; i < 2; i++) {
        int64_t d = i ? b : a;
        w += dvm_dim_is_expr(d) ? g->expr.p[dvm_dim_expr_id(d)].weight : 1;
    }
    return add_expr(g, (struct dvm_dim_expr){op, a, b, w}, out);
}

/* ---- questions ----------------------------------------------------------------------------------- */

dvm_status dvm_graph_dtype(const struct dvm_graph *g, dvm_val v, dvm_dtype *t) {
    if (!g || !t) DVM_FAIL(ARG, "an argument is NULL");
    dvm_ref r;
    AT_TRY(get(g, v, &r));
    *t = (dvm_dtype)g->node.p[r].dtype;
    return DVM_OK;
}

dvm_status dvm_graph_shape(const struct dvm_graph *g, dvm_val v, int *rank, dvm_dim *dims) {
    if (!g || !rank) DVM_FAIL(ARG, "an argument is NULL");
    dvm_ref r;
    AT_TRY(get(g, v, &r));
    const struct dvm_node *n = &g->node.p[r];
    *rank = n->rank;
    for (int i = 0; dims && i < n->rank; i++) dims[i] = g->dims.p[n->dims + (uint32_t)i];
    return DVM_OK;
}

/* ---- undo ---------------------------------------------------------------------------------------- */

struct dvm_mark dvm_graph_mark(const struct dvm_graph *g) {
    return (struct dvm_mark){g->node.n, g->attr.n, g->dims.n};
}

void dvm_graph_rewind(struct dvm_graph *g, struct dvm_mark m) {
    g->node.n = m.node;
    g->attr.n = m.attr;
    g->dims.n = m.dims;
}
