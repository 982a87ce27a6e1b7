/* What stands between bytecode and machine code: micro-operations, nearly all of them one instruction each, over
 * values that are one vector or mask register wide.
 *
 * A strip value of 32 bits an element is one value, of 64 bits two (low and high half of the lanes); a bool is a mask
 * register on AVX-512 and a vector of all-ones lanes on AVX2. Micro-operations stand in four lists by how often they
 * run:
 *   CALL   once a call: literals, parameters, operands that never move
 *   ROW    once a row: operands that do not move along a row
 *   BODY   for every vector of elements; unrolled by emitting each one for several vectors in turn
 *   SUBS   a function that the body needs often, as a routine of its own, called with operands in registers
 *   END    ROW strips: after every block of 1024 elements, folds the lanes; COL strips: after the last row, stores
 * A value of an outer list that an inner one uses is "hoisted": it has a register for the whole loop or a slot in the
 * frame (constants: a place in the pool), from where most instructions take it as a memory operand. */
#ifndef DVM_JIT_IR_H
#define DVM_JIT_IR_H
#include "base/mem.h"
#include "code/strip.h"
#include "vm/cpu/jit/enc_x64.h"

enum { J_MAX_SUBS = 12 };
enum { J_CALL, J_ROW, J_BODY, J_END, J_SUBS, J_NLIST = J_SUBS + J_MAX_SUBS };
enum { J_MAX_SCANS = 32, J_SCAN_BYTES = 192 };
enum { J_S_SUM = 0, J_S_BUF = 64 }; /* state of a scan */
enum { J_V, J_K };                  /* register classes */
enum { J_MAX_UNITS = 16 };
enum { J_MAX_CALLS = 120 }; /* of a routine */
enum { J_MAX_VALUES = 60000, J_MAX_FOLDS = 32 };

typedef uint16_t dvm_vid; /* value, 0 none */

/* Beyond the instructions of enc_x64.def. */
enum dvm_mop {
    M_FMA = X_NVEC, /* d = a * b + c, any operand order */
    M_FNMA,         /* d = c - a * b */
    M_TAIL,         /* d = lane is in the row ? b : a, in tails; else b */
    M_ACC_LD,       /* d = accumulator o */
    M_ACC_ST,       /* accumulator o = a */
    M_COLUMN,       /* d = column of the call, a lane each (i32) */
    M_ROWNO,        /* d = row of the call (i32) */
    M_IOTA,         /* d = operand o, an iota, at the first lane; imm: i64 */
    M_SCAN,     /* running sums of a (and b) to the buffer of the state at disp; imm: value type */
    M_CALL,     /* helper o over (a, b) and (c, k), halves of 64-bit operands */
    M_PICK,     /* like M_CALL: elements of operand o at indices a (and b); imm: indices are i64 */
    M_PICK_ROW, /* base of operand o = its element a, for the whole row; imm as above */
    M_FMS,      /* d = a * b - c (not AArch64) */
    M_SUB,      /* d = routine o of a (and b) */
    M_SKIP,     /* where mask a is true in all lanes, go on behind M_SKIP_END */
    M_SKIP_END, /* values disp .. o (first not) were made in between, and are nothing when it was skipped */
    M_UMULH,   /* d = high half of the unsigned products of a and b (AArch64) */
    M_BF16_LD, /* d = bf16 elements of operand o at the column, as f32; a: 0xffff0000 */
    M_BF16_ST, /* upper halves of a, bf16, to operand o; b: 0xffff0000; c: AVX-512: even 64-bit lanes, then odd ones */
    M_PART, /* scalar a to the part record at disp; attr: 0 four bytes, 1 eight, 2 + length: the vector */
    M_NOPS
};

