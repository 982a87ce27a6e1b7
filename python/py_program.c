/* Program: a whole graph as one sequence of kernel launches, Python calls and allocations.
 *
 * dvm.torch.program (Python) records it; this file runs it. The steps:
 *
 *   RUN    a kernel on values; no Python object is made
 *   CALL   a Python callable on values, numbers and constants: an operator of torch, a view
 *   EMPTY  a new tensor, for a value that outlives the call
 *   VIEW   a tensor as other sizes and strides, for CALLs that only read it
 *
 * Values are objects (arguments, results of CALL and EMPTY) or buffers. Buffers live in an arena, one block of memory
 * per call in which each has its place for as long as it is needed. Kernels see a buffer as an address. Where a CALL
 * needs it as a tensor, one is made over the arena and kept; so are views of buffers, which are therefore free from
 * the second call on.
 *
 * So are VIEWs of everything else, but they own no memory: one is made again when what it shows has moved. A weight
 * stays where it is, so its transpose is made once.
 *
 * Sizes that depend on the arguments form the key of a record: the numbers computed from them, the places of the
 * buffers, and the kept tensors. A program keeps the newest RECORDS of them. Arenas are shared by all programs: a call
 * takes the one given back last, and makes a larger one when it is too small.
 *
 * All of it happens under the GIL except large kernels. A record that another call is using is not shared: that call
 * gets a record and an arena of its own. */
#include "program.h"

#include <string.h>

enum { RECORDS = 16, ARENAS = 4 };

/* What kernels need to know of an object. */
struct desc {
    bool known;
    dvm_arg arg;
    struct tensor t;
};

struct frame {
    PyObject **obj;    /* by value */
    struct desc *desc; /* by number of the value among those that kernels touch */
    dvm_arg *arg;      /* of the kernel being run */
};

/* ---- arenas ---- */

struct arena {
    PyObject *bytes;
    PyObject *typed[DVM_NDTYPE];
    char *data;
    size_t size;
    uint64_t serial;
};

/* Arenas nobody uses, the one given back last at the end. */
static struct arena *idle[ARENAS];
static int nidle;
static uint64_t last_serial;

static void arena_free(struct arena *a) {
    if (!a) return;
    for (int t = 0; t < DVM_NDTYPE; t++) Py_XDECREF(a->typed[t]);
    Py_XDECREF(a->bytes);
    PyMem_Free(a);
}

static struct arena *arena_new(const struct program *p, size_t size) {
    struct arena *a = PyMem_Calloc(1, sizeof *a);
    if (!a) return (struct arena *)PyErr_NoMemory();
    PyObject *pair = PyObject_CallFunction(p->new_arena, "n", (Py_ssize_t)size);
    PyObject *bytes = NULL, *address = NULL;
    if (pair && PyArg_ParseTuple(pair, "OO", &bytes, &address)) {
        a->bytes = Py_NewRef(bytes);
        a->data = PyLong_AsVoidPtr(address);
        a->size = size;
        a->serial = ++last_serial;
    }
    Py_XDECREF(pair);
    if (!PyErr_Occurred()) return a;
    arena_free(a);
    return NULL;
}

static struct arena *arena_take(const struct program *p, size_t size) {
    struct arena *a = nidle ? idle[--nidle] : NULL;
    if (a && a->size >= size) return a;
    arena_free(a);
    return arena_new(p, size);
}

static void arena_give(struct arena *a) {
    if (nidle < ARENAS)
        idle[nidle++] = a;
    else
        arena_free(a);
}

PyObject *pydvm_release_arenas(PyObject *self, PyObject *unused) {
    (void)self;
    (void)unused;
    while (nidle) arena_free(idle[--nidle]);
    Py_RETURN_NONE;
}

/* ---- records ---- */

static void drop_kept(const struct program *p, struct record *r) {
    for (int i = 0; i < p->nvalue; i++) Py_CLEAR(r->kept[i]);
    for (int i = 0; i < p->nview; i++) r->shown[i] = NULL;
    for (int i = 0; i < p->nstep; i++) {
        Py_CLEAR(r->args[i]);
        Py_CLEAR(r->kwargs[i]);
    }
    for (int i = 0; i < p->nbuffer; i++) Py_CLEAR(r->made[i]);
}

static void record_free(const struct program *p, struct record *r) {
    if (!r) return;
    drop_kept(p, r);
    PyMem_Free(r);
}

static void *cut(char **at, size_t n, size_t size) {
    void *p = *at;
    *at += (n * size + 15) / 16 * 16;
    return p;
}

static struct record *record_alloc(const struct program *p) {
    const size_t nb = (size_t)p->nbuffer, nv = (size_t)p->nvalue, ns = (size_t)p->nstep,
                 nw = (size_t)p->nview;
    const size_t total = sizeof(struct record) + (size_t)p->nsize * 8 + nb * sizeof(dvm_arg) +
                         nb * 2 * DVM_MAX_RANK * 8 + nb * sizeof(size_t) +
                         nw * (VIEW_NUMBERS * 8 + sizeof(void *)) +
                         (nv + 2 * ns + nb) * sizeof(PyObject *) + nb + ns + 13 * 16;
    char *block = PyMem_Calloc(1, total), *at = block;
    if (!block) return (struct record *)PyErr_NoMemory();
    struct record *r = cut(&at, 1, sizeof *r);
    r->size = cut(&at, (size_t)p->nsize, 8);
    r->arg = cut(&at, nb, sizeof(dvm_arg));
    r->dims = cut(&at, nb * 2 * DVM_MAX_RANK, 8);
    r->offset = cut(&at, nb, sizeof(size_t));
    r->layout = cut(&at, nw * VIEW_NUMBERS, 8);
    r->shown = cut(&at, nw, sizeof(void *));
    r->kept = cut(&at, nv, sizeof(PyObject *));
    r->args = cut(&at, ns, sizeof(PyObject *));
    r->kwargs = cut(&at, ns, sizeof(PyObject *));
    r->made = cut(&at, nb, sizeof(PyObject *));
    r->own = cut(&at, nb, 1);
    r->loose = cut(&at, ns, 1);
    return r;
}

