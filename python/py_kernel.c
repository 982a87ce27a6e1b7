/* Kernel: a compiled program and its call path. run() and call() describe the arguments on the stack, leave the GIL
 * when the work is worth it, and make no Python object besides the results. */
#include "pydvm.h"

#include <string.h>

enum { STACK_ARGS = 16 };

/* Elements over all arguments from which on other Python threads may run meanwhile. */
enum { LARGE = 1 << 15 };

struct frame {
    int n;
    dvm_arg *arg;
    struct tensor *tensor;
    void *block;
    dvm_arg arg_stack[STACK_ARGS];
    struct tensor tensor_stack[STACK_ARGS];
};

static bool frame_open(struct frame *f, int n) {
    f->n = n;
    f->block = NULL;
    f->arg = f->arg_stack;
    f->tensor = f->tensor_stack;
    if (n > STACK_ARGS) {
        const size_t args = (size_t)n * sizeof(dvm_arg),
                     tensors = (size_t)n * sizeof(struct tensor);
        f->block = PyMem_Malloc(args + tensors);
        if (!f->block) {
            PyErr_NoMemory();
            return false;
        }
        f->tensor = f->block;
        f->arg = (dvm_arg *)((char *)f->block + tensors);
    }
    for (int i = 0; i < n; i++) {
        f->tensor[i].arg = &f->arg[i];
        f->tensor[i].owner = NULL;
        f->tensor[i].has_buf = false;
        f->tensor[i].family = FAMILY_NONE;
    }
    return true;
}

static void frame_close(struct frame *f) {
    for (int i = 0; i < f->n; i++) pydvm_tensor_done(&f->tensor[i]);
    PyMem_Free(f->block);
}

static bool scalar_arg(PyObject *o, const struct slot *want, int which, dvm_arg *arg) {
    *arg = (dvm_arg){.rank = -1, .dtype = want->dtype};
    if (pydvm_number(o, want->dtype, &arg->num)) return true;
    const bool large = PyErr_ExceptionMatches(pydvm.error[0]);
    PyErr_Clear();
    if (large)
        pydvm_fail(DVM_ERR_ARG,
                   "input %d, a scalar: an integer beyond 64 bits is no %s; pass a float instead",
                   which, dvm_dtype_name((dvm_dtype)want->dtype));
    else
        pydvm_fail(DVM_ERR_ARG, "input %d, a scalar: expected a number for %s, given %R", which,
                   dvm_dtype_name((dvm_dtype)want->dtype), o);
    return false;
}

static bool frame_inputs(struct frame *f, const struct kernel *self, PyObject *const *a) {
    for (int i = 0; i < self->nin; i++) {
        const struct slot *s = &self->in[i];
        if (s->scalar ? !scalar_arg(a[i], s, i, &f->arg[i])
                      : !pydvm_tensor(a[i], s, false, i, &f->tensor[i]))
            return false;
    }
    return true;
}

static bool frame_output(struct frame *f, const struct kernel *self, int i, PyObject *o) {
    return pydvm_tensor(o, &self->out[i], true, i, &f->tensor[self->nin + i]);
}

static dvm_status run_kernel(struct kernel *self, const dvm_arg *arg) {
    int64_t elements = 0;
    for (int i = 0; i < self->nin + self->nout && elements < LARGE; i++) {
        int64_t n = 1;
        for (int d = 0; d < arg[i].rank; d++) n *= arg[i].dims[d];
        elements += n;
    }
    if (elements < LARGE) return dvm_run(self->k, self->nin, arg, self->nout, arg + self->nin);
    dvm_status st;
    Py_BEGIN_ALLOW_THREADS st = dvm_run(self->k, self->nin, arg, self->nout, arg + self->nin);
    Py_END_ALLOW_THREADS return st;
}

dvm_status pydvm_kernel_run(struct kernel *self, const dvm_arg *arg) {
    PyObject *range = pydvm_range_open(self);
    const dvm_status st = run_kernel(self, arg);
    pydvm_range_close(range);
    return st;
}

