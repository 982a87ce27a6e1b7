/* Graph: the builder of dvm.h as methods that take and return Values. A method either adds its node or raises and
 * leaves the graph as it was. Dimensions are integers as in dvm.h: >= 0 known, -1 unknown, inferred or kept, other
 * negative numbers are expressions made by dim_of, dim_scalar and dim_op. */
#include "pydvm.h"

#include <string.h>

#define METHOD(name, doc) {#name, (PyCFunction)(void (*)(void))graph_##name, METH_FASTCALL, doc}

/* ---- arguments ---- */

static bool open_graph(struct graph *self) {
    if (self->g) return true;
    pydvm_fail(DVM_ERR_STATE, "this graph is closed");
    return false;
}

/* A pointer, because the value is written by the call that gives st. */
static PyObject *new_value(struct graph *graph, dvm_status st, const dvm_val *v) {
    if (st) return pydvm_raise(st);
    struct value *self = PyObject_New(struct value, pydvm.value);
    if (!self) return NULL;
    self->graph = (struct graph *)Py_NewRef((PyObject *)graph);
    self->v = *v;
    return (PyObject *)self;
}

static bool as_value(PyObject *o, dvm_val *out) {
    if (!Py_IS_TYPE(o, pydvm.value)) {
        PyErr_Format(PyExc_TypeError, "expected a _dvm.Value, given %R", o);
        return false;
    }
    *out = ((struct value *)o)->v;
    return true;
}

static bool as_int(PyObject *o, int64_t *out) {
    long long v = PyLong_AsLongLong(o);
    if (v == -1 && PyErr_Occurred()) return false;
    *out = v;
    return true;
}

static bool as_small(PyObject *o, int *out) {
    int64_t v;
    if (!as_int(o, &v)) return false;
    if (v < -(1 << 30) || v > 1 << 30) {
        pydvm_fail(DVM_ERR_ARG, "number %lld out of range", (long long)v);
        return false;
    }
    *out = (int)v;
    return true;
}

static bool as_dtype(PyObject *o, dvm_dtype *out) {
    int t;
    if (!as_small(o, &t)) return false;
    if (t < 0 || t >= DVM_NDTYPE) {
        pydvm_fail(DVM_ERR_DTYPE, "there is no dtype number %d", t);
        return false;
    }
    *out = (dvm_dtype)t;
    return true;
}

static PyObject *item(PyObject *o, Py_ssize_t i) {
    return PyTuple_Check(o) ? PyTuple_GetItem(o, i) : PyList_GetItem(o, i);
}

/* Length of a tuple or list, -1 with an exception otherwise. */
static Py_ssize_t length(PyObject *o, Py_ssize_t most, const char *what) {
    Py_ssize_t n = PyTuple_Check(o) ? PyTuple_Size(o) : PyList_Check(o) ? PyList_Size(o) : -1;
    if (n < 0)
        PyErr_Format(PyExc_TypeError, "%s: expected a tuple or list, given %R", what, o);
    else if (n > most) {
        pydvm_fail(DVM_ERR_LIMIT, "%s: %zd entries, at most %zd are possible", what, n, most);
        n = -1;
    }
    return n;
}

static int ints(PyObject *o, int64_t *out, Py_ssize_t most, const char *what) {
    Py_ssize_t n = length(o, most, what);
    for (Py_ssize_t i = 0; i < n; i++)
        if (!as_int(item(o, i), &out[i])) return -1;
    return (int)n;
}

static int small_ints(PyObject *o, int *out, Py_ssize_t most, const char *what) {
    Py_ssize_t n = length(o, most, what);
    for (Py_ssize_t i = 0; i < n; i++)
        if (!as_small(item(o, i), &out[i])) return -1;
    return (int)n;
}

static bool add_slot(struct slot **list, int *n, int *cap, dvm_dtype t, bool scalar) {
    if (*n == *cap) {
        int want = *cap ? 2 * *cap : 8;
        struct slot *p = PyMem_Realloc(*list, (size_t)want * sizeof *p);
        if (!p) {
            PyErr_NoMemory();
            return false;
        }
        *list = p;
        *cap = want;
    }
    (*list)[(*n)++] = (struct slot){(uint8_t)t, scalar};
    return true;
}