/* The sizes behind the key, by the program's own Python function of it. */
static bool compute_sizes(const struct program *p, struct record *r, const int64_t *key) {
    memcpy(r->size, key, (size_t)p->nsource * 8);
    if (p->nsize == p->nsource) return true;
    PyObject *args = PyTuple_New(p->nsource), *rest = NULL;
    for (int i = 0; args && i < p->nsource; i++) {
        PyObject *n = PyLong_FromLongLong(key[i]);
        if (!n || PyTuple_SetItem(args, i, n)) Py_CLEAR(args);
    }
    if (args) rest = PyObject_CallObject(p->sizes, args);
    Py_XDECREF(args);
    const Py_ssize_t want = p->nsize - p->nsource;
    if (rest && (!PyTuple_Check(rest) || PyTuple_Size(rest) != want))
        pydvm_fail(DVM_ERR_INTERNAL, "the function of sizes gave no tuple of %zd numbers", want);
    for (Py_ssize_t i = 0; rest && !PyErr_Occurred() && i < want; i++)
        r->size[p->nsource + i] = PyLong_AsLongLong(PyTuple_GetItem(rest, i));
    Py_XDECREF(rest);
    return !PyErr_Occurred();
}

static int64_t dim_value(const struct record *r, struct dim d) {
    return d.size < 0 ? d.value : r->size[d.size];
}

static void describe_views(const struct program *p, struct record *r) {
    for (int i = 0; i < p->nview; i++)
        for (int n = 0; n < VIEW_NUMBERS; n++)
            r->layout[i * VIEW_NUMBERS + n] = dim_value(r, p->view_of[i].dim[n]);
}

static struct record *record_new(const struct program *p, const int64_t *key,
                                 PyObject *const *input) {
    struct record *r = record_alloc(p);
    if (r && compute_sizes(p, r, key) && pydvm_place(p, r, input)) {
        describe_views(p, r);
        return r;
    }
    record_free(p, r);
    return NULL;
}

/* The record of this key, marked busy. One that is not in the table afterwards has next == itself. */
static struct record *record_get(struct program *p, const int64_t *key, PyObject *const *input) {
    int n = 0;
    struct record *prev = NULL;
    for (struct record *r = p->records; r; prev = r, r = r->next, n++) {
        if (memcmp(r->size, key, (size_t)p->nsource * 8) != 0) continue;
        if (r->busy) break;
        if (prev) { /* newest first */
            prev->next = r->next;
            r->next = p->records;
            p->records = r;
        }
        r->busy = true;
        return r;
    }
    struct record *r = record_new(p, key, input);
    if (!r) return NULL;
    p->arena = (int64_t)r->arena;
    p->planned = (int64_t)r->planned;
    p->naive = (int64_t)r->naive;
    r->busy = true;
    r->next = r;
    return r;
}

/* Gives it back; new ones enter the table now, the oldest idle one leaves it. */
static void record_done(struct program *p, struct record *r) {
    r->busy = false;
    if (r->next != r) return;
    int n = 0;
    struct record **at = &p->records, **oldest = NULL;
    for (; *at; at = &(*at)->next, n++) {
        if (memcmp((*at)->size, r->size, (size_t)p->nsource * 8) == 0) {
            r->next = NULL;
            record_free(p, r);
            return;
        }
        if (!(*at)->busy) oldest = at;
    }
    if (n >= RECORDS && oldest) {
        struct record *old = *oldest;
        *oldest = old->next;
        record_free(p, old);
    }
    r->next = p->records;
    p->records = r;
}

/* ---- one call ---- */

struct call {
    struct program *p;
    struct record *r;
    struct arena *arena;
    struct frame *f;
};

static struct frame *frame_take(struct program *p) {
    struct frame *f = p->spare;
    p->spare = NULL;
    if (f) return f;
    const size_t objects = (size_t)p->nvalue * sizeof(PyObject *),
                 descs = (size_t)p->ndesc * sizeof(struct desc);
    char *block =
        PyMem_Calloc(1, sizeof *f + objects + descs + 48 + (size_t)p->maxarg * sizeof(dvm_arg));
    if (!block) return (struct frame *)PyErr_NoMemory();
    f = cut(&block, 1, sizeof *f);
    f->obj = cut(&block, (size_t)p->nvalue, sizeof(PyObject *));
    f->desc = cut(&block, (size_t)p->ndesc, sizeof(struct desc));
    f->arg = cut(&block, (size_t)p->maxarg, sizeof(dvm_arg));
    return f;
}

static void forget(const struct program *p, struct frame *f, int value) {
    const int d = p->desc_of[value];
    if (d >= 0 && f->desc[d].known) {
        pydvm_tensor_done(&f->desc[d].t);
        f->desc[d].known = false;
    }
    Py_CLEAR(f->obj[value]);
}

static void frame_give(struct program *p, struct frame *f) {
    for (int i = 0; i < p->nvalue; i++) forget(p, f, i);
    if (p->spare)
        PyMem_Free(f);
    else
        p->spare = f;
}

