/* The shape rule of every op, used twice: while building, where sizes may be unknown (-1), and for each new set of
 * concrete shapes. */
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "graph/graph.h"

const char *dvm_shape_str(const struct dvm_shape *s, char *buf, size_t cap) {
    if (s->rank < 0) {
        snprintf(buf, cap, "[*]");
        return buf;
    }
    size_t n = (size_t)snprintf(buf, cap, "[");
    for (int i = 0; i < s->rank && n < cap; i++) {
        const char *sep = i ? ", " : "";
        n += (size_t)(s->d[i] < 0 ? snprintf(buf + n, cap - n, "%s?", sep)
                                  : snprintf(buf + n, cap - n, "%s%lld", sep, (long long)s->d[i]));
    }
    if (n < cap) snprintf(buf + n, cap - n, "]");
    return buf;
}

enum { STR = 24 * DVM_MAX_RANK };

static dvm_status check_size(const struct dvm_shape *s) {
    int64_t n = 1;
    char b[STR];
    for (int i = 0; i < s->rank; i++) {
        int64_t d = s->d[i] > 0 ? s->d[i] : 1;
        if (!dvm_mul_ok(n, d, &n) || n > INT64_MAX / 16)
            DVM_FAIL(LIMIT, "a tensor of shape %s has more elements than 2^59",
                     dvm_shape_str(s, b, STR));
    }
    return DVM_OK;
}

/* numpy broadcasting, right-aligned. An unknown size against 1 or unknown stays unknown. */
static dvm_status broadcast2(struct dvm_shape *a, const struct dvm_shape *b) {
    if (a->rank < 0 || b->rank < 0) {
        a->rank = -1;
        return DVM_OK;
    }
    if (a->rank == b->rank && !memcmp(a->d, b->d, sizeof a->d[0] * (size_t)a->rank)) return DVM_OK;
    struct dvm_shape r = {.rank = DVM_MAX(a->rank, b->rank)};
    for (int i = 0; i < r.rank; i++) {
        int64_t x = i < r.rank - a->rank ? 1 : a->d[i - (r.rank - a->rank)];
        int64_t y = i < r.rank - b->rank ? 1 : b->d[i - (r.rank - b->rank)];
        if (x == y || y == 1)
            r.d[i] = x;
        else if (x == 1)
            r.d[i] = y;
        else if (x < 0 || y < 0)
            r.d[i] = DVM_MAX(x, y);
        else {
            char sa[STR], sb[STR];
            DVM_FAIL(SHAPE,
                     "shapes %s and %s do not broadcast: sizes %lld and %lld at axis %d from the "
                     "right must be equal or 1",
                     dvm_shape_str(a, sa, STR), dvm_shape_str(b, sb, STR), (long long)x,
                     (long long)y, r.rank - i);
        }
    }
    *a = r;
    return DVM_OK;
}

static dvm_status rule_ew(int n_in, const struct dvm_shape *const *in, struct dvm_shape *out) {
    *out = *in[0];
    for (int i = 1; i < n_in; i++) DVM_TRY(broadcast2(out, in[i]));
    return DVM_OK;
}

static dvm_status rule_dims(int rank, const int64_t *dims, struct dvm_shape *out) {
    out->rank = rank;
    for (int i = 0; i < rank; i++) {
        if (dims[i] != DVM_DIM_UNKNOWN && dims[i] < -1)
            DVM_FAIL(SHAPE, "negative size %lld at axis %d", (long long)dims[i], i);
        out->d[i] = dims[i] == DVM_DIM_UNKNOWN ? -1 : dims[i];
    }
    return DVM_OK;
}