/* ---- leaves ---- */

static PyObject *graph_load(struct graph *self, PyObject *const *a, Py_ssize_t n) {
    dvm_dtype t;
    int64_t dims[DVM_MAX_RANK], strides[DVM_MAX_RANK];
    int rank = DVM_ANY_RANK;
    dvm_val v = 0;
    if (!pydvm_count("load", n, 1, 3) || !open_graph(self) || !as_dtype(a[0], &t)) return NULL;
    if (n > 1 && a[1] != Py_None && (rank = ints(a[1], dims, DVM_MAX_RANK, "shape")) < 0)
        return NULL;
    bool strided = n > 2 && a[2] != Py_None;
    if (strided) {
        int m = ints(a[2], strides, DVM_MAX_RANK, "strides");
        if (m < 0) return NULL;
        if (m != rank)
            return pydvm_fail(DVM_ERR_SHAPE, "a shape of %d dimensions with %d strides", rank, m);
    }
    dvm_status st =
        dvm_graph_load(self->g, t, rank, rank < 0 ? NULL : dims, strided ? strides : NULL, &v);
    if (!st && !add_slot(&self->in, &self->nin, &self->in_cap, t, false)) return NULL;
    return new_value(self, st, &v);
}

static PyObject *graph_scalar(struct graph *self, PyObject *const *a, Py_ssize_t n) {
    dvm_dtype t;
    dvm_val v = 0;
    if (!pydvm_count("scalar", n, 1, 1) || !open_graph(self) || !as_dtype(a[0], &t)) return NULL;
    dvm_status st = dvm_graph_scalar(self->g, t, &v);
    if (!st && !add_slot(&self->in, &self->nin, &self->in_cap, t, true)) return NULL;
    return new_value(self, st, &v);
}

static PyObject *graph_const(struct graph *self, PyObject *const *a, Py_ssize_t n) {
    dvm_dtype t;
    dvm_number number;
    dvm_val v = 0;
    if (!pydvm_count("const", n, 2, 2) || !open_graph(self) || !as_dtype(a[0], &t) ||
        !pydvm_number(a[1], t, &number))
        return NULL;
    return new_value(self, dvm_graph_const(self->g, t, number, &v), &v);
}

static PyObject *graph_iota(struct graph *self, PyObject *const *a, Py_ssize_t n) {
    dvm_dtype t;
    int64_t dims[DVM_MAX_RANK];
    int rank, axis;
    dvm_val v = 0;
    if (!pydvm_count("iota", n, 3, 3) || !open_graph(self) || !as_dtype(a[0], &t) ||
        (rank = ints(a[1], dims, DVM_MAX_RANK, "shape")) < 0 || !as_small(a[2], &axis))
        return NULL;
    return new_value(self, dvm_graph_iota(self->g, t, rank, dims, axis, &v), &v);
}

/* ---- operations ---- */

static PyObject *graph_op(struct graph *self, PyObject *const *a, Py_ssize_t n) {
    int op;
    dvm_val in[3], v = 0;
    if (!pydvm_count("op", n, 2, 4) || !open_graph(self) || !as_small(a[0], &op)) return NULL;
    if (op < 0 || op >= DVM_NOP)
        return pydvm_fail(DVM_ERR_ARG, "there is no operation number %d", op);
    for (Py_ssize_t i = 1; i < n; i++)
        if (!as_value(a[i], &in[i - 1])) return NULL;
    return new_value(self, dvm_graph_op(self->g, (dvm_op)op, (int)n - 1, in, &v), &v);
}

static PyObject *graph_cast(struct graph *self, PyObject *const *a, Py_ssize_t n) {
    dvm_val x, v = 0;
    dvm_dtype t;
    if (!pydvm_count("cast", n, 2, 2) || !open_graph(self) || !as_value(a[0], &x) ||
        !as_dtype(a[1], &t))
        return NULL;
    return new_value(self, dvm_graph_cast(self->g, x, t, &v), &v);
}

