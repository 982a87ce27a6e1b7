/* Arguments of a run without copies. How a type gives its memory away is found once per type and remembered:
 *
 *   EXCHANGE  the DLPack C table of the type (torch): one C call
 *   BUFFER    the buffer protocol (numpy, memoryview)
 *   ATTR      data_ptr(), shape, stride(), dtype, device (older torch)
 *   DLPACK    __dlpack__()
 *
 * dvm.arrays (Python) knows the rest: families, copies, views of dtypes that have no buffer format, and what to do about
 * an argument that no door takes. */
#include "pydvm.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "dlpack.h"

enum how { HOW_NONE, HOW_EXCHANGE, HOW_BUFFER, HOW_ATTR, HOW_DLPACK };

struct known {
    PyTypeObject *type; /* owned */
    enum how how;
    enum family family;
    const DLPackExchangeAPI *api;
    PyCFunction is_neg;               /* the function behind o.is_neg(), or NULL */
    const PyGetSetDef *requires_grad; /* the function behind o.requires_grad, or NULL */
};

/* The types met last. Guarded by the GIL. */
static struct known known[8];
static unsigned next_known;

static struct allocator {
    PyObject *empty, *dtype[DVM_NDTYPE], *kwargs[DVM_NDTYPE];
} allocator[FAMILY_OTHER];

static PyObject *arrays_call(const char *name, PyObject *o) {
    PyObject *module = PyImport_ImportModule("dvm.arrays");
    if (!module) return NULL;
    PyObject *out = PyObject_CallMethod(module, name, "O", o);
    Py_DECREF(module);
    return out;
}

static const DLPackExchangeAPI *exchange_of(PyTypeObject *type) {
    PyObject *capsule = PyObject_GetAttrString((PyObject *)type, "__dlpack_c_exchange_api__");
    const DLPackExchangeAPI *api = NULL;
    if (capsule && PyCapsule_IsValid(capsule, "dlpack_exchange_api"))
        api = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    Py_XDECREF(capsule); /* the table lives as long as the process */
    PyErr_Clear();
    while (api && api->version.major != 1) api = api->prev_api;
    return api && api->dltensor_from_py_object_no_sync ? api : NULL;
}

static bool type_has(PyTypeObject *type, const char *name) {
    PyObject *o = PyObject_GetAttrString((PyObject *)type, name);
    PyErr_Clear();
    Py_XDECREF(o);
    return o;
}

/* The table that a slot of the type holds which defines an attribute, when that attribute is a descriptor of this kind
 * and nothing between the two types replaces it; else NULL. */
static const void *defining_table(PyTypeObject *type, const char *name, PyTypeObject *kind,
                                  int slot) {
    PyObject *found = PyObject_GetAttrString((PyObject *)type, name);
    PyObject *base =
        found && Py_TYPE(found) == kind ? PyObject_GetAttrString(found, "__objclass__") : NULL;
    const void *table =
        base && PyType_Check(base) ? PyType_GetSlot((PyTypeObject *)base, slot) : NULL;
    Py_XDECREF(found);
    Py_XDECREF(base);
    PyErr_Clear();
    return table;
}

/* The functions that answer two questions at every call, so that no call looks them up by name. A class that replaces
 * one of them is asked by name. */
static void learn_questions(struct known *k) {
    const PyMethodDef *m = defining_table(k->type, "is_neg", &PyMethodDescr_Type, Py_tp_methods);
    while (m && m->ml_name && strcmp(m->ml_name, "is_neg") != 0) m++;
    if (m && m->ml_name && m->ml_flags == METH_NOARGS) k->is_neg = m->ml_meth;
    const PyGetSetDef *g =
        defining_table(k->type, "requires_grad", &PyGetSetDescr_Type, Py_tp_getset);
    while (g && g->name && strcmp(g->name, "requires_grad") != 0) g++;
    if (g && g->name && g->get) k->requires_grad = g;
}

