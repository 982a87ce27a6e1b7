/* Shapes, then values, one statement at a time, everything in memory, index by index. */
#include "oracle_int.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int wrong(char *err, size_t cap, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(err, cap, fmt, ap);
    va_end(ap);
    return -1;
}

#define V(i) (&o->v[i])
#define TRY(x)             \
    do {                   \
        int r_ = (x);      \
        if (r_) return r_; \
    } while (0)

/* ------------------------------------------------------------------ what the caller sets */

const char *oracle_name(const oracle *o) { return o->name; }
uint32_t oracle_flags(const oracle *o) { return o->flags; }

int oracle_set(oracle *o, const char *name, double v) {
    for (int i = 0; i < o->nknown; i++) {
        struct known *k = &o->known[i];
        if (strcmp(k->name, name)) continue;
        if (k->value >= 0 && V(k->value)->op == DVM_OP_LOAD) return 0;
        k->v = v;
        k->set = true;
        return 1;
    }
    return 0;
}

int oracle_set_shape(oracle *o, const char *name, int rank, const int64_t *dims) {
    for (int i = 0; i < o->nknown; i++) {
        struct known *k = &o->known[i];
        if (strcmp(k->name, name) || k->value < 0 || V(k->value)->op != DVM_OP_LOAD) continue;
        k->rank = rank;
        memcpy(k->dims, dims, (size_t)rank * sizeof *dims);
        k->set = true;
        return 1;
    }
    return 0;
}

const char *oracle_known(const oracle *o, int i, int *set) {
    if (i >= o->nknown) return NULL;
    if (set) *set = o->known[i].set;
    return o->known[i].name;
}

static const struct known *known_of(const oracle *o, int value) {
    for (int i = 0; i < o->nknown; i++)
        if (o->known[i].value == value) return &o->known[i];
    return NULL;
}

/* ------------------------------------------------------------------ sizes */

struct bind {
    oracle *o;
    char *err;
    size_t cap;
};

/* Nonzero: no such number. */
static int dim_op(int op, int64_t a, int64_t b, int64_t *out) {
    switch (op) {
    case DVM_DIM_ADD: return __builtin_add_overflow(a, b, out);
    case DVM_DIM_SUB: return __builtin_sub_overflow(a, b, out);
    case DVM_DIM_MUL: return __builtin_mul_overflow(a, b, out);
    case DVM_DIM_MAX: *out = a > b ? a : b; return 0;
    case DVM_DIM_MIN: *out = a < b ? a : b; return 0;
    default: break;
    }
    if (b == 0 || (a == INT64_MIN && b == -1)) return 1;
    int64_t m = a % b;
    if (m != 0 && (m < 0) != (b < 0)) m += b;
    *out = op == DVM_DIM_MOD ? m : (a - m) / b;
    return 0;
}

static int whole(struct bind *s, const struct known *k, int64_t *out) {
    if (!(fabs(k->v) < 0x1p62) || k->v != rint(k->v))
        return wrong(s->err, s->cap, "%s = %g is no size", k->name, k->v);
    *out = (int64_t)k->v;
    return 0;
}

static int size(struct bind *s, const struct dimx *d, int64_t *out) {
    oracle *o = s->o;
    int64_t a, b;
    switch (d->kind) {
    case DX_NUM: *out = d->n; return 0;
    case DX_NAME:
        if (!o->known[d->n].set)
            return wrong(s->err, s->cap, "size %s is not set", o->known[d->n].name);
        return whole(s, &o->known[d->n], out);
    case DX_SCALAR: {
        const struct known *k = known_of(o, (int)d->n);
        if (!k || !k->set) return wrong(s->err, s->cap, "scalar %s is not set", k ? k->name : "?");
        return whole(s, k, out);
    }
    case DX_OF: {
        const struct value *v = V(d->n);
        int64_t axis = d->axis < 0 ? d->axis + v->rank : d->axis;
        if (axis < 0 || axis >= v->rank)
            return wrong(s->err, s->cap, "dim(): axis %lld of rank %d", (long long)d->axis,
                         v->rank);
        *out = v->dims[axis];
        return 0;
    }
    default:
        TRY(size(s, d->a, &a));
        TRY(size(s, d->b, &b));
        if (dim_op(d->op, a, b, out))
            return wrong(s->err, s->cap, "size expression overflows or divides by zero");
        return 0;
    }
}

static int sizes(struct bind *s, struct dimx *const *d, int n, int64_t *out) {
    for (int i = 0; i < n; i++) TRY(size(s, d[i], &out[i]));
    return 0;
}