enum dvm_jmem {
    J_NOMEM,
    J_OPND,  /* element of operand o at this column, plus disp; masked in tails */
    J_FIXED, /* operand o where it stands in this row */
    J_PARAM, /* parameter o */
    J_STEP,  /* column stride of operand o */
    J_ARG,   /* the call's arguments + disp; CALL list only */
    J_FRAME, /* frame + disp */
    J_POOL,  /* constants + disp */
    J_LANES  /* lanes of accumulator o, plus disp */
};
enum {
    J_ZERO = 1,  /* zero under the mask k */
    J_HIGH = 2,  /* J_OPND: this is the high half of 64-bit elements, of J_OPND */
    J_WIDE = 4,  /* 64-bit elements (masks of tails) */
    J_STORE = 8, /* memory is the destination */
    J_ENDS_A =
        16 /* a is not used any more; then b, c, k. At one operand of those that are the same */
};

struct dvm_mi {
    uint16_t op; /* enum dvm_x_op or dvm_mop */
    uint8_t attr, imm;
    dvm_vid d, a, b, c, k;
    uint8_t mem, flags;
    uint16_t o;
    uint16_t from; /* strip instruction that it came from */
    int32_t disp;
};
static_assert(sizeof(struct dvm_mi) == 24, "many are made");

struct dvm_jval {
    uint8_t cls, list;
    bool konst;   /* in the constant pool, at home */
    bool wide;    /* constant of 64 bits */
    bool crosses; /* used by an inner list */
    int8_t pin;   /* register for the whole loop, or -1 */
    bool
        late; /* what an instruction can read where it is in memory: BODY operation `home` loads it */
    uint16_t uses; /* in BODY */
    uint16_t acc;  /* BODY: 1 + accumulator that it becomes */
    int32_t last;  /* newest user in its own list */
    int32_t home;  /* offset in the pool or the frame, 0 none (frame); late: see there */
};

struct dvm_mlist {
    struct dvm_mi *p;
    uint32_t n, cap;
};

/* A fold: up to three accumulators. */
struct dvm_jfold {
    uint8_t op, vt;
    bool arg;
    uint16_t from; /* instruction */
    uint8_t nacc;  /* values (1 or 2), then the index */
    uint16_t acc;  /* first accumulator */
    uint16_t out;  /* result operand */
    int32_t part;  /* offset in a part record */
};

/* A routine: its operands arrive in vector registers 0 and 1, its result leaves in 0. */
struct dvm_jsub {
    uint8_t op;
    dvm_vid in[2], out;
    int32_t jump[J_MAX_CALLS]; /* calls of it, to be landed */
    int njump;
};

struct dvm_jacc {
    dvm_vid ident;           /* constant that it starts from */
    bool wide, high;         /* 64-bit lanes: low or high half of a unit */
    int32_t lanes;           /* offset of its 64 lanes in the frame */
    int8_t reg[J_MAX_UNITS]; /* by unit, or -1 */
};

/* One strip value. Uniform pairs have lo == hi. */
struct dvm_jpair {
    dvm_vid lo, hi;
};