static dvm_status rule_broadcast(const struct dvm_node *nd, const int64_t *at,
                                 const struct dvm_shape *x, struct dvm_shape *out) {
    int rank = (int)nd->nattr;
    DVM_TRY(rule_dims(rank, at, out));
    if (x->rank < 0) {
        for (int i = 0; i < rank; i++)
            if (at[i] == -1) out->d[i] = -1;
        return DVM_OK;
    }
    char a[STR], b[STR];
    if (x->rank > rank)
        DVM_FAIL(SHAPE, "cannot broadcast shape %s to %s: the target has fewer axes",
                 dvm_shape_str(x, a, STR), dvm_shape_str(out, b, STR));
    for (int i = 0; i < rank; i++) {
        int j = i - (rank - x->rank);
        int64_t have = j < 0 ? 1 : x->d[j];
        if (at[i] == -1) {
            if (j < 0)
                DVM_FAIL(SHAPE,
                         "broadcast size -1 at axis %d keeps a size, but shape %s has no such axis",
                         i, dvm_shape_str(x, a, STR));
            out->d[i] = have;
        } else if (out->d[i] >= 0 && have >= 0 && have != 1 && have != out->d[i]) {
            DVM_FAIL(SHAPE,
                     "cannot broadcast shape %s to %s: size %lld at axis %d is neither 1 nor %lld",
                     dvm_shape_str(x, a, STR), dvm_shape_str(out, b, STR), (long long)have, j,
                     (long long)out->d[i]);
        }
    }
    return DVM_OK;
}

static bool numel_known(const struct dvm_shape *s, int64_t *n) {
    *n = 1;
    if (s->rank < 0) return false;
    for (int i = 0; i < s->rank; i++) {
        if (s->d[i] < 0) return false;
        if (!dvm_mul_ok(*n, s->d[i], n)) return false;
    }
    return true;
}

static dvm_status rule_reshape(const struct dvm_node *nd, const int64_t *at,
                               const struct dvm_shape *x, struct dvm_shape *out) {
    int rank = (int)nd->nattr, hole = -1;
    DVM_TRY(rule_dims(rank, at, out));
    int64_t known = 1, total;
    bool all = true;
    for (int i = 0; i < rank; i++) {
        if (at[i] == -1) {
            if (hole >= 0)
                DVM_FAIL(SHAPE, "reshape has -1 at axes %d and %d: only one size can be inferred",
                         hole, i);
            hole = i;
        } else if (out->d[i] < 0)
            all = false;
        else if (!dvm_mul_ok(known, out->d[i], &known))
            DVM_FAIL(LIMIT, "reshape target has too many elements");
    }
    if (!numel_known(x, &total) || !all) return DVM_OK;
    char a[STR], b[STR];
    if (hole >= 0) {
        if (known == 0 || total % known != 0)
            DVM_FAIL(SHAPE, "cannot reshape %s to %s: %lld elements are no multiple of %lld",
                     dvm_shape_str(x, a, STR), dvm_shape_str(out, b, STR), (long long)total,
                     (long long)known);
        out->d[hole] = total / known;
    } else if (total != known) {
        DVM_FAIL(SHAPE, "cannot reshape %s to %s: %lld elements against %lld",
                 dvm_shape_str(x, a, STR), dvm_shape_str(out, b, STR), (long long)total,
                 (long long)known);
    }
    return DVM_OK;
}

static dvm_status rule_permute(const struct dvm_node *nd, const int64_t *at,
                               const struct dvm_shape *x, struct dvm_shape *out) {
    char a[STR];
    int rank = (int)nd->nattr;
    unsigned seen = 0;
    if (x->rank >= 0 && x->rank != rank)
        DVM_FAIL(SHAPE, "permutation of %d axes for shape %s of rank %d", rank,
                 dvm_shape_str(x, a, STR), x->rank);
    out->rank = rank;
    for (int i = 0; i < rank; i++) {
        int64_t p = at[i] < 0 ? at[i] + rank : at[i];
        if (p < 0 || p >= rank)
            DVM_FAIL(SHAPE, "axis %lld at place %d is out of range for shape %s of rank %d",
                     (long long)at[i], i, dvm_shape_str(x, a, STR), rank);
        if (seen >> p & 1)
            DVM_FAIL(SHAPE, "axis %lld at place %d is there twice", (long long)at[i], i);
        seen |= 1u << p;
        out->d[i] = x->rank < 0 ? -1 : x->d[p];
    }
    return DVM_OK;
}