/* The pending exception with the names of the arguments it counts. Returns NULL. */
static PyObject *name_arguments(const struct kernel *self) {
    if (!self->names || !PyErr_ExceptionMatches(pydvm.error[0])) return NULL;
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace);
    PyErr_NormalizeException(&type, &error, &trace);
    PyObject *module = PyImport_ImportModule("dvm.arrays");
    PyObject *done =
        module ? PyObject_CallMethod(module, "name_arguments", "OO", error, self->names) : NULL;
    Py_XDECREF(module);
    if (done)
        PyErr_Restore(type, error, trace);
    else {
        Py_XDECREF(type);
        Py_XDECREF(error);
        Py_XDECREF(trace);
    }
    Py_XDECREF(done);
    return NULL;
}

static const char *plural(int n) { return n == 1 ? "" : "s"; }

static bool wrong_count(const struct kernel *self, Py_ssize_t given, bool outputs) {
    int expected = self->nin + (outputs ? self->nout : 0);
    if (given == expected) return false;
    const char *s = plural(expected);
    if (outputs)
        pydvm_fail(DVM_ERR_ARG, "expected %d argument%s (%d input%s, %d output%s), given %zd",
                   expected, s, self->nin, plural(self->nin), self->nout, plural(self->nout),
                   given);
    else
        pydvm_fail(DVM_ERR_ARG, "expected %d argument%s, given %zd", expected, s, given);
    name_arguments(self);
    return true;
}

PyObject *pydvm_rescue(struct kernel *self, PyObject *const *a, Py_ssize_t n) {
    PyObject *type, *error, *trace, *out = NULL;
    if (!self->rescue || !PyErr_ExceptionMatches(pydvm.error[0])) return NULL;
    PyErr_Fetch(&type, &error, &trace);
    PyErr_NormalizeException(&type, &error, &trace);
    PyObject *args = error ? PyTuple_New(n + 1) : NULL;
    if (args) {
        PyTuple_SetItem(args, 0, Py_NewRef(error));
        for (Py_ssize_t i = 0; i < n; i++) PyTuple_SetItem(args, i + 1, Py_NewRef(a[i]));
        out = PyObject_CallObject(self->rescue, args);
    }
    Py_XDECREF(args);
    Py_XDECREF(type);
    Py_XDECREF(error);
    Py_XDECREF(trace);
    return out;
}

/* run() with arguments by name: put in order in Python. */
static PyObject *run_by_name(struct kernel *self, PyObject *const *a, Py_ssize_t n,
                             PyObject *names) {
    PyObject *module = PyImport_ImportModule("dvm.arrays"), *out = NULL, *ordered = NULL;
    PyObject *given = PyTuple_New(n), *named = PyDict_New(), *run = NULL;
    for (Py_ssize_t i = 0; given && i < n; i++) PyTuple_SetItem(given, i, Py_NewRef(a[i]));
    for (Py_ssize_t i = 0; named && i < PyTuple_Size(names); i++)
        if (PyDict_SetItem(named, PyTuple_GetItem(names, i), a[n + i])) Py_CLEAR(named);
    if (module && given && named)
        ordered =
            PyObject_CallMethod(module, "by_name", "OiOO", self->names ? self->names : Py_None,
                                self->nout, given, named);
    if (ordered) run = PyObject_GetAttrString((PyObject *)self, "run");
    if (run) out = PyObject_CallObject(run, ordered);
    Py_XDECREF(run);
    Py_XDECREF(ordered);
    Py_XDECREF(named);
    Py_XDECREF(given);
    Py_XDECREF(module);
    return out;
}

static PyObject *kernel_run(struct kernel *self, PyObject *const *a, Py_ssize_t n,
                            PyObject *names) {
    struct frame f;
    if (names && PyTuple_Size(names)) return run_by_name(self, a, n, names);
    if (wrong_count(self, n, true) || !frame_open(&f, (int)n)) return NULL;
    bool ok = frame_inputs(&f, self, a);
    for (int i = 0; ok && i < self->nout; i++) ok = frame_output(&f, self, i, a[self->nin + i]);
    dvm_status st = ok ? pydvm_kernel_run(self, f.arg) : DVM_OK;
    frame_close(&f);
    if (ok && !st) Py_RETURN_NONE;
    if (st) pydvm_raise(st);
    name_arguments(self);
    return pydvm_rescue(self, a, n);
}