/* ------------------------------------------------------------------ shapes */

static int bad_shape(struct bind *s, const struct value *v, const char *why) {
    char shapes[200] = "";
    for (int i = 0; i < v->nin && i < 3; i++) {
        const struct value *x = &s->o->v[v->in[i]];
        size_t n = strlen(shapes);
        n += (size_t)snprintf(shapes + n, sizeof shapes - n, " [");
        for (int k = 0; k < x->rank && n < sizeof shapes; k++)
            n += (size_t)snprintf(shapes + n, sizeof shapes - n, "%s%lld", k ? ", " : "",
                                  (long long)x->dims[k]);
        if (n < sizeof shapes) snprintf(shapes + n, sizeof shapes - n, "]");
    }
    return wrong(s->err, s->cap, "value %d: %s (operands%s)", (int)(v - s->o->v), why, shapes);
}

static int shape_ew(struct bind *s, struct value *v) {
    oracle *o = s->o;
    for (int i = 0; i < v->nin; i++)
        v->rank = V(v->in[i])->rank > v->rank ? V(v->in[i])->rank : v->rank;
    for (int k = 0; k < v->rank; k++) {
        int64_t d = 1;
        for (int i = 0; i < v->nin; i++) {
            const struct value *x = V(v->in[i]);
            int at = k - (v->rank - x->rank);
            int64_t e = at < 0 ? 1 : x->dims[at];
            if (e == 1 || e == d) continue;
            if (d != 1) return bad_shape(s, v, "shapes do not broadcast");
            d = e;
        }
        v->dims[k] = d;
    }
    return 0;
}

static int shape_view(struct bind *s, struct value *v, const struct value *x) {
    int64_t known = 1;
    int hole = -1;
    switch (v->op) {
    case DVM_OP_PERMUTE:
        if (v->naxes != x->rank) return bad_shape(s, v, "permutation of another rank");
        v->rank = x->rank;
        for (int k = 0; k < v->rank; k++) {
            int64_t p = v->axes[k] < 0 ? v->axes[k] + v->rank : v->axes[k];
            if (p < 0 || p >= v->rank) return bad_shape(s, v, "axis out of range");
            v->axes[k] = p;
            v->dims[k] = x->dims[p];
        }
        return 0;
    case DVM_OP_RESHAPE:
        v->rank = v->n1;
        for (int k = 0; k < v->rank; k++) {
            v->dims[k] = v->ia[k];
            if (v->ia[k] == -1)
                hole = k;
            else if (v->ia[k] < 0 || __builtin_mul_overflow(known, v->ia[k], &known))
                return bad_shape(s, v, "negative or too large");
        }
        if (hole >= 0 && known == 0) return bad_shape(s, v, "-1 beside a size of 0");
        if (hole >= 0) v->dims[hole] = x->n / known;
        if (hole >= 0 ? x->n % known != 0 : x->n != known)
            return bad_shape(s, v, "other number of elements");
        return 0;
    case DVM_OP_BROADCAST:
        v->rank = v->n1;
        if (x->rank > v->rank) return bad_shape(s, v, "fewer axes");
        for (int k = 0; k < v->rank; k++) {
            int at = k - (v->rank - x->rank);
            int64_t have = at < 0 ? 1 : x->dims[at];
            v->dims[k] = v->ia[k] == -1 ? have : v->ia[k];
            if (have != 1 && have != v->dims[k]) return bad_shape(s, v, "size is not 1");
        }
        return 0;
    default: break;
    }
    if (v->n1 != x->rank) return bad_shape(s, v, "slice of another rank");
    v->rank = x->rank;
    for (int k = 0; k < v->rank; k++) {
        int64_t d = x->dims[k], start = v->ia[k] < 0 ? v->ia[k] + d : v->ia[k],
                step = v->n3 ? v->ic[k] : 1;
        if (step == 0) return bad_shape(s, v, "a step of 0");
        if (step > 0)
            start = start < 0 ? 0 : start > d ? d : start;
        else
            start = start < -1 ? -1 : start > d - 1 ? d - 1 : start;
        /* steps until the end of the axis, rounded up */
        int64_t room = step > 0 ? d - start : start + 1;
        uint64_t by = step > 0 ? (uint64_t)step : 0 - (uint64_t)step;
        int64_t n = room > 0 ? (int64_t)(((uint64_t)room - 1) / by) + 1 : 0;
        if (v->ib[k] >= 0 && n > v->ib[k]) n = v->ib[k];
        v->ia[k] = start;
        v->ic[k] = step;
        v->dims[k] = n;
    }
    return 0;
}

