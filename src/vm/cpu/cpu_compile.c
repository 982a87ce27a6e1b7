/* Strip to steps: one pass to classify values, one to find pairs, one to find last uses, and one to emit for each of the
 * two ways to walk a box (cpu.h). Needs a verified strip; makes one block of memory; looks nothing up but table slots. */
#include <string.h>

#include "base/err.h"
#include "vm/cpu/cpu.h"

/* How a value varies. PART: it is computed inside a later instruction. */
enum cls { CLS_NONE, CLS_PART, CLS_UNI, CLS_ROW, CLS_FULL };

enum { NO_SLOT = 0xffff };

/* An instruction that also does the work of one or two before it. */
struct pair {
    uint16_t v[3];       /* operands */
    uint8_t first, post; /* kernel; post DVM_K_NPOST: none */
};

struct comp {
    const struct dvm_strip *s;
    const struct dvm_k *k;
    struct cpu_code *code;
    bool flat;
    /* of each value */
    uint8_t *cls;
    struct pair *pair;
    uint16_t *last; /* last instruction that uses it */
    uint16_t *id;   /* in the pointer table */
    uint16_t *down; /* flat: the same for one number a row */
    uint16_t *slot; /* tile, or NO_SLOT */
    uint16_t *out;  /* store that lets it be written in place, + 1 */
    uint16_t *free; /* stack of free tiles */
    uint16_t nfree, nslot, nnum, nmove, base_move, base_tile;
    int last_read; /* no store may come before this instruction's reads */
    struct cpu_step *uni, *row, *tile;
};

static uint16_t operand(const struct dvm_ins *i, int k) {
    return k == 0 ? i->a : k == 1 ? i->b : i->c;
}

/* Fields that are values: bit k for field k. */
static unsigned value_fields(const struct dvm_ins *i) {
    static const uint8_t beyond[DVM_NBC - DVM_NOP] = {
        [DVM_BC_STORE - DVM_NOP] = 2, [DVM_BC_PICK - DVM_NOP] = 2, [DVM_BC_RND - DVM_NOP] = 1,
        [DVM_BC_FOLD - DVM_NOP] = 1,  [DVM_BC_SCAN - DVM_NOP] = 1,
    };
    static const uint8_t ew[DVM_NOP] = {
#define X(NAME, text, arity, class, types, result, tolerance, meaning) (1 << (arity)) - 1,
#include <dvm/ops.def>
#undef X
    };
    return i->op < DVM_NOP ? ew[i->op] : beyond[i->op - DVM_NOP];
}

/* ---- classes */

static uint8_t cls_of_operand(const struct dvm_opnd *o) {
    return o->kind == DVM_OPND_UNIF ? CLS_UNI : o->kind == DVM_OPND_ROW ? CLS_ROW : CLS_FULL;
}

static uint8_t classify(const struct comp *c, const struct dvm_ins *i) {
    uint8_t cls = CLS_UNI;
    if (i->op == DVM_BC_SCAN) return CLS_FULL;
    if (i->op == DVM_BC_STORE || i->op == DVM_BC_FOLD) return CLS_NONE;
    if (i->op == DVM_BC_LOAD || i->op == DVM_BC_PICK) cls = cls_of_operand(&c->s->opnd[i->a]);
    unsigned fields = value_fields(i);
    for (int k = 0; k < 3; k++)
        if (fields >> k & 1) cls = DVM_MAX(cls, c->cls[operand(i, k)]);
    return cls;
}

/* Values that instruction i reads. */
static unsigned operands(const struct comp *c, int i, uint16_t v[3]) {
    const struct dvm_ins *ins = &c->s->ins[i];
    const struct pair *p = &c->pair[i];
    bool paired = p->post < DVM_K_NPOST;
    for (int k = 0; k < 3; k++) v[k] = paired ? p->v[k] : operand(ins, k);
    if (!paired) return value_fields(ins);
    bool two = ins->op == DVM_BC_FOLD || p->post == DVM_K_POST_RELU || p->post == DVM_K_POST_SQUARE;
    return two ? 3 : 7;
}

/* ---- pairs */

static int first_of(const struct dvm_ins *ins) {
    if (ins->type != DVM_VT_F32) return -1;
    return ins->op == DVM_OP_ADD ? 0 : ins->op == DVM_OP_SUB ? 1 : ins->op == DVM_OP_MUL ? 2 : -1;
}