static PyObject *kernel_set_rescue(struct kernel *self, PyObject *callable) {
    PyObject *old = self->rescue;
    self->rescue = callable == Py_None ? NULL : Py_NewRef(callable);
    Py_XDECREF(old);
    Py_RETURN_NONE;
}

/* Shapes of the outputs for the inputs in f. *ranks is owned by the caller (PyMem_Free), one block. */
static bool shapes(struct frame *f, struct kernel *self, int **ranks, int64_t **dims,
                   dvm_dtype **dtypes) {
    const size_t n = (size_t)(self->nout ? self->nout : 1);
    int64_t *block =
        PyMem_Malloc(n * (DVM_MAX_RANK * sizeof(int64_t) + sizeof(int) + sizeof(dvm_dtype)));
    if (!block) {
        PyErr_NoMemory();
        return false;
    }
    *dims = block;
    *ranks = (int *)(block + n * DVM_MAX_RANK);
    *dtypes = (dvm_dtype *)(*ranks + n);
    dvm_status st =
        dvm_kernel_infer(self->k, self->nin, f->arg, self->nout, *ranks, *dims, *dtypes);
    if (!st) return true;
    PyMem_Free(block);
    pydvm_raise(st);
    return false;
}

/* Torch as soon as one argument is a tensor of torch, numpy for all else; `none` without any tensor. */
static enum family family_of(const struct frame *f, const struct kernel *self, enum family none) {
    enum family found = none;
    for (int i = 0; i < self->nin; i++) {
        if (f->tensor[i].family == FAMILY_TORCH) return FAMILY_TORCH;
        if (f->tensor[i].family != FAMILY_NONE) found = FAMILY_NUMPY;
    }
    return found;
}

static PyObject *results(struct frame *f, struct kernel *self, enum family family) {
    int *ranks;
    int64_t *dims;
    dvm_dtype *dtypes;
    if (!shapes(f, self, &ranks, &dims, &dtypes)) return NULL;
    PyObject *tuple = PyTuple_New(self->nout);
    for (int i = 0; tuple && i < self->nout; i++) {
        PyObject *o = pydvm_empty(family, ranks[i], dims + (size_t)i * DVM_MAX_RANK, dtypes[i]);
        if (!o || PyTuple_SetItem(tuple, i, o) || !frame_output(f, self, i, o)) Py_CLEAR(tuple);
    }
    PyMem_Free(dims);
    return tuple;
}

static PyObject *call(struct kernel *self, PyObject *const *a, Py_ssize_t n, enum family none) {
    struct frame f;
    if (wrong_count(self, n, false) || !frame_open(&f, self->nin + self->nout)) return NULL;
    PyObject *tuple =
        frame_inputs(&f, self, a) ? results(&f, self, family_of(&f, self, none)) : NULL;
    dvm_status st = tuple ? pydvm_kernel_run(self, f.arg) : DVM_OK;
    frame_close(&f);
    if (st) {
        Py_CLEAR(tuple);
        pydvm_raise(st);
    }
    if (!tuple) return name_arguments(self);
    if (self->nout != 1) return tuple;
    PyObject *one = Py_NewRef(PyTuple_GetItem(tuple, 0));
    Py_DECREF(tuple);
    return one;
}

static PyObject *kernel_call(struct kernel *self, PyObject *const *a, Py_ssize_t n) {
    return call(self, a, n, FAMILY_NUMPY);
}

static PyObject *kernel_call_torch(struct kernel *self, PyObject *const *a, Py_ssize_t n) {
    return call(self, a, n, FAMILY_TORCH);
}