static const struct known *learn(PyObject *o) {
    PyTypeObject *type = Py_TYPE(o);
    PyObject *family = arrays_call("family_of", (PyObject *)type);
    if (!family) return NULL;
    struct known k = {.type = type, .family = (enum family)PyLong_AsLong(family)};
    Py_DECREF(family);
    if (k.family == FAMILY_NONE)
        k.how = HOW_NONE;
    else if (k.family == FAMILY_NUMPY)
        k.how = HOW_BUFFER;
    else if ((k.api = exchange_of(type)))
        k.how = HOW_EXCHANGE;
    else if (type_has(type, "data_ptr") && type_has(type, "stride"))
        k.how = HOW_ATTR;
    else if (type_has(type, "__dlpack__"))
        k.how = HOW_DLPACK;
    else if (PyObject_CheckBuffer(o))
        k.how = HOW_BUFFER;
    if (k.family == FAMILY_TORCH) learn_questions(&k);
    struct known *slot = &known[next_known++ % (sizeof known / sizeof *known)];
    Py_INCREF((PyObject *)type);
    Py_XDECREF((PyObject *)slot->type);
    *slot = k;
    return slot;
}

static const struct known *look(PyObject *o) {
    PyTypeObject *type = Py_TYPE(o);
    for (unsigned i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].type == type) return &known[i];
    return learn(o);
}

/* ---- messages ---- */

/* Arguments are numbered as the library does: inputs and outputs each from 0. Their names, where there are any, are
 * added by pydvm_name_arguments. */
static const char *role(const struct tensor *t) { return t->output ? "output" : "input"; }

static const char *wanted(const struct slot *want, const char *any) {
    return want->dtype < DVM_NDTYPE ? dvm_dtype_name(want->dtype) : any;
}

static bool wrong_kind(PyObject *o, const struct slot *want, const struct tensor *t) {
    PyObject *module = PyImport_ImportModule("dvm.arrays");
    PyObject *text = module ? PyObject_CallMethod(module, "about_kind", "Oii", o, (int)want->dtype,
                                                  (int)t->output)
                            : NULL;
    if (text)
        pydvm_fail(DVM_ERR_ARG, "%s %d: expected an array or tensor of %s, given %U", role(t),
                   t->which, wanted(want, "any dtype"), text);
    Py_XDECREF(text);
    Py_XDECREF(module);
    return false;
}

static bool wrong_dtype(PyObject *o, const struct slot *want, const struct tensor *t,
                        const char *given) {
    PyObject *module = PyImport_ImportModule("dvm.arrays");
    PyObject *text = module ? PyObject_CallMethod(module, "about_dtype", "Oiis", o,
                                                  (int)want->dtype, (int)t->output, given)
                            : NULL;
    if (text)
        pydvm_fail(DVM_ERR_DTYPE, "%s %d: expected %s, given %U", role(t), t->which,
                   wanted(want, "a dtype of DVM"), text);
    Py_XDECREF(text);
    Py_XDECREF(module);
    return false;
}

static bool check_dtype(PyObject *o, const struct slot *want, const struct tensor *t, int given) {
    if (given == want->dtype || (given >= 0 && want->dtype >= DVM_NDTYPE)) return true;
    return wrong_dtype(o, want, t, given >= 0 ? dvm_dtype_name((dvm_dtype)given) : NULL);
}

static bool check_rank(int64_t rank, const struct tensor *t) {
    if (rank >= 0 && rank <= DVM_MAX_RANK) return true;
    pydvm_fail(DVM_ERR_LIMIT, "%s %d has %lld dimensions, at most %d are possible", role(t),
               t->which, (long long)rank, DVM_MAX_RANK);
    return false;
}

static bool read_only(const struct tensor *t) {
    pydvm_fail(DVM_ERR_ARG, "%s %d is read-only: pass memory that may be written", role(t),
               t->which);
    return false;
}

/* Hands over to another object that stands for o: a copy, or a view of raw bits. The answer None, or a second
 * substitution, means that there is none. */
static bool from_substitute(const char *how, PyObject *o, const struct slot *want,
                            struct tensor *t) {
    PyObject *other = arrays_call(how, o);
    if (!other) return false;
    if (other == Py_None || t->owner) {
        Py_DECREF(other);
        return wrong_dtype(o, want, t, NULL);
    }
    t->owner = other;
    return pydvm_tensor(other, want, t->output, t->which, t);
}

static bool empty_dims(const dvm_arg *a) {
    for (int i = 0; i < a->rank; i++)
        if (a->dims[i] == 0) return true;
    return false;
}

