/* Inside of the loop driver: drive.c cuts a kernel into units and hands them to threads,
 * drive_unit.c runs the phases of one unit, drive_fold.c joins vectors of partial results. */
#ifndef DVM_VM_DRIVE_H
#define DVM_VM_DRIVE_H
#include <stdatomic.h>

#include "code/tree.h"
#include "vm/dev.h"

/* One FOLD instruction. argmax, argmin: the index goes to opnd, the value to opnd + 1. */
struct dvm_fold {
    uint8_t op, vt;
    bool arg;
    uint16_t opnd;
};

/* ---- drive_fold.c: vectors of parts -----------------------------------------------------------
 * The partial results of one FOLD for every row or column of a unit: a block of memory, values in
 * the dtype of their type, one after the other; for argmax and argmin followed, at 8 * cap, by the
 * indices. */
enum { DVM_VTREE_LEVELS = 48 };
struct dvm_vtree {
    const struct dvm_fold *fold;
    int64_t n, cap; /* parts in a vector, room for parts */
    uint64_t count;
    char *level[DVM_VTREE_LEVELS];
    char *spare[DVM_VTREE_LEVELS]; /* vectors not in use */
    int nspare;
};
DVM_INLINE size_t dvm_vec_bytes(const struct dvm_fold *f, int64_t cap) {
    return ((size_t)cap * 8 * (f->arg ? 2 : 1) + 63) & ~(size_t)63;
}
/* into = join(a, b) part by part; into may be a or b. */
void dvm_vec_join(const struct dvm_vtree *t, char *into, const char *a, const char *b);
/* The binary counter of tree.h on vectors. The tree owns p from now on. */
void dvm_vtree_push(struct dvm_vtree *t, char *p);
/* The result, one of the vectors; NULL when none was pushed. */
char *dvm_vtree_end(struct dvm_vtree *t);
/* Where vectors of fold f stand: operands for a strip whose results lie `step` in element sizes. */
void dvm_vec_bind(const struct dvm_fold *f, char *p, int64_t cap, bool by_row,
                  struct dvm_opnd_arg *opnd);
/* Copies the n parts at p to the operands as bound, by the stride of rows or of columns. */
void dvm_vec_write(const struct dvm_vtree *t, const char *p, bool by_row,
                   const struct dvm_opnd_arg *opnd);

/* ---- drive_unit.c: one unit --------------------------------------------------------------------- */
struct dvm_pinfo {
    const struct dvm_phase *p;
    const struct dvm_strip *strip;
    const struct dvm_code *code;
    const struct dvm_fold *fold;
    int nfold;
    bool stream, far; /* as in dvm_strip_args */
    bool next; /* dvm_code.asked is memory that an earlier phase of the next block will read */
};

/* The space of a kernel: outer kept axes, the block axis, the cut axis.
 *   MAP, ROW  block axis = rows (axis naxes-2), cut axis = columns (axis naxes-1)
 *   COL       block axis = columns (axis naxes-1), cut axis = all reduced axes, flattened */
struct dvm_space {
    const struct dvm_kplan *k;
    int nouter; /* axes */
    int block_axis;
    int64_t outer, len, cut; /* sizes */
    int64_t block, piece;    /* of len and cut that a unit holds */
    int64_t nblock, npiece, nunit;
};

/* A part of the space that one thread works on: a block and (MAP) a piece of the cut axis. */
struct dvm_unit {
    int64_t outer[DVM_MAX_AXES]; /* index of each outer axis */
    int64_t start, count;        /* block axis */
    int64_t lo, hi;              /* cut axis */
    char *scratch;               /* buffers of the block */
};

enum { DVM_TOGETHER = 4 }; /* groups of rows of a column kernel that code may take at once */

/* What a thread works with. */
struct dvm_slot {
    struct dvm_fault *fault; /* one per phase */
    struct dvm_opnd_arg *opnd,
        *box; /* of a phase; opnd and param have room for all of them, box for DVM_TOGETHER */
    uint64_t *param;
    void *code_scratch;
    char *scratch;
    struct dvm_vtree *tree; /* one per fold of a phase */
    char *vec;              /* vectors for tree */
};

struct dvm_job {
    const struct dvm_launch *l;
    struct dvm_space s;
    struct dvm_pinfo *info;
    int64_t group;         /* units taken at once */
    int64_t batch;         /* units that a slot has buffers for (dvm_unit_boxes) */
    int64_t chunk, nchunk; /* split kernels: of the cut axis */
    int phase;             /* split kernels: being run */
    int nslot, nvec;       /* vectors per fold in a slot */
    char *slots;
    size_t slot_bytes, part_bytes;
    char *part;    /* split kernels: partial results by unit and chunk */
    char *scratch; /* split kernels: block buffers by unit */
    size_t scratch_bytes;
    atomic_llong next;
};

/* Bytes from the buffers of a unit to those of the next, of a batch. */
DVM_INLINE int64_t dvm_scratch_step(const struct dvm_kplan *k) {
    return ((int64_t)k->scratch + 63) & ~INT64_C(63);
}
void dvm_unit_at(const struct dvm_job *j, int64_t index, struct dvm_unit *u);
/* A FULL phase over [u->lo, u->hi) of the cut axis. part: NULL, or where partial results go. */
void dvm_unit_full(const struct dvm_job *j, struct dvm_slot *s, const struct dvm_pinfo *f,
                   const struct dvm_unit *u, char *part);
/* Whether every phase of a unit is one box, so that dvm_unit_boxes runs units [from, to). */
bool dvm_unit_is_box(const struct dvm_job *j);
void dvm_unit_boxes(const struct dvm_job *j, struct dvm_slot *s, int64_t from, int64_t to);
void dvm_unit_vec(const struct dvm_job *j, struct dvm_slot *s, const struct dvm_pinfo *f,
                  const struct dvm_unit *u);
/* Joins the partial results of nchunk chunks at `part` and writes them to their operands. */
void dvm_unit_join(const struct dvm_job *j, struct dvm_slot *s, const struct dvm_pinfo *f,
                   const struct dvm_unit *u, char *part);
#endif