static PyObject *size_tuple(const int64_t *n, int rank) {
    PyObject *t = PyTuple_New(rank);
    for (int i = 0; t && i < rank; i++) {
        PyObject *x = PyLong_FromLongLong(n[i]);
        if (!x || PyTuple_SetItem(t, i, x)) Py_CLEAR(t);
    }
    return t;
}

/* The arena as a tensor of this dtype, borrowed. */
static PyObject *arena_typed(struct call *c, const struct buffer *b) {
    struct arena *a = c->arena;
    if (!a->typed[b->dtype])
        a->typed[b->dtype] = PyObject_CallFunction(c->p->typed, "Oi", a->bytes, b->dtype);
    return a->typed[b->dtype];
}

/* A buffer as a tensor, kept with the record. Borrowed. */
static PyObject *buffer_object(struct call *c, int value) {
    if (c->r->kept[value]) return c->r->kept[value];
    const int i = c->p->buffer_of[value];
    const struct buffer *b = &c->p->buffer[i];
    PyObject *base = arena_typed(c, b);
    if (!base) return NULL;
    PyObject *size = size_tuple(c->r->arg[i].dims, b->rank),
             *stride = size_tuple(c->r->arg[i].strides, b->rank);
    if (size && stride)
        c->r->kept[value] =
            PyObject_CallFunction(c->p->view, "OOOn", base, size, stride,
                                  (Py_ssize_t)(c->r->offset[i] / (size_t)b->itemsize));
    Py_XDECREF(size);
    Py_XDECREF(stride);
    return c->r->kept[value];
}

/* A value as an object, borrowed. */
static PyObject *object_of(struct call *c, int value) {
    const int b = c->p->buffer_of[value];
    if (b >= 0 && !c->r->own[b]) return buffer_object(c, value);
    PyObject *o = c->f->obj[value] ? c->f->obj[value] : c->r->kept[value];
    if (!o) pydvm_fail(DVM_ERR_INTERNAL, "value %d is read before it is computed", value);
    return o;
}

static const dvm_arg *describe(struct call *c, int value) {
    struct desc *d = &c->f->desc[c->p->desc_of[value]];
    if (d->known) return &d->arg;
    static const struct slot any = {DVM_NDTYPE, false};
    d->t.arg = &d->arg;
    d->t.owner = NULL;
    d->t.has_buf = false;
    d->t.family = FAMILY_NONE;
    d->known = true;
    PyObject *o = object_of(c, value);
    if (o && pydvm_tensor(o, &any, c->p->written[value], value, &d->t)) return &d->arg;
    pydvm_tensor_done(&d->t);
    d->known = false;
    return NULL;
}

/* Arguments of a CALL: values and sizes in place of what stands for them, in lists and tuples too. New reference. */
static PyObject *filled(struct call *c, PyObject *t) {
    PyTypeObject *type = Py_TYPE(t);
    if (type == c->p->slot_type) return Py_XNewRef(object_of(c, (int)PyLong_AsLong(t)));
    if (type == c->p->size_type) return PyLong_FromLongLong(c->r->size[PyLong_AsLong(t)]);
    if (type != &PyTuple_Type && type != &PyList_Type) return Py_NewRef(t);
    const bool list = type == &PyList_Type;
    const Py_ssize_t n = list ? PyList_Size(t) : PyTuple_Size(t);
    PyObject *out = list ? PyList_New(n) : PyTuple_New(n);
    for (Py_ssize_t i = 0; out && i < n; i++) {
        PyObject *x = filled(c, list ? PyList_GetItem(t, i) : PyTuple_GetItem(t, i));
        if (!x || (list ? PyList_SetItem(out, i, x) : PyTuple_SetItem(out, i, x))) Py_CLEAR(out);
    }
    return out;
}

static PyObject *filled_dict(struct call *c, PyObject *t) {
    PyObject *out = PyDict_New(), *key, *value;
    Py_ssize_t at = 0;
    while (out && PyDict_Next(t, &at, &key, &value)) {
        PyObject *x = filled(c, value);
        if (!x || PyDict_SetItem(out, key, x)) Py_CLEAR(out);
        Py_XDECREF(x);
    }
    return out;
}

/* A view for those that read it in this call. One whose operand is not laid out as torch foretold shows a copy that
 * is. */
static bool step_view(struct call *c, const struct step *s) {
    PyObject **kept = &c->r->kept[s->result];
    const struct view *v = &c->p->view_of[s->view];
    const int64_t *n = c->r->layout + (ptrdiff_t)s->view * VIEW_NUMBERS;
    PyObject *base = object_of(c, v->base);
    if (!base) return false;
    const bool keeps = s->kept && !c->r->loose[s - c->p->step];
    if (!keeps) {
        const struct layout want = {v->rank,          v->base_rank,         n,
                                    n + DVM_MAX_RANK, n + 2 * DVM_MAX_RANK, n[VIEW_NUMBERS - 1]};
        const int done = pydvm_show(base, &want, &c->r->shown[s->view], kept);
        if (done) return done > 0;
    } else if (*kept)
        return true;
    PyObject *size = size_tuple(n, v->rank), *stride = size_tuple(n + DVM_MAX_RANK, v->rank),
             *before = size_tuple(n + 2 * DVM_MAX_RANK, v->base_rank), *out = NULL;
    if (size && stride && before)
        out = PyObject_CallFunction(c->p->laid_out, "OOOLO", base, size, stride,
                                    (long long)n[VIEW_NUMBERS - 1], before);
    Py_XDECREF(size);
    Py_XDECREF(stride);
    Py_XDECREF(before);
    if (keeps)
        *kept = out;
    else
        c->f->obj[s->result] = out;
    return out != NULL;
}

