/* Folds and running sums. Kernels fold inside a block of 1024; blocks are joined by code/tree.h. Rows that fit a tile
 * go straight to their result; a longer row keeps a state; a fold of columns keeps a tile of accumulators, and indices
 * behind it. */
#include <string.h>

#include "vm/cpu/cpu.h"

static struct dvm_part part_of(const struct cpu_fold *f, const void *number, int64_t index) {
    struct dvm_part p = {.idx = index};
    memcpy(&p.v, number, (size_t)dvm_cpu_vt_size(f->vt));
    return p;
}

static void splat(const struct cpu_vm *v, const struct cpu_fold *f, void *d, int64_t n) {
    const struct dvm_k_cast *cast = v->code->k->cast;
    (dvm_cpu_vt_size(f->vt) == 8 ? cast->splat8 : cast->splat4)(d, &f->identity.v, NULL, NULL, n);
}

/* Room for the numbers, and behind them the indices, of a tile. */
static char *numbers_of(const struct cpu_vm *v, int fold) {
    return (char *)v->args->scratch + v->code->at.fold +
           (size_t)fold * 2 * v->code->tile * sizeof(uint64_t);
}
static int64_t *indices_of(const struct cpu_vm *v, int fold) {
    return (int64_t *)(void *)(numbers_of(v, fold) + v->code->tile * sizeof(uint64_t));
}

/* ---- whole rows in a tile */

static void store_rows(const struct cpu_vm *v, int x, const void *numbers) {
    const struct cpu_opnd *o = &v->opnd[x];
    v->code->k->mem->store_str[v->code->c.strip.opnd[x].dtype](o->row, o->rs, numbers, v->rows);
}

static void fold_whole(struct cpu_vm *v, const struct cpu_fold *f, const char *x, const char *y) {
    char *numbers = numbers_of(v, 0);
    int64_t *index = indices_of(v, 0);
    if (f->arg) {
        f->k->arg_rows(numbers, index, x, v->n, v->rows);
        for (int64_t r = 0; r < v->rows; r++) index[r] += v->args->pos;
        store_rows(v, f->x, index);
        store_rows(v, f->x + 1, numbers);
        return;
    }
    bool here = f->size >= 4 && (v->rows == 1 || v->opnd[f->x].rs == f->size);
    f->k->rows(here ? v->opnd[f->x].row : numbers, x, y, v->n, v->rows, &f->identity.v);
    if (!here) store_rows(v, f->x, numbers);
}

/* ---- a part of a row in a tile */

static struct cpu_state *state_of(const struct cpu_vm *v, int64_t row, int fold) {
    struct cpu_state *all =
        (struct cpu_state *)(void *)((char *)v->args->scratch + v->code->at.state);
    return &all[row * v->code->nfold + fold];
}

static void fold_arg(struct cpu_vm *v, const struct cpu_fold *f, struct cpu_state *st,
                     const char *x) {
    uint64_t number = 0;
    int64_t index;
    f->k->arg_rows(&number, &index, x, v->count, 1);
    struct dvm_part p = part_of(f, &number, v->args->pos + v->j + index);
    /* The order does not matter here: the smaller index wins. */
    st->tree.level[0] = v->j ? dvm_part_join(f->red, (enum dvm_vt)f->vt, st->tree.level[0], p) : p;
    st->tree.count = 1;
}

static void fold_part(struct cpu_vm *v, const struct cpu_fold *f, struct cpu_state *st,
                      const char *x, const char *y) {
    int64_t in = v->j % DVM_TREE_BLOCK, end = v->j + v->count;
    bool last = end == v->n || end % DVM_TREE_BLOCK == 0;
    if (f->arg) {
        fold_arg(v, f, st, x);
        return;
    }
    if (in == 0 && last) {
        f->k->rows(st->lane, x, y, v->count, 1, &f->identity.v);
    } else {
        if (in == 0) splat(v, f, st->lane, DVM_TREE_LANES);
        f->k->lanes(st->lane, x, y, v->count);
        if (last) f->k->halves(st->lane);
    }
    if (last) dvm_tree_push(&st->tree, f->red, (enum dvm_vt)f->vt, part_of(f, st->lane, 0));
}

/* A tree of one, two, four, ... blocks has one part. */
static struct dvm_part tree_end(const struct dvm_tree *t, const struct cpu_fold *f) {
    int l = 0;
    if (t->count & (t->count - 1)) return dvm_tree_end(t, f->red, (enum dvm_vt)f->vt);
    while (!(t->count >> l & 1)) l++;
    return t->level[l];
}