static PyObject *graph_broadcast(struct graph *self, PyObject *const *a, Py_ssize_t n) {
    dvm_val x, v = 0;
    int64_t dims[DVM_MAX_RANK];
    int rank;
    if (!pydvm_count("broadcast", n, 2, 2) || !open_graph(self) || !as_value(a[0], &x) ||
        (rank = ints(a[1], dims, DVM_MAX_RANK, "shape")) < 0)
        return NULL;
    return new_value(self, dvm_graph_broadcast(self->g, x, rank, dims, &v), &v);
}

static PyObject *graph_reshape(struct graph *self, PyObject *const *a, Py_ssize_t n) {
    dvm_val x, v = 0;
    int64_t dims[DVM_MAX_RANK];
    int rank;
    if (!pydvm_count("reshape", n, 2, 2) || !open_graph(self) || !as_value(a[0], &x) ||
        (rank = ints(a[1], dims, DVM_MAX_RANK, "shape")) < 0)
        return NULL;
    return new_value(self, dvm_graph_reshape(self->g, x, rank, dims, &v), &v);
}

static PyObject *graph_permute(struct graph *self, PyObject *const *a, Py_ssize_t n) {
    dvm_val x, v = 0;
    int perm[DVM_MAX_RANK], rank;
    if (!pydvm_count("permute", n, 2, 2) || !open_graph(self) || !as_value(a[0], &x) ||
        (rank = small_ints(a[1], perm, DVM_MAX_RANK, "permutation")) < 0)
        return NULL;
    return new_value(self, dvm_graph_permute(self->g, x, rank, perm, &v), &v);
}

static PyObject *graph_slice(struct graph *self, PyObject *const *a, Py_ssize_t n) {
    dvm_val x, v = 0;
    int64_t start[DVM_MAX_RANK], size[DVM_MAX_RANK], step[DVM_MAX_RANK];
    int rank;
    if (!pydvm_count("slice", n, 3, 4) || !open_graph(self) || !as_value(a[0], &x) ||
        (rank = ints(a[1], start, DVM_MAX_RANK, "start")) < 0)
        return NULL;
    int m = ints(a[2], size, DVM_MAX_RANK, "size");
    if (m < 0) return NULL;
    bool stepped = n > 3 && a[3] != Py_None;
    int s = stepped ? ints(a[3], step, DVM_MAX_RANK, "step") : rank;
    if (s < 0) return NULL;
    if (m != rank || s != rank)
        return pydvm_fail(DVM_ERR_SHAPE, "slice: %d starts, %d sizes, %d steps", rank, m, s);
    return new_value(self,
                     dvm_graph_slice(self->g, x, rank, start, size, stepped ? step : NULL, &v), &v);
}

static PyObject *graph_reduce(struct graph *self, PyObject *const *a, Py_ssize_t n) {
    int op, axes[DVM_MAX_RANK], naxes;
    dvm_val x, v = 0;
    dvm_dtype t;
    if (!pydvm_count("reduce", n, 5, 5) || !open_graph(self) || !as_small(a[0], &op) ||
        !as_value(a[1], &x) || (naxes = small_ints(a[2], axes, DVM_MAX_RANK, "axes")) < 0 ||
        !as_dtype(a[4], &t))
        return NULL;
    int keep = PyObject_IsTrue(a[3]);
    if (keep < 0) return NULL;
    return new_value(self, dvm_graph_reduce(self->g, (dvm_op)op, x, naxes, axes, keep, t, &v), &v);
}

static PyObject *graph_cumsum(struct graph *self, PyObject *const *a, Py_ssize_t n) {
    dvm_val x, v = 0;
    if (!pydvm_count("cumsum", n, 1, 1) || !open_graph(self) || !as_value(a[0], &x)) return NULL;
    return new_value(self, dvm_graph_cumsum(self->g, x, &v), &v);
}

