/* Module _dvm: exception classes, Context and the functions of the module. */
#include "pydvm.h"

#include <stdio.h>
#include <string.h>

struct pydvm pydvm;

/* ---- errors ---- */

static const struct error_class {
    dvm_status status;
    const char *name, *base, *doc;
} error_class[] = {
    {DVM_ERR_NOMEM, "OutOfMemoryError", "MemoryError", "No memory."},
    {DVM_ERR_ARG, "ArgumentError", "ValueError TypeError",
     "An argument is wrong in kind, number or value."},
    {DVM_ERR_DTYPE, "DTypeError", "TypeError", "Operand dtypes do not fit."},
    {DVM_ERR_SHAPE, "ShapeError", "ValueError", "Operand shapes do not fit."},
    {DVM_ERR_VALUE, "ForeignValueError", "ValueError", "A value belongs to another graph."},
    {DVM_ERR_KIND, "KindError", "ValueError", "The graph cannot be a kernel of the wanted kind."},
    {DVM_ERR_LIMIT, "LimitError", "ValueError", "The program exceeds a documented limit."},
    {DVM_ERR_PARSE, "ParseError", "ValueError", "Text could not be read."},
    {DVM_ERR_FORMAT, "FormatError", "ValueError",
     "Program bytes are damaged or of another version."},
    {DVM_ERR_OVERLAP, "OverlapError", "ValueError",
     "Buffers overlap in a way that is not allowed."},
    {DVM_ERR_INDEX, "OutOfRangeError", "IndexError", "An index tensor holds a value out of range."},
    {DVM_ERR_UNSUPPORTED, "UnsupportedError", "NotImplementedError", "Not supported."},
    {DVM_ERR_IO, "FileError", NULL, "A file could not be read or written."},
    {DVM_ERR_STATE, "StateError", NULL, "The call is not allowed in this state."},
    {DVM_ERR_INTERNAL, "InternalError", NULL, "An internal check failed: please report it."},
};

static PyObject *class_of(dvm_status st) {
    PyObject *c = (unsigned)st < 16 ? pydvm.error[st] : NULL;
    return c ? c : pydvm.error[0];
}

PyObject *pydvm_raise(dvm_status st) {
    const char *text = dvm_error_text();
    PyErr_SetString(class_of(st), text && *text ? text : dvm_status_text(st));
    return NULL;
}

PyObject *pydvm_fail(dvm_status st, const char *format, ...) {
    va_list ap;
    va_start(ap, format);
    PyErr_FormatV(class_of(st), format, ap);
    va_end(ap);
    return NULL;
}

bool pydvm_count(const char *name, Py_ssize_t given, Py_ssize_t low, Py_ssize_t high) {
    if (given >= low && given <= high) return true;
    if (low == high)
        PyErr_Format(PyExc_TypeError, "%s takes %zd arguments, %zd given", name, low, given);
    else
        PyErr_Format(PyExc_TypeError, "%s takes %zd to %zd arguments, %zd given", name, low, high,
                     given);
    return false;
}

/* The bases "A B" of builtins behind Error. */
static PyObject *bases_of(const char *names) {
    PyObject *list = PyList_New(0), *builtins = PyImport_ImportModule("builtins");
    if (!list || !builtins || PyList_Append(list, pydvm.error[0])) goto fail;
    while (names && *names) {
        size_t n = strcspn(names, " ");
        char one[32];
        snprintf(one, sizeof one, "%.*s", (int)n, names);
        names += n + (names[n] == ' ');
        PyObject *base = PyObject_GetAttrString(builtins, one);
        int bad = !base || PyList_Append(list, base);
        Py_XDECREF(base);
        if (bad) goto fail;
    }
    PyObject *tuple = PyList_AsTuple(list);
    Py_DECREF(list);
    Py_DECREF(builtins);
    return tuple;
fail:
    Py_XDECREF(list);
    Py_XDECREF(builtins);
    return NULL;
}

static bool add_error(PyObject *module, PyObject **slot, const char *name, const char *doc,
                      PyObject *bases, dvm_status st) {
    char full[64];
    snprintf(full, sizeof full, "dvm.%s", name);
    PyObject *dict = Py_BuildValue("{s:i}", "status", (int)st);
    if (!dict) return false;
    *slot = PyErr_NewExceptionWithDoc(full, doc, bases, dict);
    Py_DECREF(dict);
    return *slot && PyModule_AddObjectRef(module, name, *slot) == 0;
}