/* v may be computed where it is used: the first operation of a kernel, read `uses` times there and nowhere else. */
static bool may_be_part(const struct comp *c, unsigned v, int uses) {
    return c->cls[v] == CLS_FULL && c->last[v] == uses && first_of(&c->s->ins[v]) >= 0 &&
           c->pair[v].post == DVM_K_NPOST;
}

static void join(struct comp *c, int i, unsigned v, unsigned other, int post) {
    const struct dvm_ins *ins = &c->s->ins[v];
    c->pair[i] =
        (struct pair){{ins->a, ins->b, (uint16_t)other}, (uint8_t)first_of(ins), (uint8_t)post};
    c->cls[v] = CLS_PART;
}

static void join_relu(struct comp *c, int i) {
    unsigned v = c->s->ins[i].a;
    if (may_be_part(c, v, 1)) {
        join(c, i, v, 0, DVM_K_POST_RELU);
    } else if (c->last[v] == 1 && c->pair[v].post == DVM_K_POST_ADD) {
        c->pair[i] = c->pair[v];
        c->pair[i].post = DVM_K_POST_ADD_RELU;
        c->cls[v] = CLS_PART;
    }
}

static void join_arithmetic(struct comp *c, int i, int op) {
    static const uint8_t post[DVM_K_NFIRST] = {DVM_K_POST_ADD, DVM_K_POST_SUB, DVM_K_POST_MUL};
    const struct dvm_ins *ins = &c->s->ins[i];
    if (ins->a == ins->b) {
        if (op == 2 && may_be_part(c, ins->a, 2)) join(c, i, ins->a, 0, DVM_K_POST_SQUARE);
    } else if (may_be_part(c, ins->a, 1)) {
        join(c, i, ins->a, ins->b, post[op]);
    } else if (may_be_part(c, ins->b, 1)) {
        join(c, i, ins->b, ins->a, op == 1 ? DVM_K_POST_RSUB : post[op]);
    }
}

/* A sum of products. */
static void join_fold(struct comp *c, int i) {
    unsigned v = c->s->ins[i].a;
    if (c->s->ins[i].b == DVM_OP_SUM && may_be_part(c, v, 1) && first_of(&c->s->ins[v]) == 2)
        join(c, i, v, 0, DVM_K_POST_MUL);
}

/* `last` counts uses until find_last_uses. */
static void find_pairs(struct comp *c) {
    const struct dvm_strip *s = c->s;
    for (int i = 0; i < s->nins; i++) {
        unsigned fields = value_fields(&s->ins[i]);
        c->last[i] = 0;
        c->pair[i].post = DVM_K_NPOST;
        for (int k = 0; k < 3; k++)
            if (fields >> k & 1) c->last[operand(&s->ins[i], k)]++;
    }
    for (int i = 0; i < s->nins; i++) {
        int op = first_of(&s->ins[i]);
        if (s->ins[i].op == DVM_BC_FOLD) join_fold(c, i);
        if (c->cls[i] != CLS_FULL) continue;
        if (op >= 0)
            join_arithmetic(c, i, op);
        else if (s->ins[i].op == DVM_OP_RELU && s->ins[i].type == DVM_VT_F32)
            join_relu(c, i);
    }
}

/* ---- liveness */

static bool same_type(int dtype) {
    return dtype == DVM_F32 || dtype == DVM_I32 || dtype == DVM_I64 || dtype == DVM_F64;
}

static bool reads_memory(int op) { return op == DVM_BC_LOAD || op == DVM_BC_PICK; }

static void find_last_uses(struct comp *c) {
    const struct dvm_strip *s = c->s;
    c->last_read = 0;
    for (int i = 0; i < s->nins; i++) {
        const struct dvm_ins *ins = &s->ins[i];
        uint16_t v[3];
        unsigned fields = operands(c, i, v);
        c->last[i] = (uint16_t)i;
        c->out[i] = 0;
        if (c->cls[i] == CLS_PART) continue;
        for (int k = 0; k < 3; k++) {
            if (!(fields >> k & 1)) continue;
            c->last[v[k]] = (uint16_t)i;
            if (ins->op != DVM_BC_STORE && reads_memory(s->ins[v[k]].op)) c->last_read = i;
        }
        if (reads_memory(ins->op)) c->last_read = i;
        if (ins->op == DVM_BC_STORE && c->out[ins->b] == 0) c->out[ins->b] = (uint16_t)(i + 1);
    }
    for (int i = 0; i < c->last_read; i++)
        if (s->ins[i].op == DVM_BC_STORE)
            c->last[s->ins[i].b] = DVM_MAX(c->last[s->ins[i].b], (uint16_t)c->last_read);
}