void dvm_slice_clamp(int64_t dim, int64_t start, int64_t size, int64_t step, int64_t *lo,
                     int64_t *count) {
    if (start < 0) start += dim;
    int64_t room;
    if (step > 0) {
        start = DVM_MIN(DVM_MAX(start, 0), dim);
        room = (dim - start) / step + ((dim - start) % step != 0);
    } else {
        start = DVM_MIN(DVM_MAX(start, -1), dim - 1);
        room = start < 0 ? 0 : start / -step + 1;
    }
    *lo = room > 0 ? start : 0;
    *count = size < 0 ? room : DVM_MIN(size, room);
}

static dvm_status rule_slice(const struct dvm_node *nd, const int64_t *at,
                             const struct dvm_shape *x, struct dvm_shape *out) {
    char a[STR];
    int rank = (int)nd->nattr / 3;
    if (x->rank >= 0 && x->rank != rank)
        DVM_FAIL(SHAPE, "slice of %d axes for shape %s of rank %d", rank, dvm_shape_str(x, a, STR),
                 x->rank);
    out->rank = rank;
    for (int i = 0; i < rank; i++) {
        int64_t start = at[i], size = at[rank + i], step = at[2 * rank + i], lo;
        if (step == 0 || step == INT64_MIN)
            DVM_FAIL(SHAPE, "slice step %lld at axis %d", (long long)step, i);
        if (x->rank < 0 || x->d[i] < 0 || start == DVM_DIM_UNKNOWN || size == DVM_DIM_UNKNOWN) {
            out->d[i] = -1;
            continue;
        }
        if (size < -1) DVM_FAIL(SHAPE, "slice size %lld at axis %d", (long long)size, i);
        dvm_slice_clamp(x->d[i], start, size, step, &lo, &out->d[i]);
    }
    return DVM_OK;
}

static dvm_status axis_of(int64_t axis, int rank, const struct dvm_shape *x, int *out) {
    char a[STR];
    int64_t v = axis < 0 ? axis + rank : axis;
    if (v < 0 || v >= rank)
        DVM_FAIL(SHAPE, "axis %lld is out of range for shape %s of rank %d", (long long)axis,
                 dvm_shape_str(x, a, STR), rank);
    *out = (int)v;
    return DVM_OK;
}

static dvm_status rule_reduce(const struct dvm_node *nd, const int64_t *at,
                              const struct dvm_shape *x, struct dvm_shape *out) {
    bool keep = at[0] != 0;
    int n = (int)nd->nattr - 1, r = 0;
    unsigned mask = 0;
    if (x->rank < 0) {
        out->rank = n == 0 && !keep ? 0 : -1;
        return DVM_OK;
    }
    for (int i = 0; i < n; i++) {
        int a;
        DVM_TRY(axis_of(at[1 + i], x->rank, x, &a));
        if (mask >> a & 1) DVM_FAIL(SHAPE, "axis %lld is reduced twice", (long long)at[1 + i]);
        mask |= 1u << a;
    }
    if (n == 0) mask = ~0u;
    bool arg = nd->op == DVM_OP_ARGMAX || nd->op == DVM_OP_ARGMIN,
         needs_one = arg || nd->op == DVM_OP_RMAX || nd->op == DVM_OP_RMIN;
    if (arg && n > 1)
        DVM_FAIL(SHAPE, "%s works along one axis or over all, not over %d",
                 dvm_op_table[nd->op].text, n);
    int64_t kept = 1;
    for (int i = 0; i < x->rank; i++) {
        if (!(mask >> i & 1)) {
            out->d[r++] = x->d[i];
            kept *= x->d[i] != 0;
            continue;
        }
        if (keep) out->d[r++] = 1;
    }
    out->rank = r;
    for (int i = 0; needs_one && kept && i < x->rank; i++)
        if ((mask >> i & 1) && x->d[i] == 0)
            DVM_FAIL(SHAPE, "%s over axis %d of size 0 has no result", dvm_op_table[nd->op].text,
                     i);
    return DVM_OK;
}