static bool step_call(struct call *c, const struct step *s) {
    const ptrdiff_t n = s - c->p->step;
    const bool loose = c->r->loose[n], keeps = s->kept && !loose;
    if (keeps && c->r->kept[s->result]) return true;
    PyObject *none[2] = {0}, **args = none, **kwargs = none + 1, *out = NULL;
    if (s->fixed && !loose) args = &c->r->args[n];
    if (s->named && !loose) kwargs = &c->r->kwargs[n];
    if (!*args) *args = filled(c, s->args);
    if (*args && s->kwargs && !*kwargs) *kwargs = filled_dict(c, s->kwargs);
    if (*args && (!s->kwargs || *kwargs)) out = PyObject_Call(s->fn, *args, *kwargs);
    Py_XDECREF(none[0]);
    Py_XDECREF(none[1]);
    if (!out) return false;
    if (s->result < 0)
        Py_DECREF(out);
    else if (keeps)
        c->r->kept[s->result] = out;
    else
        c->f->obj[s->result] = out;
    return true;
}

/* Memory for the buffers of their own that are first needed now. */
static bool begin_own(struct call *c, int first) {
    for (int b = first; b >= 0; b = c->p->buffer[b].next_first) {
        if (!c->r->own[b]) continue;
        const struct buffer *buf = &c->p->buffer[b];
        PyObject **args = &c->r->made[b];
        if (!*args) {
            PyObject *size = size_tuple(c->r->arg[b].dims, buf->rank),
                     *stride = size_tuple(c->r->arg[b].strides, buf->rank);
            if (size && stride) *args = PyTuple_Pack(3, size, stride, buf->type);
            Py_XDECREF(size);
            Py_XDECREF(stride);
        }
        if (!*args || !(c->f->obj[buf->value] = PyObject_CallObject(c->p->empty, *args)))
            return false;
    }
    return true;
}

static void end_own(struct call *c, int last) {
    for (int b = last; b >= 0; b = c->p->buffer[b].next_last)
        if (c->r->own[b]) forget(c->p, c->f, c->p->buffer[b].value);
}

static bool step_empty(struct call *c, const struct step *s) {
    PyObject **args = &c->r->args[s - c->p->step];
    if (!*args && !(*args = filled(c, s->args))) return false;
    return (c->f->obj[s->result] = PyObject_CallObject(c->p->empty, *args)) != NULL;
}

static PyObject *ref_object(struct call *c, const struct ref *ref, int dtype) {
    switch (ref->kind) {
    case REF_VALUE: return Py_XNewRef(object_of(c, ref->index));
    case REF_ARGUMENT: return Py_NewRef(c->f->obj[ref->index]);
    case REF_SIZE: return PyLong_FromLongLong(c->r->size[ref->index]);
    default:
        return dtype == DVM_F32 || dtype == DVM_F64 ? PyFloat_FromDouble(ref->num.f)
                                                    : PyLong_FromLongLong(ref->num.i);
    }
}

/* The kernel failed with the pending exception: its rescue gets the arguments as objects. */
static bool rescue(struct call *c, const struct step *s, struct kernel *k) {
    PyObject *type, *error, *trace, *out = NULL;
    PyErr_Fetch(&type, &error, &trace);
    PyObject **a = PyMem_Calloc((size_t)s->nref, sizeof *a);
    int n = 0;
    while (a && n < s->nref && (a[n] = ref_object(c, &s->ref[n], n < k->nin ? k->in[n].dtype : 0)))
        n++;
    if (a && n == s->nref) {
        PyErr_Restore(type, error, trace);
        out = pydvm_rescue(k, a, n);
    } else {
        Py_XDECREF(type);
        Py_XDECREF(error);
        Py_XDECREF(trace);
    }
    for (int i = 0; i < n; i++) Py_DECREF(a[i]);
    PyMem_Free(a);
    Py_XDECREF(out);
    return out != NULL;
}

static bool scalar(const struct call *c, const struct ref *ref, int dtype, dvm_arg *arg) {
    *arg = (dvm_arg){.rank = -1, .dtype = dtype, .num = ref->num};
    if (ref->kind == REF_SIZE) {
        const int64_t n = c->r->size[ref->index];
        if (dtype == DVM_F32 || dtype == DVM_F64)
            arg->num.f = (double)n;
        else
            arg->num.i = n;
    }
    return ref->kind != REF_ARGUMENT || pydvm_number(c->f->obj[ref->index], dtype, &arg->num);
}

static bool step_run(struct call *c, const struct step *s) {
    struct kernel *k = (struct kernel *)s->fn;
    dvm_arg *arg = c->f->arg;
    for (int i = 0; i < s->nref; i++) {
        const struct ref *ref = &s->ref[i];
        if (ref->kind == REF_VALUE) {
            const int b = c->p->buffer_of[ref->index];
            const bool placed = b >= 0 && !c->r->own[b];
            const dvm_arg *a = placed ? &c->r->arg[b] : describe(c, ref->index);
            if (!a) return rescue(c, s, k);
            arg[i] = *a;
        } else if (!scalar(c, ref, k->in[i].dtype, &arg[i]))
            return false;
    }
    const dvm_status st = pydvm_kernel_run(k, arg);
    /* its workspace would lie beside what torch's operators take next */
    dvm_ctx_trim(k->ctx->ctx);
    if (!st) return true;
    pydvm_raise(st);
    return rescue(c, s, k);
}