static unsigned axis_mask(const struct value *v, const struct value *x) {
    unsigned mask = v->naxes ? 0 : ~0u;
    for (int i = 0; i < v->naxes; i++)
        mask |= 1u << (v->axes[i] < 0 ? v->axes[i] + x->rank : v->axes[i]);
    return mask;
}

static int check_axes(struct bind *s, const struct value *v, const struct value *x) {
    for (int i = 0; i < v->naxes; i++)
        if (v->axes[i] < -x->rank || v->axes[i] >= x->rank)
            return bad_shape(s, v, "axis out of range");
    return 0;
}

static int shape_reduce(struct bind *s, struct value *v, const struct value *x) {
    TRY(check_axes(s, v, x));
    unsigned mask = axis_mask(v, x);
    for (int k = 0; k < x->rank; k++) {
        if (!(mask >> k & 1))
            v->dims[v->rank++] = x->dims[k];
        else if (v->keep)
            v->dims[v->rank++] = 1;
    }
    return 0;
}

static int shape_gather(struct bind *s, struct value *v, const struct value *x,
                        const struct value *index) {
    int64_t axis = v->axis < 0 ? v->axis + x->rank : v->axis;
    if (axis < 0 || axis >= x->rank) return bad_shape(s, v, "axis out of range");
    if (!v->mode) {
        if (index->rank != x->rank) return bad_shape(s, v, "index of another rank");
        v->rank = x->rank;
        memcpy(v->dims, index->dims, sizeof v->dims);
        for (int k = 0; k < x->rank; k++)
            if (k != axis && index->dims[k] != x->dims[k])
                return bad_shape(s, v, "index of other sizes");
        return 0;
    }
    if (x->rank - 1 + index->rank > R10) return bad_shape(s, v, "too many axes");
    for (int k = 0; k < axis; k++) v->dims[v->rank++] = x->dims[k];
    for (int k = 0; k < index->rank; k++) v->dims[v->rank++] = index->dims[k];
    for (int64_t k = axis + 1; k < x->rank; k++) v->dims[v->rank++] = x->dims[k];
    return 0;
}

static int shape_concat(struct bind *s, struct value *v) {
    oracle *o = s->o;
    const struct value *x = V(v->in[0]);
    int64_t axis = v->axis < 0 ? v->axis + x->rank : v->axis;
    if (axis < 0 || axis >= x->rank) return bad_shape(s, v, "axis out of range");
    v->rank = x->rank;
    memcpy(v->dims, x->dims, sizeof v->dims);
    for (int i = 1; i < v->nin; i++) {
        x = V(v->in[i]);
        if (x->rank != v->rank) return bad_shape(s, v, "operands of other ranks");
        for (int k = 0; k < v->rank; k++)
            if (k != axis && x->dims[k] != v->dims[k])
                return bad_shape(s, v, "operands of other sizes");
        if (__builtin_add_overflow(v->dims[axis], x->dims[axis], &v->dims[axis]))
            return bad_shape(s, v, "too large");
    }
    return 0;
}

static int shape_matmul(struct bind *s, struct value *v, const struct value *a,
                        const struct value *b) {
    if (a->rank < 2 || b->rank < 2) return bad_shape(s, v, "matrices have 2 axes");
    int64_t ka = a->dims[a->rank - (v->trans_a ? 2 : 1)],
            kb = b->dims[b->rank - (v->trans_b ? 1 : 2)];
    if (ka != kb) return bad_shape(s, v, "inner sizes differ");
    v->rank = a->rank > b->rank ? a->rank : b->rank;
    v->dims[v->rank - 2] = a->dims[a->rank - (v->trans_a ? 1 : 2)];
    v->dims[v->rank - 1] = b->dims[b->rank - (v->trans_b ? 2 : 1)];
    for (int k = 3; k <= v->rank; k++) {
        int64_t x = k > a->rank ? 1 : a->dims[a->rank - k],
                y = k > b->rank ? 1 : b->dims[b->rank - k];
        if (x != y && x != 1 && y != 1) return bad_shape(s, v, "batch axes do not broadcast");
        v->dims[v->rank - k] = x == 1 ? y : x;
    }
    return 0;
}