/* ---- tiles */

static uint16_t take_slot(struct comp *c) { return c->nfree ? c->free[--c->nfree] : c->nslot++; }
static void give_slot(struct comp *c, uint16_t slot) {
    if (slot != NO_SLOT) c->free[c->nfree++] = slot;
}
static uint16_t tile_id(const struct comp *c, uint16_t slot) {
    return (uint16_t)(c->base_tile + slot);
}

static void drop(struct comp *c, unsigned v) {
    give_slot(c, c->slot[v]);
    c->slot[v] = NO_SLOT;
}

/* Tiles of values that instruction `at` was the last to read; its own if nobody reads it. */
static void release(struct comp *c, int at) {
    uint16_t v[3];
    unsigned fields = operands(c, at, v);
    for (int k = 0; k < 3; k++)
        if ((fields >> k & 1) && c->last[v[k]] == at) drop(c, v[k]);
    if (c->last[at] == at) drop(c, (unsigned)at);
}

/* ---- emission */

/* What the tile of a value holds: the one number, a number for each row (flat), or everything. */
enum lane { LANE_NUM, LANE_DOWN, LANE_FULL };

static enum lane lane_of(const struct comp *c, unsigned v) {
    if (c->cls[v] == CLS_FULL) return LANE_FULL;
    return c->flat && c->cls[v] == CLS_ROW ? LANE_DOWN : LANE_NUM;
}

static void put(struct comp *c, enum lane lane, int cls, struct cpu_step s) {
    struct cpu_step **list = lane == LANE_FULL ? &c->tile : cls == CLS_UNI ? &c->uni : &c->row;
    *(*list)++ = s;
}

static uint8_t red_type(int vt) {
    return vt == DVM_VT_F32 ? DVM_K_RF32 : vt == DVM_VT_I64 ? DVM_K_RI64 : DVM_K_RI32;
}

static dvm_k_fn *find_fn(const struct dvm_k *k, const struct dvm_strip *s, const struct dvm_ins *i,
                         unsigned mask) {
    if (i->op == DVM_BC_RND) return mask ? NULL : k->mem->rnd[i->b];
    if (i->op == DVM_OP_FMA) return k->math->fma[mask];
    int t = s->ins[i->op == DVM_OP_SELECT ? i->b : i->a].type;
    if (i->op == DVM_OP_CAST || i->op == DVM_OP_COPY)
        return mask ? NULL : k->cast->cast[t][i->type];
    switch (t) {
    case DVM_VT_F32:
        return k->f32->op[i->op][mask] ? k->f32->op[i->op][mask] : mask ? NULL : k->math->op[i->op];
    case DVM_VT_I32: return k->ints->i32[i->op][mask];
    case DVM_VT_I64: return k->ints->i64[i->op][mask];
    case DVM_VT_B1: return k->ints->b1[i->op][mask];
    default: return NULL;
    }
}

static dvm_k_fn *kernel(const struct comp *c, int at, unsigned mask) {
    const struct pair *p = &c->pair[at];
    if (p->post < DVM_K_NPOST) return c->k->pair->op[p->first][p->post][mask];
    return find_fn(c->k, c->s, &c->s->ins[at], mask);
}

/* A tile full of number v, until the end of the instruction. */
static uint16_t splat(struct comp *c, unsigned v, enum lane lane, uint16_t *temp) {
    bool wide = dvm_cpu_vt_size(c->s->ins[v].type) == 8;
    *temp = take_slot(c);
    struct cpu_step s = {.kind = CPU_EW, .fn = wide ? c->k->cast->splat8 : c->k->cast->splat4};
    s.d = tile_id(c, *temp), s.a = c->id[v];
    put(c, lane, CLS_ROW, s);
    return s.d;
}