/* A number of the key, -1 with an exception when it cannot be had. */
static int64_t key_number(struct call *c, const struct source *s) {
    PyObject *o = c->f->obj[s->value];
    if (s->what == 2) return PyLong_AsLongLong(o);
    const dvm_arg *a = describe(c, s->value);
    if (a && s->dim < a->rank && (s->what == 0 || a->strides))
        return s->what == 0 ? a->dims[s->dim] : a->strides[s->dim];
    PyErr_Clear(); /* no tensor of DVM, or without elements */
    PyObject *n = PyObject_CallMethod(o, s->what ? "stride" : "size", "i", s->dim);
    const int64_t value = n ? PyLong_AsLongLong(n) : -1;
    Py_XDECREF(n);
    return value;
}

static bool find_record(struct call *c) {
    int64_t few[64], *key = few;
    const int n = c->p->nsource;
    if (n > 64 && !(key = PyMem_Malloc((size_t)n * 8))) return PyErr_NoMemory();
    for (int i = 0; i < n && !PyErr_Occurred(); i++) key[i] = key_number(c, &c->p->source[i]);
    if (!PyErr_Occurred()) c->r = record_get(c->p, key, c->f->obj);
    if (key != few) PyMem_Free(key);
    return c->r != NULL;
}

/* Buffers of no bytes are views of an arena too, when torch asks for them as tensors. */
static bool find_arena(struct call *c) {
    if (!c->p->nbuffer) return true;
    if (!(c->arena = arena_take(c->p, c->r->arena ? c->r->arena : 1))) return false;
    if (c->arena->serial == c->r->serial) return true;
    drop_kept(c->p, c->r);
    for (int i = 0; i < c->p->nbuffer; i++) c->r->arg[i].data = c->arena->data + c->r->offset[i];
    c->r->serial = c->arena->serial;
    return true;
}

/* Takes over the arguments in f->obj, and the frame. */
static PyObject *run_frame(struct program *p, struct frame *f) {
    struct call c = {.p = p, .f = f};
    PyObject *out = NULL;
    bool ok = find_record(&c) && find_arena(&c);
    for (int i = 0; ok && i < p->nstep; i++) {
        const struct step *s = &p->step[i];
        if (s->begins >= 0 && !(ok = begin_own(&c, s->begins))) break;
        switch (s->op) {
        case OP_RUN: ok = step_run(&c, s); break;
        case OP_CALL: ok = step_call(&c, s); break;
        case OP_VIEW: ok = step_view(&c, s); break;
        default: ok = step_empty(&c, s); break;
        }
        for (int d = 0; d < s->ndrop; d++) forget(p, c.f, s->drop[d]);
        end_own(&c, s->ends);
    }
    if (ok && p->result) out = filled(&c, p->result);
    frame_give(p, c.f);
    if (c.r) record_done(p, c.r);
    if (c.arena) arena_give(c.arena);
    return out;
}

static PyObject *wrong_number(const struct program *p) {
    return pydvm_fail(DVM_ERR_ARG, "a compiled graph takes a list of %d arguments", p->ninput);
}

static PyObject *program_run(PyObject *o, PyObject *args) {
    struct program *p = (struct program *)o;
    const int n = p->ninput;
    if (!PyList_Check(args) || PyList_Size(args) != n) return wrong_number(p);
    struct frame *f = frame_take(p);
    if (!f) return NULL;
    for (int i = 0; i < n; i++) f->obj[i] = Py_NewRef(PyList_GetItem(args, i));
    if (PyList_SetSlice(args, 0, n, NULL) == 0) return run_frame(p, f);
    frame_give(p, f);
    return NULL;
}

static PyObject *program_call(PyObject *o, PyObject *const *args, Py_ssize_t n) {
    struct program *p = (struct program *)o;
    if (n != p->ninput) return wrong_number(p);
    struct frame *f = frame_take(p);
    if (!f) return NULL;
    for (Py_ssize_t i = 0; i < n; i++) f->obj[i] = Py_NewRef(args[i]);
    return run_frame(p, f);
}

/* ---- construction: the tables that dvm.torch.program writes ---- */

static void *table(struct program *p, Py_ssize_t n, size_t size) {
    void *t = PyMem_Calloc((size_t)n + 1, size);
    if (!t)
        PyErr_NoMemory();
    else
        p->tables[p->ntable++] = t;
    return t;
}

static PyObject *item(PyObject *list, Py_ssize_t i) { return PyList_GetItem(list, i); }

/* A number in [low, high), -1 with an exception. */
static int number_in(PyObject *o, long low, long high) {
    const long n = o ? PyLong_AsLong(o) : -1;
    if (PyErr_Occurred()) return -1;
    if (n >= low && n < high) return (int)n;
    pydvm_fail(DVM_ERR_ARG, "Program: %ld is not in [%ld, %ld)", n, low, high);
    return -1;
}

static bool read_dim(const struct program *p, PyObject *o, struct dim *d) {
    if (Py_TYPE(o) == p->size_type) {
        d->size = number_in(o, 0, p->nsize);
        return d->size >= 0;
    }
    *d = (struct dim){.value = PyLong_AsLongLong(o), .size = -1};
    return !PyErr_Occurred();
}

