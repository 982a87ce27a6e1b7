/* Attention: _dvm.attn_forward, attn_backward, attn_infer over <dvm/attn.h>. Arguments by position; dvm.attn gives them
 * names, defaults and the words around errors. */
#include "pydvm.h"

#include <dvm/attn.h>

/* A flag of this file: the gradient of pse is not wanted. */
enum { NO_PSE_GRADIENT = 1 << 16 };

enum { Q, K, V, PSE, MASK, SINK, DY, MAX, SUM, OUT, NINPUT };

struct list {
    int64_t *p;
    Py_ssize_t n;
};

struct call {
    dvm_attn c;
    dvm_arg arg[NINPUT];
    struct tensor t[NINPUT];
    struct list list[3]; /* prefix, actual_seq_qlen, actual_seq_kvlen */
};

static bool read_list(PyObject *o, struct list *l) {
    if (o == Py_None) return true;
    PyObject *tuple = PySequence_Tuple(o);
    if (!tuple) return false;
    l->n = PyTuple_Size(tuple);
    l->p = PyMem_Malloc(((size_t)l->n + 1) * sizeof *l->p);
    if (!l->p) PyErr_NoMemory();
    for (Py_ssize_t i = 0; l->p && i < l->n; i++) {
        PyObject *e = PyNumber_Index(PyTuple_GetItem(tuple, i));
        l->p[i] = e ? PyLong_AsLongLong(e) : -1;
        Py_XDECREF(e);
        if (PyErr_Occurred()) break;
    }
    Py_DECREF(tuple);
    return l->p && !PyErr_Occurred();
}

static bool read_tensors(struct call *c, PyObject *const *o, int n) {
    const struct slot any = {DVM_NDTYPE, false};
    const dvm_arg **const at[NINPUT] = {
        &c->c.query, &c->c.key, &c->c.value,       &c->c.pse,         &c->c.atten_mask,
        &c->c.sink,  &c->c.dy,  &c->c.softmax_max, &c->c.softmax_sum, &c->c.attention_in};
    for (int i = 0; i < n; i++) {
        if (o[i] == Py_None) continue;
        c->t[i].arg = &c->arg[i];
        if (!pydvm_tensor(o[i], &any, false, i + 1, &c->t[i])) return false;
        *at[i] = &c->arg[i];
    }
    return true;
}

/* flags, head_num, input_layout, softmax_layout, scale, keep_prob, pre_tockens, next_tockens, sparse_mode, seed, offset,
 * numels, prefix, actual_seq_qlen, actual_seq_kvlen, then the tensors. */
static bool call_open(struct call *c, PyObject *args, int tensors) {
    PyObject *o[NINPUT], *lists[3];
    long long head, pre, next, mode, seed, offset, numels;
    unsigned flags;
    for (int i = 0; i < NINPUT; i++) o[i] = Py_None;
    if (!PyArg_ParseTuple(args, "ILzzddLLLLLLOOOOOOOOO|OOOO:attn", &flags, &head,
                          &c->c.input_layout, &c->c.softmax_layout, &c->c.scale, &c->c.keep_prob,
                          &pre, &next, &mode, &seed, &offset, &numels, &lists[0], &lists[1],
                          &lists[2], &o[Q], &o[K], &o[V], &o[PSE], &o[MASK], &o[SINK], &o[DY],
                          &o[MAX], &o[SUM], &o[OUT]))
        return false;
    c->c.flags = flags;
    c->c.head_num = head;
    c->c.pre_tockens = pre;
    c->c.next_tockens = next;
    c->c.sparse_mode = mode;
    c->c.seed = seed;
    c->c.offset = offset;
    c->c.numels = numels;
    for (int i = 0; i < 3; i++)
        if (!read_list(lists[i], &c->list[i])) return false;
    c->c.prefix = c->list[0].p;
    c->c.nprefix = c->list[0].n;
    c->c.actual_seq_qlen = c->list[1].p;
    c->c.nqlen = c->list[1].n;
    c->c.actual_seq_kvlen = c->list[2].p;
    c->c.nkvlen = c->list[2].n;
    return read_tensors(c, o, tensors);
}

static void call_close(struct call *c) {
    for (int i = 0; i < NINPUT; i++) pydvm_tensor_done(&c->t[i]);
    for (int i = 0; i < 3; i++) PyMem_Free(c->list[i].p);
}

