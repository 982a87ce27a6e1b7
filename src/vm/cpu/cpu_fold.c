/* Folds and running sums. Kernels fold inside a block of 1024; blocks are joined by code/tree.h. A fold of rows keeps
 * one state a row of the group being walked; a fold of columns keeps a tile of accumulators, and indices behind it. */
#include <string.h>

#include "vm/cpu/cpu.h"

static bool is_arg(int op) { return op == DVM_OP_ARGMAX || op == DVM_OP_ARGMIN; }

static const struct dvm_k_fold *kernel(const struct cpu_vm *v, const struct cpu_step *s) {
    static const uint8_t family[DVM_NOP] = {
        [DVM_OP_SUM] = DVM_K_SUM,       [DVM_OP_PROD] = DVM_K_PROD,     [DVM_OP_RMAX] = DVM_K_MAX,
        [DVM_OP_RMIN] = DVM_K_MIN,      [DVM_OP_ANY] = DVM_K_MAX,       [DVM_OP_ALL] = DVM_K_MIN,
        [DVM_OP_ARGMAX] = DVM_K_ARGMAX, [DVM_OP_ARGMIN] = DVM_K_ARGMIN,
    };
    return &v->code->k->red->fold[family[s->red]][s->type];
}

static struct dvm_part part_of(int vt, const void *number, int64_t index) {
    struct dvm_part p = {.idx = index};
    memcpy(&p.v, number, (size_t)dvm_cpu_vt_size(vt));
    return p;
}

static void splat(const struct cpu_vm *v, int vt, void *d, const struct dvm_part *p, int64_t n) {
    (dvm_cpu_vt_size(vt) == 8 ? v->code->k->cast->splat8 : v->code->k->cast->splat4)(d, &p->v, NULL,
                                                                                     NULL, n);
}

/* ---- rows */

static struct cpu_state *state_of(const struct cpu_vm *v, int row, int state) {
    struct cpu_state *all =
        (struct cpu_state *)(void *)((char *)v->args->scratch + v->code->at.state);
    return &all[row * v->code->nstate + state];
}

static void fold_arg(struct cpu_vm *v, const struct cpu_step *s, struct cpu_state *st) {
    uint64_t number = 0;
    int64_t index;
    kernel(v, s)->arg_rows(&number, &index, v->at[s->a], v->count, 1);
    struct dvm_part p = part_of(s->vt, &number, v->args->pos + v->j + index);
    /* The order does not matter here: the smaller index wins. */
    st->tree.level[0] = v->j ? dvm_part_join(s->red, (enum dvm_vt)s->vt, st->tree.level[0], p) : p;
    st->tree.count = 1;
}

static void fold_row(struct cpu_vm *v, const struct cpu_step *s) {
    struct cpu_state *st = state_of(v, (int)v->r, s->c);
    const struct dvm_k_fold *k = kernel(v, s);
    enum dvm_vt t = (enum dvm_vt)s->vt;
    if (is_arg(s->red)) {
        fold_arg(v, s, st);
        return;
    }
    struct dvm_part id = dvm_part_identity(s->red, t);
    int64_t in = v->j % DVM_TREE_BLOCK, end = v->j + v->count;
    bool last = end == v->n || end % DVM_TREE_BLOCK == 0;
    if (in == 0 && last) {
        k->rows(st->lane, v->at[s->a], v->count, 1, &id.v);
    } else {
        if (in == 0) splat(v, t, st->lane, &id, DVM_TREE_LANES);
        k->lanes(st->lane, v->at[s->a], v->count);
        if (last) k->halves(st->lane);
    }
    if (last) dvm_tree_push(&st->tree, s->red, t, part_of(t, st->lane, 0));
}

/* A tree of one, two, four, ... blocks has one part. */
static struct dvm_part tree_end(const struct dvm_tree *t, int red, int vt) {
    int l = 0;
    if (t->count & (t->count - 1)) return dvm_tree_end(t, red, (enum dvm_vt)vt);
    while (!(t->count >> l & 1)) l++;
    return t->level[l];
}

static void write_part(const struct dvm_strip *s, const struct dvm_strip_args *a,
                       const struct dvm_ins *ins, struct dvm_part p, int64_t row, int64_t col) {
    int o = ins->c;
    const struct dvm_opnd_arg *q = &a->opnd[o];
    if (is_arg(ins->b)) {
        memcpy(q->ptr + row * q->rs + col * q->cs, &p.idx, 8);
        q = &a->opnd[++o];
    }
    memcpy(q->ptr + row * q->rs + col * q->cs, &p.v, dvm_dtype_size((dvm_dtype)s->opnd[o].dtype));
}

/* ---- rows, several in a tile */

static void store_rows(struct cpu_vm *v, int x, const void *numbers) {
    const struct dvm_opnd_arg *a = &v->args->opnd[x];
    v->code->k->mem->store_str[v->code->c.strip.opnd[x].dtype](a->ptr + v->i * a->rs, a->rs,
                                                               numbers, v->rows);
}

static void fold_flat(struct cpu_vm *v, const struct cpu_step *s) {
    char *numbers = (char *)v->args->scratch + v->code->at.fold;
    int64_t *index = (int64_t *)(void *)(numbers + v->code->tile * sizeof(uint64_t)),
            n = v->count / v->rows;
    struct dvm_part id = dvm_part_identity(s->red, (enum dvm_vt)s->vt);
    if (!is_arg(s->red)) {
        kernel(v, s)->rows(numbers, v->at[s->a], n, v->rows, &id.v);
        store_rows(v, s->x, numbers);
        return;
    }
    kernel(v, s)->arg_rows(numbers, index, v->at[s->a], n, v->rows);
    for (int64_t r = 0; r < v->rows; r++) index[r] += v->args->pos;
    store_rows(v, s->x, index);
    store_rows(v, s->x + 1, numbers);
}