/* (value, dtype, itemsize, sizes, strides, first, last, torch.dtype) */
static bool read_buffer(struct program *p, PyObject *o, int i) {
    struct buffer *b = &p->buffer[i];
    PyObject *sizes, *strides;
    if (!PyArg_ParseTuple(o, "iiLO!O!iiO", &b->value, &b->dtype, (long long *)&b->itemsize,
                          &PyTuple_Type, &sizes, &PyTuple_Type, &strides, &b->first, &b->last,
                          &b->type))
        return false;
    const Py_ssize_t rank = PyTuple_Size(sizes);
    if (b->value < 0 || b->value >= p->nvalue || b->dtype < 0 || b->dtype >= DVM_NDTYPE ||
        rank > DVM_MAX_RANK || PyTuple_Size(strides) != rank || b->itemsize < 1 || b->first < 0 ||
        b->last < b->first || b->last > p->nstep || (b->last == p->nstep && i < p->nbuffer)) {
        pydvm_fail(DVM_ERR_ARG, "Program: buffer %d is not well formed", i);
        b->type = NULL;
        return false;
    }
    Py_INCREF(b->type);
    b->rank = (int)rank;
    if (i < p->nbuffer) p->buffer_of[b->value] = i;
    for (Py_ssize_t d = 0; d < rank; d++)
        if (!read_dim(p, PyTuple_GetItem(sizes, d), &b->dim[d]) ||
            !read_dim(p, PyTuple_GetItem(strides, d), &b->dim[DVM_MAX_RANK + d]))
            return false;
    return true;
}

static bool read_ref(struct program *p, PyObject *o, const struct kernel *k, int i,
                     struct ref *ref) {
    const bool input = i < k->nin;
    const struct slot *want = input ? &k->in[i] : &k->out[i - k->nin];
    if (Py_TYPE(o) == p->slot_type) {
        ref->kind = want->scalar ? REF_ARGUMENT : REF_VALUE;
        ref->index = number_in(o, 0, p->nvalue);
        if (ref->index < 0) return false;
        if (!want->scalar && p->desc_of[ref->index] < 0) p->desc_of[ref->index] = p->ndesc++;
        if (!input) p->written[ref->index] = true;
        return true;
    }
    if (!want->scalar) {
        pydvm_fail(DVM_ERR_ARG, "Program: argument %d of a kernel is no value", i + 1);
        return false;
    }
    if (Py_TYPE(o) == p->size_type) {
        ref->kind = REF_SIZE;
        ref->index = number_in(o, 0, p->nsize);
        return ref->index >= 0;
    }
    ref->kind = REF_NUMBER;
    return pydvm_number(o, want->dtype, &ref->num);
}

static bool read_run(struct program *p, struct step *s) {
    if (Py_TYPE(s->fn) != pydvm.kernel) {
        pydvm_fail(DVM_ERR_ARG, "Program: a step runs what is no kernel");
        return false;
    }
    const struct kernel *k = (struct kernel *)s->fn;
    s->nref = k->nin + k->nout;
    if (PyTuple_Size(s->args) != s->nref) {
        pydvm_fail(DVM_ERR_ARG, "Program: a kernel of %d arguments gets %zd", s->nref,
                   PyTuple_Size(s->args));
        return false;
    }
    if (s->nref > p->maxarg) p->maxarg = s->nref;
    for (int i = 0; i < s->nref; i++)
        if (!read_ref(p, PyTuple_GetItem(s->args, i), k, i, &s->ref[i])) return false;
    return true;
}

static bool read_dims(const struct program *p, PyObject *o, struct dim *d, int *rank) {
    const Py_ssize_t n = PyTuple_Check(o) ? PyTuple_Size(o) : -1;
    if (n < 0 || n > DVM_MAX_RANK) {
        pydvm_fail(DVM_ERR_ARG, "Program: a view is not well formed");
        return false;
    }
    *rank = (int)n;
    for (Py_ssize_t i = 0; i < n; i++)
        if (!read_dim(p, PyTuple_GetItem(o, i), &d[i])) return false;
    return true;
}

/* (value, sizes, strides, offset, strides of the value) */
static bool read_view(struct program *p, struct step *s) {
    s->view = p->nview;
    struct view *v = &p->view_of[p->nview++];
    for (int i = 0; i < VIEW_NUMBERS; i++) v->dim[i].size = -1;
    PyObject *base, *size, *stride, *offset, *before;
    int rank;
    if (!PyArg_ParseTuple(s->args, "OOOOO", &base, &size, &stride, &offset, &before) ||
        (v->base = number_in(base, 0, p->nvalue)) < 0 || !read_dims(p, size, v->dim, &v->rank) ||
        !read_dims(p, stride, v->dim + DVM_MAX_RANK, &rank) ||
        !read_dims(p, before, v->dim + 2 * DVM_MAX_RANK, &v->base_rank))
        return false;
    if (rank == v->rank) return read_dim(p, offset, &v->dim[VIEW_NUMBERS - 1]);
    pydvm_fail(DVM_ERR_ARG, "Program: a view is not well formed");
    return false;
}

