/* Tables of a program and of its records, shared by py_program.c, which runs them, and py_place.c, which decides where
 * intermediate values live. */
#ifndef PROGRAM_H
#define PROGRAM_H

#include "pydvm.h"

enum op { OP_RUN, OP_CALL, OP_EMPTY, OP_VIEW };
enum ref_kind { REF_VALUE, REF_SIZE, REF_NUMBER, REF_ARGUMENT };

/* An argument of a kernel: a value, or a scalar (a computed size, a constant, a number among the arguments). */
struct ref {
    uint8_t kind;
    int index;
    dvm_number num;
};

struct dim {
    int64_t value; /* when size < 0 */
    int size;      /* number of a computed size, or -1 */
};

/* An intermediate value, or a result that has new memory in every call. */
struct buffer {
    int value, rank, dtype, first, last; /* steps between which it is needed */
    int next_first, next_last; /* of the buffers with the same first and last step, or -1 */
    int64_t itemsize;
    PyObject *type;                   /* torch.dtype */
    struct dim dim[2 * DVM_MAX_RANK]; /* sizes, strides */
};

/* A VIEW; sizes, strides and offset in elements, and the strides that its operand shall have. */
struct view {
    int base, rank, base_rank;
    struct dim dim[3 * DVM_MAX_RANK + 1];
};

enum { VIEW_NUMBERS = 3 * DVM_MAX_RANK + 1 };

struct step {
    uint8_t op;
    bool kept;        /* the result of a CALL belongs to the record */
    bool fixed;       /* so do all its arguments */
    bool named;       /* so do all its arguments by name */
    int result;       /* value, or -1 */
    int view;         /* of a VIEW */
    int begins, ends; /* buffers whose first and last step this is, or -1 */
    int ndrop, nref;  /* drop, ref: slices of the program's tables */
    int *drop;        /* objects that are not needed after this step */
    struct ref *ref;
    PyObject *fn, *args, *kwargs; /* RUN: fn is the Kernel; EMPTY: args are sizes, strides, dtype;
                                     VIEW: what it is a view of, and struct view */
};

struct source { /* where a number of the key comes from */
    int value;
    uint8_t what; /* 0 size, 1 stride, 2 the number itself */
    int dim;
};

struct record {
    struct record *next;
    bool busy;
    int64_t *size; /* the key, then what was computed from it */
    dvm_arg *arg;  /* of buffers */
    int64_t *dims; /* behind arg */
    size_t *offset;
    size_t planned, naive;
    size_t arena;
    bool *own;          /* by buffer: memory of its own, from its first step to its last */
    bool *loose;        /* by step: what it reads or makes shows such memory, so nothing is kept */
    PyObject **made;    /* by buffer with memory of its own: how torch.empty is called */
    uint64_t serial;    /* arena that `kept` and the addresses in `arg` belong to */
    int64_t *layout;    /* of views: VIEW_NUMBERS each */
    const void **shown; /* memory that the kept tensors of views show */
    PyObject **kept;    /* by value */
    PyObject **args, **kwargs; /* by step: of EMPTY, and of a CALL when they are fixed */
};

struct program {
    PyObject ob_base;
    int nvalue, ninput, nbuffer, nresult, nstep, nsource, nsize, ndesc, maxarg, nview;
    int *buffer_of, *desc_of; /* by value, or -1 */
    bool *written;            /* by value: a kernel writes it */
    struct buffer *buffer;    /* intermediate values, behind them results */
    struct step *step;
    struct view *view_of;
    struct source *source;
    PyObject *result, *sizes;
    PyTypeObject *slot_type, *size_type;
    PyObject *new_arena, *typed, *view, *empty, *laid_out;
    struct record *records;
    struct frame *spare;
    void *tables[16]; /* owned blocks */
    int ntable;
    int64_t arena, planned, naive;
};

/* Decides which buffers have memory of their own, places the others in the arena, and notes which steps see memory
 * that is new in every call. `input` are the arguments of this call. False with an exception. */
bool pydvm_place(const struct program *p, struct record *r, PyObject *const *input);

#endif