/* A number a row, all along the rows: done on first use, for all uses. */
static uint16_t spread(struct comp *c, unsigned v) {
    if (c->slot[v] != NO_SLOT) return c->id[v];
    c->slot[v] = take_slot(c);
    c->id[v] = tile_id(c, c->slot[v]);
    struct cpu_step s = {
        .kind = CPU_SPREAD, .vt = c->s->ins[v].type, .d = c->id[v], .a = c->down[v]};
    put(c, LANE_FULL, CLS_FULL, s);
    return c->id[v];
}

/* Where an instruction of this lane finds v; number: it is only one. */
static uint16_t find_id(struct comp *c, unsigned v, enum lane lane, bool *number) {
    enum lane has = lane_of(c, v);
    *number = has == LANE_NUM && lane != LANE_NUM;
    if (has == LANE_DOWN) return lane == LANE_FULL ? spread(c, v) : c->down[v];
    return c->id[v];
}

/* The same as a whole tile. */
static uint16_t full(struct comp *c, unsigned v, enum lane lane, uint16_t *temp) {
    bool number;
    uint16_t id = find_id(c, v, lane, &number);
    *temp = NO_SLOT;
    return number ? splat(c, v, lane, temp) : id;
}

static uint16_t take_moving(struct comp *c, int at) {
    c->slot[at] = take_slot(c);
    return c->id[at] = (uint16_t)(c->base_move + c->nmove++);
}

/* Gives value `at` a place to be computed in: where it is stored, if it may be written there at once. */
static uint16_t place(struct comp *c, int at, enum lane lane) {
    if (lane == LANE_DOWN) return c->down[at];
    if (lane == LANE_NUM) return c->id[at] = c->nnum++;
    const struct dvm_ins *st = &c->s->ins[c->out[at] ? c->out[at] - 1 : 0];
    const struct dvm_opnd *o = &c->s->opnd[st->a];
    if (!c->out[at] || o->kind != DVM_OPND_CONTIG || !same_type(o->dtype)) {
        c->slot[at] = take_slot(c);
        return c->id[at] = tile_id(c, c->slot[at]);
    }
    struct cpu_step s = {.kind = CPU_OUT, .d = take_moving(c, at), .x = st->a};
    s.a = tile_id(c, c->slot[at]);
    put(c, lane, CLS_FULL, s);
    return s.d;
}

/* The first two operands may change places (and the second alone has a variant for numbers). */
static bool commutes(const struct comp *c, int at) {
    const struct pair *p = &c->pair[at];
    return p->post < DVM_K_NPOST ? p->first != 1 : c->s->ins[at].op == DVM_OP_FMA;
}

static void emit_ew(struct comp *c, int at, enum lane lane) {
    uint16_t v[3], id[3] = {0}, temp[3] = {NO_SLOT, NO_SLOT, NO_SLOT};
    unsigned fields = operands(c, at, v), mask = 0;
    bool number = false;
    for (int k = 0; k < 3; k++) {
        if (!(fields >> k & 1)) continue;
        id[k] = find_id(c, v[k], lane, &number);
        if (number) mask |= 1u << k;
    }
    if ((mask & 3) == DVM_K_SA && commutes(c, at)) {
        uint16_t t = id[0], tv = v[0];
        id[0] = id[1], id[1] = t, v[0] = v[1], v[1] = tv, mask ^= 3;
    }
    dvm_k_fn *fn = kernel(c, at, mask);
    for (int k = 0; k < 3 && !fn; k++) {
        if (!(mask >> k & 1)) continue;
        id[k] = splat(c, v[k], lane, &temp[k]);
        mask &= ~(1u << k);
        fn = kernel(c, at, mask);
    }
    struct cpu_step s = {
        .kind = CPU_EW, .fn = fn, .vt = c->s->ins[at].type, .a = id[0], .b = id[1], .c = id[2]};
    s.d = place(c, at, lane);
    put(c, lane, c->cls[at], s);
    for (int k = 0; k < 3; k++) give_slot(c, temp[k]);
}

/* A load that is read where it stands keeps a tile at hand for calls in which it cannot be. A value that goes from one
 * operand straight to another is copied: the two may be exchanged. */
static void emit_load(struct comp *c, int at, enum lane lane) {
    const struct dvm_ins *ins = &c->s->ins[at];
    const struct dvm_opnd *o = &c->s->opnd[ins->a];
    bool iota = o->role == DVM_ROLE_IOTA;
    struct cpu_step s = {.kind = iota ? CPU_IOTA : CPU_LOAD, .vt = ins->type, .x = ins->a};
    if (lane == LANE_FULL && !iota && !c->out[at] &&
        (o->kind == DVM_OPND_STRIDED || (o->kind == DVM_OPND_CONTIG && same_type(o->dtype)))) {
        s.kind = CPU_DIRECT, s.d = take_moving(c, at), s.a = tile_id(c, c->slot[at]);
    } else {
        s.d = place(c, at, lane);
    }
    put(c, lane, c->cls[at], s);
}

