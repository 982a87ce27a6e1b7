/* The emitter: micro-operations to bytes, allocating registers on the way. */
#ifndef DVM_JIT_EMIT_H
#define DVM_JIT_EMIT_H
#include "base/text.h"
#include "vm/cpu/jit/jit_ir.h"

/* General registers. The code is called as fn(args), and keeps:
 *   rbx frame   rdi operand array   rcx column   rdx end of the columns
 *   rsi arguments in the CALL list; then rows left (MAP, COL) or lane of the block (ROW)
 *   rax, r11 scratch (r11 also the limit of the unrolled loop)   r8 r9 r10 r12 .. r15 rbp addresses of operands */
enum { J_R_FRAME = X_RBX, J_R_OPND = X_RDI, J_R_COL = X_RCX, J_R_END = X_RDX, J_R_ROW = X_RSI };

/* Code from here on: of a part of the function (label), or of a strip instruction. */
struct dvm_jnote {
    int32_t at, from;
    const char *label;
};

struct dvm_je {
    struct dvm_jb *b;
    const struct dvm_jval *val; /* b->val, complete */
    struct dvm_enc e;
    unsigned full;       /* X_512 or X_256 */
    int nreg;            /* vector registers to give out */
    uint32_t subs;       /* those of routines, the lowest, if there are any */
    int tail;            /* AVX2, NEON: register with the mask of the tail */
    uint32_t pins, accs; /* registers of hoisted values; of accumulators */
    dvm_vid pinned[32];  /* those values */
    int npinned;
    int unroll;   /* units emitted for each operation */
    bool by_unit; /* the other way round: all operations of a unit, then the next one */
    int list;     /* being emitted */
    bool masked;  /* in a tail */
    bool paired;  /* units 2k and 2k + 1 are the even and the odd ones of the elements they cover */
    bool stream;
    bool fetch; /* what is loaded is asked for ahead of time */
    int asked; /* ROW, MAP past the caches: operand of which the rows behind the call's are asked for, or -1 */
    int8_t ahead;  /* register with their address, or -1 */
    bool acc_regs; /* accumulators are in registers here */
    int32_t band;  /* COL: where accumulators of all columns wait for the next band of rows, or 0 */
    int32_t turns; /* ROW: where those of rows that are read by turns wait; COL: bytes of a box's */
    int at;        /* operation being emitted */
    uint32_t free[2], lock[2];
    uint32_t kept[2];           /* registers that this list gives to nobody: e->pins, e->accs */
    uint32_t unit[J_MAX_UNITS]; /* first key of each */
    uint16_t owner[2][32];      /* value in a register */
    uint8_t owner_u[2][32];
    int8_t *reg;       /* [unit][value] -1: not in a register */
    int32_t *slot;     /* [unit][value] 0: not in the frame */
    int32_t spare[64]; /* slots given back */
    int nspare;
    int32_t ended[4]; /* slots of operands that end with this operation */
    int nended;
    int skip_jump;                       /* M_SKIP to its end */
    uint16_t before[2][32];              /* owners at M_SKIP */
    int8_t base[2 * DVM_STRIP_MAX_OPND]; /* register with the address of an operand, or -1 */
    int8_t stride
        [DVM_STRIP_MAX_OPND]; /* COL: register with the step of an operand to the next row, or -1 */
    int temp;                 /* AVX2 with narrow operands: a third scratch register, else -1 */
    bool noting;
    struct dvm_jnote *note;
    uint32_t nnote, note_cap;
};

/* How the loops are made. */
struct dvm_jplan {
    int unroll;
    int cold;       /* MAP: units of the loop with non-temporal stores */
    int narrow;     /* COL: units of a second loop over what the first leaves, or 0 */
    bool by_unit;   /* units one after the other: fewer values are alive at once */
    bool acc_regs;  /* accumulators of the main loop are in registers */
    bool fetch;     /* COL: there is a loop that asks for memory ahead of time */
    bool turns;     /* there is a loop that reads rows (ROW) or boxes (COL) far apart by turns */
    bool stream;    /* there is a loop with non-temporal stores */
    bool tail_only; /* every unit is done as a tail: halves the code where masks cost nothing */
    int pressure;   /* values of the body alive at once */
};

/* jit_plan.c, jit_loop.c */
void dvm_j_plan(struct dvm_je *e, struct dvm_jplan *p);
void dvm_j_function(struct dvm_je *e, const struct dvm_jplan *p, int32_t parts);
/* Frame that reading rows by turns takes. */
int32_t dvm_j_turn_bytes(const struct dvm_jb *b);

/* jit_list.c. Only when a listing is made (e->notes). */
void dvm_j_label(struct dvm_je *e, const char *label);
void dvm_j_note(struct dvm_je *e, int from);
void dvm_j_list(const struct dvm_je *e, int entry, struct dvm_text *out);