static dvm_status rule_gather(const int64_t *at, const struct dvm_shape *x,
                              const struct dvm_shape *idx, struct dvm_shape *out) {
    char a[STR], b[STR];
    int axis;
    if (x->rank < 0 || idx->rank < 0) {
        out->rank = -1;
        return DVM_OK;
    }
    if (x->rank == 0) DVM_FAIL(SHAPE, "gather from a tensor of rank 0");
    DVM_TRY(axis_of(at[0], x->rank, x, &axis));
    if (at[1] == 0) {
        bool fits = idx->rank == x->rank;
        for (int i = 0; fits && i < x->rank; i++)
            fits = i == axis || idx->d[i] == x->d[i] || idx->d[i] < 0 || x->d[i] < 0;
        if (!fits)
            DVM_FAIL(SHAPE,
                     "gather along axis %d of %s: the index %s must have the same sizes on all "
                     "other axes",
                     axis, dvm_shape_str(x, a, STR), dvm_shape_str(idx, b, STR));
        *out = *idx;
        return DVM_OK;
    }
    if (x->rank - 1 + idx->rank > DVM_MAX_RANK)
        DVM_FAIL(LIMIT, "gather result has more than %d axes", DVM_MAX_RANK);
    int r = 0;
    for (int i = 0; i < axis; i++) out->d[r++] = x->d[i];
    for (int i = 0; i < idx->rank; i++) out->d[r++] = idx->d[i];
    for (int i = axis + 1; i < x->rank; i++) out->d[r++] = x->d[i];
    out->rank = r;
    return DVM_OK;
}

static dvm_status rule_concat(const int64_t *at, int n, const struct dvm_shape *const *in,
                              struct dvm_shape *out) {
    char a[STR], b[STR];
    int axis;
    *out = *in[0];
    for (int k = 0; k < n; k++)
        if (in[k]->rank < 0) {
            out->rank = -1;
            return DVM_OK;
        }
    if (out->rank == 0) DVM_FAIL(SHAPE, "concat of tensors of rank 0");
    DVM_TRY(axis_of(at[0], out->rank, out, &axis));
    for (int k = 1; k < n; k++) {
        bool fits = in[k]->rank == out->rank;
        for (int i = 0; fits && i < out->rank; i++) {
            if (i == axis) continue;
            fits = in[k]->d[i] == out->d[i] || in[k]->d[i] < 0 || out->d[i] < 0;
            out->d[i] = DVM_MAX(out->d[i], in[k]->d[i]);
        }
        if (!fits)
            DVM_FAIL(SHAPE,
                     "concat along axis %d: operand %d has shape %s, operand 0 has %s; all other "
                     "sizes must be equal",
                     axis, k, dvm_shape_str(in[k], a, STR), dvm_shape_str(in[0], b, STR));
        bool known = out->d[axis] >= 0 && in[k]->d[axis] >= 0;
        if (!known)
            out->d[axis] = -1;
        else if (!dvm_add_ok(out->d[axis], in[k]->d[axis], &out->d[axis]))
            DVM_FAIL(LIMIT, "concat result is too large");
    }
    return DVM_OK;
}

/* Rows and columns of a matrix operand. */
struct matrix {
    int64_t r, c;
};
static struct matrix matrix_of(const struct dvm_shape *s, bool trans) {
    int64_t r = s->d[s->rank - 2], c = s->d[s->rank - 1];
    return trans ? (struct matrix){c, r} : (struct matrix){r, c};
}

static bool may_equal(int64_t a, int64_t b) { return a < 0 || b < 0 || a == b; }