static PyObject *kernel_infer(struct kernel *self, PyObject *const *a, Py_ssize_t n) {
    struct frame f;
    int *ranks;
    int64_t *dims;
    dvm_dtype *dtypes;
    if (wrong_count(self, n, false) || !frame_open(&f, self->nin)) return NULL;
    bool ok = frame_inputs(&f, self, a) && shapes(&f, self, &ranks, &dims, &dtypes);
    frame_close(&f);
    if (!ok) return name_arguments(self);
    PyObject *list = PyList_New(0);
    for (int i = 0; list && i < self->nout; i++) {
        PyObject *shape = PyTuple_New(ranks[i]);
        for (int d = 0; shape && d < ranks[i]; d++) {
            PyObject *size = PyLong_FromLongLong(dims[(size_t)i * DVM_MAX_RANK + (size_t)d]);
            if (!size || PyTuple_SetItem(shape, d, size)) Py_CLEAR(shape);
        }
        PyObject *pair = shape ? Py_BuildValue("Ni", shape, (int)dtypes[i]) : NULL;
        if (!pair || PyList_Append(list, pair)) Py_CLEAR(list);
        Py_XDECREF(pair);
    }
    PyMem_Free(dims);
    return list;
}

static PyObject *kernel_stats(struct kernel *self, PyObject *unused) {
    (void)unused;
    dvm_stats s;
    dvm_status st = dvm_kernel_stats(self->k, &s);
    if (st) return pydvm_raise(st);
    return Py_BuildValue("{sLsLsLsLsLsLsLsLsLsL}", "compile_ns", (long long)s.compile_ns, "shapes",
                         (long long)s.shapes, "plans", (long long)s.plans, "kernels",
                         (long long)s.kernels, "strips", (long long)s.strips, "instructions",
                         (long long)s.instructions, "bytes_moved", (long long)s.bytes_moved,
                         "bytes_unfused", (long long)s.bytes_unfused, "bytes_minimum",
                         (long long)s.bytes_minimum, "workspace", (long long)s.workspace);
}

static PyObject *kernel_text(struct kernel *self, PyObject *stage) {
    static const char *const names[] = {"graph", "opt", "plan", "code", "explain"};
    const char *name = PyUnicode_AsUTF8AndSize(stage, NULL);
    if (!name) return NULL;
    for (int i = 0; i < 5; i++) {
        if (strcmp(name, names[i]) != 0) continue;
        char *text;
        dvm_status st = dvm_kernel_text(self->k, (enum dvm_stage)i, &text);
        if (st) return pydvm_raise(st);
        PyObject *out = PyUnicode_FromString(text);
        dvm_string_free(&text);
        return out;
    }
    return pydvm_fail(DVM_ERR_ARG, "no stage '%s': graph, opt, plan, code or explain", name);
}

PyObject *pydvm_kernel_of(struct graph *g) {
    dvm_kernel *k = NULL;
    dvm_status st = dvm_compile(g->g, &k);
    if (st) return pydvm_raise(st);
    const int nin = dvm_kernel_inputs(k), nout = dvm_kernel_outputs(k);
    struct slot *slots = PyMem_Malloc((size_t)(nin + nout + 1) * sizeof *slots);
    struct kernel *self = slots ? PyObject_New(struct kernel, pydvm.kernel) : NULL;
    if (!self) {
        PyMem_Free(slots);
        dvm_kernel_destroy(&k);
        return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    }
    /* A graph read from text has no record of its arguments: any dtype, checked by the library. */
    for (int i = 0; i < nin + nout; i++) slots[i] = (struct slot){DVM_NDTYPE, false};
    if (nin == g->nin) memcpy(slots, g->in, (size_t)nin * sizeof *slots);
    if (nout == g->nout) memcpy(slots + nin, g->out, (size_t)nout * sizeof *slots);
    self->k = k;
    self->ctx = (struct context *)Py_NewRef((PyObject *)g->ctx);
    self->in = slots;
    self->out = slots + nin;
    self->nin = nin;
    self->nout = nout;
    self->rescue = NULL;
    self->names = NULL;
    self->label = NULL;
    return (PyObject *)self;
}

static void kernel_dealloc(PyObject *o) {
    PyTypeObject *type = Py_TYPE(o);
    struct kernel *self = (struct kernel *)o;
    dvm_kernel_destroy(&self->k);
    PyMem_Free(self->in);
    Py_XDECREF(self->rescue);
    Py_XDECREF(self->names);
    Py_XDECREF(self->label);
    Py_DECREF((PyObject *)self->ctx);
    PyObject_Free(o);
    Py_DECREF(type);
}