/* jit_emit.c. Appends the operations of a list. */
void dvm_j_emit(struct dvm_je *e, int list);
/* Routine k; its own registers only. */
void dvm_j_emit_sub(struct dvm_je *e, int k);
/* Constants that have a register for the whole loop. */
void dvm_j_load_pinned(struct dvm_je *e);
/* No value of a list is in a register yet. */
void dvm_j_begin_list(struct dvm_je *e, int list);
/* Values and registers, for the operations of jit_pseudo.c. */
/* Made by the list that is being emitted; else hoisted. */
DVM_INLINE bool dvm_j_local(const struct dvm_je *e, const struct dvm_jval *x) {
    return x->list == e->list && !x->konst;
}
DVM_INLINE uint32_t dvm_j_key(const struct dvm_je *e, dvm_vid v, int u) { return e->unit[u] + v; }
/* Register that a value is in, or -1. Of hoisted ones every unit knows. */
DVM_INLINE int dvm_j_where(const struct dvm_je *e, dvm_vid v, int u) {
    return e->reg[dvm_j_key(e, v, u)];
}
int dvm_j_bring(struct dvm_je *e, dvm_vid v, int u); /* into one, from memory */
/* A late value that nothing has loaded. */
bool dvm_j_waits(const struct dvm_je *e, dvm_vid v, int u);
/* Register of an operand, locked for this operation. */
DVM_INLINE int dvm_j_get(struct dvm_je *e, dvm_vid v, int u) {
    int r = dvm_j_where(e, v, u);
    if (DVM_UNLIKELY(r < 0)) r = dvm_j_bring(e, v, u);
    e->lock[e->val[v].cls] |= 1u << r;
    return r;
}
int dvm_j_take(struct dvm_je *e, int cls); /* a free register, locked; not owned by any value */
void dvm_j_untake(struct dvm_je *e, int cls, int r);
/* Frees the operands that are not used any more. */
void dvm_j_done_some(struct dvm_je *e, const struct dvm_mi *m, int u);
DVM_INLINE void dvm_j_done(struct dvm_je *e, const struct dvm_mi *m, int u) {
    if (m->flags >= J_ENDS_A) dvm_j_done_some(e, m, u);
}
int dvm_j_dest(struct dvm_je *e, dvm_vid v, int u); /* register for a result */
/* The same, and r if that is free now. */
int dvm_j_dest_near(struct dvm_je *e, dvm_vid v, int u, int r);
/* The value is in a register that is not the allocator's. */
void dvm_j_alias(struct dvm_je *e, dvm_vid v, int u, int r);
/* Whether the instruction can read a value that is in no register where it is in memory. */
bool dvm_j_readable(const struct dvm_je *e, int op, dvm_vid v);
DVM_INLINE bool dvm_j_from_memory(const struct dvm_je *e, int op, dvm_vid v, int u) {
    return dvm_j_where(e, v, u) < 0 && dvm_j_readable(e, op, v);
}
/* The value as the instruction's rm operand; in memory where that is possible. */
struct dvm_x_rm dvm_j_in_memory(struct dvm_je *e, int op, dvm_vid v, int u, unsigned *attr);
DVM_INLINE struct dvm_x_rm dvm_j_operand(struct dvm_je *e, int op, dvm_vid v, int u,
                                         unsigned *attr) {
    int r = dvm_j_where(e, v, u);
    if (DVM_UNLIKELY(r < 0)) return dvm_j_in_memory(e, op, v, u, attr);
    e->lock[e->val[v].cls] |= 1u << r;
    return dvm_x_reg(r);
}
void dvm_j_evict_all(struct dvm_je *e);
/* Values leave the registers of routines. */
void dvm_j_vacate(struct dvm_je *e);
/* All values in registers to the frame as well; registers as they are now; only those still so, and values first .. end
 * (not), stay. */
void dvm_j_save_all(struct dvm_je *e);
void dvm_j_remember(struct dvm_je *e);
void dvm_j_forget(struct dvm_je *e, dvm_vid first, dvm_vid end);
struct dvm_x_rm dvm_j_opnd(struct dvm_je *e, const struct dvm_mi *m, int u);
struct dvm_x_rm dvm_j_frame_at(int32_t disp);
int dvm_j_width_of(const struct dvm_je *e, int o); /* bytes of an element of operand o */

/* A load or store of a vector, m->op the instruction; at, its address: what comes next is asked for. */
void dvm_j_emit_load(struct dvm_je *e, const struct dvm_mi *m, int u);
void dvm_j_emit_store(struct dvm_je *e, const struct dvm_mi *m, int u, int r);
void dvm_j_fetch(struct dvm_je *e, const struct dvm_mi *m, int u, struct dvm_x_rm at);

/* jit_bf16.c */
void dvm_j_bf16_load(struct dvm_je *e, const struct dvm_mi *m, int u);
void dvm_j_bf16_store(struct dvm_je *e, const struct dvm_mi *m, int u);
/* Accumulators of paired units: their lanes in the order of the elements. */
void dvm_j_unpair(struct dvm_je *e, int units);

/* jit_pseudo.c */
void dvm_j_pseudo(struct dvm_je *e, const struct dvm_mi *m, int u);
/* Tails without masked moves: the elements of the row to the buffer in the frame, or from there. */
void dvm_j_partial(struct dvm_je *e, const struct dvm_mi *m, bool store);

#endif