static int shape_grouped(struct bind *s, struct value *v, const struct value *a,
                         const struct value *b, const struct value *list) {
    bool ranks = a->rank == 2 && b->rank == (v->by_rows ? 3 : 2) && list->rank == 1;
    if (!ranks) return bad_shape(s, v, "ranks of a grouped product");
    int64_t ka = a->dims[v->trans_a ? 0 : 1], kb = b->dims[b->rank - (v->trans_b ? 1 : 2)];
    if (ka != kb) return bad_shape(s, v, "inner sizes differ");
    if (v->by_rows && b->dims[0] != list->dims[0]) return bad_shape(s, v, "groups differ");
    v->rank = v->by_rows ? 2 : 3;
    v->dims[0] = list->dims[0];
    v->dims[v->rank - 2] = a->dims[v->trans_a ? 1 : 0];
    v->dims[v->rank - 1] = b->dims[b->rank - (v->trans_b ? 2 : 1)];
    return 0;
}

static int shape_load(struct bind *s, struct value *v) {
    v->rank = v->n1;
    memcpy(v->dims, v->ia, sizeof v->dims);
    if (v->any_rank) {
        const struct known *k = known_of(s->o, (int)(v - s->o->v));
        if (!k || !k->set) return wrong(s->err, s->cap, "the shape of %s is not set", v->name);
        v->rank = k->rank;
        memcpy(v->dims, k->dims, sizeof v->dims);
    }
    for (int k = 0; k < v->rank; k++)
        if (v->dims[k] < 0)
            return wrong(s->err, s->cap, "%s has a negative size at axis %d", v->name, k);
    return 0;
}

/* Sizes beside a 0 count too: their products are strides and numbers of elements of parts. */
static int count_elements(struct bind *s, struct value *v) {
    int64_t dense = 1;
    bool empty = false;
    for (int k = 0; k < v->rank; k++) {
        int64_t d = v->dims[k];
        if (d < 0) return bad_shape(s, v, "a negative size");
        empty |= d == 0;
        if (__builtin_mul_overflow(dense, d ? d : 1, &dense) || dense > (int64_t)1 << 60)
            return bad_shape(s, v, "too large");
    }
    v->n = empty ? 0 : dense;
    return v->n > (int64_t)1 << 28 ? bad_shape(s, v, "too large for the oracle") : 0;
}

static int shape(struct bind *s, struct value *v) {
    oracle *o = s->o;
    const struct value *x = v->nin ? V(v->in[0]) : NULL;
    TRY(sizes(s, v->d1, v->n1, v->ia));
    TRY(sizes(s, v->d2, v->n2, v->ib));
    TRY(sizes(s, v->d3, v->n3, v->ic));
    v->rank = 0;
    switch (v->op) {
    case DVM_OP_SCALAR:
    case DVM_OP_CONST: break;
    case DVM_OP_SIZE: TRY(check_axes(s, v, x)); break;
    case DVM_OP_LOAD: TRY(shape_load(s, v)); break;
    case DVM_OP_IOTA:
        v->rank = v->n1;
        memcpy(v->dims, v->ia, sizeof v->dims);
        break;
    case DVM_OP_BROADCAST:
    case DVM_OP_RESHAPE:
    case DVM_OP_PERMUTE:
    case DVM_OP_SLICE: TRY(shape_view(s, v, x)); break;
    case DVM_OP_SUM:
    case DVM_OP_PROD:
    case DVM_OP_RMAX:
    case DVM_OP_RMIN:
    case DVM_OP_ANY:
    case DVM_OP_ALL:
    case DVM_OP_ARGMAX:
    case DVM_OP_ARGMIN: TRY(shape_reduce(s, v, x)); break;
    case DVM_OP_GATHER: TRY(shape_gather(s, v, x, V(v->in[1]))); break;
    case DVM_OP_CONCAT: TRY(shape_concat(s, v)); break;
    case DVM_OP_MATMUL: TRY(shape_matmul(s, v, x, V(v->in[1]))); break;
    case DVM_OP_GROUPED: TRY(shape_grouped(s, v, x, V(v->in[1]), V(v->in[2]))); break;
    default: TRY(shape_ew(s, v)); break; /* cumsum and store have one operand */
    }
    return count_elements(s, v);
}

/* The argument that an index comes from, through views and casts. */
static int source_of(const oracle *o, int v) {
    for (;;) {
        switch (V(v)->op) {
        case DVM_OP_LOAD: return V(v)->arg;
        case DVM_OP_COPY:
        case DVM_OP_CAST:
        case DVM_OP_BROADCAST:
        case DVM_OP_RESHAPE:
        case DVM_OP_PERMUTE:
        case DVM_OP_SLICE:
        case DVM_OP_STORE: v = V(v)->in[0]; break;
        default: return -1;
        }
    }
}