static PyObject *graph_gather(struct graph *self, PyObject *const *a, Py_ssize_t n) {
    dvm_val x, index, v = 0;
    int axis, mode;
    if (!pydvm_count("gather", n, 4, 4) || !open_graph(self) || !as_value(a[0], &x) ||
        !as_value(a[1], &index) || !as_small(a[2], &axis) || !as_small(a[3], &mode))
        return NULL;
    return new_value(self, dvm_graph_gather(self->g, x, index, axis, mode, &v), &v);
}

/* None: no bias. */
static bool as_bias(PyObject *o, dvm_val *v) {
    *v = 0;
    return o == Py_None || as_value(o, v);
}

static PyObject *graph_matmul(struct graph *self, PyObject *const *a, Py_ssize_t n) {
    dvm_val x, y, bias, v = 0;
    dvm_dtype t;
    int ta, tb;
    if (!pydvm_count("matmul", n, 6, 6) || !open_graph(self) || !as_value(a[0], &x) ||
        !as_value(a[1], &y) || !as_small(a[2], &ta) || !as_small(a[3], &tb) ||
        !as_bias(a[4], &bias) || !as_dtype(a[5], &t))
        return NULL;
    return new_value(self, dvm_graph_matmul(self->g, x, y, ta, tb, bias, t, &v), &v);
}

static PyObject *graph_grouped_matmul(struct graph *self, PyObject *const *a, Py_ssize_t n) {
    dvm_val x, y, bias, list, v = 0;
    dvm_dtype t;
    int ta, tb, group, kind;
    if (!pydvm_count("grouped_matmul", n, 9, 9) || !open_graph(self) || !as_value(a[0], &x) ||
        !as_value(a[1], &y) || !as_small(a[2], &ta) || !as_small(a[3], &tb) ||
        !as_bias(a[4], &bias) || !as_value(a[5], &list) || !as_small(a[6], &group) ||
        !as_small(a[7], &kind) || !as_dtype(a[8], &t))
        return NULL;
    return new_value(
        self, dvm_graph_grouped_matmul(self->g, x, y, ta, tb, bias, list, group, kind, t, &v), &v);
}

static PyObject *graph_concat(struct graph *self, PyObject *const *a, Py_ssize_t n) {
    int axis;
    dvm_val v = 0;
    if (!pydvm_count("concat", n, 2, 2) || !open_graph(self) || !as_small(a[1], &axis)) return NULL;
    Py_ssize_t m = length(a[0], DVM_MAX_ARGS, "operands");
    if (m < 0) return NULL;
    dvm_val *in = PyMem_Malloc((size_t)(m ? m : 1) * sizeof *in);
    if (!in) return PyErr_NoMemory();
    bool ok = true;
    for (Py_ssize_t i = 0; ok && i < m; i++) ok = as_value(item(a[0], i), &in[i]);
    dvm_status st = ok ? dvm_graph_concat(self->g, (int)m, in, axis, &v) : DVM_OK;
    PyMem_Free(in);
    return ok ? new_value(self, st, &v) : NULL;
}

static PyObject *graph_size(struct graph *self, PyObject *const *a, Py_ssize_t n) {
    dvm_val x, v = 0;
    int axes[DVM_MAX_RANK], naxes;
    if (!pydvm_count("size", n, 2, 2) || !open_graph(self) || !as_value(a[0], &x) ||
        (naxes = small_ints(a[1], axes, DVM_MAX_RANK, "axes")) < 0)
        return NULL;
    return new_value(self, dvm_graph_size(self->g, x, naxes, axes, &v), &v);
}