/* (op, fn, args, kwargs or None, result, bits: 1 arguments are fixed, 2 those by name, 4 the result too, drops) */
static bool read_step(struct program *p, PyObject *o, struct step *s, int **drops,
                      struct ref **refs) {
    PyObject *fn, *args, *kwargs, *drop;
    int op, fixed;
    if (!PyArg_ParseTuple(o, "iOO!OiiO!", &op, &fn, &PyTuple_Type, &args, &kwargs, &s->result,
                          &fixed, &PyTuple_Type, &drop))
        return false;
    if (op < OP_RUN || op > OP_VIEW || s->result < -1 || s->result >= p->nvalue || fixed < 0 ||
        fixed > 7 || (s->result < 0 && (op == OP_EMPTY || op == OP_VIEW || fixed & 4))) {
        pydvm_fail(DVM_ERR_ARG, "Program: a step is not well formed");
        return false;
    }
    s->op = (uint8_t)op;
    s->begins = s->ends = -1;
    s->fixed = fixed & 1;
    s->named = fixed & 2;
    s->kept = fixed & 4;
    s->fn = Py_NewRef(fn);
    s->args = Py_NewRef(args);
    s->kwargs = kwargs == Py_None ? NULL : Py_NewRef(kwargs);
    s->ndrop = (int)PyTuple_Size(drop);
    s->drop = *drops;
    s->ref = *refs;
    for (int i = 0; i < s->ndrop; i++)
        if ((s->drop[i] = number_in(PyTuple_GetItem(drop, i), 0, p->nvalue)) < 0) return false;
    if (op == OP_RUN && !read_run(p, s)) return false;
    if (op == OP_VIEW && !read_view(p, s)) return false;
    *drops += s->ndrop;
    *refs += s->nref;
    return true;
}

static bool read_steps(struct program *p, PyObject *steps) {
    Py_ssize_t nref = 0;
    for (int i = 0; i < p->nstep; i++) {
        PyObject *s = item(steps, i);
        PyObject *args = PyTuple_Check(s) && PyTuple_Size(s) == 7 ? PyTuple_GetItem(s, 2) : NULL;
        if (args && PyTuple_Check(args)) nref += PyTuple_Size(args);
    }
    int *drops = table(p, p->nvalue, sizeof *drops); /* each value is dropped once at most */
    struct ref *refs = table(p, nref, sizeof *refs);
    p->step = table(p, p->nstep, sizeof *p->step);
    p->view_of = table(p, p->nstep, sizeof *p->view_of);
    if (!drops || !refs || !p->step || !p->view_of) return false;
    Py_ssize_t ndrop = 0;
    for (int i = 0; i < p->nstep; i++) {
        PyObject *s = item(steps, i);
        if (PyTuple_Check(s) && PyTuple_Size(s) == 7 && PyTuple_Check(PyTuple_GetItem(s, 6)))
            ndrop += PyTuple_Size(PyTuple_GetItem(s, 6));
        if (ndrop > p->nvalue) {
            pydvm_fail(DVM_ERR_ARG, "Program: values are dropped twice");
            return false;
        }
        if (!read_step(p, s, &p->step[i], &drops, &refs)) return false;
    }
    return true;
}

/* Which buffers begin and end with each step. */
static void link_buffers(struct program *p) {
    for (int i = 0; i < p->nbuffer; i++) {
        struct buffer *b = &p->buffer[i];
        struct step *first = &p->step[b->first], *last = &p->step[b->last];
        b->next_first = first->begins;
        b->next_last = last->ends;
        first->begins = last->ends = i;
    }
}

/* (value, what, dim) */
static bool read_sources(struct program *p, PyObject *sources) {
    p->source = table(p, p->nsource, sizeof *p->source);
    for (int i = 0; p->source && i < p->nsource; i++) {
        struct source *s = &p->source[i];
        int what;
        if (!PyArg_ParseTuple(item(sources, i), "iii", &s->value, &what, &s->dim)) return false;
        if (s->value < 0 || s->value >= p->ninput || what < 0 || what > 2 || s->dim < 0) {
            pydvm_fail(DVM_ERR_ARG, "Program: size %d is not well formed", i);
            return false;
        }
        s->what = (uint8_t)what;
        if (what < 2 && p->desc_of[s->value] < 0) p->desc_of[s->value] = p->ndesc++;
    }
    return p->source != NULL;
}

static struct program *program_alloc(PyTypeObject *type) {
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    return (struct program *)alloc(type, 0);
}

static PyObject *program_new(PyTypeObject *type, PyObject *args, PyObject *kw) {
    static char *names[] = {"values",    "inputs",  "buffers", "results", "steps",
                            "sources",   "nsize",   "sizes",   "result",  "slot_type",
                            "size_type", "runtime", NULL};
    struct program *p = program_alloc(type);
    if (!p) return NULL;
    PyObject *buffers, *results, *steps, *sources, *sizes, *result, *slot, *size, *runtime;
    if (!PyArg_ParseTupleAndKeywords(args, kw, "iiO!O!O!O!iOOO!O!O!:Program", names, &p->nvalue,
                                     &p->ninput, &PyList_Type, &buffers, &PyList_Type, &results,
                                     &PyList_Type, &steps, &PyList_Type, &sources, &p->nsize,
                                     &sizes, &result, &PyType_Type, &slot, &PyType_Type, &size,
                                     &PyTuple_Type, &runtime))
        goto fail;
    const int nbuffer = (int)PyList_Size(buffers), nresult = (int)PyList_Size(results);
    p->nstep = (int)PyList_Size(steps);
    p->nsource = (int)PyList_Size(sources);
    if (p->ninput < 0 || p->nvalue < p->ninput || p->nsize < p->nsource ||
        !PyArg_ParseTuple(runtime, "OOOOO", &p->new_arena, &p->typed, &p->view, &p->empty,
                          &p->laid_out)) {
        if (!PyErr_Occurred()) pydvm_fail(DVM_ERR_ARG, "Program: counts do not fit");
        p->new_arena = p->typed = p->view = p->empty = p->laid_out = NULL;
        goto fail;
    }
    Py_INCREF(p->new_arena);
    Py_INCREF(p->typed);
    Py_INCREF(p->view);
    Py_INCREF(p->empty);
    Py_INCREF(p->laid_out);
    p->slot_type = (PyTypeObject *)Py_NewRef(slot);
    p->size_type = (PyTypeObject *)Py_NewRef(size);
    p->sizes = Py_NewRef(sizes);
    p->result = Py_NewRef(result);
    p->buffer_of = table(p, p->nvalue, sizeof(int));
    p->desc_of = table(p, p->nvalue, sizeof(int));
    p->written = table(p, p->nvalue, sizeof(bool));
    p->buffer = table(p, nbuffer + nresult, sizeof *p->buffer);
    if (!p->buffer_of || !p->desc_of || !p->written || !p->buffer) goto fail;
    for (int i = 0; i < p->nvalue; i++) p->buffer_of[i] = p->desc_of[i] = -1;
    p->nbuffer = nbuffer;
    p->nresult = nresult;
    for (int i = 0; i < nbuffer + nresult; i++)
        if (!read_buffer(p, i < nbuffer ? item(buffers, i) : item(results, i - nbuffer), i))
            goto fail;
    if (!read_sources(p, sources) || !read_steps(p, steps)) goto fail;
    link_buffers(p);
    return (PyObject *)p;
fail:
    Py_DECREF((PyObject *)p);
    return NULL;
}