/* Last step of every door. Strides of a tensor without elements say nothing. */
static bool finish(PyObject *o, const struct slot *want, struct tensor *t) {
    dvm_arg *a = t->arg;
    if (empty_dims(a)) {
        a->strides = NULL;
        return true;
    }
    if (!a->data) {
        pydvm_fail(DVM_ERR_ARG,
                   "%s %d has no memory behind it: a fake, meta or zero tensor, or one whose "
                   "storage was freed; pass a tensor with data",
                   role(t), t->which);
        return false;
    }
    const size_t size = dvm_dtype_size((dvm_dtype)a->dtype);
    if (((uintptr_t)a->data & (size - 1)) == 0) return true;
    if (!t->output && !t->owner) {
        if (t->has_buf) PyBuffer_Release(&t->buf);
        t->has_buf = false;
        return from_substitute("dense_copy", o, want, t);
    }
    pydvm_fail(DVM_ERR_ARG,
               "%s %d is not aligned to its %zu-byte elements: pass memory of its own, such as a "
               "new array, and copy from there",
               role(t), t->which, size);
    return false;
}

/* ---- buffer protocol ---- */

static int dtype_of_format(const char *f, Py_ssize_t size) {
    static const uint16_t probe = 1;
    const bool little = *(const uint8_t *)&probe;
    if (!f) f = "B";
    if (*f == '@' || *f == '=' || *f == (little ? '<' : '>')) f++;
    if (!f[0] || f[1]) return -1;
    switch (*f) {
    case '?': return DVM_BOOL;
    case 'b': return DVM_I8;
    case 'B': return DVM_U8;
    case 'H': return DVM_BF16;
    case 'e': return DVM_F16;
    case 'f': return DVM_F32;
    case 'd': return DVM_F64;
    case 'i':
    case 'l':
    case 'q': return size == 4 ? DVM_I32 : size == 8 ? DVM_I64 : -1;
    default: return -1;
    }
}

/* No buffer, or none that may be written. */
static bool no_buffer(PyObject *o, const struct slot *want, struct tensor *t) {
    if (PyErr_ExceptionMatches(PyExc_ValueError) && PyMemoryView_Check(o))
        return false; /* a released view: pydvm_tensor puts it into words */
    PyErr_Clear();
    if (t->output && PyObject_GetBuffer(o, &t->buf, PyBUF_RECORDS_RO) == 0) {
        PyBuffer_Release(&t->buf);
        return read_only(t);
    }
    PyErr_Clear();
    return from_substitute("raw_bits", o, want, t);
}

/* Sizes and strides of t->buf; false when its strides are no multiple of the element. */
static bool buffer_steps(struct tensor *t) {
    const Py_buffer *b = &t->buf;
    bool ok = true;
    for (int i = 0; i < b->ndim; i++) {
        t->dims[i] = b->shape[i];
        if (!b->strides) continue; /* ctypes: dense */
        t->strides[i] = b->strides[i] / b->itemsize;
        ok &= t->strides[i] * b->itemsize == b->strides[i] || b->shape[i] <= 1;
    }
    return ok;
}

static bool from_buffer(PyObject *o, const struct slot *want, struct tensor *t) {
    if (PyObject_GetBuffer(o, &t->buf, t->output ? PyBUF_RECORDS : PyBUF_RECORDS_RO))
        return no_buffer(o, want, t);
    t->has_buf = true;
    const Py_buffer *b = &t->buf;
    const int given = dtype_of_format(b->format, b->itemsize);
    if (!check_dtype(o, want, t, given) || !check_rank(b->ndim, t)) return false;
    if (!buffer_steps(t)) {
        if (t->output) {
            pydvm_fail(DVM_ERR_ARG,
                       "%s %d: strides are no multiple of the element size: pass memory of its "
                       "own, such as a new array, and copy from there",
                       role(t), t->which);
            return false;
        }
        PyBuffer_Release(&t->buf);
        t->has_buf = false;
        return from_substitute("dense_copy", o, want, t);
    }
    *t->arg = (dvm_arg){.data = b->buf,
                        .dims = t->dims,
                        .strides = b->strides ? t->strides : NULL,
                        .rank = b->ndim,
                        .dtype = given};
    return finish(o, want, t);
}

/* ---- DLPack ---- */