static bool add_errors(PyObject *module) {
    if (!add_error(module, &pydvm.error[0], "Error",
                   "Base of every error of DVM; `status` is the number of the C interface.",
                   PyExc_RuntimeError, DVM_OK))
        return false;
    for (size_t i = 0; i < sizeof error_class / sizeof *error_class; i++) {
        const struct error_class *c = &error_class[i];
        PyObject *bases = bases_of(c->base);
        bool ok =
            bases && add_error(module, &pydvm.error[c->status], c->name, c->doc, bases, c->status);
        Py_XDECREF(bases);
        if (!ok) return false;
    }
    return true;
}

/* ---- Context ---- */

static PyObject *context_new(PyTypeObject *type, PyObject *args, PyObject *kw) {
    (void)type;
    static char *names[] = {"device", "isa", "threads", "openmp", NULL};
    dvm_options o = {0};
    int openmp = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kw, "|zzip:Context", names, &o.device, &o.isa,
                                     &o.threads, &openmp))
        return NULL;
    struct context *self = PyObject_New(struct context, pydvm.context);
    if (!self) return NULL;
    self->ctx = NULL;
    self->team = (struct team){0};
    if (openmp) pydvm_openmp(&self->team, &o);
    dvm_status st = dvm_ctx_create(&o, &self->ctx);
    if (st) {
        Py_DECREF((PyObject *)self);
        return pydvm_raise(st);
    }
    self->team.ctx = self->ctx;
    return (PyObject *)self;
}

static void context_dealloc(PyObject *o) {
    PyTypeObject *type = Py_TYPE(o);
    dvm_ctx_destroy(&((struct context *)o)->ctx);
    PyObject_Free(o);
    Py_DECREF(type);
}

static PyObject *context_set_threads(PyObject *o, PyObject *n) {
    long threads = PyLong_AsLong(n);
    if (threads == -1 && PyErr_Occurred()) return NULL;
    if (threads < 1 || threads > 1 << 16)
        return pydvm_fail(DVM_ERR_ARG, "the number of threads is 1 to 65536, given %ld", threads);
    dvm_status st = dvm_ctx_set_threads(((struct context *)o)->ctx, (int)threads);
    if (st) return pydvm_raise(st);
    Py_RETURN_NONE;
}

static PyObject *context_threads(PyObject *o, void *unused) {
    (void)unused;
    return PyLong_FromLong(dvm_ctx_threads(((struct context *)o)->ctx));
}

static PyObject *context_device(PyObject *o, void *unused) {
    (void)unused;
    return PyUnicode_FromString(dvm_ctx_device(((struct context *)o)->ctx));
}

static PyObject *context_openmp(PyObject *o, void *unused) {
    (void)unused;
    return PyBool_FromLong(((struct context *)o)->team.parallel != NULL);
}

static PyMethodDef context_methods[] = {
    {"set_threads", context_set_threads, METH_O,
     "set_threads(n): threads of the pool, the caller counted."},
    {0},
};
static PyGetSetDef context_getset[] = {
    {"threads", context_threads, NULL, "Threads of the pool, the caller counted.", NULL},
    {"device", context_device, NULL, "Device and instruction set: \"cpu avx512\", \"ref\".", NULL},
    {"openmp", context_openmp, NULL, "Whether loops run on an OpenMP runtime of the process.",
     NULL},
    {0},
};
static PyType_Slot context_slots[] = {
    {Py_tp_new, context_new},
    {Py_tp_dealloc, context_dealloc},
    {Py_tp_methods, context_methods},
    {Py_tp_getset, context_getset},
    {Py_tp_doc,
     "Context(device=None, isa=None, threads=0, openmp=False): device, threads and caches."},
    {0},
};
static PyType_Spec context_spec = {"_dvm.Context", sizeof(struct context), 0,
                                   Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, context_slots};

/* dvm.threads says how many threads, and whose. */
struct context *pydvm_default_context(void) {
    if (!pydvm.default_context) {
        PyObject *module = PyImport_ImportModule("dvm.threads"), *args = PyTuple_New(0);
        PyObject *kw = module ? PyObject_CallMethod(module, "default_options", NULL) : NULL;
        PyObject *made = args && kw ? context_new(pydvm.context, args, kw) : NULL;
        if (pydvm.default_context) { /* another thread was here while Python code ran */
            Py_XDECREF(made);
            PyErr_Clear(); /* its context serves, whatever went wrong here */
        } else {
            pydvm.default_context = made;
        }
        Py_XDECREF(module);
        Py_XDECREF(args);
        Py_XDECREF(kw);
    }
    return (struct context *)pydvm.default_context;
}

/* ---- module ---- */

static PyObject *module_default_context(PyObject *self, PyObject *unused) {
    (void)self;
    (void)unused;
    return Py_XNewRef((PyObject *)pydvm_default_context());
}

static PyObject *module_started(PyObject *self, PyObject *unused) {
    (void)self;
    (void)unused;
    return PyBool_FromLong(pydvm.default_context != NULL);
}

