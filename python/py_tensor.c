/* Arguments of a run without copies. How a type gives its memory away is found once per type and remembered:
 *
 *   EXCHANGE  the DLPack C table of the type (torch): one C call
 *   BUFFER    the buffer protocol (numpy, memoryview)
 *   ATTR      data_ptr(), shape, stride(), dtype, device (older torch)
 *   DLPACK    __dlpack__()
 *
 * dvm.arrays (Python) knows the rest: families, copies, and views of dtypes that have no buffer format. */
#include "pydvm.h"

#include <math.h>
#include <string.h>
#include "dlpack.h"

enum how { HOW_NONE, HOW_EXCHANGE, HOW_BUFFER, HOW_ATTR, HOW_DLPACK };

struct known {
    PyTypeObject *type; /* owned */
    enum how how;
    enum family family;
    const DLPackExchangeAPI *api;
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

static const struct known *learn(PyObject *o) {
    PyTypeObject *type = Py_TYPE(o);
    PyObject *family = arrays_call("family_of", (PyObject *)type);
    if (!family) return NULL;
    struct known k = {.type = type, .family = (enum family)PyLong_AsLong(family)};
    Py_DECREF(family);
    if (k.family == FAMILY_NUMPY)
        k.how = HOW_BUFFER;
    else if ((k.api = exchange_of(type)))
        k.how = HOW_EXCHANGE;
    else if (type_has(type, "data_ptr") && type_has(type, "stride"))
        k.how = HOW_ATTR;
    else if (type_has(type, "__dlpack__"))
        k.how = HOW_DLPACK;
    else if (PyObject_CheckBuffer(o))
        k.how = HOW_BUFFER;
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

static const char *role(bool output) { return output ? "an output" : "an input"; }

static bool wrong_kind(PyObject *o, const struct slot *want, bool output, int which) {
    PyObject *name = PyObject_GetAttrString((PyObject *)Py_TYPE(o), "__name__");
    if (name)
        pydvm_fail(
            DVM_ERR_ARG, "argument %d, %s: expected an array or tensor of %s, given %S%s", which,
            role(output), want->dtype < DVM_NDTYPE ? dvm_dtype_name(want->dtype) : "any dtype",
            name,
            PyNumber_Check(o)
                ? "; a number is an argument of a kernel only where it was declared by scalar()"
                : "");
    Py_XDECREF(name);
    return false;
}

static bool wrong_dtype(PyObject *o, const struct slot *want, bool output, int which,
                        const char *given) {
    PyObject *dtype = given ? NULL : PyObject_GetAttrString(o, "dtype");
    if (!given && !dtype) PyErr_Clear();
    PyObject *text = given   ? PyUnicode_FromString(given)
                     : dtype ? PyObject_Str(dtype)
                             : PyUnicode_FromString("?");
    if (text)
        pydvm_fail(DVM_ERR_DTYPE, "argument %d, %s: expected %s, given %U%s", which, role(output),
                   want->dtype < DVM_NDTYPE ? dvm_dtype_name(want->dtype) : "a dtype of DVM", text,
                   want->dtype == DVM_BF16 ? " (numpy: uint16 with the raw bits)" : "");
    Py_XDECREF(text);
    Py_XDECREF(dtype);
    return false;
}

static bool check_dtype(PyObject *o, const struct slot *want, bool output, int which, int given) {
    if (given == want->dtype || (given >= 0 && want->dtype >= DVM_NDTYPE)) return true;
    return wrong_dtype(o, want, output, which,
                       given >= 0 ? dvm_dtype_name((dvm_dtype)given) : NULL);
}

static bool check_rank(int64_t rank, int which) {
    if (rank >= 0 && rank <= DVM_MAX_RANK) return true;
    pydvm_fail(DVM_ERR_LIMIT, "argument %d has %lld dimensions, at most %d are possible", which,
               (long long)rank, DVM_MAX_RANK);
    return false;
}

static bool empty_dims(const dvm_arg *a) {
    for (int i = 0; i < a->rank; i++)
        if (a->dims[i] == 0) return true;
    return false;
}

/* Last step of every door. Strides of a tensor without elements say nothing. */
static bool finish(dvm_arg *a, int which) {
    if (empty_dims(a)) {
        a->strides = NULL;
        return true;
    }
    if (a->data) return true;
    pydvm_fail(DVM_ERR_ARG, "argument %d has no memory behind it (a fake or meta tensor?)", which);
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

/* Hands over to another object that stands for o: a copy, or a view of raw bits. */
static bool from_substitute(const char *how, PyObject *o, const struct slot *want, bool output,
                            int which, struct tensor *t) {
    PyObject *other = arrays_call(how, o);
    if (!other) return false;
    if (other == Py_None || t->owner) {
        Py_DECREF(other);
        return wrong_dtype(o, want, output, which, NULL);
    }
    t->owner = other;
    return pydvm_tensor(other, want, output, which, t);
}

static bool from_buffer(PyObject *o, const struct slot *want, bool output, int which,
                        struct tensor *t) {
    if (PyObject_GetBuffer(o, &t->buf, output ? PyBUF_RECORDS : PyBUF_RECORDS_RO)) {
        if (!output) {
            PyErr_Clear();
            return from_substitute("raw_bits", o, want, output, which, t);
        }
        PyErr_Clear();
        if (PyObject_GetBuffer(o, &t->buf, PyBUF_RECORDS_RO) == 0) {
            PyBuffer_Release(&t->buf);
            pydvm_fail(DVM_ERR_ARG, "argument %d, an output, is read-only", which);
            return false;
        }
        PyErr_Clear();
        return from_substitute("raw_bits", o, want, output, which, t);
    }
    t->has_buf = true;
    const Py_buffer *b = &t->buf;
    if (!check_dtype(o, want, output, which, dtype_of_format(b->format, b->itemsize)) ||
        !check_rank(b->ndim, which))
        return false;
    for (int i = 0; i < b->ndim; i++) {
        t->dims[i] = b->shape[i];
        t->strides[i] = b->strides[i] / b->itemsize;
        if (t->strides[i] * b->itemsize != b->strides[i] && b->shape[i] > 1) {
            PyBuffer_Release(&t->buf);
            t->has_buf = false;
            if (!output) return from_substitute("dense_copy", o, want, output, which, t);
            pydvm_fail(DVM_ERR_ARG,
                       "argument %d, an output: strides are no multiple of the element size",
                       which);
            return false;
        }
    }
    *t->arg = (dvm_arg){.data = b->buf,
                        .dims = t->dims,
                        .strides = t->strides,
                        .rank = b->ndim,
                        .dtype = want->dtype};
    if (want->dtype >= DVM_NDTYPE) t->arg->dtype = dtype_of_format(b->format, b->itemsize);
    return finish(t->arg, which);
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

static bool wrong_device(const char *name, int id, int which) {
    pydvm_fail(DVM_ERR_UNSUPPORTED,
               "argument %d is in the memory of %s:%d, and this context runs on the CPU: pass a "
               "CPU tensor (x.cpu())",
               which, name, id);
    return false;
}

static bool from_dltensor(PyObject *o, const DLTensor *d, const struct slot *want, bool output,
                          int which, struct tensor *t) {
    switch (d->device.device_type) {
    case kDLCPU:
    case kDLCUDAHost:
    case kDLROCMHost: break;
    case kDLCUDA:
    case kDLCUDAManaged: return wrong_device("cuda", d->device.device_id, which);
    case kDLROCM: return wrong_device("rocm", d->device.device_id, which);
    default: return wrong_device("a device", d->device.device_id, which);
    }
    const int given = dtype_of_dl(d->dtype);
    if (!check_dtype(o, want, output, which, given) || !check_rank(d->ndim, which)) return false;
    *t->arg = (dvm_arg){.data = d->data ? (char *)d->data + d->byte_offset : NULL,
                        .dims = t->dims,
                        .strides = d->strides ? t->strides : NULL,
                        .rank = d->ndim,
                        .dtype = given};
    for (int i = 0; i < d->ndim; i++) {
        t->dims[i] = d->shape[i];
        if (d->strides) t->strides[i] = d->strides[i];
    }
    return finish(t->arg, which);
}

/* Says in DVM's words why a tensor could not be described; the reason is the pending exception. */
static bool refuse(PyObject *o, int which) {
    PyObject *type, *reason, *trace;
    PyErr_Fetch(&type, &reason, &trace);
    PyObject *module = PyImport_ImportModule("dvm.arrays");
    PyObject *done =
        module ? PyObject_CallMethod(module, "refuse", "OiO", o, which, reason ? reason : Py_None)
               : NULL;
    Py_XDECREF(done);
    Py_XDECREF(module);
    Py_XDECREF(type);
    Py_XDECREF(reason);
    Py_XDECREF(trace);
    return false;
}

static bool dense(const DLTensor *d) {
    int64_t step = 1;
    for (int i = d->ndim - 1; i >= 0; i--) {
        if (d->strides && d->strides[i] != step) return false;
        step *= d->shape[i];
    }
    return d->ndim > 0;
}

/* Whether a tensor of torch is the negative of its memory. DLPack does not tell. That is so for the imaginary part of a
 * conjugate, which is never dense, so the question (0.1 us) is not put to every tensor. 1, 0, or -1 with an exception. */
static int negated(PyObject *o, const DLTensor *d) {
    static PyObject *name;
    if (d->dtype.code != kDLFloat || dense(d)) return 0;
    if (!name && !(name = PyUnicode_InternFromString("is_neg"))) return -1;
    PyObject *answer = PyObject_CallMethodObjArgs(o, name, NULL);
    if (!answer) return -1;
    const int yes = answer == Py_True;
    Py_DECREF(answer);
    return yes;
}

static bool from_exchange(const DLPackExchangeAPI *api, PyObject *o, const struct slot *want,
                          bool output, int which, struct tensor *t) {
    DLTensor d;
    if (api->dltensor_from_py_object_no_sync(o, &d)) return refuse(o, which);
    const int neg = t->family == FAMILY_TORCH ? negated(o, &d) : 0;
    if (neg < 0) return false;
    if (neg && output) {
        pydvm_fail(DVM_ERR_ARG,
                   "argument %d, an output, is a lazily negated view: pass x.resolve_neg()", which);
        return false;
    }
    if (neg) return from_substitute("resolve_neg", o, want, output, which, t);
    return from_dltensor(o, &d, want, output, which, t);
}

static bool from_capsule(PyObject *o, const struct slot *want, bool output, int which,
                         struct tensor *t) {
    PyObject *capsule = PyObject_CallMethod(o, "__dlpack__", NULL);
    if (!capsule) return false;
    Py_XDECREF(t->owner);
    t->owner = capsule; /* its destructor gives the tensor back */
    if (PyCapsule_IsValid(capsule, "dltensor_versioned")) {
        DLManagedTensorVersioned *m = PyCapsule_GetPointer(capsule, "dltensor_versioned");
        if (m->version.major != 1) {
            pydvm_fail(DVM_ERR_ARG, "argument %d speaks DLPack %u, not 1", which, m->version.major);
            return false;
        }
        if (output && m->flags & DLPACK_FLAG_READ_ONLY) {
            pydvm_fail(DVM_ERR_ARG, "argument %d, an output, is read-only", which);
            return false;
        }
        return from_dltensor(o, &m->dl_tensor, want, output, which, t);
    }
    DLManagedTensor *m = PyCapsule_GetPointer(capsule, "dltensor");
    return m && from_dltensor(o, &m->dl_tensor, want, output, which, t);
}

/* ---- attributes of older torch ---- */

static bool integers(PyObject *o, int64_t *out, int *n, int which) {
    PyObject *tuple = o ? PySequence_Tuple(o) : NULL;
    Py_XDECREF(o);
    if (!tuple) return false;
    const Py_ssize_t len = PyTuple_Size(tuple);
    bool ok = check_rank(len, which);
    *n = (int)len;
    for (Py_ssize_t i = 0; ok && i < len; i++) {
        out[i] = PyLong_AsLongLong(PyTuple_GetItem(tuple, i));
        ok = !(out[i] == -1 && PyErr_Occurred());
    }
    Py_DECREF(tuple);
    return ok;
}

static bool from_attributes(PyObject *o, const struct slot *want, bool output, int which,
                            struct tensor *t) {
    int given, rank, n;
    PyObject *number = arrays_call("torch_dtype", o); /* refuses other devices */
    if (!number) return false;
    given = (int)PyLong_AsLong(number);
    Py_DECREF(number);
    if (!check_dtype(o, want, output, which, given)) return false;
    PyObject *at = PyObject_CallMethod(o, "data_ptr", NULL);
    void *data = at ? PyLong_AsVoidPtr(at) : NULL;
    Py_XDECREF(at);
    if (PyErr_Occurred() || !integers(PyObject_GetAttrString(o, "shape"), t->dims, &rank, which) ||
        !integers(PyObject_CallMethod(o, "stride", NULL), t->strides, &n, which))
        return false;
    if (n != rank) {
        pydvm_fail(DVM_ERR_ARG, "argument %d has %d sizes and %d strides", which, rank, n);
        return false;
    }
    *t->arg = (dvm_arg){
        .data = data, .dims = t->dims, .strides = t->strides, .rank = rank, .dtype = given};
    return finish(t->arg, which);
}

/* ---- the door ---- */

bool pydvm_tensor(PyObject *o, const struct slot *want, bool output, int which, struct tensor *t) {
    const struct known *k = look(o);
    if (!k) return false;
    t->family = k->family;
    switch (k->how) {
    case HOW_EXCHANGE: return from_exchange(k->api, o, want, output, which, t);
    case HOW_BUFFER: return from_buffer(o, want, output, which, t);
    case HOW_ATTR: return from_attributes(o, want, output, which, t);
    case HOW_DLPACK: return from_capsule(o, want, output, which, t);
    default: return wrong_kind(o, want, output, which);
    }
}

void pydvm_tensor_done(struct tensor *t) {
    if (t->has_buf) PyBuffer_Release(&t->buf);
    Py_CLEAR(t->owner);
    t->has_buf = false;
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
    if (!pydvm_tensor(o, &any, false, 1, &t)) goto done;
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
