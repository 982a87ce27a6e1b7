/* Ranges in the profiler of torch: "dvm::<kernel>" around each run, while a profiler is on.
 *
 * dvm.arrays hands over the namespace of torch.autograd.profiler, whose flag says whether one is on, and a function
 * that opens a range and returns the one that closes it. A run without a profiler pays for a look into that namespace,
 * and without torch for nothing. */
#include "pydvm.h"

PyObject *pydvm_watch_profiler(PyObject *self, PyObject *const *a, Py_ssize_t n) {
    (void)self;
    if (!pydvm_count("watch_profiler", n, 2, 2)) return NULL;
    if (!PyDict_Check(a[0]) || !PyCallable_Check(a[1]))
        return pydvm_fail(DVM_ERR_ARG, "watch_profiler(namespace, open)");
    PyObject *flag = PyUnicode_InternFromString("_is_profiler_enabled");
    if (!flag) return NULL;
    Py_XDECREF(pydvm.profiler_flag);
    Py_XDECREF(pydvm.profiler_open);
    Py_XDECREF(pydvm.profiler);
    pydvm.profiler = Py_NewRef(a[0]);
    pydvm.profiler_open = Py_NewRef(a[1]);
    pydvm.profiler_flag = flag;
    Py_RETURN_NONE;
}

/* What goes wrong in a profiler is not the kernel's fault, nor the caller's. */
static PyObject *or_nothing(PyObject *o) {
    if (!o) PyErr_Clear();
    return o;
}

PyObject *pydvm_range_open(const struct kernel *k) {
    if (!pydvm.profiler || !k->label) return NULL;
    PyObject *on = or_nothing(PyDict_GetItemWithError(pydvm.profiler, pydvm.profiler_flag));
    if (on != Py_True) return NULL;
    return or_nothing(PyObject_CallFunctionObjArgs(pydvm.profiler_open, k->label, NULL));
}

void pydvm_range_close(PyObject *range) {
    if (!range) return;
    Py_XDECREF(or_nothing(PyObject_CallNoArgs(range)));
    Py_DECREF(range);
}