/* New outputs, described in t. */
static bool make(enum family family, int rank, const int64_t *dims, int dtype, struct tensor *t,
                 PyObject **out) {
    const struct slot want = {(uint8_t)dtype, false};
    *out = pydvm_empty(family, rank, dims, dtype);
    return *out && pydvm_tensor(*out, &want, true, 1, t);
}

static PyObject *run(struct call *c, int n, PyObject **out, struct tensor *t, bool backward) {
    struct context *ctx = pydvm_default_context();
    const dvm_arg *arg[5] = {0};
    PyObject *result = NULL;
    if (!ctx) return NULL;
    for (int i = 0; i < n; i++) arg[i] = out[i] ? t[i].arg : NULL;
    dvm_status st;
    Py_BEGIN_ALLOW_THREADS;
    st =
        backward ? dvm_attn_backward(ctx->ctx, &c->c, arg) : dvm_attn_forward(ctx->ctx, &c->c, arg);
    Py_END_ALLOW_THREADS;
    if (st) return pydvm_raise(st);
    result = PyTuple_New(n);
    for (int i = 0; result && i < n; i++)
        if (PyTuple_SetItem(result, i, Py_NewRef(out[i] ? out[i] : Py_None))) Py_CLEAR(result);
    return result;
}

static void drop(int n, PyObject **out, struct tensor *t) {
    for (int i = 0; i < n; i++) {
        pydvm_tensor_done(&t[i]);
        Py_XDECREF(out[i]);
    }
}

PyObject *pydvm_attn_infer(PyObject *self, PyObject *args) {
    (void)self;
    struct call c = {0};
    dvm_attn_shape s;
    PyObject *out = NULL;
    if (call_open(&c, args, SINK + 1)) {
        dvm_status st = dvm_attn_infer(&c.c, 0, &s);
        out = st ? pydvm_raise(st)
                 : Py_BuildValue("LL", (long long)s.numels, (long long)s.sparse_mode);
    }
    call_close(&c);
    return out;
}

PyObject *pydvm_attn_forward(PyObject *self, PyObject *args) {
    (void)self;
    struct call c = {0};
    struct tensor t[3] = {0};
    dvm_arg arg[3];
    dvm_attn_shape s;
    PyObject *out[3] = {0}, *result = NULL;
    for (int i = 0; i < 3; i++) t[i].arg = &arg[i];
    if (call_open(&c, args, SINK + 1)) {
        dvm_status st = dvm_attn_infer(&c.c, 0, &s);
        enum family family = c.t[Q].family;
        if (st)
            pydvm_raise(st);
        else if (make(family, s.out_rank, s.out, c.arg[Q].dtype, &t[0], &out[0]) &&
                 make(family, s.stat_rank, s.stat, DVM_F32, &t[1], &out[1]) &&
                 make(family, s.stat_rank, s.stat, DVM_F32, &t[2], &out[2]))
            result = run(&c, 3, out, t, false);
    }
    if (result) {
        PyObject *three = result;
        result = Py_BuildValue("OL", three, (long long)s.numels);
        Py_DECREF(three);
    }
    drop(3, out, t);
    call_close(&c);
    return result;
}

PyObject *pydvm_attn_backward(PyObject *self, PyObject *args) {
    (void)self;
    static const int like[5] = {Q, K, V, PSE, SINK};
    struct call c = {0};
    struct tensor t[5] = {0};
    dvm_arg arg[5];
    dvm_attn_shape s;
    PyObject *out[5] = {0}, *result = NULL;
    for (int i = 0; i < 5; i++) t[i].arg = &arg[i];
    if (call_open(&c, args, NINPUT)) {
        dvm_status st = dvm_attn_infer(&c.c, 1, &s);
        bool ok = st == DVM_OK;
        if (!ok) pydvm_raise(st);
        for (int i = 0; ok && i < 5; i++) {
            const dvm_arg *x = &c.arg[like[i]];
            if (i < 3 || (c.t[like[i]].arg && !(i == 3 && c.c.flags & NO_PSE_GRADIENT)))
                ok = make(c.t[Q].family, x->rank, x->dims, x->dtype, &t[i], &out[i]);
        }
        if (ok) result = run(&c, 5, out, t, true);
    }
    drop(5, out, t);
    call_close(&c);
    return result;
}