static PyObject *graph_store(struct graph *self, PyObject *const *a, Py_ssize_t n) {
    dvm_val x, v = 0;
    int64_t strides[DVM_MAX_RANK];
    dvm_dtype t;
    if (!pydvm_count("store", n, 1, 2) || !open_graph(self) || !as_value(a[0], &x)) return NULL;
    bool strided = n > 1 && a[1] != Py_None;
    if (strided) {
        int m = ints(a[1], strides, DVM_MAX_RANK, "strides"), rank;
        if (m < 0) return NULL;
        int64_t dims[DVM_MAX_RANK];
        dvm_status st = dvm_graph_shape(self->g, x, &rank, dims);
        if (st) return pydvm_raise(st);
        if (rank >= 0 && rank != m)
            return pydvm_fail(DVM_ERR_SHAPE, "a value of %d dimensions stored with %d strides",
                              rank, m);
    }
    dvm_status st = dvm_graph_store(self->g, x, strided ? strides : NULL, &v);
    if (!st) st = dvm_graph_dtype(self->g, v, &t);
    if (!st && !add_slot(&self->out, &self->nout, &self->out_cap, t, false)) return NULL;
    return new_value(self, st, &v);
}

/* ---- dimensions ---- */

static PyObject *new_dim(dvm_status st, const dvm_dim *d) {
    return st ? pydvm_raise(st) : PyLong_FromLongLong(*d);
}

static PyObject *graph_dim_of(struct graph *self, PyObject *const *a, Py_ssize_t n) {
    dvm_val x;
    int axis;
    dvm_dim d = 0;
    if (!pydvm_count("dim_of", n, 2, 2) || !open_graph(self) || !as_value(a[0], &x) ||
        !as_small(a[1], &axis))
        return NULL;
    return new_dim(dvm_dim_of(self->g, x, axis, &d), &d);
}

static PyObject *graph_dim_scalar(struct graph *self, PyObject *const *a, Py_ssize_t n) {
    dvm_val x;
    dvm_dim d = 0;
    if (!pydvm_count("dim_scalar", n, 1, 1) || !open_graph(self) || !as_value(a[0], &x))
        return NULL;
    return new_dim(dvm_dim_scalar(self->g, x, &d), &d);
}

static PyObject *graph_dim_op(struct graph *self, PyObject *const *a, Py_ssize_t n) {
    int op;
    int64_t x, y;
    dvm_dim d = 0;
    if (!pydvm_count("dim_op", n, 3, 3) || !open_graph(self) || !as_small(a[0], &op) ||
        !as_int(a[1], &x) || !as_int(a[2], &y))
        return NULL;
    return new_dim(dvm_dim_op(self->g, op, x, y, &d), &d);
}

/* ---- the graph itself ---- */

static PyObject *graph_section(struct graph *self, PyObject *const *a, Py_ssize_t n) {
    int kind, flags, cores;
    if (!pydvm_count("section", n, 3, 3) || !open_graph(self) || !as_small(a[0], &kind) ||
        !as_small(a[1], &flags) || !as_small(a[2], &cores))
        return NULL;
    dvm_status st = dvm_graph_section(self->g, (dvm_kind)kind, (uint32_t)flags | DVM_CORES(cores));
    if (st) return pydvm_raise(st);
    Py_RETURN_NONE;
}

static PyObject *graph_at(struct graph *self, PyObject *const *a, Py_ssize_t n) {
    const char *where = NULL;
    if (!pydvm_count("at", n, 1, 1) || !open_graph(self)) return NULL;
    if (a[0] != Py_None && !(where = PyUnicode_AsUTF8AndSize(a[0], NULL))) return NULL;
    dvm_status st = dvm_graph_at(self->g, where);
    if (st) return pydvm_raise(st);
    Py_RETURN_NONE;
}

static PyObject *graph_set_name(struct graph *self, PyObject *const *a, Py_ssize_t n) {
    if (!pydvm_count("set_name", n, 1, 1) || !open_graph(self)) return NULL;
    const char *name = PyUnicode_AsUTF8AndSize(a[0], NULL);
    if (!name) return NULL;
    dvm_status st = dvm_graph_set_name(self->g, name);
    if (st) return pydvm_raise(st);
    Py_RETURN_NONE;
}

static PyObject *graph_text(struct graph *self, PyObject *const *a, Py_ssize_t n) {
    (void)a;
    char *text;
    if (!pydvm_count("text", n, 0, 0) || !open_graph(self)) return NULL;
    dvm_status st = dvm_graph_text(self->g, &text);
    if (st) return pydvm_raise(st);
    PyObject *out = PyUnicode_FromString(text);
    dvm_string_free(&text);
    return out;
}

