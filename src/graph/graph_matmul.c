/* Matrix products as the builder makes them: one node for the product, and for a bias the nodes that a user could have
 * written: the product in f32, the bias added, one rounding. A failing call leaves the graph as it was. */
#include <string.h>

#include "base/err.h"
#include "graph/graph.h"
#include "graph/graph_build.h"

/* Size of axis `axis` (from the end) of v, as a literal where it is known. */
static dvm_status size_of(struct dvm_graph *g, dvm_val v, int axis, dvm_dim *out) {
    dvm_dim dims[DVM_MAX_RANK];
    int rank;
    DVM_TRY(dvm_graph_shape(g, v, &rank, dims));
    if (rank >= 0 && dims[rank + axis] >= 0) {
        *out = dims[rank + axis];
        return DVM_OK;
    }
    return dvm_dim_of(g, v, axis, out);
}

static dvm_status cast(struct dvm_graph *g, dvm_val *v, dvm_dtype t) {
    return dvm_graph_cast(g, *v, t, v);
}

static dvm_status op2(struct dvm_graph *g, dvm_op op, dvm_val a, dvm_val b, dvm_val *out) {
    return dvm_graph_op(g, op, 2, (dvm_val[]){a, b}, out);
}

/* A bias has the sizes of `want`, or 1; it may not widen the product, as plain broadcasting would let it. */
static dvm_status check_bias(const struct dvm_graph *g, const dvm_val *in, dvm_val bias, int rank,
                             const dvm_dim *want) {
    struct dvm_shape s = {0};
    char buf[256];
    DVM_TRY(dvm_graph_shape(g, bias, &s.rank, s.d));
    bool fits = s.rank < 0 || s.rank == rank;
    for (int d = 0; fits && d < s.rank; d++)
        fits = s.d[d] < 0 || s.d[d] == 1 || want[d] < 0 || s.d[d] == want[d];
    if (fits) return DVM_OK;
    struct dvm_shape w = {.rank = rank};
    char text[256];
    memcpy(w.d, want, (size_t)rank * sizeof *want);
    dvm_err_set(DVM_ERR_SHAPE, "a bias of shape %s, where the product takes one of %s",
                dvm_shape_str(&s, buf, sizeof buf), dvm_shape_str(&w, text, sizeof text));
    AT_TRY(dvm_graph_of_factors(g, in, DVM_ERR_SHAPE));
    return DVM_OK;
}

static dvm_status check_result(const struct dvm_graph *g, const dvm_val *in, dvm_dtype t) {
    dvm_dtype own;
    DVM_TRY(dvm_graph_dtype(g, in[0], &own));
    if (t == own || t == DVM_F32) return DVM_OK;
    dvm_err_set(DVM_ERR_DTYPE, "a product of %s gives %s or f32, not %s; cast the result",
                dvm_dtype_name(own), dvm_dtype_name(own), dvm_dtype_name(t));
    AT_TRY(dvm_graph_of_factors(g, in, DVM_ERR_DTYPE));
    return DVM_OK;
}

/* f32(sum) + f32(bias), rounded to t. */
static dvm_status add_bias(struct dvm_graph *g, dvm_val sum, dvm_val bias, dvm_dtype t,
                           dvm_val *out) {
    DVM_TRY(cast(g, &bias, DVM_F32));
    DVM_TRY(op2(g, DVM_OP_ADD, sum, bias, out));
    return cast(g, out, t);
}

static dvm_status matmul(struct dvm_graph *g, const dvm_val *in, const int64_t *at, dvm_val bias,
                         dvm_dtype t, dvm_val *out) {
    if (!bias) return dvm_graph_product(g, DVM_OP_MATMUL, 2, in, at, t, out);
    dvm_dim n;
    dvm_val sum;
    DVM_TRY(check_result(g, in, t));
    DVM_TRY(dvm_graph_product(g, DVM_OP_MATMUL, 2, in, at, DVM_F32, &sum));
    DVM_TRY(size_of(g, sum, -1, &n));
    DVM_TRY(check_bias(g, in, bias, 1, &n));
    DVM_TRY(dvm_graph_broadcast(g, bias, 1, &n, &bias));
    return add_bias(g, sum, bias, t, out);
}

dvm_status dvm_graph_matmul(dvm_graph *g, dvm_val a, dvm_val b, int trans_a, int trans_b,
                            dvm_val bias, dvm_dtype t, dvm_val *out) {
    if (!g) DVM_FAIL(ARG, "graph is NULL");
    if (!out) DVM_FAIL(ARG, "result pointer is NULL");
    struct dvm_mark mark = dvm_graph_mark(g);
    dvm_val res;
    dvm_status st =
        matmul(g, (dvm_val[]){a, b}, (int64_t[]){trans_a != 0, trans_b != 0}, bias, t, &res);
    if (st != DVM_OK) {
        dvm_graph_rewind(g, mark);
        return st;
    }
    *out = res;
    return DVM_OK;
}

/* ---- groups -------------------------------------------------------------------------------------- */