struct dvm_jb {
    struct dvm_arena *arena;
    const struct dvm_strip *s;
    bool z;         /* AVX-512; else AVX2 */
    bool neon;      /* AArch64: everything as on AVX2, with vectors of 128 bits */
    bool failed;    /* out of memory or too long */
    bool no_memory; /* that is why */
    bool calls;     /* has M_CALL or M_PICK */
    bool skips;     /* has M_SKIP */
    bool narrow;    /* AVX2: operands below 32 bits */
    bool pairs;     /* all that moves is bf16: see jit_bf16.c */
    bool joins;     /* and some of it is stored: pairs need both units at once */
    bool wide64;    /* AVX2: operands of 64 bits */
    unsigned len;   /* X_512 or X_256 */
    int width;      /* 32-bit lanes of a vector */
    uint16_t from;  /* strip instruction being lowered */
    int floor;      /* list in which new operations stand at least */
    struct dvm_mlist list[J_NLIST];
    struct dvm_jval *val;
    uint32_t nval, cap;
    dvm_vid *hoisted; /* values that cross lists, once all are known */
    uint32_t nhoisted;
    uint8_t *pool; /* constants */
    uint32_t npool, pool_cap;
    dvm_vid konst[128]; /* hash of the constants by bits */
    uint64_t konst_bits[128];
    uint8_t *bf16;        /* strip value -> its low half is zero */
    struct dvm_jpair *of; /* strip value -> values */
    struct dvm_jfold fold[J_MAX_FOLDS];
    struct dvm_jacc acc[3 * J_MAX_FOLDS];
    int32_t band_at[3 * J_MAX_FOLDS]; /* COL: accumulator -> offset in the band memory */
    int32_t band_cols;
    int nfold, nacc, nscan, nsub;
    struct dvm_jsub *sub;
    bool as_sub[DVM_NOP];      /* operations that become routines */
    int32_t scan[J_MAX_SCANS]; /* their states */
    int32_t frame;             /* bytes of the frame given out */
    int32_t part_bytes;        /* of a part record */
    dvm_vid column, rowno;     /* M_COLUMN, M_ROWNO, once made */
    int32_t lane_table;        /* pool: 0 .. 63, where argmax and argmin start */
    int32_t mask_table;        /* pool: eight ones, eight zeros (AVX2) */
};

/* Frame. What the code keeps in the scratch memory of a call; the rest is given out while compiling. */
enum {
    J_F_ROWS = 0,    /* rows left (ROW), rows (COL) */
    J_F_N = 8,       /* columns */
    J_F_PART = 16,   /* next part record */
    J_F_REM = 24,    /* elements of the tail */
    J_F_ARGS = 32,   /* dvm_strip_args of the call */
    J_F_K = 40,      /* tail masks k1, k2 over a helper call */
    J_F_STREAM = 48, /* not 0: non-temporal stores */
    J_F_MORE = 48,   /* COL: not 0: accumulators are kept for the next band */
    J_F_ROW0 = 16,   /* COL: row of the box at which the band begins */
    J_F_CONT = 56,   /* not 0: running sums (COL: accumulators) go on where the call before ended */
    J_F_KEEP = 64,   /* general registers over a helper call, 8 x 8 */
    J_F_MASK = 128,  /* AVX2: tail mask of 32-bit lanes */
    J_F_FETCH = 160, /* not 0: COL: rows lie one behind the other, far from the core */
    J_F_BOXES = 168, /* COL: boxes left */
    J_F_TURNS = 176, /* not 0: by turns; ROW: as often */
    J_F_AHEAD = 184, /* ROW, MAP: bytes from a row to the one that is asked for */
    J_F_MASK64 = 192, /* AVX2: of 64-bit lanes, low and high */
    J_F_BUF = 256,    /* helper operands and results, 4 x 128 */
    J_F_TAB = 768 /* base address of each operand, and of each that PICK moves; then the slots */
};

/* Rows by turns. dvm_strip_args.step has, for each of these, bytes for every operand and for the part record; then how
 * many rows are left when all turns are over. Boxes by turns: then addresses of every operand of each
 * box, of which those of results are used; the number beside J_STEP_REST, the last before, is the rows of a turn. */
enum { J_STEP_ON, J_STEP_BACK, J_STEP_REST, J_STEPS };
enum {
    J_TURNS = 4,     /* rows or boxes at a time */
    J_TURN_OPNDS = 6 /* operands at most, for all of which there are registers */
};