/* ---- columns */

static char *numbers_of(const struct cpu_vm *v, int state) {
    return (char *)v->args->scratch + v->code->at.fold +
           (size_t)state * 2 * v->code->tile * sizeof(uint64_t);
}
static int64_t *indices_of(const struct cpu_vm *v, int state) {
    return (int64_t *)(void *)(numbers_of(v, state) + v->code->tile * sizeof(uint64_t));
}

static void fold_cols(struct cpu_vm *v, const struct cpu_step *s) {
    const struct dvm_k_fold *k = kernel(v, s);
    int64_t n = v->count / v->rows, step = n * dvm_cpu_vt_size(s->vt);
    char *x = v->at[s->a], *acc = numbers_of(v, s->c);
    for (int64_t r = 0; r < v->rows; r++, x += step) {
        if (is_arg(s->red))
            k->arg_col(acc, indices_of(v, s->c), x, v->i + r, n);
        else
            k->col(acc, x, n);
    }
}

static void store_cols(struct cpu_vm *v, int x, const void *numbers, int64_t n) {
    const struct dvm_opnd_arg *a = &v->args->opnd[x];
    v->code->k->mem->store_str[v->code->c.strip.opnd[x].dtype](a->ptr + v->j * a->cs, a->cs,
                                                               numbers, n);
}

static void end_cols(struct cpu_vm *v, const struct dvm_ins *ins, int state, int64_t n) {
    int x = ins->c;
    if (is_arg(ins->b)) {
        int64_t *index = indices_of(v, state);
        for (int64_t j = 0; j < n; j++) index[j] += v->args->pos;
        store_cols(v, x++, index, n);
    }
    store_cols(v, x, numbers_of(v, state), n);
}

/* ---- all folds of the strip */

/* `count` rows (ROW) or columns (COL) begin. */
void dvm_cpu_fold_start(struct cpu_vm *v, int64_t count) {
    const struct dvm_strip *s = &v->code->c.strip;
    int state = 0;
    if (!v->code->nstate) return;
    if (s->mode != DVM_MODE_COL) {
        for (int64_t k = 0; k < count * v->code->nstate; k++)
            state_of(v, 0, (int)k)->tree.count = 0;
        return;
    }
    for (int i = 0; i < s->nins; i++) {
        if (s->ins[i].op != DVM_BC_FOLD) continue;
        struct dvm_part id = dvm_part_identity(s->ins[i].b, (enum dvm_vt)s->ins[i].type);
        splat(v, s->ins[i].type, numbers_of(v, state++), &id, count);
    }
}

void dvm_cpu_fold_end(struct cpu_vm *v, int64_t count) {
    const struct dvm_strip *s = &v->code->c.strip;
    int state = 0;
    if (!v->code->nstate) return;
    for (int i = 0; i < s->nins; i++) {
        const struct dvm_ins *ins = &s->ins[i];
        if (ins->op == DVM_BC_FOLD && s->mode == DVM_MODE_COL)
            end_cols(v, ins, state, count);
        else if (ins->op == DVM_BC_FOLD)
            for (int64_t r = 0; r < count; r++)
                write_part(s, v->args, ins,
                           tree_end(&state_of(v, (int)r, state)->tree, ins->b, ins->type), v->i + r,
                           0);
        state += ins->op == DVM_BC_FOLD || ins->op == DVM_BC_SCAN;
    }
}

void dvm_cpu_fold(struct cpu_vm *v, const struct cpu_step *s) {
    if (v->code->c.strip.mode == DVM_MODE_COL)
        fold_cols(v, s);
    else if (v->flat)
        fold_flat(v, s);
    else
        fold_row(v, s);
}

void dvm_cpu_fold_none(const struct cpu_code *code, const struct dvm_strip_args *a) {
    const struct dvm_strip *s = &code->c.strip;
    if (s->mode == DVM_MODE_MAP) return;
    int64_t rows = s->mode == DVM_MODE_ROW ? a->m : 1, cols = s->mode == DVM_MODE_COL ? a->n : 1;
    for (int i = 0; i < s->nins; i++) {
        if (s->ins[i].op != DVM_BC_FOLD) continue;
        struct dvm_part id = dvm_part_identity(s->ins[i].b, (enum dvm_vt)s->ins[i].type);
        for (int64_t r = 0; r < rows; r++)
            for (int64_t c = 0; c < cols; c++) write_part(s, a, &s->ins[i], id, r, c);
    }
}

/* ---- running sums */

void dvm_cpu_scan(struct cpu_vm *v, const struct cpu_step *s) {
    int64_t n = v->count / v->rows, step = n * dvm_cpu_vt_size(s->vt);
    uint64_t local = 0;
    void *carry = v->flat ? (void *)&local : (void *)state_of(v, (int)v->r, s->c)->lane;
    char *x = v->at[s->a], *d = v->at[s->d];
    for (int64_t r = 0; r < v->rows; r++, x += step, d += step)
        v->code->k->red->scan[s->type](d, x, n, carry, v->j == 0);
}