/* The bias of each row's group, [M, N] in f32; 0 in rows beyond the last group. The group of row r is the number of
 * ends that are not above r. */
static dvm_status bias_rows(struct dvm_graph *g, dvm_val bias, dvm_val list, int kind, dvm_val sum,
                            dvm_val *out) {
    dvm_dim m, groups;
    dvm_val row, past, group, last, inside, zero;
    DVM_TRY(size_of(g, sum, -2, &m));
    DVM_TRY(size_of(g, list, -1, &groups));
    DVM_TRY(cast(g, &list, DVM_I64));
    if (kind == DVM_LIST_SIZES) DVM_TRY(dvm_graph_cumsum(g, list, &list));
    DVM_TRY(dvm_graph_reshape(g, list, 2, (dvm_dim[]){1, groups}, &list));
    DVM_TRY(dvm_graph_iota(g, DVM_I64, 2, (dvm_dim[]){m, 1}, 0, &row));
    DVM_TRY(op2(g, DVM_OP_GE, row, list, &past));
    DVM_TRY(cast(g, &past, DVM_I64));
    DVM_TRY(dvm_graph_reduce(g, DVM_OP_SUM, past, 1, (int[]){1}, 0, DVM_I64, &group));
    DVM_TRY(dvm_graph_size(g, list, 0, NULL, &last));
    DVM_TRY(op2(g, DVM_OP_LT, group, last, &inside));
    DVM_TRY(dvm_graph_reshape(g, inside, 2, (dvm_dim[]){m, 1}, &inside));
    DVM_TRY(dvm_graph_const(g, DVM_I64, (dvm_number){.i = 1}, &zero));
    DVM_TRY(op2(g, DVM_OP_SUB, last, zero, &last));
    DVM_TRY(op2(g, DVM_OP_MIN, group, last, &group));
    DVM_TRY(dvm_graph_gather(g, bias, group, 0, 1, &bias));
    DVM_TRY(cast(g, &bias, DVM_F32));
    DVM_TRY(dvm_graph_const(g, DVM_F32, (dvm_number){.f = 0}, &zero));
    return dvm_graph_op(g, DVM_OP_SELECT, 3, (dvm_val[]){inside, bias, zero}, out);
}

static dvm_status grouped(struct dvm_graph *g, const dvm_val *in, const int64_t *at, dvm_val bias,
                          dvm_dtype t, dvm_val *out) {
    dvm_dtype list_type;
    dvm_val sum;
    AT_TRY(dvm_graph_dtype(g, in[2], &list_type));
    if (!dvm_is_int(list_type)) {
        dvm_err_set(DVM_ERR_DTYPE, "grouped_matmul takes a group list of i64 or i32, not %s",
                    dvm_dtype_name(list_type));
        AT_TRY(dvm_graph_of_factors(g, in, DVM_ERR_DTYPE));
    }
    if (!bias) return dvm_graph_product(g, DVM_OP_GROUPED, 3, in, at, t, out);
    if (at[2] != DVM_GROUP_M) AT_FAIL(ARG, "only groups of rows (m) have a bias");
    DVM_TRY(check_result(g, in, t));
    DVM_TRY(dvm_graph_product(g, DVM_OP_GROUPED, 3, in, at, DVM_F32, &sum));
    dvm_dim shape[2];
    DVM_TRY(size_of(g, in[2], -1, &shape[0]));
    DVM_TRY(size_of(g, sum, -1, &shape[1]));
    DVM_TRY(check_bias(g, in, bias, 2, shape));
    DVM_TRY(dvm_graph_broadcast(g, bias, 2, shape, &bias));
    DVM_TRY(bias_rows(g, bias, in[2], (int)at[3], sum, &bias));
    return add_bias(g, sum, bias, t, out);
}

dvm_status dvm_graph_grouped_matmul(dvm_graph *g, dvm_val a, dvm_val b, int trans_a, int trans_b,
                                    dvm_val bias, dvm_val list, int group, int list_kind,
                                    dvm_dtype t, dvm_val *out) {
    if (!g) DVM_FAIL(ARG, "graph is NULL");
    if (group == DVM_GROUP_N) return dvm_graph_matmul(g, a, b, trans_a, trans_b, bias, t, out);
    if (!out) DVM_FAIL(ARG, "result pointer is NULL");
    if (group != DVM_GROUP_M && group != DVM_GROUP_K)
        AT_FAIL(ARG, "group type %d is none of 0 (m), 1 (n), 2 (k)", group);
    if (list_kind != DVM_LIST_ENDS && list_kind != DVM_LIST_SIZES)
        AT_FAIL(ARG, "group list type %d is neither 0 (ends) nor 1 (sizes)", list_kind);
    struct dvm_mark mark = dvm_graph_mark(g);
    dvm_val res;
    int64_t at[] = {trans_a != 0, trans_b != 0, group, list_kind};
    dvm_status st = grouped(g, (dvm_val[]){a, b, list}, at, bias, t, &res);
    if (st != DVM_OK) {
        dvm_graph_rewind(g, mark);
        return st;
    }
    *out = res;
    return DVM_OK;
}