static int dtype_of_dl(DLDataType t) {
    if (t.lanes != 1) return -1;
    switch (t.code << 8 | t.bits) {
    case kDLBool << 8 | 8: return DVM_BOOL;
    case kDLFloat << 8 | 16: return DVM_F16;
    case kDLBfloat << 8 | 16: return DVM_BF16;
    case kDLFloat << 8 | 32: return DVM_F32;
    case kDLFloat << 8 | 64: return DVM_F64;
    case kDLInt << 8 | 32: return DVM_I32;
    case kDLInt << 8 | 64: return DVM_I64;
    case kDLUInt << 8 | 8: return DVM_U8;
    case kDLInt << 8 | 8: return DVM_I8;
    default: return -1;
    }
}

static bool wrong_device(const char *name, int id, const struct tensor *t) {
    pydvm_fail(DVM_ERR_UNSUPPORTED,
               "%s %d is in the memory of %s:%d, and this context runs on the CPU: pass a CPU "
               "tensor (x.cpu())",
               role(t), t->which, name, id);
    return false;
}

static bool from_dltensor(PyObject *o, const DLTensor *d, const struct slot *want,
                          struct tensor *t) {
    switch (d->device.device_type) {
    case kDLCPU:
    case kDLCUDAHost:
    case kDLROCMHost: break;
    case kDLCUDA:
    case kDLCUDAManaged: return wrong_device("cuda", d->device.device_id, t);
    case kDLROCM: return wrong_device("rocm", d->device.device_id, t);
    default: return wrong_device("a device", d->device.device_id, t);
    }
    const int given = dtype_of_dl(d->dtype);
    if (!check_dtype(o, want, t, given) || !check_rank(d->ndim, t)) return false;
    if (d->ndim && !d->shape) {
        pydvm_fail(DVM_ERR_ARG, "%s %d: its DLPack tensor has no shape", role(t), t->which);
        return false;
    }
    *t->arg = (dvm_arg){.data = d->data ? (char *)d->data + d->byte_offset : NULL,
                        .dims = t->dims,
                        .strides = d->strides ? t->strides : NULL,
                        .rank = d->ndim,
                        .dtype = given};
    for (int i = 0; i < d->ndim; i++) {
        t->dims[i] = d->shape[i];
        if (d->strides) t->strides[i] = d->strides[i];
    }
    return finish(o, want, t);
}

/* Of a module of torch. No Python of ours runs here: torch.compile, when it watches the caller, would compile that too,
 * and what a compiled function returns may be a copy, or lack a tangent. */
static PyObject *torch_attribute(const char *module, const char *name) {
    PyObject *m = PyImport_ImportModule(module);
    PyObject *value = m ? PyObject_GetAttrString(m, name) : NULL;
    Py_XDECREF(m);
    return value;
}

/* Kernels record no graph for autograd: refused while torch records one, as torch does for out= arguments. */
static bool untracked(const struct tensor *t) {
    static PyObject *enabled;
    if (!enabled && !(enabled = torch_attribute("torch", "is_grad_enabled"))) return false;
    PyObject *on = PyObject_CallNoArgs(enabled);
    Py_XDECREF(on);
    if (on == Py_True)
        pydvm_fail(DVM_ERR_UNSUPPORTED,
                   "%s %d requires grad, and a kernel is not recorded for backward: call it under "
                   "torch.no_grad(), or pass x.detach(); torch.compile(f, backend=\"dvm\") "
                   "differentiates",
                   role(t), t->which);
    return on && on != Py_True;
}

/* Whether a tensor has a tangent at a level of forward mode; -1 with an exception. */
static int is_dual(PyObject *o, PyObject *level) {
    static PyObject *unpack;
    if (!unpack && !(unpack = torch_attribute("torch", "_unpack_dual"))) return -1;
    PyObject *names = Py_BuildValue("{s:O}", "level", level);
    PyObject *args = PyTuple_Pack(1, o);
    PyObject *parts = names && args ? PyObject_Call(unpack, args, names) : NULL;
    Py_XDECREF(names);
    Py_XDECREF(args);
    PyObject *tangent = parts ? PySequence_GetItem(parts, 1) : NULL;
    Py_XDECREF(parts);
    Py_XDECREF(tangent);
    return tangent ? tangent != Py_None : -1;
}