static dvm_status rule_matmul(const int64_t *at, const struct dvm_shape *a,
                              const struct dvm_shape *b, struct dvm_shape *out) {
    char sa[STR], sb[STR];
    if ((a->rank >= 0 && a->rank < 2) || (b->rank >= 0 && b->rank < 2))
        DVM_FAIL(SHAPE, "operands of shapes %s and %s: a matrix has at least 2 axes",
                 dvm_shape_str(a, sa, STR), dvm_shape_str(b, sb, STR));
    if (a->rank < 0 || b->rank < 0) {
        out->rank = -1;
        return DVM_OK;
    }
    struct matrix x = matrix_of(a, at[0] != 0), y = matrix_of(b, at[1] != 0);
    if (!may_equal(x.c, y.r))
        DVM_FAIL(SHAPE,
                 "operands of shapes %s%s and %s%s: the inner sizes %lld and %lld must be equal",
                 dvm_shape_str(a, sa, STR), at[0] ? " (transposed)" : "", dvm_shape_str(b, sb, STR),
                 at[1] ? " (transposed)" : "", (long long)x.c, (long long)y.r);
    struct dvm_shape batch = *b;
    *out = *a;
    out->rank -= 2;
    batch.rank -= 2;
    dvm_status st = broadcast2(out, &batch);
    if (st != DVM_OK)
        return dvm_err_context(st, "batch axes of operands of shapes %s and %s: ",
                               dvm_shape_str(a, sa, STR), dvm_shape_str(b, sb, STR));
    out->d[out->rank++] = x.r;
    out->d[out->rank++] = y.c;
    return DVM_OK;
}

static dvm_status rule_grouped(const int64_t *at, const struct dvm_shape *const *in,
                               struct dvm_shape *out) {
    const struct dvm_shape *a = in[0], *b = in[1], *list = in[2];
    char sa[STR], sb[STR], sl[STR];
    bool by_rows = at[2] == DVM_GROUP_M;
    int rb = by_rows ? 3 : 2;
    bool ranks = may_equal(a->rank, 2) && may_equal(b->rank, rb) && may_equal(list->rank, 1);
    if (!ranks)
        DVM_FAIL(SHAPE,
                 "operands of shapes %s and %s, group list of shape %s: groups of %s take ranks 2, "
                 "%d and 1",
                 dvm_shape_str(a, sa, STR), dvm_shape_str(b, sb, STR), dvm_shape_str(list, sl, STR),
                 by_rows ? "rows" : "columns", rb);
    struct matrix x = {-1, -1}, y = x;
    int64_t groups = list->rank < 0 ? -1 : list->d[0];
    if (a->rank >= 0) x = matrix_of(a, at[0] != 0);
    if (b->rank >= 0) y = matrix_of(b, at[1] != 0);
    if (!may_equal(x.c, y.r))
        DVM_FAIL(SHAPE, "operands of shapes %s and %s: the inner sizes %lld and %lld must be equal",
                 dvm_shape_str(a, sa, STR), dvm_shape_str(b, sb, STR), (long long)x.c,
                 (long long)y.r);
    if (by_rows && b->rank >= 0 && !may_equal(b->d[0], groups))
        DVM_FAIL(SHAPE, "operands of shapes %s and %s for %lld groups (group list of shape %s)",
                 dvm_shape_str(a, sa, STR), dvm_shape_str(b, sb, STR), (long long)groups,
                 dvm_shape_str(list, sl, STR));
    if (by_rows)
        *out = (struct dvm_shape){.rank = 2, .d = {x.r, y.c}};
    else
        *out = (struct dvm_shape){.rank = 3, .d = {groups, x.r, y.c}};
    return DVM_OK;
}

static dvm_status rule_store(const struct dvm_node *nd, const struct dvm_shape *x,
                             struct dvm_shape *out) {
    char a[STR];
    if (nd->nattr > 1 && x->rank >= 0 && (int)nd->nattr - 1 != x->rank)
        DVM_FAIL(SHAPE, "store with %d strides of a value of shape %s", (int)nd->nattr - 1,
                 dvm_shape_str(x, a, STR));
    *out = *x;
    return DVM_OK;
}