static void fill_io(const struct value *v, struct oracle_io *io) {
    *io = (struct oracle_io){
        .name = v->name, .dtype = v->dtype, .scalar = v->op == DVM_OP_SCALAR, .rank = v->rank};
    int64_t dense = 1;
    for (int k = v->rank - 1; k >= 0; k--) {
        io->dims[k] = v->dims[k];
        io->strides[k] = v->n2 ? v->ib[k] : dense;
        dense *= v->dims[k] > 0 ? v->dims[k] : 1;
    }
}

int oracle_bind(oracle *o, char *err, size_t cap) {
    struct bind s = {o, err, cap};
    o->io_in = keep_block(o, (size_t)(o->nin + 1) * sizeof *o->io_in);
    o->io_out = keep_block(o, (size_t)(o->nout + 1) * sizeof *o->io_out);
    if (!o->io_in || !o->io_out) return wrong(err, cap, "out of memory");
    for (int i = 0; i < o->nv; i++) {
        free(V(i)->x);
        V(i)->x = NULL;
        V(i)->uses = 0;
        for (int k = 0; k < V(i)->nin; k++) V(V(i)->in[k])->uses++;
        TRY(shape(&s, V(i)));
        if (V(i)->op == DVM_OP_LOAD || V(i)->op == DVM_OP_SCALAR)
            fill_io(V(i), &o->io_in[V(i)->arg]);
        if (V(i)->op == DVM_OP_STORE) fill_io(V(i), &o->io_out[V(i)->arg]);
        if (V(i)->op == DVM_OP_GATHER && source_of(o, V(i)->in[1]) >= 0) {
            const struct value *x = V(V(i)->in[0]);
            int64_t n = x->dims[V(i)->axis < 0 ? V(i)->axis + x->rank : V(i)->axis];
            int64_t *limit = &o->io_in[source_of(o, V(i)->in[1])].limit;
            *limit = *limit == 0 || n < *limit ? n : *limit;
        }
    }
    for (int i = 0; i < o->nknown; i++) {
        const struct known *k = &o->known[i];
        if (k->value < 0 || V(k->value)->op != DVM_OP_SCALAR) continue;
        if (!k->set) return wrong(err, cap, "scalar %s is not set", k->name);
        struct value *v = V(k->value);
        v->constant =
            is_f(v->dtype) ? of_float(round_to(v->dtype, k->v), 0) : of_int(to_int(k->v, v->dtype));
        if (is_f(v->dtype))
            o->io_in[v->arg].num.f = v->constant.v;
        else
            o->io_in[v->arg].num.i = v->constant.i;
    }
    return 0;
}

int oracle_inputs(const oracle *o) { return o->nin; }
int oracle_outputs(const oracle *o) { return o->nout; }
const struct oracle_io *oracle_input(const oracle *o, int i) { return &o->io_in[i]; }
const struct oracle_io *oracle_output(const oracle *o, int i) { return &o->io_out[i]; }

/* ------------------------------------------------------------------ values */

/* Index of element k of a value of this shape, axis by axis. */
static void unravel(const struct value *v, int64_t k, int64_t *at) {
    for (int a = v->rank - 1; a >= 0; a--) {
        at[a] = k % v->dims[a];
        k /= v->dims[a];
    }
}
static int64_t ravel(const struct value *v, const int64_t *at) {
    int64_t k = 0;
    for (int a = 0; a < v->rank; a++) k = k * v->dims[a] + at[a];
    return k;
}
/* Element of operand x at the index of a value of rank `rank`, by broadcasting. */
static elem pick(const struct value *x, int rank, const int64_t *at) {
    int64_t k = 0;
    if (x->n == 1) return x->x[0];
    for (int a = 0; a < x->rank; a++)
        k = k * x->dims[a] + (x->dims[a] == 1 ? 0 : at[a + rank - x->rank]);
    return x->x[k];
}

int oracle_feed(oracle *o, int i, const void *data, const int64_t *strides) {
    struct value *v = V(o->in[i]);
    const struct oracle_io *io = &o->io_in[i];
    size_t bytes = size_of(v->dtype);
    int64_t at[R10];
    if (v->op != DVM_OP_LOAD) return 0;
    free(v->x);
    v->x = malloc((size_t)(v->n + 1) * sizeof *v->x);
    if (!v->x) return -1;
    for (int64_t k = 0; k < v->n; k++) {
        int64_t off = 0;
        unravel(v, k, at);
        for (int a = 0; a < v->rank; a++) off += at[a] * (strides ? strides : io->strides)[a];
        v->x[k] = load_elem(v->dtype, (const char *)data + off * (int64_t)bytes);
    }
    return 0;
}