/* jit_build.c */
bool dvm_j_begin(struct dvm_jb *b);
dvm_vid dvm_j_value(struct dvm_jb *b, int cls, int list);
struct dvm_mi *dvm_j_add(struct dvm_jb *b, int list, const struct dvm_mi *m);
/* Appends to the innermost list of its operands, or b->floor; gives it a value of class cls. */
dvm_vid dvm_j_op(struct dvm_jb *b, int cls, struct dvm_mi m);
/* The same in the CALL list, whatever the floor. */
dvm_vid dvm_j_outer(struct dvm_jb *b, struct dvm_mi m);
dvm_vid dvm_j_const32(struct dvm_jb *b, uint32_t bits);
dvm_vid dvm_j_const64(struct dvm_jb *b, uint64_t bits);
int32_t dvm_j_frame(struct dvm_jb *b, int32_t bytes);
/* When everything is lowered: J_ENDS_A .. of the operations, b->hoisted, b->pairs. */
bool dvm_j_finish(struct dvm_jb *b);
/* Bytes that every lane can be read from, placed in the pool as they are. */
int32_t dvm_j_pool_bytes(struct dvm_jb *b, const void *p, uint32_t n);
int dvm_j_list_of(const struct dvm_jb *b, dvm_vid v);

/* Nobody wants the result: it takes no operands, no register, no code. */
DVM_INLINE bool dvm_j_dead(const struct dvm_jb *b, const struct dvm_mi *m) {
    const struct dvm_jval *x = &b->val[m->d];
    return m->d && x->last < 0 && !x->crosses;
}
/* dvm_j_op of a full vector with operands a, b, c (0 none): most operations. */
dvm_vid dvm_j_vec(struct dvm_jb *b, int op, dvm_vid x, dvm_vid y, dvm_vid z, int imm);
/* Usual shapes of operations. */
DVM_INLINE dvm_vid dvm_j_1(struct dvm_jb *b, int op, dvm_vid x) {
    return dvm_j_vec(b, op, 0, x, 0, 0);
}
DVM_INLINE dvm_vid dvm_j_1i(struct dvm_jb *b, int op, dvm_vid x, int imm) {
    return dvm_j_vec(b, op, 0, x, 0, imm);
}
DVM_INLINE dvm_vid dvm_j_2(struct dvm_jb *b, int op, dvm_vid x, dvm_vid y) {
    return dvm_j_vec(b, op, x, y, 0, 0);
}
DVM_INLINE dvm_vid dvm_j_2i(struct dvm_jb *b, int op, dvm_vid x, dvm_vid y, int imm) {
    return dvm_j_vec(b, op, x, y, 0, imm);
}
/* k: mask class */
DVM_INLINE dvm_vid dvm_j_k2(struct dvm_jb *b, int op, dvm_vid x, dvm_vid y) {
    return dvm_j_op(b, J_K, (struct dvm_mi){.op = (uint16_t)op, .attr = X_256, .a = x, .b = y});
}
DVM_INLINE dvm_vid dvm_j_k1i(struct dvm_jb *b, int op, dvm_vid x, int imm) {
    return dvm_j_op(
        b, J_K, (struct dvm_mi){.op = (uint16_t)op, .attr = X_128, .b = x, .imm = (uint8_t)imm});
}

/* jit_ops.c: 32-bit operations that differ between levels */
dvm_vid dvm_j_and(struct dvm_jb *b, dvm_vid x, dvm_vid y);
dvm_vid dvm_j_or(struct dvm_jb *b, dvm_vid x, dvm_vid y);
dvm_vid dvm_j_xor(struct dvm_jb *b, dvm_vid x, dvm_vid y);
dvm_vid dvm_j_round(struct dvm_jb *b, dvm_vid x, int mode);
dvm_vid dvm_j_cmpf(struct dvm_jb *b, dvm_vid x, dvm_vid y, int predicate); /* bool */
dvm_vid dvm_j_cmpi(struct dvm_jb *b, dvm_vid x, dvm_vid y,
                   int predicate);                                    /* bool; signed; J_EQ .. */
