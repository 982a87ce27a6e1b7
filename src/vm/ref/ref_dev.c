/* The reference device: a strip run element by element. Values of an element stand in an array, one
 * a instruction; folds and running sums keep a state that lives as long as a row (or, in column
 * strips, a column), and follow the trees of strip.h to the letter. Stores of an element happen
 * after all its instructions. */
#include <string.h>

#include "base/err.h"
#include "vm/ref/ref.h"

/* FOLD: lanes of the block being folded and the finished blocks. SCAN: lane 0 is the sum so far, a double
 * for floats. */
struct state {
    struct dvm_part lane[DVM_TREE_LANES];
    struct dvm_tree tree;
};

struct ref_code {
    struct dvm_code c;
    size_t size;
    const uint16_t *state; /* instruction -> its state */
    uint16_t nstate;
};

struct element {
    const struct ref_code *code;
    const struct dvm_strip_args *a;
    int64_t i, j; /* row, column */
    struct state *state;
    union ref_val *v;
};

static char *at(const struct element *e, int o) {
    const struct dvm_opnd_arg *p = &e->a->opnd[o];
    return p->ptr + e->i * p->rs + e->j * p->cs;
}

static union ref_val load(const struct element *e, int o) {
    const struct dvm_opnd *opnd = &e->code->c.strip.opnd[o];
    const struct dvm_opnd_arg *p = &e->a->opnd[o];
    if (opnd->role != DVM_ROLE_IOTA) return dvm_ref_load(opnd->dtype, at(e, o));
    uint64_t number = (uint64_t)(uintptr_t)p->ptr + (uint64_t)e->i * (uint64_t)p->rs +
                      (uint64_t)e->j * (uint64_t)p->cs;
    return (union ref_val){.bits = opnd->dtype == DVM_I32 ? (uint32_t)number : number};
}

static union ref_val pick(const struct element *e, int o, int64_t index) {
    const struct dvm_opnd_arg *p = &e->a->opnd[o];
    bool ok = index >= -p->gn && index < p->gn;
    if (!ok) dvm_fault_note(e->a->fault, (uint32_t)o, index, p->gn);
    if (p->gn == 0) return (union ref_val){.bits = 0};
    index = ok ? index + (index < 0 ? p->gn : 0) : 0;
    return dvm_ref_load(e->code->c.strip.opnd[o].dtype, at(e, o) + index * p->gs);
}

static struct dvm_part part_of(union ref_val v, int64_t index) {
    return (struct dvm_part){.v.bits = v.bits, .idx = index};
}

static union ref_val value_of(struct dvm_part p) { return (union ref_val){.bits = p.v.bits}; }

/* Lane l with lane l + 32, then 16, ... 1; the block enters the counter. */
static void end_block(struct state *s, int red, enum dvm_vt t) {
    for (int half = DVM_TREE_LANES / 2; half; half /= 2)
        for (int l = 0; l < half; l++)
            s->lane[l] = dvm_part_join(red, t, s->lane[l], s->lane[l + half]);
    dvm_tree_push(&s->tree, red, t, s->lane[0]);
}

static void fold(const struct element *e, const struct dvm_ins *ins, struct state *s) {
    enum dvm_vt t = (enum dvm_vt)ins->type;
    bool row = e->code->c.strip.mode == DVM_MODE_ROW;
    int64_t k = row ? e->j : e->i;
    int lane = row ? (int)(k % DVM_TREE_LANES) : 0;
    if (row && k > 0 && k % DVM_TREE_BLOCK == 0) end_block(s, ins->b, t);
    if (k % (row ? DVM_TREE_BLOCK : DVM_TREE_ROWS) == 0)
        for (int l = 0; l < DVM_TREE_LANES; l++) s->lane[l] = dvm_part_identity(ins->b, t);
    struct dvm_part p = part_of(e->v[ins->a], e->a->pos + k);
    s->lane[lane] = dvm_part_join(ins->b, t, s->lane[lane], p);
}

static struct dvm_part fold_result(const struct element *e, const struct dvm_ins *ins,
                                   struct state *s) {
    enum dvm_vt t = (enum dvm_vt)ins->type;
    bool row = e->code->c.strip.mode == DVM_MODE_ROW;
    if ((row ? e->a->n : e->a->m) == 0) return dvm_part_identity(ins->b, t);
    if (!row) return s->lane[0];
    end_block(s, ins->b, t);
    return dvm_tree_end(&s->tree, ins->b, t);
}

/* Results of the row or column that has ended, at element (e->i, e->j). */
static void end_folds(const struct element *e) {
    const struct dvm_strip *s = &e->code->c.strip;
    for (int k = 0; k < s->nins; k++) {
        const struct dvm_ins *ins = &s->ins[k];
        if (ins->op != DVM_BC_FOLD) continue;
        struct dvm_part p = fold_result(e, ins, &e->state[e->code->state[k]]);
        int o = ins->c;
        if (ins->b == DVM_OP_ARGMAX || ins->b == DVM_OP_ARGMIN)
            dvm_ref_store(DVM_I64, at(e, o++), (union ref_val){.i64 = p.idx});
        dvm_ref_store(s->opnd[o].dtype, at(e, o), value_of(p));
    }
}