static int run_ew(oracle *o, struct value *v, bool strict) {
    const struct value *in[3] = {0};
    for (int i = 0; i < v->nin; i++) in[i] = V(v->in[i]);
    dvm_dtype t = in[v->op == DVM_OP_SELECT ? 1 : 0]->dtype;
    int64_t at[R10];
    for (int64_t k = 0; k < v->n; k++) {
        elem x[3] = {{.i = 0}};
        unravel(v, k, at);
        for (int i = 0; i < v->nin; i++) x[i] = pick(in[i], v->rank, at);
        v->x[k] = v->op == DVM_OP_CAST ? cast_elem(t, v->dtype, x[0]) : apply(v->op, t, x, strict);
    }
    return 0;
}

static void run_view(struct value *v, const struct value *x) {
    int64_t at[R10], from[R10];
    for (int64_t k = 0; k < v->n; k++) {
        if (v->op == DVM_OP_RESHAPE) {
            v->x[k] = x->x[k];
            continue;
        }
        unravel(v, k, at);
        if (v->op == DVM_OP_BROADCAST) {
            v->x[k] = pick(x, v->rank, at);
            continue;
        }
        for (int a = 0; a < v->rank; a++) {
            if (v->op == DVM_OP_PERMUTE)
                from[v->axes[a]] = at[a];
            else
                from[a] = v->ia[a] + at[a] * v->ic[a];
        }
        v->x[k] = x->x[ravel(x, from)];
    }
}

/* All elements of one result in row-major order of the reduced axes. */
static int run_reduce(struct value *v, const struct value *x, bool strict) {
    unsigned mask = axis_mask(v, x);
    int64_t n = 1, at[R10], full[R10];
    if (v->n == 0) return 0; /* and the part that is reduced may be of any size */
    for (int a = 0; a < x->rank; a++) n *= mask >> a & 1 ? x->dims[a] : 1;
    elem *row = malloc((size_t)(n + 1) * sizeof *row);
    if (!row) return -1;
    for (int64_t k = 0; k < v->n; k++) {
        int r = 0;
        unravel(v, k, at);
        for (int a = 0; a < x->rank; a++) {
            bool reduced = mask >> a & 1;
            full[a] = reduced ? 0 : at[r];
            r += !reduced || v->keep;
        }
        for (int64_t j = 0; j < n; j++) {
            int64_t rest = j;
            for (int a = x->rank - 1; a >= 0; a--) {
                if (!(mask >> a & 1)) continue;
                full[a] = rest % x->dims[a];
                rest /= x->dims[a];
            }
            row[j] = x->x[ravel(x, full)];
        }
        v->x[k] = reduce(v->op, x->dtype, v->dtype, row, n, strict);
    }
    free(row);
    return 0;
}

static int run_gather(struct value *v, const struct value *x, const struct value *index) {
    int axis = (int)(v->axis < 0 ? v->axis + x->rank : v->axis);
    int64_t at[R10], from[R10], where[R10];
    for (int64_t k = 0; k < v->n; k++) {
        unravel(v, k, at);
        if (v->mode) {
            for (int a = 0; a < index->rank; a++) where[a] = at[axis + a];
            for (int a = 0; a < axis; a++) from[a] = at[a];
            for (int a = axis + 1; a < x->rank; a++) from[a] = at[a - 1 + index->rank];
        } else {
            memcpy(where, at, sizeof where);
            memcpy(from, at, sizeof from);
        }
        elem i = index->x[ravel(index, where)];
        if (any(i)) {
            v->x[k] = undecided();
            continue;
        }
        from[axis] = i.i < 0 ? i.i + x->dims[axis] : i.i;
        if (from[axis] < 0 || from[axis] >= x->dims[axis]) return 1;
        v->x[k] = x->x[ravel(x, from)];
    }
    return 0;
}

/* An operand as a matrix product takes it: 16-bit values rounded. */
static elem *factors(const struct value *x) {
    elem *f = malloc((size_t)(x->n + 1) * sizeof *f);
    for (int64_t k = 0; f && k < x->n; k++)
        f[k] = is_16(x->dtype) && !any(x->x[k]) ? rounded(x->dtype, x->x[k].v, x->x[k].e) : x->x[k];
    return f;
}

/* Offset of the matrix that belongs to index `at` of a result of rank `rank`. */
static int64_t matrix_at(const struct value *x, int rank, const int64_t *at) {
    int64_t k = 0;
    for (int a = 0; a < x->rank - 2; a++)
        k = k * x->dims[a] + (x->dims[a] == 1 ? 0 : at[a + rank - x->rank]);
    return k * x->dims[x->rank - 2] * x->dims[x->rank - 1];
}