/* The same for forward mode. */
static bool no_tangent(PyObject *o, const struct tensor *t) {
    static PyObject *space, *name;
    const char *where = "torch.autograd.forward_ad";
    if (!space && !(space = torch_attribute(where, "__dict__"))) return false;
    if (!name && !(name = PyUnicode_InternFromString("_current_level"))) return false;
    PyObject *level = PyDict_GetItemWithError(space, name);
    if (!level || PyLong_AsLong(level) < 0) return !PyErr_Occurred();
    const int dual = is_dual(o, level);
    if (dual > 0)
        pydvm_fail(DVM_ERR_UNSUPPORTED,
                   "%s %d carries a tangent of forward-mode differentiation, which a kernel does "
                   "not compute: pass torch.autograd.forward_ad.unpack_dual(x).primal",
                   role(t), t->which);
    return !dual;
}

/* Whether an answer (owned) is True; -1 with an exception. */
static int is_true(PyObject *answer) {
    Py_XDECREF(answer);
    return answer ? answer == Py_True : -1;
}

static int is_negated(const struct known *k, PyObject *o) {
    static PyObject *name;
    if (k->is_neg) return is_true(k->is_neg(o, NULL));
    if (!name && !(name = PyUnicode_InternFromString("is_neg"))) return -1;
    return is_true(PyObject_CallMethodObjArgs(o, name, NULL));
}

static int is_tracked(const struct known *k, PyObject *o) {
    static PyObject *name;
    if (k->requires_grad) return is_true(k->requires_grad->get(o, k->requires_grad->closure));
    if (!name && !(name = PyUnicode_InternFromString("requires_grad"))) return -1;
    return is_true(PyObject_GetAttr(o, name));
}

/* A tensor of torch may be the negative of its memory (the imaginary part of a conjugate, torch._neg_view), and it may
 * be part of a graph that autograd records. DLPack and data_ptr() tell neither. */
static bool from_torch(const struct known *k, PyObject *o, struct tensor *t, bool *negated) {
    const int neg = is_negated(k, o);
    if (neg < 0) return false;
    *negated = neg;
    if (neg && t->output) {
        pydvm_fail(DVM_ERR_ARG,
                   "%s %d is a lazily negated view: pass x.resolve_neg() and copy from there",
                   role(t), t->which);
        return false;
    }
    const int tracked = is_tracked(k, o);
    return tracked >= 0 && (!tracked || untracked(t)) && no_tangent(o, t);
}

static bool from_exchange(const struct known *k, PyObject *o, const struct slot *want,
                          struct tensor *t) {
    DLTensor d;
    bool negated = false;
    if (k->api->dltensor_from_py_object_no_sync(o, &d)) return false;
    if (t->family == FAMILY_TORCH && d.dtype.code != kDLBool && !from_torch(k, o, t, &negated))
        return false;
    if (negated) return from_substitute("resolve_neg", o, want, t);
    return from_dltensor(o, &d, want, t);
}

static bool no_capsule(const struct tensor *t, PyObject *given) {
    const bool used = PyCapsule_IsValid(given, "used_dltensor") ||
                      PyCapsule_IsValid(given, "used_dltensor_versioned");
    PyObject *name = PyObject_GetAttrString((PyObject *)Py_TYPE(given), "__name__");
    if (name)
        pydvm_fail(DVM_ERR_ARG, "%s %d: its __dlpack__() returned %S%s, expected a DLPack capsule",
                   role(t), t->which, name, used ? " that was consumed before" : "");
    Py_XDECREF(name);
    return false;
}

static bool from_capsule(PyObject *o, const struct slot *want, struct tensor *t) {
    PyObject *capsule = PyObject_CallMethod(o, "__dlpack__", NULL);
    if (!capsule) return false;
    Py_XDECREF(t->owner);
    t->owner = capsule; /* its destructor gives the tensor back */
    if (PyCapsule_IsValid(capsule, "dltensor_versioned")) {
        DLManagedTensorVersioned *m = PyCapsule_GetPointer(capsule, "dltensor_versioned");
        if (m->version.major != 1) {
            pydvm_fail(DVM_ERR_ARG, "%s %d speaks DLPack %u, not 1", role(t), t->which,
                       m->version.major);
            return false;
        }
        if (t->output && m->flags & DLPACK_FLAG_READ_ONLY) return read_only(t);
        return from_dltensor(o, &m->dl_tensor, want, t);
    }
    if (!PyCapsule_IsValid(capsule, "dltensor")) return no_capsule(t, capsule);
    DLManagedTensor *m = PyCapsule_GetPointer(capsule, "dltensor");
    return from_dltensor(o, &m->dl_tensor, want, t);
}

