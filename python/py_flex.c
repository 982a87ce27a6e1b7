/* Attention through compiled functions of scores: _dvm.flex_forward, flex_backward over <dvm/flex.h>. Arguments by
 * position; dvm.torch.flex names them. A function is None or (kernel, roles, others): `others` has an entry for every
 * input, read where the role is OTHER. */
#include "pydvm.h"

#include <dvm/flex.h>

enum { MOST = 64, PART = 0, FULL, GRAD, ADD, NFN };

struct function {
    dvm_flex_fn fn;
    int role[MOST];
    dvm_arg arg[MOST];
};

/* Everything a call holds; tensors are released at its end. */
struct call {
    dvm_flex f;
    struct function fn[NFN];
    int target[MOST];
    int ntensor;
    struct tensor tensor[NFN * MOST + 32];
    dvm_arg arg[NFN * MOST + 32];
};

static dvm_arg *tensor(struct call *c, PyObject *o, bool output) {
    const struct slot any = {DVM_NDTYPE, false};
    int i = c->ntensor;
    if (i == (int)(sizeof c->tensor / sizeof *c->tensor)) {
        pydvm_fail(DVM_ERR_LIMIT, "too many tensors");
        return NULL;
    }
    struct tensor *t = &c->tensor[i];
    t->arg = &c->arg[i];
    if (!pydvm_tensor(o, &any, output, i, t)) return NULL;
    c->ntensor++;
    return t->arg;
}

/* None: absent. */
static bool maybe(struct call *c, PyObject *o, const dvm_arg **to) {
    *to = o == Py_None ? NULL : tensor(c, o, false);
    return o == Py_None || *to;
}

static bool other(struct call *c, PyObject *o, const struct slot *s, dvm_arg *to) {
    if (s->scalar) {
        *to = (dvm_arg){.rank = -1, .dtype = s->dtype};
        return pydvm_number(o, s->dtype, &to->num);
    }
    const dvm_arg *t = tensor(c, o, false);
    if (t) *to = *t;
    return t != NULL;
}

static bool function(struct call *c, PyObject *o, struct function *f, dvm_flex_fn *to) {
    PyObject *kernel, *roles, *others;
    if (o == Py_None) return true;
    if (!PyArg_ParseTuple(o, "O!O!O!:function", pydvm.kernel, &kernel, &PyTuple_Type, &roles,
                          &PyTuple_Type, &others))
        return false;
    const struct kernel *k = (struct kernel *)kernel;
    if (PyTuple_Size(roles) != k->nin || PyTuple_Size(others) != k->nin || k->nin > MOST) {
        pydvm_fail(DVM_ERR_ARG, "the kernel takes %d inputs, got %zd roles", k->nin,
                   PyTuple_Size(roles));
        return false;
    }
    for (int i = 0; i < k->nin; i++) {
        long role = PyLong_AsLong(PyTuple_GetItem(roles, i));
        if (role == -1 && PyErr_Occurred()) return false;
        f->role[i] = (int)role;
        if (role == DVM_FLEX_OTHER && !other(c, PyTuple_GetItem(others, i), &k->in[i], &f->arg[i]))
            return false;
    }
    *to = (dvm_flex_fn){.kernel = k->k, .n = k->nin, .role = f->role, .other = f->arg};
    return true;
}

/* query, key, value, scale, part, full, (num, index, full_num, full_index), q_block, kv_block */
static bool call_open(struct call *c, PyObject *const *a) {
    PyObject *list[4];
    dvm_flex *f = &c->f;
    if (!(f->query = tensor(c, a[0], false)) || !(f->key = tensor(c, a[1], false)) ||
        !(f->value = tensor(c, a[2], false)))
        return false;
    f->scale = PyFloat_AsDouble(a[3]);
    f->q_block = PyLong_AsLongLong(a[7]);
    f->kv_block = PyLong_AsLongLong(a[8]);
    if (PyErr_Occurred() || !function(c, a[4], &c->fn[PART], &f->part) ||
        !function(c, a[5], &c->fn[FULL], &f->full) ||
        !PyArg_ParseTuple(a[6], "OOOO:lists", &list[0], &list[1], &list[2], &list[3]))
        return false;
    return maybe(c, list[0], &f->num) && maybe(c, list[1], &f->index) &&
           maybe(c, list[2], &f->full_num) && maybe(c, list[3], &f->full_index);
}

static PyObject *call_close(struct call *c, bool ran, dvm_status st) {
    for (int i = 0; i < c->ntensor; i++) pydvm_tensor_done(&c->tensor[i]);
    PyMem_Free(c);
    if (!ran) return NULL;
    return st ? pydvm_raise(st) : Py_NewRef(Py_None);
}