static void emit_pick(struct comp *c, int at, enum lane lane) {
    const struct dvm_ins *ins = &c->s->ins[at];
    uint16_t temp = NO_SLOT;
    struct cpu_step s = {.kind = CPU_PICK,
                         .vt = ins->type,
                         .x = ins->a,
                         .type = c->s->ins[ins->b].type == DVM_VT_I64};
    if (lane == LANE_FULL && lane_of(c, ins->b) == LANE_NUM && !c->flat && !c->out[at]) {
        s.kind = CPU_SLICE, s.a = c->id[ins->b], s.d = take_moving(c, at),
        s.b = tile_id(c, c->slot[at]);
    } else {
        s.a = full(c, ins->b, lane, &temp);
        s.d = place(c, at, lane);
    }
    put(c, lane, c->cls[at], s);
    give_slot(c, temp);
}

static void emit_store(struct comp *c, int at) {
    const struct dvm_ins *ins = &c->s->ins[at];
    uint16_t temp, a = full(c, ins->b, LANE_FULL, &temp);
    bool stands = c->cls[ins->b] == CLS_FULL && c->out[ins->b] == at + 1 && a < c->base_tile;
    struct cpu_step s = {.kind = CPU_STORE, .vt = ins->type, .x = ins->a, .a = a, .c = stands};
    put(c, LANE_FULL, CLS_FULL, s);
    give_slot(c, temp);
}

static void describe_fold(struct comp *c, int at, struct cpu_fold *f) {
    static const uint8_t family[DVM_NOP] = {
        [DVM_OP_SUM] = DVM_K_SUM,       [DVM_OP_PROD] = DVM_K_PROD,     [DVM_OP_RMAX] = DVM_K_MAX,
        [DVM_OP_RMIN] = DVM_K_MIN,      [DVM_OP_ANY] = DVM_K_MAX,       [DVM_OP_ALL] = DVM_K_MIN,
        [DVM_OP_ARGMAX] = DVM_K_ARGMAX, [DVM_OP_ARGMIN] = DVM_K_ARGMIN,
    };
    const struct dvm_ins *ins = &c->s->ins[at];
    bool dot = c->pair[at].post == DVM_K_POST_MUL;
    f->k = dot ? &c->k->red->dot : &c->k->red->fold[family[ins->b]][red_type(ins->type)];
    f->identity = dvm_part_identity(ins->b, (enum dvm_vt)ins->type);
    f->red = (uint8_t)ins->b, f->vt = ins->type, f->x = ins->c;
    f->arg = ins->b == DVM_OP_ARGMAX || ins->b == DVM_OP_ARGMIN;
    f->size = (uint8_t)dvm_dtype_size((dvm_dtype)c->s->opnd[ins->c + f->arg].dtype);
    uint16_t v[3];
    bool two = operands(c, at, v) & 2;
    f->a = c->s->ins[v[0]].a, f->b = two ? c->s->ins[v[1]].a : f->a;
}

static void emit_fold(struct comp *c, int at, uint16_t *state) {
    const struct dvm_ins *ins = &c->s->ins[at];
    uint16_t v[3], temp[2] = {NO_SLOT, NO_SLOT};
    unsigned fields = operands(c, at, v);
    struct cpu_step s = {.kind = CPU_FOLD, .vt = ins->type, .c = *state};
    s.a = s.b = full(c, v[0], LANE_FULL, &temp[0]);
    if (fields & 2) s.b = full(c, v[1], LANE_FULL, &temp[1]);
    describe_fold(c, at, &c->code->fold[(*state)++]);
    put(c, LANE_FULL, CLS_FULL, s);
    give_slot(c, temp[0]), give_slot(c, temp[1]);
}

