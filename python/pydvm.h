/* The extension module _dvm: objects over <dvm/dvm.h>, one build for every Python from 3.11 on.
 *
 *   _dvm.c       module, exception classes, Context
 *   py_graph.c   Graph (builder) and Value
 *   py_kernel.c  Kernel: the call path
 *   py_program.c Program: kernels, buffers and Python calls of a whole graph in one sequence
 *   py_tensor.c  arguments: arrays, tensors and numbers without copies
 *   py_threads.c threads of an OpenMP runtime
 *   py_attn.c    attention
 *   py_flex.c    attention through compiled functions of scores
 *   py_profile.c ranges in the profiler of torch
 *
 * Ownership: a Kernel and a Graph hold their Context, a Value holds its Graph. Everything here runs with the
 * GIL held, except dvm_run on larger work. */
#ifndef PYDVM_H
#define PYDVM_H
#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030b0000
#endif
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <dvm/dvm.h>

/* PyType_Slot holds functions as void *, which POSIX allows and ISO C does not. */
#if defined(__GNUC__)
#pragma GCC diagnostic ignored "-Wpedantic"
#endif

/* Changes whenever the Python files need another extension. */
enum { PYDVM_ABI = 3 };

/* An OpenMP runtime of the process, see py_threads.c. */
typedef void gomp_parallel(void (*fn)(void *), void *data, unsigned threads, unsigned flags);
struct team {
    gomp_parallel *parallel; /* NULL: the library's own pool */
    dvm_ctx *ctx;
    long pid;
};

struct context {
    PyObject ob_base;
    dvm_ctx *ctx;
    struct team team;
};

struct slot { /* one input or output */
    uint8_t dtype;
    bool scalar;
};

struct graph {
    PyObject ob_base;
    dvm_graph *g; /* NULL: closed */
    struct context *ctx;
    struct slot *in, *out;
    int nin, nout, in_cap, out_cap;
};

struct value {
    PyObject ob_base;
    struct graph *graph;
    dvm_val v;
};

struct kernel {
    PyObject ob_base;
    dvm_kernel *k;
    struct context *ctx;
    struct slot *in, *out; /* one block, owned by in */
    int nin, nout;
    PyObject *rescue; /* called when run() fails, or NULL */
    PyObject *names;  /* tuple of the inputs' names for messages, or NULL */
    PyObject *label;  /* what a profiler calls it, or NULL */
};

extern struct pydvm {
    PyTypeObject *context, *graph, *value, *kernel, *program;
    PyObject *error[16]; /* by status; [0] is the base class */
    PyObject *default_context;
    PyObject *profiler, *profiler_flag, *profiler_open; /* py_profile.c */
} pydvm;

/* ---- _dvm.c */
/* Raises the class of st with the library's text; returns NULL. */
PyObject *pydvm_raise(dvm_status st);
/* Raises the class of st with this text; returns NULL. */
PyObject *pydvm_fail(dvm_status st, const char *format, ...);
struct context *pydvm_default_context(void); /* borrowed */
bool pydvm_count(const char *name, Py_ssize_t given, Py_ssize_t low, Py_ssize_t high);

/* ---- py_graph.c, py_kernel.c, py_program.c */
extern PyType_Spec pydvm_graph_spec, pydvm_value_spec, pydvm_kernel_spec, pydvm_program_spec;
PyObject *pydvm_kernel_of(struct graph *g);
/* Inputs, then outputs; without the GIL when the work is worth it. */
dvm_status pydvm_kernel_run(struct kernel *self, const dvm_arg *arg);
/* run() failed with the pending exception: what rescue(error, *arguments) returns, or NULL with an exception. */
PyObject *pydvm_rescue(struct kernel *self, PyObject *const *a, Py_ssize_t n);

/* ---- py_threads.c */
/* Makes a context run its loops on the process's OpenMP runtime; false when there is none. */
bool pydvm_openmp(struct team *t, dvm_options *o);

/* ---- py_tensor.c */
enum family { FAMILY_NONE, FAMILY_NUMPY, FAMILY_TORCH, FAMILY_OTHER };
struct tensor {
    dvm_arg *arg;
    enum family family;
    bool has_buf, output;
    int which;       /* its number among the inputs or outputs, from 0, for messages */
    PyObject *owner; /* temporary that must live until the run is over, or NULL */
    Py_buffer buf;
    int64_t dims[DVM_MAX_RANK];
    int64_t strides[DVM_MAX_RANK];
};
/* Describes o in t->arg without copying. which is its number among the inputs or outputs, from 0. An input that is not
 * aligned, or that no stride in elements describes, is copied; an output that is read-only or of that kind is refused,
 * and so is a tensor that requires grad while torch records. Every exception of o becomes an Error. */
bool pydvm_tensor(PyObject *o, const struct slot *want, bool output, int which, struct tensor *t);
void pydvm_tensor_done(struct tensor *t);
/* o as a number of dtype t: integers wrap, a float for an integer is cut toward zero and saturates. */
bool pydvm_number(PyObject *o, int t, dvm_number *out);
/* A new dense array (family NUMPY) or CPU tensor (TORCH). */
PyObject *pydvm_empty(enum family family, int rank, const int64_t *dims, int dtype);
/* Sizes, strides and offset in elements of a view, and the strides of what it is a view of. */
struct layout {
    int rank, base_rank;
    const int64_t *size, *stride, *base_stride;
    int64_t offset;
};
/* Makes *view a view of o that owns no memory, unless it is one of that memory already. For readers that do not keep
 * it, while o is alive. 1, or 0 when o is laid out in another way or its type has no door for it; -1 with an
 * exception. */
int pydvm_show(PyObject *o, const struct layout *want, const void **memory, PyObject **view);
/* Module functions. */
PyObject *pydvm_register_arrays(PyObject *self, PyObject *const *args, Py_ssize_t n);
PyObject *pydvm_address(PyObject *self, PyObject *o);
PyObject *pydvm_release_arenas(PyObject *self, PyObject *unused);

/* ---- py_profile.c */
PyObject *pydvm_watch_profiler(PyObject *self, PyObject *const *args, Py_ssize_t n);
/* A range around a run, NULL when no profiler is on; raises nothing. */
PyObject *pydvm_range_open(const struct kernel *k);
void pydvm_range_close(PyObject *range);

/* ---- py_attn.c: module functions */
PyObject *pydvm_attn_infer(PyObject *self, PyObject *args);
PyObject *pydvm_attn_forward(PyObject *self, PyObject *args);
PyObject *pydvm_attn_backward(PyObject *self, PyObject *args);

/* ---- py_flex.c: module functions */
PyObject *pydvm_flex_check(PyObject *self, PyObject *const *a, Py_ssize_t n);
PyObject *pydvm_flex_forward(PyObject *self, PyObject *const *a, Py_ssize_t n);
PyObject *pydvm_flex_backward(PyObject *self, PyObject *const *a, Py_ssize_t n);
#endif