static struct call *call_new(void) {
    struct call *c = PyMem_Calloc(1, sizeof *c);
    if (!c) PyErr_NoMemory();
    return c;
}

/* function, outputs */
PyObject *pydvm_flex_check(PyObject *self, PyObject *const *a, Py_ssize_t n) {
    (void)self;
    struct context *ctx = pydvm_default_context();
    struct call *c;
    dvm_status st = DVM_OK;
    if (!ctx || !pydvm_count("flex_check", n, 2, 2) || !(c = call_new())) return NULL;
    long outputs = PyLong_AsLong(a[1]);
    bool ok = !PyErr_Occurred() && function(c, a[0], &c->fn[PART], &c->f.part);
    if (ok) st = dvm_flex_check(ctx->ctx, &c->f.part, (int)outputs);
    return call_close(c, ok, st);
}

/* ..., out, lse, top */
PyObject *pydvm_flex_forward(PyObject *self, PyObject *const *a, Py_ssize_t n) {
    (void)self;
    struct context *ctx = pydvm_default_context();
    struct call *c;
    const dvm_arg *out[3];
    dvm_status st = DVM_OK;
    if (!ctx || !pydvm_count("flex_forward", n, 12, 12) || !(c = call_new())) return NULL;
    bool ok = call_open(c, a);
    for (int i = 0; ok && i < 3; i++) ok = (out[i] = tensor(c, a[9 + i], true)) != NULL;
    if (ok) {
        Py_BEGIN_ALLOW_THREADS;
        st = dvm_flex_forward(ctx->ctx, &c->f, out);
        Py_END_ALLOW_THREADS;
    }
    return call_close(c, ok, st);
}

static bool targets(struct call *c, PyObject *o) {
    c->f.target = c->target;
    if (!PyTuple_Check(o) || PyTuple_Size(o) > MOST / 2) {
        pydvm_fail(DVM_ERR_ARG, "targets must be a tuple of at most %d", MOST / 2);
        return false;
    }
    c->f.nadd = (int)PyTuple_Size(o);
    for (int i = 0; i < c->f.nadd; i++) c->target[i] = (int)PyLong_AsLong(PyTuple_GetItem(o, i));
    return !PyErr_Occurred();
}

/* Captured gradients are dense by what they are made as. */
static bool captured(struct call *c, PyObject *o, dvm_arg *to, int *n) {
    if (!PyTuple_Check(o) || PyTuple_Size(o) > MOST) {
        pydvm_fail(DVM_ERR_ARG, "captured gradients must be a tuple of at most %d", MOST);
        return false;
    }
    *n = (int)PyTuple_Size(o);
    for (int i = 0; i < *n; i++) {
        const dvm_arg *t = tensor(c, PyTuple_GetItem(o, i), true);
        if (!t) return false;
        int64_t step = 1;
        for (int d = t->rank - 1; d >= 0; step *= t->dims[d--])
            if (t->strides && t->dims[d] != 1 && t->strides[d] != step) {
                pydvm_fail(DVM_ERR_ARG, "captured gradient %d is not dense", i);
                return false;
            }
        to[i] = *t;
        to[i].strides = NULL;
    }
    return true;
}

/* ..., grad, add, targets, out, lse, dy, dlse, dq, dk, dv, captured */
PyObject *pydvm_flex_backward(PyObject *self, PyObject *const *a, Py_ssize_t n) {
    (void)self;
    struct context *ctx = pydvm_default_context();
    struct call *c;
    const dvm_arg *grad[3];
    dvm_arg cap[MOST];
    int ncap = 0;
    dvm_status st = DVM_OK;
    if (!ctx || !pydvm_count("flex_backward", n, 20, 20) || !(c = call_new())) return NULL;
    bool ok = call_open(c, a) && function(c, a[9], &c->fn[GRAD], &c->f.grad) &&
              function(c, a[10], &c->fn[ADD], &c->f.add) && targets(c, a[11]) &&
              maybe(c, a[12], &c->f.out) && maybe(c, a[13], &c->f.lse) &&
              maybe(c, a[14], &c->f.dy) && maybe(c, a[15], &c->f.dlse);
    for (int i = 0; ok && i < 3; i++) ok = (grad[i] = tensor(c, a[16 + i], true)) != NULL;
    ok = ok && captured(c, a[19], cap, &ncap);
    if (ok) {
        Py_BEGIN_ALLOW_THREADS;
        st = dvm_flex_backward(ctx->ctx, &c->f, grad, ncap, cap);
        Py_END_ALLOW_THREADS;
    }
    return call_close(c, ok, st);
}