dvm_vid dvm_j_sel(struct dvm_jb *b, dvm_vid m, dvm_vid x, dvm_vid y); /* m ? x : y */
dvm_vid dvm_j_band(struct dvm_jb *b, dvm_vid x, dvm_vid y);
dvm_vid dvm_j_bor(struct dvm_jb *b, dvm_vid x, dvm_vid y);
dvm_vid dvm_j_bxor(struct dvm_jb *b, dvm_vid x, dvm_vid y);
dvm_vid dvm_j_bnot(struct dvm_jb *b, dvm_vid x);
dvm_vid dvm_j_umulh(struct dvm_jb *b, dvm_vid x, dvm_vid y);
/* Predicates of vcmpps, and of vpcmpd. */
enum {
    J_F_EQ = 0,
    J_F_LT = 0x11,
    J_F_LE = 0x12,
    J_F_UNORD = 3,
    J_F_NE = 4,
    J_F_ORD = 7,
    J_F_NLE = 0x16,
    J_F_NLT = 0x15,
    J_F_GE = 0x1d,
    J_F_GT = 0x1e
};
enum { J_I_EQ, J_I_LT, J_I_LE, J_I_NE = 4, J_I_GE, J_I_GT };

/* jit_expand.c: transcendental rows of ops.def. 0: not one of them. */
dvm_vid dvm_j_expand(struct dvm_jb *b, int op, dvm_vid x, dvm_vid y);
/* Decides, before anything is lowered, which of them become routines. */
void dvm_j_choose_subs(struct dvm_jb *b);
/* jit_lower.c, jit_lower64.c, jit_memory.c, jit_fold.c */
dvm_status dvm_j_lower(struct dvm_jb *b);
dvm_vid dvm_j_f32(struct dvm_jb *b, int op, const dvm_vid v[3]);
dvm_vid dvm_j_i32(struct dvm_jb *b, int op, const dvm_vid v[3]);
bool dvm_j_ew64(struct dvm_jb *b, int op, const struct dvm_jpair v[3], struct dvm_jpair *out);
struct dvm_jpair dvm_j_sel64(struct dvm_jb *b, dvm_vid m, struct dvm_jpair x, struct dvm_jpair y);
dvm_vid dvm_j_philox32(struct dvm_jb *b, const dvm_vid v[3]);
bool dvm_j_cast(struct dvm_jb *b, int from, int to, struct dvm_jpair v, struct dvm_jpair *out);
struct dvm_jpair dvm_j_load(struct dvm_jb *b, int o);
/* bf16: the f32 value is known to have its low half zero. */
void dvm_j_store(struct dvm_jb *b, int o, struct dvm_jpair v, bool bf16);
struct dvm_jpair dvm_j_rnd(struct dvm_jb *b, int dtype, struct dvm_jpair v);
struct dvm_jpair dvm_j_pick(struct dvm_jb *b, int o, int index_type, struct dvm_jpair index);
bool dvm_j_fold(struct dvm_jb *b, const struct dvm_ins *ins, struct dvm_jpair v);
void dvm_j_ends(struct dvm_jb *b);
/* Half of the lanes as 32-bit vectors of half length, and back. */
dvm_vid dvm_j_high(struct dvm_jb *b, dvm_vid x);
dvm_vid dvm_j_join(struct dvm_jb *b, dvm_vid lo, dvm_vid hi);
struct dvm_jpair dvm_j_call(struct dvm_jb *b, int helper, int vt_out, int vt_in, struct dvm_jpair x,
                            struct dvm_jpair y);
/* The same of BODY operands, jumped over where all lanes of a mask are set; the result is nothing then. Not AArch64. */
struct dvm_jpair dvm_j_call_unless(struct dvm_jb *b, dvm_vid all, int helper, int vt,
                                   struct dvm_jpair x, struct dvm_jpair y);
/* jit_divide.c: the divisions of f32, and powers by constants; 0: not one */
dvm_vid dvm_j_divide_f32(struct dvm_jb *b, int op, dvm_vid x, dvm_vid y);
dvm_vid dvm_j_power_i32(struct dvm_jb *b, dvm_vid x, dvm_vid y);
/* A constant from 0 to 63, else -1. */
int dvm_j_exponent(const struct dvm_jb *b, dvm_vid y);

#endif
