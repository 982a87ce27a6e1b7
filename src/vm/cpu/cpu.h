/* The CPU VM's own form of a strip, and what a run keeps.
 *
 * A strip becomes two programs, one for each way to walk the box:
 *   rows   one row at a time, in tiles of up to `tile` columns. What does not vary along the row is one number,
 *          computed once a row (list `row`) or once a call (list `uni`).
 *   flat   short rows: several whole rows in one tile, one after the other. What does not vary along the row is one
 *          number a row, computed for all rows of the tile at once (list `row`), and spread where it is used.
 * Steps name their operands by index into a table of pointers, `at`: numbers first, then pointers that move (operands
 * read or written where they stand), then the tiles, which live in the thread's scratch and are reused as values die. */
#ifndef DVM_VM_CPU_CPU_H
#define DVM_VM_CPU_CPU_H
#include "code/tree.h"
#include "vm/cpu/k.h"
#include "vm/dev.h"

DVM_INLINE int64_t dvm_cpu_vt_size(int vt) { return vt == DVM_VT_I64 || vt == DVM_VT_F64 ? 8 : 4; }

enum {
    DVM_CPU_TILE = 1024, /* elements, at most; at least DVM_CPU_TILE_MIN */
    DVM_CPU_TILE_MIN = 256,
    DVM_CPU_L1 = 24 << 10, /* bytes that live tiles may take */
    DVM_CPU_SLABS = 4,     /* transposed operands that are loaded in blocks */
    DVM_CPU_SLAB_ROWS = 16,
    DVM_CPU_SLAB_COLS = 512,
    DVM_CPU_SLAB_PITCH = 512 + 16, /* elements: rows of a block start in different cache sets */
    DVM_CPU_SKEW = 64              /* bytes between tiles, for the same reason */
};

enum cpu_kind {
    CPU_EW,     /* at[d] = fn(at[a], at[b], at[c]) */
    CPU_DIRECT, /* at[d] points into operand x, or at tile a filled from it */
    CPU_OUT,    /* at[d] points into output x, or at tile a from where it will be stored */
    CPU_STORE,  /* at[a] into operand x; c: unless it stands there */
    CPU_LIT,    /* at[d] points at constant x */
    CPU_PARAM,  /* at[d] points at parameter x */
    CPU_LOAD,   /* operand x into at[d] */
    CPU_IOTA,   /* numbers of operand x into at[d] */
    CPU_PICK,   /* elements of operand x at indices at[a] into at[d] */
    CPU_SLICE, /* rows: at[d] points into operand x at the one index at[a], or at tile b filled from there */
    CPU_SPREAD, /* flat: number r of at[a] all along row r of at[d] */
    CPU_FOLD,   /* at[a], or the product of at[a] and at[b], into fold c */
    CPU_SCAN    /* running sum of at[a] into at[d], carry in fold c */
};

struct cpu_step {
    dvm_k_fn *fn;
    uint16_t d, a, b, c;
    uint8_t kind;
    uint8_t vt;   /* of the value */
    uint8_t type; /* kernel column: PICK: index is i64; SCAN: enum dvm_k_redtype */
    uint16_t x;   /* operand, constant, parameter */
};

struct cpu_list {
    const struct cpu_step *p;
    uint32_t n;
};
struct cpu_prog {
    struct cpu_list uni, row, tile;
    uint16_t nnum, nmove, ntile; /* pointers by kind */
};

struct cpu_fold {
    const struct dvm_k_fold *k; /* NULL: a running sum */
    struct dvm_part identity;
    uint8_t red, vt, size; /* op of ops.def; type of the value, its bytes */
    bool arg;
    uint16_t
        x; /* operand of the result (argmax, argmin: of the index; that of the value is next) */
    uint16_t a, b; /* operands that are folded, where the strip only loads and folds */
};

/* Where things stand in the scratch, bytes from its start. */
struct cpu_layout {
    uint32_t opnd, num, state, fold, slab, tile;
};

struct cpu_code {
    struct dvm_code c;
    const struct dvm_k *k;
    size_t size;
    struct cpu_prog rows, flat;
    struct cpu_layout at;
    uint32_t tile, tile_bytes; /* elements of a tile; bytes from one to the next */
    struct cpu_fold *fold;
    uint16_t nfold, nslab;
    bool only_folds;    /* nothing but loads and folds */
    bool one_row;       /* rows may be joined to one where memory is contiguous */
    uint8_t slab_bytes; /* element */
    uint16_t slab_opnd[DVM_CPU_SLABS];
};

/* A fold or running sum of one row that is longer than a tile. */
struct cpu_state {
    alignas(64) char lane[DVM_TREE_LANES * 8];
    struct dvm_tree tree;
};

/* An operand in one call. */
struct cpu_opnd {
    char *row;           /* element at column 0 of the row (IOTA: the number there) */
    int64_t rs, cs;      /* bytes; 0 where the operand does not move */
    char *slab;          /* rows of the group, loaded as a block; NULL: not transposed */
    uint8_t size, vsize; /* bytes of an element in memory, of a value */
    bool line;           /* all elements of a tile follow each other */
    bool direct;         /* and are values already */
};

struct cpu_vm {
    const struct cpu_code *code;
    const struct dvm_strip_args *args;
    char **at;
    struct cpu_opnd *opnd;
    int64_t m, n;        /* the box, rows joined */
    int64_t i, j;        /* first row and column of the tile */
    int64_t count;       /* elements in the tile */
    int64_t rows;        /* rows in the tile */
    int64_t r;           /* row in the group */
    bool flat, in_place; /* in_place: outputs may be written where they stand */
    bool down;           /* flat: a tile holds one number a row */
    bool whole;          /* a tile holds whole rows */
    bool in_memory;      /* columns are folded where they stand: a tile is all rows */
};

void dvm_cpu_run(const struct dvm_code *c, const struct dvm_strip_args *a);

/* cpu_mem.c: steps that touch operands. */
void dvm_cpu_memory(struct cpu_vm *v, const struct cpu_step *s);
void dvm_cpu_load_slabs(struct cpu_vm *v, int64_t rows, int64_t cols);
/* Bind the operands of a call; row 0. */
void dvm_cpu_bind(struct cpu_vm *v);
/* Rows in a group: more than one when operands are transposed. */
int64_t dvm_cpu_choose_slabs(struct cpu_vm *v);

/* cpu_fold.c */
void dvm_cpu_fold(struct cpu_vm *v, const struct cpu_step *s);
void dvm_cpu_scan(struct cpu_vm *v, const struct cpu_step *s);
void dvm_cpu_fold_start(struct cpu_vm *v, int64_t rows);
void dvm_cpu_fold_end(struct cpu_vm *v, int64_t rows);
/* Nothing to fold: identities. */
void dvm_cpu_fold_none(const struct cpu_code *code, const struct dvm_strip_args *a);

dvm_status dvm_cpu_compile(const struct dvm_dev *d, const struct dvm_mem *m,
                           const struct dvm_strip *s, struct dvm_code **out);
void dvm_cpu_destroy(const struct dvm_dev *d, const struct dvm_mem *m, struct dvm_code *c);
#endif