static PyObject *graph_compile(struct graph *self, PyObject *const *a, Py_ssize_t n) {
    (void)a;
    if (!pydvm_count("compile", n, 0, 0) || !open_graph(self)) return NULL;
    return pydvm_kernel_of(self);
}

static PyObject *graph_close(struct graph *self, PyObject *const *a, Py_ssize_t n) {
    (void)a;
    if (!pydvm_count("close", n, 0, 0)) return NULL;
    dvm_graph_destroy(&self->g);
    Py_RETURN_NONE;
}

static PyObject *graph_new(PyTypeObject *type, PyObject *args, PyObject *kw) {
    (void)type;
    static char *names[] = {"kind", "flags", "context", NULL};
    int kind = DVM_SPLIT;
    unsigned flags = 0;
    PyObject *ctx = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kw, "|iIO!:Graph", names, &kind, &flags, pydvm.context,
                                     &ctx))
        return NULL;
    struct context *c = ctx ? (struct context *)ctx : pydvm_default_context();
    if (!c) return NULL;
    dvm_graph *g = NULL;
    dvm_status st = dvm_graph_create(c->ctx, (dvm_kind)kind, flags, &g);
    if (st) return pydvm_raise(st);
    struct graph *self = PyObject_New(struct graph, pydvm.graph);
    if (!self) {
        dvm_graph_destroy(&g);
        return NULL;
    }
    self->g = g;
    self->ctx = (struct context *)Py_NewRef((PyObject *)c);
    self->in = self->out = NULL;
    self->nin = self->nout = self->in_cap = self->out_cap = 0;
    return (PyObject *)self;
}

static void graph_dealloc(PyObject *o) {
    PyTypeObject *type = Py_TYPE(o);
    struct graph *self = (struct graph *)o;
    dvm_graph_destroy(&self->g);
    PyMem_Free(self->in);
    PyMem_Free(self->out);
    Py_DECREF((PyObject *)self->ctx);
    PyObject_Free(o);
    Py_DECREF(type);
}

static PyObject *graph_inputs(PyObject *o, void *unused) {
    (void)unused;
    return PyLong_FromLong(((struct graph *)o)->nin);
}

static PyObject *graph_outputs(PyObject *o, void *unused) {
    (void)unused;
    return PyLong_FromLong(((struct graph *)o)->nout);
}

static PyMethodDef graph_methods[] = {
    METHOD(load, "load(dtype, shape=None, strides=None): tensor argument; None: any rank."),
    METHOD(scalar, "scalar(dtype): scalar argument, read at every run."),
    METHOD(const, "const(dtype, number): literal; integers wrap, floats are cut toward zero for "
                  "integer dtypes."),
    METHOD(iota, "iota(dtype, shape, axis): index along one axis."),
    METHOD(op, "op(number, a[, b[, c]]): an elementwise operation, OP_*."),
    METHOD(cast, "cast(x, dtype)"),
    METHOD(broadcast, "broadcast(x, shape): -1 keeps a size."),
    METHOD(reshape, "reshape(x, shape): one -1 is inferred."),
    METHOD(permute, "permute(x, axes)"),
    METHOD(slice, "slice(x, start, size, step=None): size -1 is up to the end."),
    METHOD(reduce, "reduce(number, x, axes, keepdims, dtype): no axes are all axes."),
    METHOD(cumsum, "cumsum(x): along the last axis."),
    METHOD(matmul, "matmul(a, b, trans_a, trans_b, bias, dtype): bias may be None."),
    METHOD(grouped_matmul,
           "grouped_matmul(a, b, trans_a, trans_b, bias, list, group, list_kind, dtype)"),
    METHOD(gather, "gather(x, index, axis, mode): mode 0 elements, 1 slices."),
    METHOD(concat, "concat(values, axis)"),
    METHOD(size, "size(x, axes): product of sizes, an int64 scalar."),
    METHOD(store, "store(x, strides=None): next output; returns the stored value."),
    METHOD(dim_of, "dim_of(x, axis): the size of an axis as a dimension."),
    METHOD(dim_scalar, "dim_scalar(x): a scalar argument as a dimension."),
    METHOD(dim_op, "dim_op(number, a, b): 0 add, 1 sub, 2 mul, 3 floordiv, 4 mod, 5 max, 6 min."),
    METHOD(section, "section(kind, flags): next part of a parallel, seq or spec graph."),
    METHOD(at, "at(where): \"file:line\" of the nodes that follow."),
    METHOD(set_name, "set_name(name)"),
    METHOD(text, "text(): the graph in the language of the command dvm."),
    METHOD(compile, "compile(): a Kernel; the graph may be closed afterwards."),
    METHOD(close, "close(): frees the graph; its values become useless."),
    {0},
};
static PyGetSetDef graph_getset[] = {
    {"inputs", graph_inputs, NULL, "Number of loads and scalars.", NULL},
    {"outputs", graph_outputs, NULL, "Number of stores.", NULL},
    {0},
};
static PyType_Slot graph_slots[] = {
    {Py_tp_new, graph_new},
    {Py_tp_dealloc, graph_dealloc},
    {Py_tp_methods, graph_methods},
    {Py_tp_getset, graph_getset},
    {Py_tp_doc, "Graph(kind=K_SPLIT, flags=0, context=None): a program being built."},
    {0},
};
PyType_Spec pydvm_graph_spec = {"_dvm.Graph", sizeof(struct graph), 0,
                                Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, graph_slots};