static void emit_scan(struct comp *c, int at, uint16_t *state) {
    const struct dvm_ins *ins = &c->s->ins[at];
    uint16_t temp;
    struct cpu_step s = {
        .kind = CPU_SCAN, .vt = ins->type, .type = red_type(ins->type), .c = *state};
    s.a = full(c, ins->a, LANE_FULL, &temp), s.d = place(c, at, LANE_FULL);
    c->code->fold[(*state)++].k = NULL;
    put(c, LANE_FULL, CLS_FULL, s);
    give_slot(c, temp);
}

static void emit_constant(struct comp *c, int at, int kind) {
    const struct dvm_ins *ins = &c->s->ins[at];
    struct cpu_step s = {
        .kind = (uint8_t)kind, .vt = ins->type, .x = ins->a, .d = place(c, at, LANE_NUM)};
    put(c, LANE_NUM, CLS_UNI, s);
}

static void emit(struct comp *c, int at, uint16_t *state) {
    enum lane lane = lane_of(c, (unsigned)at);
    c->slot[at] = NO_SLOT;
    if (c->cls[at] == CLS_PART) return;
    switch (c->s->ins[at].op) {
    case DVM_BC_STORE:
        if (at >= c->last_read) emit_store(c, at);
        break;
    case DVM_BC_FOLD: emit_fold(c, at, state); break;
    case DVM_BC_SCAN: emit_scan(c, at, state); break;
    case DVM_BC_LIT: emit_constant(c, at, CPU_LIT); break;
    case DVM_BC_PARAM: emit_constant(c, at, CPU_PARAM); break;
    case DVM_BC_LOAD: emit_load(c, at, lane); break;
    case DVM_BC_PICK: emit_pick(c, at, lane); break;
    default: emit_ew(c, at, lane); break;
    }
}

/* Stores that stood before the last read: now they may be done. */
static void emit_held_stores(struct comp *c) {
    for (int i = 0; i < c->last_read; i++)
        if (c->s->ins[i].op == DVM_BC_STORE) emit_store(c, i);
}

static void free_held(struct comp *c) {
    for (int i = 0; i < c->last_read; i++) {
        if (c->s->ins[i].op != DVM_BC_STORE) continue;
        unsigned v = c->s->ins[i].b;
        if (c->last[v] == c->last_read) drop(c, v);
    }
}

/* Numbers the pointers: numbers, moving pointers, tiles, of which the first hold numbers of rows. */
static void count_ids(struct comp *c) {
    uint16_t uni = 0, row = 0, move = 0;
    for (int i = 0; i < c->s->nins; i++) {
        int op = c->s->ins[i].op;
        uni += c->cls[i] == CLS_UNI;
        row += c->cls[i] == CLS_ROW;
        move += op == DVM_BC_STORE || (c->cls[i] == CLS_FULL && reads_memory(op));
    }
    c->row = c->uni + uni;
    c->nnum = c->nmove = c->nslot = c->nfree = 0;
    c->base_move = (uint16_t)(c->flat ? uni : uni + row);
    c->base_tile = (uint16_t)(c->base_move + move);
    for (int i = 0; i < c->s->nins && c->flat; i++)
        if (c->cls[i] == CLS_ROW) c->down[i] = tile_id(c, c->nslot++);
}

/* Steps of the list `row`, at most. */
static size_t row_steps(const struct comp *c) {
    size_t n = 0;
    for (int i = 0; i < c->s->nins; i++) n += c->cls[i] != CLS_ROW ? 0 : c->flat ? 4 : 1;
    return n;
}

/* One way to walk; steps go to `steps`, the three lists one after the other. Returns where they end. */
static struct cpu_step *build(struct comp *c, bool flat, struct cpu_step *steps,
                              struct cpu_prog *p) {
    uint16_t state = 0;
    c->flat = flat;
    c->uni = steps;
    count_ids(c);
    c->tile = c->row + row_steps(c);
    p->uni.p = c->uni, p->row.p = c->row, p->tile.p = c->tile;
    for (int i = 0; i < c->s->nins; i++) {
        emit(c, i, &state);
        if (i == c->last_read) emit_held_stores(c);
        if (c->cls[i] != CLS_PART) release(c, i);
        if (i == c->last_read) free_held(c);
    }
    p->uni.n = (uint32_t)(c->uni - p->uni.p);
    p->row.n = (uint32_t)(c->row - p->row.p);
    p->tile.n = (uint32_t)(c->tile - p->tile.p);
    p->nnum = c->base_move, p->nmove = (uint16_t)(c->base_tile - c->base_move), p->ntile = c->nslot;
    return c->tile;
}