/* ---- attributes of older torch ---- */

static bool integers(PyObject *o, int64_t *out, int *n, const struct tensor *t) {
    PyObject *tuple = o ? PySequence_Tuple(o) : NULL;
    Py_XDECREF(o);
    if (!tuple) return false;
    const Py_ssize_t len = PyTuple_Size(tuple);
    bool ok = check_rank(len, t);
    *n = (int)len;
    for (Py_ssize_t i = 0; ok && i < len; i++) {
        out[i] = PyLong_AsLongLong(PyTuple_GetItem(tuple, i));
        ok = !(out[i] == -1 && PyErr_Occurred());
    }
    Py_DECREF(tuple);
    return ok;
}

static bool from_attributes(const struct known *k, PyObject *o, const struct slot *want,
                            struct tensor *t) {
    int given, rank, n;
    bool negated = false;
    PyObject *number = arrays_call("torch_dtype", o); /* refuses other devices */
    if (!number) return false;
    given = (int)PyLong_AsLong(number);
    Py_DECREF(number);
    if (!check_dtype(o, want, t, given)) return false;
    if (t->family == FAMILY_TORCH && !from_torch(k, o, t, &negated)) return false;
    if (negated) return from_substitute("resolve_neg", o, want, t);
    PyObject *at = PyObject_CallMethod(o, "data_ptr", NULL);
    void *data = at ? PyLong_AsVoidPtr(at) : NULL;
    Py_XDECREF(at);
    if (PyErr_Occurred() || !integers(PyObject_GetAttrString(o, "shape"), t->dims, &rank, t) ||
        !integers(PyObject_CallMethod(o, "stride", NULL), t->strides, &n, t))
        return false;
    if (n != rank) {
        pydvm_fail(DVM_ERR_ARG, "%s %d has %d sizes and %d strides", role(t), t->which, rank, n);
        return false;
    }
    *t->arg = (dvm_arg){
        .data = data, .dims = t->dims, .strides = t->strides, .rank = rank, .dtype = given};
    return finish(o, want, t);
}

/* ---- the door ---- */

static bool describe(PyObject *o, const struct slot *want, struct tensor *t) {
    const struct known *k = look(o);
    if (!k) return false;
    t->family = k->family;
    switch (k->how) {
    case HOW_EXCHANGE: return from_exchange(k, o, want, t);
    case HOW_BUFFER: return from_buffer(o, want, t);
    case HOW_ATTR: return from_attributes(k, o, want, t);
    case HOW_DLPACK: return from_capsule(o, want, t);
    default: return wrong_kind(o, want, t);
    }
}

/* Says in DVM's words why o could not be described, when the pending exception is that of o itself. */
static bool refuse(PyObject *o, const struct tensor *t) {
    if (PyErr_ExceptionMatches(pydvm.error[0]) || !PyErr_ExceptionMatches(PyExc_Exception) ||
        PyErr_ExceptionMatches(PyExc_MemoryError))
        return false;
    PyObject *type, *reason, *trace;
    PyErr_Fetch(&type, &reason, &trace);
    PyErr_NormalizeException(&type, &reason, &trace);
    PyObject *module = PyImport_ImportModule("dvm.arrays");
    PyObject *done = module ? PyObject_CallMethod(module, "refuse", "OsiO", o, role(t), t->which,
                                                  reason ? reason : Py_None)
                            : NULL;
    Py_XDECREF(done);
    Py_XDECREF(module);
    Py_XDECREF(type);
    Py_XDECREF(reason);
    Py_XDECREF(trace);
    return false;
}

bool pydvm_tensor(PyObject *o, const struct slot *want, bool output, int which, struct tensor *t) {
    t->output = output;
    t->which = which;
    return describe(o, want, t) || refuse(o, t);
}

void pydvm_tensor_done(struct tensor *t) {
    if (t->has_buf) PyBuffer_Release(&t->buf);
    Py_CLEAR(t->owner);
    t->has_buf = false;
}

