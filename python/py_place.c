/* Where the intermediate values of a program live, for one set of sizes.
 *
 * The arena is one block for the whole call, while results appear and arguments go: the call holds the most of the one
 * beside the most of the other, though they come at different steps. So some buffers have memory of their own, from
 * their first step to their last: the largest ones at the step where the arena is fullest, until the call holds no
 * more than if every value had its own. The others cost nothing to take and are placed in the arena. */
#include "program.h"

#include <string.h>

enum {
    ALIGN = 64,
    LEAST = 1024, /* bytes below which a buffer always is in the arena */
    SLACK = 1024  /* parts of the peak that are not worth a buffer */
};

static int64_t dim_value(const struct record *r, struct dim d) {
    return d.size < 0 ? d.value : r->size[d.size];
}

/* Bytes of a value, which `arg` then describes without its address. False on overflow. */
static bool describe(const struct record *r, const struct buffer *b, dvm_arg *arg, int64_t *dims,
                     int64_t *bytes) {
    int64_t *strides = dims + DVM_MAX_RANK, last = 0, step;
    bool empty = false;
    for (int d = 0; d < b->rank; d++) {
        dims[d] = dim_value(r, b->dim[d]);
        strides[d] = dim_value(r, b->dim[DVM_MAX_RANK + d]);
        empty |= dims[d] == 0;
        if (dims[d] < 0 || strides[d] < 0 ||
            (dims[d] && (__builtin_mul_overflow(dims[d] - 1, strides[d], &step) ||
                         __builtin_add_overflow(last, step, &last))))
            return false;
    }
    *arg = (dvm_arg){.dims = dims, .strides = strides, .rank = b->rank, .dtype = (int32_t)b->dtype};
    if (last > INT64_MAX / 64 / b->itemsize) return false;
    *bytes = empty ? 0 : ((last + 1) * b->itemsize + ALIGN - 1) / ALIGN * ALIGN;
    return true;
}

static bool describe_all(const struct program *p, struct record *r, int64_t *bytes) {
    for (int i = 0; i < p->nbuffer; i++)
        if (!describe(r, &p->buffer[i], &r->arg[i], r->dims + (size_t)i * 2 * DVM_MAX_RANK,
                      &bytes[i]))
            return false;
    for (int i = p->nbuffer; i < p->nbuffer + p->nresult; i++) {
        int64_t dims[2 * DVM_MAX_RANK];
        dvm_arg arg;
        if (!describe(r, &p->buffer[i], &arg, dims, &bytes[i])) return false;
    }
    return true;
}

/* ---- who shares the arena ---- */

/* Adds to the steps of a buffer. */
static void add(int64_t *by_step, const struct buffer *b, int64_t bytes) {
    for (int t = b->first; t <= b->last; t++) by_step[t] += bytes;
}

static int most(const int64_t *by_step, int n) {
    int at = 0;
    for (int t = 1; t < n; t++)
        if (by_step[t] > by_step[at]) at = t;
    return at;
}

/* Bytes of an argument that goes when the program drops it: nobody else has it. */
static int64_t given_up(PyObject *o) {
    if (!o || Py_REFCNT(o) != 1) return 0;
    PyObject *n = PyObject_GetAttrString(o, "nbytes");
    const int64_t bytes = n && PyLong_Check(n) ? PyLong_AsLongLong(n) : 0;
    Py_XDECREF(n);
    if (!PyErr_Occurred()) return bytes > 0 ? bytes : 0;
    PyErr_Clear(); /* no tensor, or one without bytes to count */
    return 0;
}

/* Bytes beside the arena: results from where they are made, less the arguments that are gone. */
static void count_rest(const struct program *p, const int64_t *bytes, PyObject *const *input,
                       int64_t *rest) {
    for (int i = p->nbuffer; i < p->nbuffer + p->nresult; i++) add(rest, &p->buffer[i], bytes[i]);
    int64_t gone = 0;
    for (int t = 0; t < p->nstep; t++) {
        rest[t] -= gone;
        const struct step *s = &p->step[t];
        for (int d = 0; d < s->ndrop; d++)
            if (s->drop[d] < p->ninput) gone += given_up(input[s->drop[d]]);
    }
    rest[p->nstep] -= gone;
}

static int largest_at(const struct program *p, const struct record *r, const int64_t *bytes,
                      int step) {
    int best = -1;
    for (int i = 0; i < p->nbuffer; i++)
        if (!r->own[i] && p->buffer[i].first <= step && step <= p->buffer[i].last &&
            (best < 0 || bytes[i] > bytes[best]))
            best = i;
    return best;
}