/* Where groups begin and end; -1: the list decreases or overruns `most`. */
static int group_of(const struct value *v, const struct value *list, int64_t most, int64_t row,
                    int64_t *group, int64_t *lo, int64_t *hi) {
    int64_t end = 0;
    bool found = false;
    for (int64_t g = 0; g < list->n; g++) {
        int64_t begin = end;
        end = v->sizes ? end + list->x[g].i : list->x[g].i;
        if (any(list->x[g])) return 1;
        if (end < begin || end > most) return -1;
        if (v->by_rows ? !found && row < end : g == *group) {
            found = true;
            *lo = begin;
            *hi = end;
            if (v->by_rows) *group = g;
        }
    }
    if (!found) *group = -1;
    return 0;
}

static int run_product(oracle *o, struct value *v, bool strict) {
    const struct value *a = V(v->in[0]), *b = V(v->in[1]),
                       *list = v->op == DVM_OP_GROUPED ? V(v->in[2]) : NULL;
    int64_t at[R10], r = v->rank;
    elem *fa = factors(a), *fb = factors(b);
    int st = fa && fb ? 0 : -1;
    int64_t ar = a->dims[a->rank - 1], br = b->dims[b->rank - 1]; /* row pitches */
    int64_t sak = v->trans_a ? ar : 1, sam = v->trans_a ? 1 : ar;
    int64_t sbk = v->trans_b ? 1 : br, sbn = v->trans_b ? br : 1;
    for (int64_t k = 0; st == 0 && k < v->n; k++) {
        int64_t lo = 0, hi = a->dims[a->rank - (v->trans_a ? 2 : 1)], group = -1, from = 0, to = 0;
        unravel(v, k, at);
        int64_t pa = at[r - 2] * sam, pb = at[r - 1] * sbn;
        if (list) {
            if (!v->by_rows) group = at[0];
            st = group_of(v, list, v->by_rows ? v->dims[0] : hi, at[0], &group, &from, &to);
            if (v->by_rows) pb += (group < 0 ? 0 : group) * b->dims[1] * b->dims[2];
            if (group < 0) hi = 0;
            if (!v->by_rows && group >= 0) lo = from, hi = to;
        } else {
            pa += matrix_at(a, v->rank, at);
            pb += matrix_at(b, v->rank, at);
        }
        v->x[k] = st == 1 ? undecided()
                          : dot(v->dtype, fa + pa + lo * sak, sak, fb + pb + lo * sbk, sbk, hi - lo,
                                strict);
        if (st == 1) st = 0;
    }
    free(fa);
    free(fb);
    return st;
}

static void run_concat(oracle *o, struct value *v) {
    int axis = (int)(v->axis < 0 ? v->axis + v->rank : v->axis);
    int64_t at[R10];
    for (int64_t k = 0; k < v->n; k++) {
        unravel(v, k, at);
        int i = 0;
        while (at[axis] >= V(v->in[i])->dims[axis]) at[axis] -= V(v->in[i++])->dims[axis];
        v->x[k] = V(v->in[i])->x[ravel(V(v->in[i]), at)];
    }
}

static int64_t size_value(const struct value *v, const struct value *x) {
    unsigned mask = axis_mask(v, x);
    int64_t n = 1;
    for (int a = 0; a < x->rank; a++) n *= mask >> a & 1 ? x->dims[a] : 1;
    return n;
}