static dvm_status rule(const struct dvm_node *nd, const int64_t *at, int n_in,
                       const struct dvm_shape *const *in, struct dvm_shape *out) {
    switch (nd->op) {
    case DVM_OP_LOAD:
        if (nd->rank < 0) {
            out->rank = -1;
            return DVM_OK;
        }
        return rule_dims(nd->rank, at + 2, out);
    case DVM_OP_SCALAR:
    case DVM_OP_CONST: out->rank = 0; return DVM_OK;
    case DVM_OP_SIZE: {
        int a;
        for (uint32_t i = 0; in[0]->rank >= 0 && i < nd->nattr; i++)
            DVM_TRY(axis_of(at[i], in[0]->rank, in[0], &a));
        out->rank = 0;
        return DVM_OK;
    }
    case DVM_OP_IOTA: return rule_dims((int)nd->nattr - 1, at + 1, out);
    case DVM_OP_BROADCAST: return rule_broadcast(nd, at, in[0], out);
    case DVM_OP_RESHAPE: return rule_reshape(nd, at, in[0], out);
    case DVM_OP_PERMUTE: return rule_permute(nd, at, in[0], out);
    case DVM_OP_SLICE: return rule_slice(nd, at, in[0], out);
    case DVM_OP_CUMSUM: *out = *in[0]; return DVM_OK;
    case DVM_OP_GATHER: return rule_gather(at, in[0], in[1], out);
    case DVM_OP_CONCAT: return rule_concat(at, n_in, in, out);
    case DVM_OP_MATMUL: return rule_matmul(at, in[0], in[1], out);
    case DVM_OP_GROUPED: return rule_grouped(at, in, out);
    case DVM_OP_STORE: return rule_store(nd, in[0], out);
    default: break;
    }
    if (dvm_op_table[nd->op].cls == DVM_CLS_RED) return rule_reduce(nd, at, in[0], out);
    return rule_ew(n_in, in, out);
}

dvm_status dvm_shape_rule(const struct dvm_node *nd, const int64_t *at, int n_in,
                          const struct dvm_shape *const *in, struct dvm_shape *out) {
    DVM_TRY(rule(nd, at, n_in, in, out));
    return check_size(out);
}

/* Depth is bounded by the table: an expression only names earlier entries. */
static int64_t expr_value(const struct dvm_dim_env *e, uint32_t id) {
    const struct dvm_dim_expr *x = &e->g->expr.p[id];
    int64_t v = 0, a, b;
    if (x->kind == DVM_DIMX_CONST) return x->a;
    if (x->kind == DVM_DIMX_SCALAR)
        return e->scalar && e->scalar(e, (dvm_ref)x->a, &v) ? v : DVM_DIM_UNKNOWN;
    if (x->kind == DVM_DIMX_OF) {
        const struct dvm_shape *s = e->shape_of(e, (dvm_ref)x->a);
        if (!s || s->rank < 0) return DVM_DIM_UNKNOWN;
        int64_t ax = x->b < 0 ? x->b + s->rank : x->b;
        return ax < 0 || ax >= s->rank || s->d[ax] < 0 ? DVM_DIM_UNKNOWN : s->d[ax];
    }
    a = dvm_dim_value(e, x->a);
    b = dvm_dim_value(e, x->b);
    if (a == DVM_DIM_UNKNOWN || b == DVM_DIM_UNKNOWN) return DVM_DIM_UNKNOWN;
    bool ok = true;
    switch (x->kind) {
    case DVM_DIM_ADD: ok = !__builtin_add_overflow(a, b, &v); break;
    case DVM_DIM_SUB: ok = !__builtin_sub_overflow(a, b, &v); break;
    case DVM_DIM_MUL: ok = !__builtin_mul_overflow(a, b, &v); break;
    case DVM_DIM_FLOORDIV:
        ok = b != 0 && b != -1;
        if (ok)
            v = a / b - (a % b != 0 && (a ^ b) < 0);
        else if (b == -1)
            ok = !__builtin_sub_overflow((int64_t)0, a, &v);
        break;
    case DVM_DIM_MOD:
        ok = b != 0;
        if (ok && b != -1) {
            v = a % b;
            if (v != 0 && (v ^ b) < 0) v += b;
        }
        break;
    case DVM_DIM_MAX: v = DVM_MAX(a, b); break;
    default: v = DVM_MIN(a, b); break;
    }
    return ok ? v : DVM_DIM_UNKNOWN;
}

int64_t dvm_dim_value(const struct dvm_dim_env *e, int64_t d) {
    return dvm_dim_is_expr(d) ? expr_value(e, dvm_dim_expr_id(d)) : d;
}