static bool choose_own(const struct program *p, struct record *r, const int64_t *bytes,
                       PyObject *const *input) {
    const int n = p->nstep + 1;
    int64_t *rest = PyMem_Calloc((size_t)n * 2, sizeof *rest), *arena = rest + n, least = 0;
    if (!rest) return PyErr_NoMemory();
    count_rest(p, bytes, input, rest);
    for (int i = 0; i < p->nbuffer; i++) add(arena, &p->buffer[i], bytes[i]);
    for (int t = 0; t < n; t++)
        if (rest[t] + arena[t] > least) least = rest[t] + arena[t];
    least += least / SLACK;
    for (;;) {
        const int top = most(arena, n);
        if (arena[top] + rest[most(rest, n)] <= least) break;
        const int b = largest_at(p, r, bytes, top);
        if (b < 0 || bytes[b] < LEAST) break;
        r->own[b] = true;
        add(arena, &p->buffer[b], -bytes[b]);
        add(rest, &p->buffer[b], bytes[b]);
    }
    PyMem_Free(rest);
    return true;
}

/* ---- what may not be kept from call to call ---- */

static bool is_loose(const struct program *p, const struct record *r, const bool *loose,
                     PyObject *o) {
    if (!o) return false;
    if (Py_TYPE(o) == p->slot_type) {
        const long v = PyLong_AsLong(o);
        if (v < 0 || v >= p->nvalue) return false;
        return loose[v] || (p->buffer_of[v] >= 0 && r->own[p->buffer_of[v]]);
    }
    PyObject *key, *value;
    Py_ssize_t at = 0;
    bool any = false;
    if (PyDict_Check(o))
        while (!any && PyDict_Next(o, &at, &key, &value)) any = is_loose(p, r, loose, value);
    else if (PyTuple_Check(o))
        for (; !any && at < PyTuple_Size(o); at++)
            any = is_loose(p, r, loose, PyTuple_GetItem(o, at));
    else if (PyList_Check(o))
        for (; !any && at < PyList_Size(o); at++)
            any = is_loose(p, r, loose, PyList_GetItem(o, at));
    return any;
}

static bool find_loose(const struct program *p, struct record *r) {
    bool *loose = PyMem_Calloc((size_t)p->nvalue + 1, 1);
    if (!loose) return PyErr_NoMemory();
    for (int i = 0; i < p->nstep; i++) {
        const struct step *s = &p->step[i];
        if (s->op != OP_CALL && s->op != OP_VIEW) continue;
        r->loose[i] = is_loose(p, r, loose, s->args) || is_loose(p, r, loose, s->kwargs);
        if (s->result >= 0) loose[s->result] = r->loose[i];
    }
    PyMem_Free(loose);
    return true;
}

/* ---- places in the arena ---- */

/* Largest first, each at the lowest place that no buffer holds at the same time. `order` has room for two numbers a
 * buffer. */
static void place(const struct program *p, struct record *r, const int64_t *bytes, int *order) {
    int *placed = order + p->nbuffer, n = 0; /* by offset */
    for (int i = 0; i < p->nbuffer; i++) {
        r->naive += (size_t)bytes[i];
        if (r->own[i]) continue;
        int at = n++;
        for (; at > 0 && bytes[order[at - 1]] < bytes[i]; at--) order[at] = order[at - 1];
        order[at] = i;
    }
    for (int k = 0; k < n; k++) {
        const struct buffer *b = &p->buffer[order[k]];
        const size_t need = (size_t)bytes[order[k]];
        size_t at = 0;
        for (int j = 0; j < k; j++) {
            const int other = placed[j];
            const struct buffer *o = &p->buffer[other];
            if (o->last < b->first || b->last < o->first) continue;
            if (at + need <= r->offset[other]) break;
            const size_t end = r->offset[other] + (size_t)bytes[other];
            if (at < end) at = end;
        }
        r->offset[order[k]] = at;
        int j = k;
        for (; j > 0 && r->offset[placed[j - 1]] > at; j--) placed[j] = placed[j - 1];
        placed[j] = order[k];
        if (at + need > r->arena) r->arena = at + need;
    }
}

/* The arena, and the most that buffers beside it have at one step. */
static bool count_planned(const struct program *p, struct record *r, const int64_t *bytes) {
    int64_t *own = PyMem_Calloc((size_t)p->nstep + 1, sizeof *own);
    if (!own) return PyErr_NoMemory();
    for (int i = 0; i < p->nbuffer; i++)
        if (r->own[i]) add(own, &p->buffer[i], bytes[i]);
    r->planned = r->arena + (size_t)own[most(own, p->nstep + 1)];
    PyMem_Free(own);
    return true;
}

bool pydvm_place(const struct program *p, struct record *r, PyObject *const *input) {
    const size_t n = (size_t)p->nbuffer;
    int64_t *bytes =
        PyMem_Malloc((n + (size_t)p->nresult + 1) * sizeof *bytes + n * 2 * sizeof(int));
    if (!bytes) return PyErr_NoMemory();
    bool ok = describe_all(p, r, bytes);
    if (!ok) pydvm_fail(DVM_ERR_LIMIT, "a buffer of the graph has more bytes than memory");
    ok = ok && choose_own(p, r, bytes, input) && find_loose(p, r);
    if (ok) place(p, r, bytes, (int *)(bytes + n + (size_t)p->nresult));
    ok = ok && count_planned(p, r, bytes);
    PyMem_Free(bytes);
    return ok;
}