/* Steps call functions whose globals hold the program. */
static int program_traverse(PyObject *o, visitproc visit, void *arg) {
    struct program *p = (struct program *)o;
    Py_VISIT(Py_TYPE(o));
    for (int i = 0; p->step && i < p->nstep; i++) {
        Py_VISIT(p->step[i].fn);
        Py_VISIT(p->step[i].args);
        Py_VISIT(p->step[i].kwargs);
    }
    for (const struct record *r = p->records; r; r = r->next)
        for (int i = 0; i < p->nvalue; i++) Py_VISIT(r->kept[i]);
    for (int i = 0; i < p->nbuffer + p->nresult; i++) Py_VISIT(p->buffer[i].type);
    Py_VISIT(p->result);
    Py_VISIT(p->sizes);
    Py_VISIT(p->new_arena);
    Py_VISIT(p->typed);
    Py_VISIT(p->view);
    Py_VISIT(p->empty);
    Py_VISIT(p->laid_out);
    return 0;
}

static int program_clear(PyObject *o) {
    struct program *p = (struct program *)o;
    for (struct record *r = p->records, *next; r; r = next) {
        next = r->next;
        record_free(p, r);
    }
    p->records = NULL;
    const int n = p->step ? p->nstep : 0;
    p->nstep = 0; /* a cleared program does nothing */
    for (int i = 0; i < n; i++) {
        Py_CLEAR(p->step[i].fn);
        Py_CLEAR(p->step[i].args);
        Py_CLEAR(p->step[i].kwargs);
    }
    for (int i = 0; i < p->nbuffer + p->nresult; i++) Py_CLEAR(p->buffer[i].type);
    Py_CLEAR(p->result);
    Py_CLEAR(p->sizes);
    Py_CLEAR(p->new_arena);
    Py_CLEAR(p->typed);
    Py_CLEAR(p->view);
    Py_CLEAR(p->empty);
    Py_CLEAR(p->laid_out);
    return 0;
}

static void program_dealloc(PyObject *o) {
    struct program *p = (struct program *)o;
    PyTypeObject *type = Py_TYPE(o);
    PyObject_GC_UnTrack(o);
    program_clear(o);
    Py_XDECREF((PyObject *)p->slot_type);
    Py_XDECREF((PyObject *)p->size_type);
    for (int i = 0; i < p->ntable; i++) PyMem_Free(p->tables[i]);
    PyMem_Free(p->spare);
    freefunc dealloc = (freefunc)PyType_GetSlot(type, Py_tp_free);
    dealloc(o);
    Py_DECREF(type);
}

static PyObject *program_stats(PyObject *o, PyObject *unused) {
    (void)unused;
    const struct program *p = (struct program *)o;
    int runs = 0, calls = 0, n = 0;
    for (int i = 0; i < p->nstep; i++) {
        runs += p->step[i].op == OP_RUN;
        calls += p->step[i].op == OP_CALL;
    }
    for (const struct record *r = p->records; r; r = r->next) n++;
    return Py_BuildValue("{sisisisisLsLsL}", "runs", runs, "calls", calls, "buffers", p->nbuffer,
                         "records", n, "arena_bytes", (long long)p->arena, "planned_bytes",
                         (long long)p->planned, "naive_bytes", (long long)p->naive);
}

static PyMethodDef program_methods[] = {
    {"run", program_run, METH_O,
     "run(list of arguments): the results; the list is emptied, so that arguments can go early."},
    {"call", (PyCFunction)(void (*)(void))program_call, METH_FASTCALL,
     "call(*arguments): the results."},
    {"stats", program_stats, METH_NOARGS,
     "stats(): steps, and the bytes of the newest shape's intermediate values: the arena, what "
     "they take at most with\n"
     "those that have memory of their own (planned), and one beside the other (naive)."},
    {0},
};
static PyType_Slot program_slots[] = {
    {Py_tp_new, program_new},
    {Py_tp_dealloc, program_dealloc},
    {Py_tp_traverse, program_traverse},
    {Py_tp_clear, program_clear},
    {Py_tp_methods, program_methods},
    {Py_tp_doc, "A whole graph as one sequence of steps; dvm.torch.program records it."},
    {0},
};
PyType_Spec pydvm_program_spec = {"_dvm.Program", sizeof(struct program), 0,
                                  Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, program_slots};