/* ---- views that own nothing ---- */

struct shown {
    DLManagedTensorVersioned tensor;
    int64_t numbers[2 * DVM_MAX_RANK];
};

/* The C library's memory: torch may let go of a tensor without the GIL. */
static void shown_free(DLManagedTensorVersioned *t) { free(t->manager_ctx); }

static bool has_strides(const DLTensor *d, const struct layout *want) {
    bool same = true;
    if (d->ndim != want->base_rank) return false;
    for (int i = 0; i < d->ndim; i++) {
        if (d->shape[i] == 0) return true; /* says nothing */
        same &= d->shape[i] == 1 || d->strides[i] == want->base_stride[i];
    }
    return same;
}

static PyObject *show(const DLPackExchangeAPI *api, const DLTensor *d, const struct layout *want,
                      void *data) {
    struct shown *s = malloc(sizeof *s);
    if (!s) return PyErr_NoMemory();
    memcpy(s->numbers, want->size, (size_t)want->rank * 8);
    memcpy(s->numbers + DVM_MAX_RANK, want->stride, (size_t)want->rank * 8);
    s->tensor =
        (DLManagedTensorVersioned){.version = {1, 0}, .manager_ctx = s, .deleter = shown_free};
    s->tensor.dl_tensor = (DLTensor){.data = data,
                                     .device = d->device,
                                     .ndim = want->rank,
                                     .dtype = d->dtype,
                                     .shape = s->numbers,
                                     .strides = s->numbers + DVM_MAX_RANK};
    void *out = NULL;
    if (!api->managed_tensor_to_py_object_no_sync(&s->tensor, &out)) return out;
    free(s);
    return NULL;
}

int pydvm_show(PyObject *o, const struct layout *want, const void **memory, PyObject **view) {
    const struct known *k = look(o);
    if (!k) return -1;
    DLTensor d;
    if (k->how != HOW_EXCHANGE || k->family != FAMILY_TORCH) return 0;
    if (k->api->dltensor_from_py_object_no_sync(o, &d)) {
        PyErr_Clear(); /* a tensor that is not all memory and strides */
        return 0;
    }
    if (d.device.device_type != kDLCPU || !has_strides(&d, want)) return 0;
    char *data = d.data;
    if (data) data += d.byte_offset + (uint64_t)(want->offset * (d.dtype.bits / 8));
    if (*view && data && *memory == data) return 1;
    Py_CLEAR(*view);
    *view = show(k->api, &d, want, data);
    *memory = data;
    return *view ? 1 : -1;
}

/* ---- numbers ---- */

static int64_t cut(double d, double low, double high, int64_t least, int64_t most) {
    if (isnan(d)) return 0;
    d = trunc(d);
    return d <= low ? least : d >= high ? most : (int64_t)d;
}

static int64_t narrow(int64_t v, int t) {
    switch (t) {
    case DVM_I32: return (int32_t)(uint32_t)v;
    case DVM_U8: return (uint8_t)v;
    case DVM_I8: return (int8_t)(uint8_t)v;
    default: return v;
    }
}

static int64_t cut_to(double d, int t) {
    switch (t) {
    case DVM_I32: return cut(d, INT32_MIN, INT32_MAX, INT32_MIN, INT32_MAX);
    case DVM_U8: return cut(d, 0, UINT8_MAX, 0, UINT8_MAX);
    case DVM_I8: return cut(d, INT8_MIN, INT8_MAX, INT8_MIN, INT8_MAX);
    default: return cut(d, -0x1p63, 0x1p63, INT64_MIN, INT64_MAX);
    }
}

