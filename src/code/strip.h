/* A strip: straight-line typed SSA bytecode, run over a box of m rows by n columns. The contract between the
 * planner, the loop driver and every tier (scalar reference, CPU VM, machine code, GPU).
 *
 * Modes:
 *   MAP   every element: loads, arithmetic, stores
 *   ROW   the same, and each FOLD reduces the n elements of a row; row i's result goes to result operand at row i
 *   COL   the same, and each FOLD reduces the m rows (m <= 64) in order; column j's result goes to column j
 * Results are written, not accumulated. n = 0 (ROW) or m = 0 (COL) writes the identity.
 *
 * Sums are defined by trees, so that every tier gives the same bits:
 *   row tree  blocks of 1024 elements; in a block 64 lanes, lane l starts at the identity and folds elements l,
 *             l + 64, ... in order; lanes are folded by halves (l with l + 32, then 16, ... 1); blocks are folded
 *             pairwise: block results enter a binary counter (equal sizes merge, left operand first) and what is
 *             left at the end is folded from the smallest to the largest, the larger (earlier) on the left.
 *   col tree  blocks of 64 rows, each starting at the identity and folded in order; blocks as above.
 * Every reduction uses the tree of its mode, though only sum and prod can tell. The driver may cut a row at
 * multiples of a power of two blocks: a whole subtree; dvm_tree_* (tree.h) joins the parts.
 *
 * An instruction is 8 bytes:  op:8 type:8 a:16 b:16 c:16.  Value i is the result of instruction i. */
#ifndef DVM_CODE_STRIP_H
#define DVM_CODE_STRIP_H
#include <dvm/dvm.h>

#include "base/cc.h"

enum { DVM_TREE_BLOCK = 1024, DVM_TREE_LANES = 64, DVM_TREE_ROWS = 64 };
enum { DVM_STRIP_MAX_INS = 4096, DVM_STRIP_MAX_OPND = 256 };

/* Value types. f16 and bf16 are computed as f32, u8 and i8 as i32; a bool value is 0 or 1. F64 has load, store,
 * copy and cast only. */
enum dvm_vt { DVM_VT_B1, DVM_VT_I32, DVM_VT_I64, DVM_VT_F32, DVM_VT_F64, DVM_NVT };
DVM_INLINE enum dvm_vt dvm_vt_of(int dtype) {
    static const uint8_t vt[DVM_NDTYPE] = {DVM_VT_B1,  DVM_VT_F32, DVM_VT_F32,
                                           DVM_VT_F32, DVM_VT_I32, DVM_VT_I64,
                                           DVM_VT_F64, DVM_VT_I32, DVM_VT_I32};
    return (enum dvm_vt)vt[dtype];
}

enum dvm_bc {
    /* 0 .. DVM_NOP - 1: elementwise rows of ops.def */
    DVM_BC_FIRST = DVM_NOP - 1,
#define X(NAME, text, fields, meaning) DVM_BC_##NAME,
#include "code/bc.def"
#undef X
    DVM_NBC
};
static_assert(DVM_NBC <= 256, "opcode fits a byte");

struct dvm_ins {
    uint8_t op, type; /* enum dvm_bc, enum dvm_vt of the result (STORE, FOLD: of the value) */
    uint16_t a, b, c;
};
static_assert(sizeof(struct dvm_ins) == 8, "drawn above");

/* How an operand moves with the column: part of a strip's identity; the numbers are not. */
enum dvm_opnd_kind {
    DVM_OPND_UNIF,   /* the same element everywhere */
    DVM_OPND_ROW,    /* column stride 0 */
    DVM_OPND_CONTIG, /* column stride = element size */
    DVM_OPND_STRIDED /* any column stride */
};
enum dvm_opnd_role {
    DVM_ROLE_LOAD,
    DVM_ROLE_STORE,
    DVM_ROLE_FOLD, /* result of a FOLD */
    DVM_ROLE_PICK, /* read by PICK */
    DVM_ROLE_IOTA  /* no memory: element is base + row * rs + column * cs */
};
struct dvm_opnd {
    uint8_t dtype, kind, role, pad;
};

enum dvm_strip_mode { DVM_MODE_MAP, DVM_MODE_ROW, DVM_MODE_COL };
enum { DVM_STRIP_WHOLE_ROWS = 1 /* has SCAN: n is always the whole row */ };

struct dvm_strip {
    uint8_t mode, flags;
    uint16_t nins, nopnd, nlit, nparam;
    uint64_t hash; /* of everything above and below */
    const struct dvm_opnd *opnd;
    const uint64_t *lit; /* bits in the value type: i32, b1 zero-extended, f32 low half */
    const struct dvm_ins *ins;
};

/* One operand of one call. Strides in bytes. IOTA: ptr holds the number at (0, 0), rs and cs are increments. */
struct dvm_opnd_arg {
    char *ptr;
    int64_t rs, cs;
    int64_t gs, gn; /* PICK: bytes between index values, number of valid index values */
};
/* What is known of indices out of range: the lowest operand that met one, and its smallest, so that the report is the
 * same whoever ran which part. */
struct dvm_fault {
    uint32_t any; /* 0: none */
    uint32_t opnd;
    int64_t index, gn;
};
static inline void dvm_fault_note(struct dvm_fault *f, uint32_t opnd, int64_t index, int64_t gn) {
    if (!f->any || opnd < f->opnd || (opnd == f->opnd && index < f->index))
        *f = (struct dvm_fault){1, opnd, index, gn};
}

struct dvm_strip_args {
    const struct dvm_opnd_arg *opnd;
    const uint64_t *param; /* bits as in lit */
    int64_t m, n;
    int64_t
        pos; /* argmax, argmin: position of the first element folded (column in ROW, row in COL) */
    void *scratch; /* dvm_code.scratch bytes, 64-byte aligned, one per thread */
    struct dvm_fault
        *fault;    /* notes an index out of range; the element is then read at index 0 or is 0 */
    bool stream;   /* outputs are larger than the cache: non-temporal stores pay */
    bool far;      /* inputs are larger than the near caches */
    int64_t ahead; /* bytes from operand dvm_code.asked to what will be read next, 0: not known */
    bool alias; /* some output is exactly an input: no store before the last load of an element */
    /* For code that can (dvm_code.boxes): so many boxes one after the other, 0 as 1, each with every ptr of opnd moved by
     * step bytes. opnd is then changed. */
    int64_t boxes;
    const int64_t *step;
    /* For code that can (dvm_code.together): so many boxes of m x n, the operands of one after those of the other. They
     * lie as far from one another as m rows. */
    int together;
};

/* A strip compiled by a tier. Immutable, shared by threads. */
struct dvm_code {
    void (*run)(const struct dvm_code *c, const struct dvm_strip_args *a);
    size_t scratch;
    const char *tier;
    bool boxes;             /* takes dvm_strip_args.boxes */
    int asked;              /* operand whose memory it can ask for ahead of time, or -1 */
    bool together;          /* takes dvm_strip_args.together and gains by it where memory is far */
    struct dvm_strip strip; /* owned copy */
    char refused[120];      /* by tiers that were asked before, and why; filled by their caller */
};

/* bytecode checks: every index in range, types of ops.def, modes. Nothing that passes can read or write outside its
 * operands. */
dvm_status dvm_strip_verify(const struct dvm_strip *s);
const char *dvm_bc_name(int op);
const char *dvm_bc_fields(int op); /* "ov-" or, for elementwise rows, "v--", "vv-", "vvv" */
#endif