static void write_part(const struct cpu_fold *f, const struct dvm_opnd_arg *a, struct dvm_part p,
                       int64_t row, int64_t col) {
    a += f->x;
    if (f->arg) {
        memcpy(a->ptr + row * a->rs + col * a->cs, &p.idx, 8);
        a++;
    }
    memcpy(a->ptr + row * a->rs + col * a->cs, &p.v, f->size);
}

/* ---- columns */

static void fold_cols(struct cpu_vm *v, const struct cpu_step *s) {
    const struct cpu_fold *f = &v->code->fold[s->c];
    int64_t n = v->count / v->rows, xs = n * dvm_cpu_vt_size(f->vt), ys = xs;
    char *x = v->at[s->a], *acc = numbers_of(v, s->c);
    if (v->in_memory) xs = v->opnd[f->a].rs, ys = v->opnd[f->b].rs;
    if (!f->arg) {
        f->k->cols(acc, x, xs, v->at[s->b], ys, v->rows, n);
        return;
    }
    for (int64_t r = 0; r < v->rows; r++, x += xs)
        f->k->arg_col(acc, indices_of(v, s->c), x, v->i + r, n);
}

static void end_cols(const struct cpu_vm *v, int fold, int64_t n) {
    const struct cpu_fold *f = &v->code->fold[fold];
    const struct dvm_k_mem *mem = v->code->k->mem;
    const struct dvm_opnd_arg *a = &v->args->opnd[f->x];
    if (f->arg) {
        int64_t *index = indices_of(v, fold);
        for (int64_t j = 0; j < n; j++) index[j] += v->args->pos;
        mem->store_str[DVM_I64](a->ptr + v->j * a->cs, a->cs, index, n);
        a++;
    }
    int dtype = v->code->c.strip.opnd[f->x + f->arg].dtype;
    if (a->cs == f->size)
        mem->store[dtype](a->ptr + v->j * a->cs, numbers_of(v, fold), NULL, NULL, n);
    else
        mem->store_str[dtype](a->ptr + v->j * a->cs, a->cs, numbers_of(v, fold), n);
}

/* ---- all folds of the strip */

/* `count` rows (ROW) or columns (COL) begin. */
void dvm_cpu_fold_start(struct cpu_vm *v, int64_t count) {
    const struct cpu_code *c = v->code;
    bool cols = c->c.strip.mode == DVM_MODE_COL;
    for (int f = 0; f < c->nfold && cols; f++) splat(v, &c->fold[f], numbers_of(v, f), count);
    for (int64_t k = 0; k < count * c->nfold && !cols; k++) state_of(v, 0, (int)k)->tree.count = 0;
}

void dvm_cpu_fold_end(struct cpu_vm *v, int64_t count) {
    const struct cpu_code *c = v->code;
    for (int f = 0; f < c->nfold; f++) {
        if (!c->fold[f].k) continue;
        if (c->c.strip.mode == DVM_MODE_COL)
            end_cols(v, f, count);
        else
            for (int64_t r = 0; r < count; r++)
                write_part(&c->fold[f], v->args->opnd,
                           tree_end(&state_of(v, r, f)->tree, &c->fold[f]), v->i + r, 0);
    }
}

void dvm_cpu_fold(struct cpu_vm *v, const struct cpu_step *s) {
    const struct cpu_fold *f = &v->code->fold[s->c];
    if (v->code->c.strip.mode == DVM_MODE_COL)
        fold_cols(v, s);
    else if (v->whole)
        fold_whole(v, f, v->at[s->a], v->at[s->b]);
    else
        fold_part(v, f, state_of(v, v->r, s->c), v->at[s->a], v->at[s->b]);
}

void dvm_cpu_fold_none(const struct cpu_code *code, const struct dvm_strip_args *a) {
    int mode = code->c.strip.mode;
    int64_t rows = mode == DVM_MODE_ROW ? a->m : 1, cols = mode == DVM_MODE_COL ? a->n : 1;
    for (int f = 0; f < code->nfold; f++) {
        if (!code->fold[f].k) continue;
        for (int64_t r = 0; r < rows; r++)
            for (int64_t c = 0; c < cols; c++)
                write_part(&code->fold[f], a->opnd, code->fold[f].identity, r, c);
    }
}

/* ---- running sums */

void dvm_cpu_scan(struct cpu_vm *v, const struct cpu_step *s) {
    int64_t n = v->count / v->rows, step = n * dvm_cpu_vt_size(s->vt);
    uint64_t local;
    void *sum = v->whole ? (void *)&local : (void *)state_of(v, v->r, s->c)->lane;
    char *x = v->at[s->a], *d = v->at[s->d];
    for (int64_t r = 0; r < v->rows; r++, x += step, d += step) {
        if (v->j == 0) memset(sum, 0, sizeof local);
        v->code->k->red->scan[s->type](d, x, n, sum);
    }
}