static PyObject *slot_list(const struct slot *s, int n) {
    PyObject *out = PyTuple_New(n);
    for (int i = 0; out && i < n; i++) {
        PyObject *pair = Py_BuildValue("iO", s[i].dtype, s[i].scalar ? Py_True : Py_False);
        if (!pair || PyTuple_SetItem(out, i, pair)) Py_CLEAR(out);
    }
    return out;
}

static PyObject *kernel_inputs(PyObject *o, void *unused) {
    (void)unused;
    return slot_list(((struct kernel *)o)->in, ((struct kernel *)o)->nin);
}

static PyObject *kernel_outputs(PyObject *o, void *unused) {
    (void)unused;
    return slot_list(((struct kernel *)o)->out, ((struct kernel *)o)->nout);
}

static PyObject *kernel_names(PyObject *o, void *unused) {
    (void)unused;
    PyObject *names = ((struct kernel *)o)->names;
    return Py_NewRef(names ? names : Py_None);
}

static int kernel_set_names(PyObject *o, PyObject *names, void *unused) {
    (void)unused;
    struct kernel *self = (struct kernel *)o;
    if (!names || !PyTuple_Check(names) || PyTuple_Size(names) != self->nin) {
        PyErr_Format(PyExc_TypeError, "names: a tuple of %d strings", self->nin);
        return -1;
    }
    PyObject *old = self->names;
    self->names = Py_NewRef(names);
    Py_XDECREF(old);
    return 0;
}

static PyObject *kernel_label(PyObject *o, void *unused) {
    (void)unused;
    PyObject *label = ((struct kernel *)o)->label;
    return Py_NewRef(label ? label : Py_None);
}

static int kernel_set_label(PyObject *o, PyObject *label, void *unused) {
    (void)unused;
    struct kernel *self = (struct kernel *)o;
    if (!label || !PyUnicode_Check(label)) {
        PyErr_SetString(PyExc_TypeError, "label: a string");
        return -1;
    }
    PyObject *old = self->label;
    self->label = Py_NewRef(label);
    Py_XDECREF(old);
    return 0;
}

#define FAST(name, doc) {#name, (PyCFunction)(void (*)(void))kernel_##name, METH_FASTCALL, doc}
static PyMethodDef kernel_methods[] = {
    {"run", (PyCFunction)(void (*)(void))kernel_run, METH_FASTCALL | METH_KEYWORDS,
     "run(*inputs, *outputs): computes into the given outputs, which may also be given as out=."},
    FAST(call, "call(*inputs): new outputs, one object or a tuple; numpy unless an input is a "
               "torch tensor."),
    FAST(call_torch,
         "call_torch(*inputs): as call, torch tensors when there is no tensor among the inputs."),
    FAST(infer, "infer(*inputs): [(shape, dtype number), ...] of the outputs; no data is read."),
    {"set_rescue", (PyCFunction)(void (*)(void))kernel_set_rescue, METH_O,
     "set_rescue(callable or None): called as callable(error, *arguments) when run() fails with an "
     "error of DVM; it fills the outputs or raises."},
    {"stats", (PyCFunction)(void (*)(void))kernel_stats, METH_NOARGS,
     "stats(): numbers of the newest plan."},
    {"text", (PyCFunction)(void (*)(void))kernel_text, METH_O,
     "text(stage): graph, opt, plan, code or explain."},
    {0},
};
static PyGetSetDef kernel_getset[] = {
    {"inputs", kernel_inputs, NULL, "((dtype number, is scalar), ...)", NULL},
    {"outputs", kernel_outputs, NULL, "((dtype number, False), ...)", NULL},
    {"names", kernel_names, kernel_set_names, "Names of the inputs, which errors mention.", NULL},
    {"label", kernel_label, kernel_set_label, "What the profiler of torch calls its runs.", NULL},
    {0},
};
static PyType_Slot kernel_slots[] = {
    {Py_tp_dealloc, kernel_dealloc},
    {Py_tp_methods, kernel_methods},
    {Py_tp_getset, kernel_getset},
    {Py_tp_doc, "A compiled program; any number of threads may run it."},
    {0},
};
PyType_Spec pydvm_kernel_spec = {"_dvm.Kernel", sizeof(struct kernel), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE |
                                     Py_TPFLAGS_DISALLOW_INSTANTIATION,
                                 kernel_slots};