/* ---- Value ---- */

static void value_dealloc(PyObject *o) {
    PyTypeObject *type = Py_TYPE(o);
    Py_DECREF((PyObject *)((struct value *)o)->graph);
    PyObject_Free(o);
    Py_DECREF(type);
}

static PyObject *value_dtype(PyObject *o, void *unused) {
    (void)unused;
    struct value *self = (struct value *)o;
    dvm_dtype t;
    if (!open_graph(self->graph)) return NULL;
    dvm_status st = dvm_graph_dtype(self->graph->g, self->v, &t);
    return st ? pydvm_raise(st) : PyLong_FromLong(t);
}

static bool shape_of(PyObject *o, int *rank, dvm_dim *dims) {
    struct value *self = (struct value *)o;
    if (!open_graph(self->graph)) return false;
    dvm_status st = dvm_graph_shape(self->graph->g, self->v, rank, dims);
    if (st) pydvm_raise(st);
    return !st;
}

static PyObject *value_rank(PyObject *o, void *unused) {
    (void)unused;
    int rank;
    dvm_dim dims[DVM_MAX_RANK];
    return shape_of(o, &rank, dims) ? PyLong_FromLong(rank) : NULL;
}

static PyObject *value_shape(PyObject *o, void *unused) {
    (void)unused;
    int rank;
    dvm_dim dims[DVM_MAX_RANK];
    if (!shape_of(o, &rank, dims)) return NULL;
    if (rank < 0) Py_RETURN_NONE;
    PyObject *out = PyTuple_New(rank);
    for (int i = 0; out && i < rank; i++) {
        PyObject *d = PyLong_FromLongLong(dims[i] < 0 ? -1 : dims[i]);
        if (!d || PyTuple_SetItem(out, i, d)) Py_CLEAR(out);
    }
    return out;
}

static PyGetSetDef value_getset[] = {
    {"dtype", value_dtype, NULL, "Number of the dtype.", NULL},
    {"rank", value_rank, NULL, "Number of dimensions, -1 when it is known at run time only.", NULL},
    {"shape", value_shape, NULL, "Tuple of sizes, -1 for unknown ones; None for an unknown rank.",
     NULL},
    {0},
};
static PyType_Slot value_slots[] = {
    {Py_tp_dealloc, value_dealloc},
    {Py_tp_getset, value_getset},
    {Py_tp_doc, "A value of a Graph, which it keeps alive."},
    {0},
};
PyType_Spec pydvm_value_spec = {
    "_dvm.Value", sizeof(struct value), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION, value_slots};