static PyObject *module_parse(PyObject *self, PyObject *const *args, Py_ssize_t n) {
    (void)self;
    if (!pydvm_count("parse", n, 1, 2)) return NULL;
    Py_ssize_t len;
    const char *text = PyUnicode_AsUTF8AndSize(args[0], &len);
    const char *file = n > 1 ? PyUnicode_AsUTF8AndSize(args[1], NULL) : "<text>";
    if (!text || !file) return NULL;
    PyObject *graph = PyObject_CallFunction((PyObject *)pydvm.graph, NULL);
    if (!graph) return NULL;
    struct graph *g = (struct graph *)graph;
    dvm_graph_destroy(&g->g);
    dvm_status st = dvm_graph_parse(g->ctx->ctx, file, text, (size_t)len, &g->g);
    if (st) {
        Py_DECREF(graph);
        return pydvm_raise(st);
    }
    return graph;
}

static PyMethodDef module_methods[] = {
    {"default_context", module_default_context, METH_NOARGS,
     "The context of kernels that name none."},
    {"started", module_started, METH_NOARGS, "Whether the default context exists."},
    {"parse", (PyCFunction)(void (*)(void))module_parse, METH_FASTCALL,
     "parse(text, file=\"<text>\"): the first kernel of a text as a Graph."},
    {"register_arrays", (PyCFunction)(void (*)(void))pydvm_register_arrays, METH_FASTCALL,
     "register_arrays(family, type, empty, dtypes): how to allocate results."},
    {"watch_profiler", (PyCFunction)(void (*)(void))pydvm_watch_profiler, METH_FASTCALL,
     "watch_profiler(namespace, open): how to see that a profiler is on, and to open a range."},
    {"release_arenas", pydvm_release_arenas, METH_NOARGS,
     "Frees the memory that programs keep for their next call."},
    {"address", pydvm_address, METH_O,
     "address(array): its data pointer, dtype number, shape, strides in elements."},
    {"attn_infer", pydvm_attn_infer, METH_VARARGS, "See dvm.attn."},
    {"attn_forward", pydvm_attn_forward, METH_VARARGS, "See dvm.attn."},
    {"attn_backward", pydvm_attn_backward, METH_VARARGS, "See dvm.attn."},
    {"flex_check", (PyCFunction)(void (*)(void))pydvm_flex_check, METH_FASTCALL,
     "See dvm.torch.flex."},
    {"flex_forward", (PyCFunction)(void (*)(void))pydvm_flex_forward, METH_FASTCALL,
     "See dvm.torch.flex."},
    {"flex_backward", (PyCFunction)(void (*)(void))pydvm_flex_backward, METH_FASTCALL,
     "See dvm.torch.flex."},
    {0},
};

static struct PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT,
    "_dvm",
    "DVM's C library for Python; use the package dvm.",
    -1,
    module_methods,
    NULL,
    NULL,
    NULL,
    NULL,
};

static bool add_type(PyObject *module, PyType_Spec *spec, PyTypeObject **slot) {
    *slot = (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, NULL);
    return *slot && PyModule_AddType(module, *slot) == 0;
}

static bool add_ops(PyObject *module) {
    char name[40];
    for (int op = 0; op < DVM_NOP; op++) {
        snprintf(name, sizeof name, "OP_%s", dvm_op_name((dvm_op)op));
        if (PyModule_AddIntConstant(module, name, op)) return false;
    }
    for (int t = 0; t < DVM_NDTYPE; t++) {
        snprintf(name, sizeof name, "T_%s", dvm_dtype_name((dvm_dtype)t));
        if (PyModule_AddIntConstant(module, name, t)) return false;
    }
    return true;
}

PyMODINIT_FUNC PyInit__dvm(void) {
    PyObject *module = PyModule_Create(&module_def);
    if (!module) return NULL;
    if (!add_errors(module) || !add_type(module, &context_spec, &pydvm.context) ||
        !add_type(module, &pydvm_graph_spec, &pydvm.graph) ||
        !add_type(module, &pydvm_value_spec, &pydvm.value) ||
        !add_type(module, &pydvm_kernel_spec, &pydvm.kernel) ||
        !add_type(module, &pydvm_program_spec, &pydvm.program) || !add_ops(module) ||
        PyModule_AddIntConstant(module, "ABI", PYDVM_ABI) ||
        PyModule_AddIntConstant(module, "FORMAT", DVM_FORMAT) ||
        PyModule_AddIntConstant(module, "MAX_RANK", DVM_MAX_RANK) ||
        PyModule_AddStringConstant(module, "PROJECT", "libdvm") ||
        PyModule_AddStringConstant(module, "__version__", dvm_version())) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