/* Steps of both programs, at most: one an instruction, a tile for each number that it reads, a pointer for an output. */
static size_t count_steps(const struct dvm_strip *s, const uint8_t *cls) {
    size_t n = s->nins;
    for (int i = 0; i < s->nins; i++) {
        unsigned fields = value_fields(&s->ins[i]);
        n += s->ins[i].op == DVM_BC_STORE;
        if (cls[i] == CLS_ROW) n += 3;
        for (int k = 0; k < 3; k++)
            if (fields >> k & 1) n += cls[operand(&s->ins[i], k)] != CLS_FULL;
    }
    return 2 * n;
}

static uint16_t count_folds(const struct dvm_strip *s) {
    uint16_t n = 0;
    for (int i = 0; i < s->nins; i++)
        n += s->ins[i].op == DVM_BC_FOLD || s->ins[i].op == DVM_BC_SCAN;
    return n;
}

/* ---- layout */

static bool wide_values(const struct dvm_strip *s) {
    for (int i = 0; i < s->nins; i++)
        if (dvm_cpu_vt_size(s->ins[i].type) == 8) return true;
    return false;
}

static uint32_t bump(uint32_t *at, size_t bytes) {
    uint32_t here = *at;
    *at += (uint32_t)((bytes + 63) & ~(size_t)63);
    return here;
}

static void find_slabs(struct cpu_code *code, const struct dvm_strip *s) {
    for (int o = 0; o < s->nopnd && code->nslab < DVM_CPU_SLABS; o++)
        if (s->opnd[o].role == DVM_ROLE_LOAD && s->opnd[o].kind == DVM_OPND_STRIDED)
            code->slab_opnd[code->nslab++] = (uint16_t)o;
}

static void lay_out(struct cpu_code *code, const struct dvm_strip *s) {
    uint32_t esize = wide_values(s) ? 8 : 4, tiles = DVM_MAX(code->rows.ntile, code->flat.ntile),
             end = 0;
    uint32_t folds = s->mode == DVM_MODE_COL ? code->nfold : 0;
    uint32_t ids = DVM_MAX(code->rows.nnum + code->rows.nmove, code->flat.nnum + code->flat.nmove);
    code->tile = DVM_CPU_TILE;
    while (code->tile > DVM_CPU_TILE_MIN && (tiles + folds) * code->tile * esize > DVM_CPU_L1)
        code->tile /= 2;
    code->tile_bytes = code->tile * esize + DVM_CPU_SKEW;
    code->slab_bytes = (uint8_t)esize;
    bump(&end, (ids + tiles) * sizeof(char *));
    code->at.opnd = bump(&end, s->nopnd * sizeof(struct cpu_opnd));
    code->at.num = bump(&end, DVM_MAX(code->rows.nnum, code->flat.nnum) * sizeof(uint64_t));
    size_t group = code->nslab ? DVM_CPU_SLAB_ROWS : 1;
    code->at.state =
        bump(&end, s->mode == DVM_MODE_COL ? 0 : group * code->nfold * sizeof(struct cpu_state));
    /* COL: numbers and indices of a column tile for each fold; ROW: of the rows of a flat tile. */
    size_t fold = code->nfold ? 2 * code->tile * sizeof(uint64_t) : 0;
    code->at.fold = bump(&end, s->mode == DVM_MODE_COL ? fold * code->nfold : fold);
    code->at.slab =
        bump(&end, (size_t)code->nslab * DVM_CPU_SLAB_ROWS * DVM_CPU_SLAB_PITCH * esize);
    code->at.tile = bump(&end, (size_t)tiles * code->tile_bytes);
    code->c.scratch = end;
}

/* Every instruction is a load, part of a fold or a fold of loads. */
static bool only_folds(const struct comp *c) {
    for (int i = 0; i < c->s->nins; i++) {
        int op = c->s->ins[i].op;
        uint16_t v[3];
        unsigned fields = operands(c, i, v);
        bool load = op == DVM_BC_LOAD && c->s->opnd[c->s->ins[i].a].role == DVM_ROLE_LOAD;
        if (c->cls[i] == CLS_PART || (load && c->cls[i] == CLS_FULL)) continue;
        if (op != DVM_BC_FOLD) return false;
        for (int k = 0; k < 2; k++)
            if ((fields >> k & 1) && c->s->ins[v[k]].op != DVM_BC_LOAD) return false;
    }
    return true;
}

