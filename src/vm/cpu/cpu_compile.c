/* Strip to steps: one pass to classify values, one to find last uses, one to emit, the latter two for each of the two
 * ways to walk a box (cpu.h). Needs a verified strip; makes one block of memory; looks nothing up but table slots. */
#include <string.h>

#include "base/err.h"
#include "vm/cpu/cpu.h"

/* How a value varies. */
enum cls { CLS_NONE, CLS_UNI, CLS_ROW, CLS_FULL };

enum { NO_SLOT = 0xffff };

struct comp {
    const struct dvm_strip *s;
    const struct dvm_k *k;
    struct cpu_code *code;
    bool flat;
    /* of each value */
    uint8_t *cls;
    uint16_t *last; /* last instruction that uses it */
    uint16_t *id;   /* in the pointer table */
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

/* Flat tiles hold several rows: nothing is one number for a row. */
static bool is_full(const struct comp *c, unsigned v) {
    return c->cls[v] == CLS_FULL || (c->flat && c->cls[v] == CLS_ROW);
}

/* ---- liveness */

static bool same_type(int dtype) {
    return dtype == DVM_F32 || dtype == DVM_I32 || dtype == DVM_I64 || dtype == DVM_F64;
}

static void find_last_uses(struct comp *c) {
    const struct dvm_strip *s = c->s;
    int last_read = 0;
    for (int i = 0; i < s->nins; i++) {
        const struct dvm_ins *ins = &s->ins[i];
        unsigned fields = value_fields(ins);
        c->last[i] = (uint16_t)i;
        c->out[i] = 0;
        for (int k = 0; k < 3; k++) {
            if (!(fields >> k & 1)) continue;
            unsigned v = operand(ins, k);
            c->last[v] = (uint16_t)i;
            if (ins->op != DVM_BC_STORE &&
                (s->ins[v].op == DVM_BC_LOAD || s->ins[v].op == DVM_BC_PICK))
                last_read = i;
        }
        if (ins->op == DVM_BC_LOAD || ins->op == DVM_BC_PICK) last_read = i;
        if (ins->op == DVM_BC_STORE && c->out[ins->b] == 0) c->out[ins->b] = (uint16_t)(i + 1);
    }
    c->last_read = last_read;
    for (int i = 0; i < last_read; i++)
        if (s->ins[i].op == DVM_BC_STORE)
            c->last[s->ins[i].b] = DVM_MAX(c->last[s->ins[i].b], (uint16_t)last_read);
}

/* ---- tiles */

static uint16_t take_slot(struct comp *c) { return c->nfree ? c->free[--c->nfree] : c->nslot++; }
static void give_slot(struct comp *c, uint16_t slot) {
    if (slot != NO_SLOT) c->free[c->nfree++] = slot;
}
static uint16_t tile_id(const struct comp *c, uint16_t slot) {
    return (uint16_t)(c->base_tile + slot);
}

static void release(struct comp *c, int at) {
    const struct dvm_ins *ins = &c->s->ins[at];
    unsigned fields = value_fields(ins);
    for (int k = 0; k < 3; k++) {
        if (!(fields >> k & 1)) continue;
        unsigned v = operand(ins, k);
        if (c->last[v] != at) continue;
        give_slot(c, c->slot[v]);
        c->slot[v] = NO_SLOT;
    }
    if (c->last[at] == at && ins->op != DVM_BC_STORE &&
        ins->op != DVM_BC_FOLD) { /* nobody reads it */
        give_slot(c, c->slot[at]);
        c->slot[at] = NO_SLOT;
    }
}

/* ---- emission */

static uint8_t red_type(int vt) {
    return vt == DVM_VT_F32 ? DVM_K_RF32 : vt == DVM_VT_I64 ? DVM_K_RI64 : DVM_K_RI32;
}

static dvm_k_fn *find_fn(const struct dvm_k *k, const struct dvm_strip *s, const struct dvm_ins *i,
                         unsigned mask) {
    if (i->op == DVM_BC_RND) return mask ? NULL : k->cast->rnd[i->b];
    int t = s->ins[i->op == DVM_OP_SELECT ? i->b : i->a].type;
    if (i->op == DVM_OP_CAST || i->op == DVM_OP_COPY)
        return mask ? NULL : k->cast->cast[t][i->type];
    switch (t) {
    case DVM_VT_F32:
        return k->f32->op[i->op][mask] ? k->f32->op[i->op][mask] : mask ? NULL : k->math->op[i->op];
    case DVM_VT_I32: return k->ints->i32[i->op][mask];
    case DVM_VT_I64: return k->ints->i64[i->op][mask];
    default: return k->ints->b1[i->op][mask];
    }
}

/* A tile full of the number `id`, until the end of the instruction. */
static uint16_t splat(struct comp *c, uint16_t id, int vt, uint16_t *temp) {
    uint16_t slot = take_slot(c);
    *temp = slot;
    *c->tile++ =
        (struct cpu_step){.kind = CPU_EW,
                          .fn = dvm_cpu_vt_size(vt) == 8 ? c->k->cast->splat8 : c->k->cast->splat4,
                          .d = tile_id(c, slot),
                          .a = id};
    return tile_id(c, slot);
}

/* The value v as a whole tile. */
static uint16_t full(struct comp *c, unsigned v, uint16_t *temp) {
    *temp = NO_SLOT;
    return is_full(c, v) ? c->id[v] : splat(c, c->id[v], c->s->ins[v].type, temp);
}

/* Gives value `at` a tile to be computed in, or the output where it may be written at once. */
static uint16_t place(struct comp *c, int at) {
    c->slot[at] = take_slot(c);
    uint16_t tile = tile_id(c, c->slot[at]);
    if (!c->out[at]) return c->id[at] = tile;
    const struct dvm_ins *st = &c->s->ins[c->out[at] - 1];
    const struct dvm_opnd *o = &c->s->opnd[st->a];
    if (o->kind != DVM_OPND_CONTIG || !same_type(o->dtype)) return c->id[at] = tile;
    c->id[at] = (uint16_t)(c->base_move + c->nmove++);
    *c->tile++ = (struct cpu_step){.kind = CPU_OUT, .d = c->id[at], .a = tile, .x = st->a};
    return c->id[at];
}

static void emit_ew(struct comp *c, int at) {
    const struct dvm_ins *ins = &c->s->ins[at];
    unsigned fields = ins->op == DVM_BC_RND ? 1 : value_fields(ins), mask = 0;
    uint16_t id[3] = {0}, temp[3] = {NO_SLOT, NO_SLOT, NO_SLOT};
    for (int k = 0; k < 3; k++) {
        if (!(fields >> k & 1)) continue;
        id[k] = c->id[operand(ins, k)];
        if (!is_full(c, operand(ins, k))) mask |= 1u << k;
    }
    if (ins->op == DVM_OP_FMA && (mask & 3) == DVM_K_SA) {
        uint16_t t = id[0];
        id[0] = id[1], id[1] = t, mask ^= 3;
    }
    dvm_k_fn *fn = find_fn(c->k, c->s, ins, mask);
    for (int k = 0; k < 3 && !fn; k++) {
        if (!(mask >> k & 1)) continue;
        int vt = ins->op == DVM_OP_SELECT && k == 0 ? DVM_VT_B1 : c->s->ins[operand(ins, k)].type;
        id[k] = splat(c, id[k], vt, &temp[k]);
        mask &= ~(1u << k);
        fn = find_fn(c->k, c->s, ins, mask);
    }
    uint16_t d = place(c, at);
    *c->tile++ = (struct cpu_step){
        .kind = CPU_EW, .fn = fn, .vt = ins->type, .d = d, .a = id[0], .b = id[1], .c = id[2]};
    for (int k = 0; k < 3; k++) give_slot(c, temp[k]);
}

/* A load that is read where it stands keeps a tile at hand for calls in which it cannot be. */
static void emit_direct(struct comp *c, int at) {
    const struct dvm_ins *ins = &c->s->ins[at];
    c->slot[at] = take_slot(c);
    c->id[at] = (uint16_t)(c->base_move + c->nmove++);
    *c->tile++ = (struct cpu_step){.kind = CPU_DIRECT,
                                   .vt = ins->type,
                                   .x = ins->a,
                                   .d = c->id[at],
                                   .a = tile_id(c, c->slot[at])};
}

static void emit_load(struct comp *c, int at) {
    const struct dvm_ins *ins = &c->s->ins[at];
    const struct dvm_opnd *o = &c->s->opnd[ins->a];
    bool iota = o->role == DVM_ROLE_IOTA;
    /* A value that goes from one operand straight to another is copied: the other may be the first one's neighbour
     * in an exchange. */
    bool direct =
        !iota && !c->out[at] &&
        (o->kind == DVM_OPND_STRIDED || (o->kind == DVM_OPND_CONTIG && same_type(o->dtype)));
    if (direct) {
        emit_direct(c, at);
        return;
    }
    uint16_t d = place(c, at);
    *c->tile++ =
        (struct cpu_step){.kind = iota ? CPU_IOTA : CPU_LOAD, .vt = ins->type, .x = ins->a, .d = d};
}

static void emit_pick(struct comp *c, int at) {
    const struct dvm_ins *ins = &c->s->ins[at];
    uint16_t temp = NO_SLOT, index = c->id[ins->b];
    struct cpu_step s = {
        .vt = ins->type, .x = ins->a, .type = c->s->ins[ins->b].type == DVM_VT_I64};
    if (!c->flat && !is_full(c, ins->b) && !c->out[at]) {
        c->slot[at] = take_slot(c);
        c->id[at] = (uint16_t)(c->base_move + c->nmove++);
        s.kind = CPU_SLICE, s.a = index, s.d = c->id[at], s.b = tile_id(c, c->slot[at]);
    } else {
        index = full(c, ins->b, &temp);
        uint16_t d = place(c, at);
        s.kind = CPU_PICK, s.a = index, s.d = d;
    }
    *c->tile++ = s;
    give_slot(c, temp);
}

static void emit_store(struct comp *c, int at) {
    const struct dvm_ins *ins = &c->s->ins[at];
    uint16_t temp, a = full(c, ins->b, &temp);
    *c->tile++ = (struct cpu_step){.kind = CPU_STORE, .vt = ins->type, .x = ins->a, .a = a};
    give_slot(c, temp);
}

static void emit_fold(struct comp *c, int at, uint16_t *state) {
    const struct dvm_ins *ins = &c->s->ins[at];
    uint16_t temp, a = full(c, ins->a, &temp), d = 0;
    struct cpu_step s = {.vt = ins->type, .type = red_type(ins->type), .a = a, .c = (*state)++};
    if (ins->op == DVM_BC_SCAN)
        s.kind = CPU_SCAN, d = place(c, at);
    else
        s.kind = CPU_FOLD, s.red = (uint8_t)ins->b, s.x = ins->c;
    s.d = d;
    *c->tile++ = s;
    give_slot(c, temp);
}

/* A value that is one number. */
static void emit_number(struct comp *c, int at) {
    const struct dvm_ins *ins = &c->s->ins[at];
    struct cpu_step s = {.vt = ins->type, .x = ins->a, .d = c->nnum};
    c->id[at] = c->nnum++;
    switch (ins->op) {
    case DVM_BC_LIT: s.kind = CPU_LIT; break;
    case DVM_BC_PARAM: s.kind = CPU_PARAM; break;
    case DVM_BC_LOAD:
        s.kind = c->s->opnd[ins->a].role == DVM_ROLE_IOTA ? CPU_IOTA : CPU_LOAD;
        break;
    case DVM_BC_PICK:
        s.kind = CPU_PICK, s.a = c->id[ins->b], s.type = c->s->ins[ins->b].type == DVM_VT_I64;
        break;
    default: {
        unsigned fields = value_fields(ins);
        s.kind = CPU_EW, s.fn = find_fn(c->k, c->s, ins, 0);
        s.a = c->id[ins->a];
        s.b = fields & 2 ? c->id[ins->b] : 0, s.c = fields & 4 ? c->id[ins->c] : 0;
    }
    }
    *(c->cls[at] == CLS_UNI ? c->uni++ : c->row++) = s;
}

static void emit(struct comp *c, int at, uint16_t *state) {
    const struct dvm_ins *ins = &c->s->ins[at];
    c->slot[at] = NO_SLOT;
    switch (ins->op) {
    case DVM_BC_FOLD: emit_fold(c, at, state); return;
    case DVM_BC_STORE:
        if (at >= c->last_read) emit_store(c, at);
        return;
    default: break;
    }
    if (!is_full(c, (unsigned)at)) {
        emit_number(c, at);
        return;
    }
    switch (ins->op) {
    case DVM_BC_LOAD: emit_load(c, at); break;
    case DVM_BC_PICK: emit_pick(c, at); break;
    case DVM_BC_SCAN: emit_fold(c, at, state); break;
    default: emit_ew(c, at); break;
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
        if (c->last[v] != c->last_read || c->slot[v] == NO_SLOT) continue;
        give_slot(c, c->slot[v]);
        c->slot[v] = NO_SLOT;
    }
}

static void count_ids(struct comp *c) {
    uint16_t uni = 0, row = 0, move = 0;
    for (int i = 0; i < c->s->nins; i++) {
        int op = c->s->ins[i].op;
        if (c->cls[i] == CLS_NONE)
            move += op == DVM_BC_STORE;
        else if (is_full(c, (unsigned)i))
            move += op == DVM_BC_LOAD || op == DVM_BC_PICK;
        else if (c->cls[i] == CLS_UNI)
            uni++;
        else
            row++;
    }
    c->row = c->uni + uni, c->tile = c->row + row;
    c->nnum = c->nmove = c->nslot = c->nfree = 0;
    c->base_move = (uint16_t)(uni + row);
    c->base_tile = (uint16_t)(uni + row + move);
}

/* One way to walk; steps go to `steps`, the three lists one after the other. Returns where they end. */
static struct cpu_step *build(struct comp *c, bool flat, struct cpu_step *steps,
                              struct cpu_prog *p) {
    uint16_t state = 0;
    c->flat = flat;
    c->uni = steps;
    count_ids(c);
    p->uni.p = c->uni, p->row.p = c->row, p->tile.p = c->tile;
    for (int i = 0; i < c->s->nins; i++) {
        emit(c, i, &state);
        if (i == c->last_read) emit_held_stores(c);
        release(c, i);
        if (i == c->last_read) free_held(c);
    }
    p->uni.n = (uint32_t)(c->uni - p->uni.p);
    p->row.n = (uint32_t)(c->row - p->row.p);
    p->tile.n = (uint32_t)(c->tile - p->tile.p);
    p->nnum = c->base_move, p->nmove = (uint16_t)(c->base_tile - c->base_move), p->ntile = c->nslot;
    c->code->nstate = state;
    return c->tile;
}

/* Steps of both lists, at most: one an instruction, a tile for each number that a full one reads, a pointer for each
 * output. */
static size_t count_steps(const struct comp *c) {
    size_t n = c->s->nins;
    for (int i = 0; i < c->s->nins; i++) {
        const struct dvm_ins *ins = &c->s->ins[i];
        unsigned fields = value_fields(ins);
        n += ins->op == DVM_BC_STORE;
        for (int k = 0; k < 3; k++)
            if (fields >> k & 1) n += c->cls[operand(ins, k)] != CLS_FULL;
    }
    return 2 * n;
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
    uint32_t folds = s->mode == DVM_MODE_COL ? code->nstate : 0;
    uint32_t ids = DVM_MAX(code->rows.nnum + code->rows.nmove, code->flat.nnum + code->flat.nmove);
    code->tile = DVM_CPU_TILE;
    while (code->tile > DVM_CPU_TILE_MIN && (tiles + folds) * code->tile * esize > DVM_CPU_L1)
        code->tile /= 2;
    code->tile_bytes = code->tile * esize + DVM_CPU_SKEW;
    code->slab_bytes = (uint8_t)esize;
    bump(&end, (ids + tiles) * sizeof(char *));
    code->at.row = bump(&end, s->nopnd * sizeof(char *));
    code->at.num = bump(&end, DVM_MAX(code->rows.nnum, code->flat.nnum) * sizeof(uint64_t));
    size_t group = code->nslab ? DVM_CPU_SLAB_ROWS : 1;
    code->at.state =
        bump(&end, s->mode == DVM_MODE_COL ? 0 : group * code->nstate * sizeof(struct cpu_state));
    /* COL: numbers and indices of a column tile for each fold; ROW: of the rows of a flat tile. */
    size_t fold = code->nstate ? 2 * code->tile * sizeof(uint64_t) : 0;
    code->at.fold = bump(&end, s->mode == DVM_MODE_COL ? fold * code->nstate : fold);
    code->at.slab =
        bump(&end, (size_t)code->nslab * DVM_CPU_SLAB_ROWS * DVM_CPU_SLAB_PITCH * esize);
    code->at.tile = bump(&end, (size_t)tiles * code->tile_bytes);
    code->c.scratch = end;
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

enum { WORK_PER_INS = 2 * 5 }; /* 16-bit numbers a value: last, id, slot, out, free */

static void own_strip(struct cpu_code *code, const struct dvm_strip *s, char **p) {
    code->c.strip = *s;
    code->c.strip.ins = copy(p, s->ins, s->nins * sizeof *s->ins);
    code->c.strip.lit = copy(p, s->lit, s->nlit * sizeof *s->lit);
    code->c.strip.opnd = copy(p, s->opnd, s->nopnd * sizeof *s->opnd);
}

static void carve_work(struct comp *c, char **p) {
    size_t n = c->s->nins;
    c->last = carve(p, n * 2);
    c->id = carve(p, n * 2);
    c->slot = carve(p, n * 2);
    c->out = carve(p, n * 2);
    c->free = carve(p, (n + 8) * 2);
}

dvm_status dvm_cpu_compile(const struct dvm_dev *d, const struct dvm_mem *m,
                           const struct dvm_strip *s, struct dvm_code **out) {
    uint8_t cls[DVM_STRIP_MAX_INS];
    struct comp c = {.s = s, .k = d->table, .cls = cls};
    for (int i = 0; i < s->nins; i++) cls[i] = classify(&c, &s->ins[i]);
    size_t steps = count_steps(&c);
    size_t size = sizeof(struct cpu_code) + s->nins * (sizeof *s->ins + WORK_PER_INS) +
                  s->nlit * sizeof *s->lit + s->nopnd * sizeof *s->opnd +
                  steps * sizeof(struct cpu_step) + 16 * 8;
    struct cpu_code *code = c.code = dvm_mem_new(m, size);
    if (!code) return DVM_ERR_NOMEM;
    char *p = (char *)(code + 1);
    code->c.run = dvm_cpu_run;
    code->c.tier = "vm";
    code->k = c.k;
    code->size = size;
    own_strip(code, s, &p);
    carve_work(&c, &p);
    find_last_uses(&c);
    struct cpu_step *step = build(&c, false, (struct cpu_step *)(void *)p, &code->rows);
    build(&c, true, step, &code->flat);
    find_slabs(code, s);
    lay_out(code, s);
    code->one_row = may_join_rows(s);
    *out = &code->c;
    return DVM_OK;
}

void dvm_cpu_destroy(const struct dvm_dev *d, const struct dvm_mem *m, struct dvm_code *c) {
    (void)d;
    if (c) dvm_mem_free(m, c, ((struct cpu_code *)c)->size);
}