/* Sums of floats are kept in double and rounded one by one, so that a rounding is not carried on. */
static union ref_val scan(const struct element *e, const struct dvm_ins *ins, struct state *s) {
    enum dvm_vt t = (enum dvm_vt)ins->type;
    union ref_val x = e->v[ins->a], sum = value_of(s->lane[0]);
    if (e->j == 0) sum.bits = 0;
    if (t == DVM_VT_F32)
        sum.d += (double)x.f;
    else
        sum = value_of(dvm_part_join(DVM_OP_SUM, t, part_of(sum, 0), part_of(x, 0)));
    s->lane[0] = part_of(sum, 0);
    return t == DVM_VT_F32 ? (union ref_val){.f = (float)sum.d} : sum;
}

static union ref_val step(const struct element *e, int k) {
    const struct dvm_strip *s = &e->code->c.strip;
    const struct dvm_ins *ins = &s->ins[k];
    const union ref_val *v = e->v;
    enum dvm_vt t = (enum dvm_vt)ins->type;
    struct state *state = &e->state[e->code->state[k]];
    switch (ins->op) {
    case DVM_BC_LOAD: return load(e, ins->a);
    case DVM_BC_LIT: return (union ref_val){.bits = s->lit[ins->a]};
    case DVM_BC_PARAM: return (union ref_val){.bits = e->a->param[ins->a]};
    case DVM_BC_RND: return dvm_ref_round(ins->b, v[ins->a]);
    case DVM_BC_SCAN: return scan(e, ins, state);
    case DVM_BC_FOLD: fold(e, ins, state); break;
    case DVM_BC_STORE: break;
    case DVM_BC_PICK:
        return pick(e, ins->a, s->ins[ins->b].type == DVM_VT_I64 ? v[ins->b].i64 : v[ins->b].i32);
    default: {
        /* Unused fields are 0 and point at the first value, which is then not looked at. */
        union ref_val in[3] = {v[ins->a], v[ins->b], v[ins->c]};
        return dvm_ref_ew(ins->op, (enum dvm_vt)s->ins[ins->a].type, t, in);
    }
    }
    return (union ref_val){.bits = 0};
}

static void run_element(const struct element *e) {
    const struct dvm_strip *s = &e->code->c.strip;
    for (int k = 0; k < s->nins; k++) e->v[k] = step(e, k);
    for (int k = 0; k < s->nins; k++)
        if (s->ins[k].op == DVM_BC_STORE) {
            int o = s->ins[k].a;
            dvm_ref_store(s->opnd[o].dtype, at(e, o), e->v[s->ins[k].b]);
        }
}

static void start_folds(const struct element *e) {
    for (int k = 0; k < e->code->nstate; k++) e->state[k].tree.count = 0;
}

static void run(const struct dvm_code *c, const struct dvm_strip_args *a) {
    const struct ref_code *code = (const struct ref_code *)c;
    struct element e = {.code = code, .a = a, .state = a->scratch};
    e.v = (union ref_val *)(e.state + code->nstate);
    if (c->strip.mode == DVM_MODE_COL) {
        for (e.j = 0; e.j < a->n; e.j++) {
            start_folds(&e);
            for (e.i = 0; e.i < a->m; e.i++) run_element(&e);
            e.i = 0;
            end_folds(&e);
        }
        return;
    }
    for (e.i = 0; e.i < a->m; e.i++) {
        start_folds(&e);
        for (e.j = 0; e.j < a->n; e.j++) run_element(&e);
        e.j = 0;
        end_folds(&e);
    }
}

/* Copies n elements to *to and moves it behind them, keeping 8-byte alignment. */
static const void *put(char **to, const void *from, size_t size) {
    char *start = *to;
    if (size) memcpy(start, from, size);
    *to += (size + 7) & ~(size_t)7;
    return start;
}

static uint16_t number_states(const struct dvm_strip *s, uint16_t *state) {
    uint16_t n = 0;
    for (int k = 0; k < s->nins; k++) {
        state[k] = n;
        n += s->ins[k].op == DVM_BC_FOLD || s->ins[k].op == DVM_BC_SCAN;
    }
    return n;
}

static dvm_status compile(const struct dvm_dev *d, const struct dvm_mem *m,
                          const struct dvm_strip *s, struct dvm_code **out) {
    (void)d;
    size_t size = sizeof(struct ref_code) + s->nins * (sizeof *s->ins + sizeof(uint16_t)) +
                  s->nlit * sizeof *s->lit + s->nopnd * sizeof *s->opnd + 4 * 8;
    struct ref_code *code = dvm_mem_new(m, size);
    if (!code) return DVM_ERR_NOMEM;
    char *p = (char *)(code + 1);
    uint16_t *state = (uint16_t *)(p + 0);
    code->size = size;
    code->nstate = number_states(s, state);
    code->state = state;
    p += (s->nins * sizeof *state + 7) & ~(size_t)7;
    code->c = (struct dvm_code){.run = run, .tier = "ref", .asked = -1, .strip = *s};
    code->c.strip.ins = put(&p, s->ins, s->nins * sizeof *s->ins);
    code->c.strip.lit = put(&p, s->lit, s->nlit * sizeof *s->lit);
    code->c.strip.opnd = put(&p, s->opnd, s->nopnd * sizeof *s->opnd);
    code->c.scratch = code->nstate * sizeof(struct state) + s->nins * sizeof(union ref_val);
    *out = &code->c;
    return DVM_OK;
}

static void destroy(const struct dvm_dev *d, const struct dvm_mem *m, struct dvm_code *c) {
    (void)d;
    if (c) dvm_mem_free(m, c, ((struct ref_code *)c)->size);
}

dvm_status dvm_dev_ref(struct dvm_dev *out) {
    *out = (struct dvm_dev){.name = "ref", .isa = "ref", .compile = compile, .destroy = destroy};
    return DVM_OK;
}