/* Rows that follow each other in memory may be one row, unless something knows where a row ends. */
static bool may_join_rows(const struct dvm_strip *s) {
    if (s->mode != DVM_MODE_MAP || (s->flags & DVM_STRIP_WHOLE_ROWS)) return false;
    for (int o = 0; o < s->nopnd; o++)
        if (s->opnd[o].kind == DVM_OPND_ROW) return false;
    return true;
}

/* ---- the entry */

static void *carve(char **p, size_t size) {
    void *at = *p;
    *p += (size + 7) & ~(size_t)7;
    return at;
}

static const void *copy(char **p, const void *from, size_t size) {
    void *at = carve(p, size);
    if (size) memcpy(at, from, size);
    return at;
}

/* last, id, down, slot, out, free; pair */
enum { WORK_PER_INS = 6 * sizeof(uint16_t) + sizeof(struct pair) };

static void own_strip(struct cpu_code *code, const struct dvm_strip *s, char **p) {
    code->c.strip = *s;
    code->c.strip.ins = copy(p, s->ins, s->nins * sizeof *s->ins);
    code->c.strip.lit = copy(p, s->lit, s->nlit * sizeof *s->lit);
    code->c.strip.opnd = copy(p, s->opnd, s->nopnd * sizeof *s->opnd);
}

static void carve_work(struct comp *c, char **p) {
    size_t n = c->s->nins;
    c->pair = carve(p, n * sizeof *c->pair);
    c->last = carve(p, n * 2);
    c->id = carve(p, n * 2);
    c->down = carve(p, n * 2);
    c->slot = carve(p, n * 2);
    c->out = carve(p, n * 2);
    c->free = carve(p, (n + 8) * 2);
}

/* An operation that the reference has and this tier does not. */
static dvm_status check_kernels(const struct comp *c) {
    for (int i = 0; i < c->s->nins; i++) {
        const struct dvm_ins *ins = &c->s->ins[i];
        if ((ins->op < DVM_NOP || ins->op == DVM_BC_RND) && !find_fn(c->k, c->s, ins, 0))
            DVM_FAIL(UNSUPPORTED, "the tile VM has no %s of value type %u", dvm_bc_name(ins->op),
                     ins->type);
    }
    return DVM_OK;
}

dvm_status dvm_cpu_compile(const struct dvm_dev *d, const struct dvm_mem *m,
                           const struct dvm_strip *s, struct dvm_code **out) {
    uint8_t cls[DVM_STRIP_MAX_INS];
    struct comp c = {.s = s, .k = d->table, .cls = cls};
    for (int i = 0; i < s->nins; i++) cls[i] = classify(&c, &s->ins[i]);
    DVM_TRY(check_kernels(&c));
    size_t steps = count_steps(s, cls);
    uint16_t nfold = count_folds(s);
    size_t size = sizeof(struct cpu_code) + s->nins * (sizeof *s->ins + WORK_PER_INS) +
                  s->nlit * sizeof *s->lit + s->nopnd * sizeof *s->opnd +
                  steps * sizeof(struct cpu_step) + nfold * sizeof(struct cpu_fold) + 16 * 8;
    struct cpu_code *code = c.code = dvm_mem_new(m, size);
    if (!code) return DVM_ERR_NOMEM;
    char *p = (char *)(code + 1);
    code->c.run = dvm_cpu_run;
    code->c.tier = "vm";
    code->c.asked = -1;
    code->k = c.k;
    code->size = size;
    own_strip(code, s, &p);
    code->fold = carve(&p, nfold * sizeof *code->fold);
    code->nfold = nfold;
    carve_work(&c, &p);
    find_pairs(&c);
    find_last_uses(&c);
    struct cpu_step *step = build(&c, false, (struct cpu_step *)(void *)p, &code->rows);
    build(&c, true, step, &code->flat);
    find_slabs(code, s);
    lay_out(code, s);
    code->one_row = may_join_rows(s);
    code->only_folds = only_folds(&c);
    *out = &code->c;
    return DVM_OK;
}

void dvm_cpu_destroy(const struct dvm_dev *d, const struct dvm_mem *m, struct dvm_code *c) {
    (void)d;
    if (c) dvm_mem_free(m, c, ((struct cpu_code *)c)->size);
}