bool pydvm_number(PyObject *o, int t, dvm_number *out) {
    switch (t) {
    case DVM_F16:
    case DVM_BF16:
    case DVM_F32:
    case DVM_F64:
        out->f = PyFloat_AsDouble(o);
        if (out->f != -1.0 || !PyErr_Occurred()) return true;
        if (!PyErr_ExceptionMatches(PyExc_OverflowError)) return false;
        PyErr_Clear(); /* an integer beyond every float */
        out->f = PyObject_RichCompareBool(o, Py_False, Py_LT) == 1 ? -INFINITY : INFINITY;
        return !PyErr_Occurred();
    case DVM_BOOL: {
        const int truth = PyObject_IsTrue(o);
        out->i = truth > 0;
        return truth >= 0;
    }
    default: break;
    }
    PyObject *index = PyFloat_Check(o) ? NULL : PyNumber_Index(o);
    if (index) {
        const int64_t whole = PyLong_AsLongLong(index);
        Py_DECREF(index);
        if (whole == -1 && PyErr_Occurred()) {
            PyErr_Clear();
            pydvm_fail(DVM_ERR_ARG, "an integer beyond 64 bits is no %s; pass a float instead",
                       dvm_dtype_name(t));
            return false;
        }
        out->i = narrow(whole, t);
        return true;
    }
    PyErr_Clear();
    const double d = PyFloat_AsDouble(o);
    if (d == -1.0 && PyErr_Occurred()) return false;
    out->i = cut_to(d, t);
    return true;
}

/* ---- results ---- */

static void replace(PyObject **slot, PyObject *o) {
    PyObject *old = *slot;
    *slot = o;
    Py_XDECREF(old);
}

PyObject *pydvm_register_arrays(PyObject *self, PyObject *const *args, Py_ssize_t n) {
    (void)self;
    if (!pydvm_count("register_arrays", n, 3, 3)) return NULL;
    const long family = PyLong_AsLong(args[0]);
    if (family <= FAMILY_NONE || family >= FAMILY_OTHER || !PyTuple_Check(args[2]) ||
        PyTuple_Size(args[2]) != DVM_NDTYPE)
        return pydvm_fail(DVM_ERR_ARG, "register_arrays(family, empty, dtypes)");
    struct allocator *a = &allocator[family];
    for (int t = 0; t < DVM_NDTYPE; t++) {
        PyObject *dtype = PyTuple_GetItem(args[2], t),
                 *kwargs = Py_BuildValue("{s:O}", "dtype", dtype);
        if (!kwargs) return NULL;
        replace(&a->dtype[t], Py_NewRef(dtype));
        replace(&a->kwargs[t], kwargs);
    }
    replace(&a->empty, Py_NewRef(args[1]));
    Py_RETURN_NONE;
}

PyObject *pydvm_empty(enum family family, int rank, const int64_t *dims, int dtype) {
    if (family != FAMILY_TORCH) family = FAMILY_NUMPY;
    struct allocator *a = &allocator[family];
    if (!a->empty) {
        PyObject *done = arrays_call("register", family == FAMILY_TORCH ? Py_True : Py_False);
        if (!done) return NULL;
        Py_DECREF(done);
    }
    PyObject *shape = PyTuple_New(rank);
    for (int i = 0; shape && i < rank; i++) {
        PyObject *d = PyLong_FromLongLong(dims[i]);
        if (!d || PyTuple_SetItem(shape, i, d)) Py_CLEAR(shape);
    }
    if (!shape) return NULL;
    PyObject *out = NULL, *args = PyTuple_Pack(1, shape);
    if (args) out = PyObject_Call(a->empty, args, a->kwargs[dtype]);
    Py_XDECREF(args);
    Py_DECREF(shape);
    return out;
}

PyObject *pydvm_address(PyObject *self, PyObject *o) {
    (void)self;
    const struct slot any = {DVM_NDTYPE, false};
    dvm_arg arg;
    struct tensor t = {.arg = &arg};
    PyObject *out = NULL, *shape = NULL, *strides = NULL;
    if (!pydvm_tensor(o, &any, false, 0, &t)) goto done;
    shape = PyTuple_New(arg.rank);
    strides = PyTuple_New(arg.rank);
    for (int i = 0; shape && strides && i < arg.rank; i++) {
        PyObject *d = PyLong_FromLongLong(arg.dims[i]),
                 *s = PyLong_FromLongLong(arg.strides ? arg.strides[i] : -1);
        if (!d || !s || PyTuple_SetItem(shape, i, d) || PyTuple_SetItem(strides, i, s)) goto done;
    }
    if (shape && strides)
        out = Py_BuildValue("KiOO", (unsigned long long)(uintptr_t)arg.data, arg.dtype, shape,
                            strides);
done:
    Py_XDECREF(shape);
    Py_XDECREF(strides);
    pydvm_tensor_done(&t);
    return out;
}