static int run_one(oracle *o, struct value *v, char *err, size_t cap) {
    bool strict = o->flags & DVM_STRICT;
    const struct value *x = v->nin ? V(v->in[0]) : NULL;
    int64_t at[R10];
    if (v->op == DVM_OP_LOAD) return v->x ? 0 : wrong(err, cap, "%s was not fed", v->name);
    v->x = malloc((size_t)(v->n + 1) * sizeof *v->x);
    if (!v->x) return wrong(err, cap, "out of memory");
    switch (v->op) {
    case DVM_OP_SCALAR:
    case DVM_OP_CONST: v->x[0] = v->constant; return 0;
    case DVM_OP_SIZE: v->x[0] = of_int(size_value(v, x)); return 0;
    case DVM_OP_IOTA:
        for (int64_t k = 0; k < v->n; k++) {
            unravel(v, k, at);
            v->x[k] = of_int(wrap_to(v->dtype, at[v->axis < 0 ? v->axis + v->rank : v->axis]));
        }
        return 0;
    case DVM_OP_BROADCAST:
    case DVM_OP_RESHAPE:
    case DVM_OP_PERMUTE:
    case DVM_OP_SLICE: run_view(v, x); return 0;
    case DVM_OP_SUM:
    case DVM_OP_PROD:
    case DVM_OP_RMAX:
    case DVM_OP_RMIN:
    case DVM_OP_ANY:
    case DVM_OP_ALL:
    case DVM_OP_ARGMAX:
    case DVM_OP_ARGMIN: return run_reduce(v, x, strict) ? wrong(err, cap, "out of memory") : 0;
    case DVM_OP_CUMSUM:
        memcpy(v->x, x->x, (size_t)v->n * sizeof *v->x);
        for (int64_t row = v->rank ? v->dims[v->rank - 1] : 1, k = 0; row && k < v->n; k += row)
            running_sum(v->dtype, v->x + k, row, strict);
        return 0;
    case DVM_OP_GATHER: return run_gather(v, x, V(v->in[1]));
    case DVM_OP_CONCAT: run_concat(o, v); return 0;
    case DVM_OP_MATMUL:
    case DVM_OP_GROUPED: return run_product(o, v, strict) ? 1 : 0;
    case DVM_OP_STORE:
        for (int64_t k = 0; k < v->n; k++)
            v->x[k] = is_16(v->dtype) ? rounded(v->dtype, x->x[k].v, x->x[k].e) : x->x[k];
        return 0;
    default: return run_ew(o, v, strict);
    }
}

int oracle_run(oracle *o, char *err, size_t cap) {
    for (int i = 0; i < o->nv; i++) V(i)->left = V(i)->uses;
    for (int i = 0; i < o->nv; i++) {
        struct value *v = V(i);
        TRY(run_one(o, v, err, cap));
        for (int k = 0; k < v->nin; k++) {
            struct value *x = V(v->in[k]);
            if (--x->left > 0 || x->op == DVM_OP_STORE || x->op == DVM_OP_LOAD) continue;
            free(x->x);
            x->x = NULL;
        }
    }
    return 0;
}

/* ------------------------------------------------------------------ judging */

double oracle_value(const oracle *o, int i, int64_t k) {
    const struct value *v = V(o->out[i]);
    return is_f(v->dtype) ? v->x[k].v : (double)v->x[k].i;
}

static bool right(dvm_dtype t, elem want, elem got, double *distance, double *allowed) {
    *distance = *allowed = 0;
    if (!is_f(t)) {
        *distance = fabs((double)want.i - (double)got.i);
        return want.i == got.i;
    }
    if (isnan(want.v)) return isnan(got.v);
    if (isinf(want.v)) return got.v == want.v;
    double lo = want.v - want.e, hi = want.v + want.e;
    if (is_16(t)) {
        lo = round_to(t, lo);
        hi = round_to(t, hi);
    }
    *distance = fabs(got.v - want.v);
    *allowed = fmax(hi - want.v, want.v - lo);
    return got.v >= lo && got.v <= hi;
}

void oracle_judge(const oracle *o, int i, const void *data, const int64_t *strides,
                  struct oracle_verdict *r) {
    const struct value *v = V(o->out[i]);
    const struct oracle_io *io = &o->io_out[i];
    int64_t at[R10];
    *r = (struct oracle_verdict){.n = v->n, .at = -1};
    for (int64_t k = 0; k < v->n; k++) {
        int64_t off = 0;
        double distance, allowed;
        unravel(v, k, at);
        for (int a = 0; a < v->rank; a++) off += at[a] * (strides ? strides : io->strides)[a];
        elem got = load_elem(v->dtype, (const char *)data + off * (int64_t)size_of(v->dtype)),
             want = v->x[k];
        if (any(want)) {
            r->undecided++;
            continue;
        }
        bool ok = right(v->dtype, want, got, &distance, &allowed);
        double ulp = is_f(v->dtype) ? distance / ulp_of(v->dtype, want.v) : distance;
        bool note = !ok ? r->bad == 0 : r->bad == 0 && ulp > r->ulp;
        r->bad += !ok;
        if (isfinite(distance)) {
            r->ulp = fmax(r->ulp, ulp);
            if (distance > 0) r->part = fmax(r->part, distance / allowed);
            if (is_f(v->dtype) && want.v != 0) r->rel = fmax(r->rel, distance / fabs(want.v));
        }
        if (!note) continue;
        r->at = k;
        r->got = is_f(v->dtype) ? got.v : (double)got.i;
        r->want = is_f(v->dtype) ? want.v : (double)want.i;
        r->slack = want.e;
    }
}
