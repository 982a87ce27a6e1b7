/* Runs the steps of a strip over a box: which way to walk, the loops over rows and tiles, the step loop itself.
 *
 *   run -> walk_rows | walk_flat | walk_cols -> tile -> exec -> kernel
 *
 * Rows: groups of rows (one row; with transposed operands 16, whose elements then come in whole cache lines), tiles of
 * columns, rows of the group. Column folds turn the first two loops around, so that a column tile's accumulators stay
 * in L1. */
#include <string.h>

#include "vm/cpu/cpu.h"

static void step_other(struct cpu_vm *v, const struct cpu_step *s) {
    switch (s->kind) {
    case CPU_LIT: v->at[s->d] = (char *)(uintptr_t)&v->code->c.strip.lit[s->x]; break;
    case CPU_PARAM: v->at[s->d] = (char *)(uintptr_t)&v->args->param[s->x]; break;
    case CPU_FOLD: dvm_cpu_fold(v, s); break;
    case CPU_SCAN: dvm_cpu_scan(v, s); break;
    default: dvm_cpu_memory(v, s); break;
    }
}

static void exec(struct cpu_vm *v, const struct cpu_list *list) {
    char **at = v->at;
    int64_t n = v->count;
    for (const struct cpu_step *s = list->p, *end = s + list->n; s != end; s++) {
        if (DVM_LIKELY(s->kind == CPU_EW))
            s->fn(at[s->d], at[s->a], at[s->b], at[s->c], n);
        else
            step_other(v, s);
    }
}

static const struct cpu_prog *prog(const struct cpu_vm *v) {
    return v->flat ? &v->code->flat : &v->code->rows;
}

/* Numbers are computed as tiles of one element. */
static void exec_numbers(struct cpu_vm *v, const struct cpu_list *list) {
    if (!list->n) return;
    v->count = v->rows = 1;
    exec(v, list);
}

static void set_row(struct cpu_vm *v, int64_t i) {
    const struct dvm_strip_args *a = v->args;
    v->i = i;
    for (int o = 0; o < v->code->c.strip.nopnd; o++)
        v->row[o] = (char *)((uintptr_t)a->opnd[o].ptr + (uintptr_t)i * (uintptr_t)a->opnd[o].rs);
}

/* ---- rows */

/* Rows i .. i + rows - 1 of columns j .. j + cols - 1. */
static void tile_group(struct cpu_vm *v, int64_t i, int64_t rows, int64_t j, int64_t cols) {
    bool new_row = v->code->nslab || j == 0 || v->code->c.strip.mode == DVM_MODE_COL;
    v->j = j;
    if (v->code->nslab) {
        set_row(v, i);
        dvm_cpu_load_slabs(v, rows, cols);
    }
    for (v->r = 0; v->r < rows; v->r++) {
        if (new_row) {
            set_row(v, i + v->r);
            exec_numbers(v, &v->code->rows.row);
        }
        v->rows = 1;
        v->count = cols;
        exec(v, &v->code->rows.tile);
    }
}

/* Transposed: a step down the rows is shorter than one along them, so that lines are shared by rows. */
static int64_t choose_slabs(struct cpu_vm *v) {
    const struct cpu_code *c = v->code;
    char *slab = (char *)v->args->scratch + c->at.slab;
    int64_t group = 1;
    for (int s = 0; s < c->nslab;
         s++, slab += DVM_CPU_SLAB_ROWS * DVM_CPU_SLAB_PITCH * c->slab_bytes) {
        const struct dvm_opnd_arg *a = &v->args->opnd[c->slab_opnd[s]];
        int64_t rs = a->rs < 0 ? -a->rs : a->rs, cs = a->cs < 0 ? -a->cs : a->cs;
        if (v->m < 4 || rs > 16 || cs <= rs) continue;
        v->slab[s] = slab;
        group = DVM_CPU_SLAB_ROWS;
    }
    return group;
}

static void walk_rows(struct cpu_vm *v) {
    int64_t group = choose_slabs(v), width = v->code->tile;
    if (group > 1) width = DVM_MIN(width, DVM_CPU_SLAB_COLS);
    for (int64_t i = 0; i < v->m; i += group) {
        int64_t rows = DVM_MIN(group, v->m - i);
        dvm_cpu_fold_start(v, rows);
        for (int64_t j = 0; j < v->n; j += width)
            tile_group(v, i, rows, j, DVM_MIN(width, v->n - j));
        v->i = i;
        dvm_cpu_fold_end(v, rows);
    }
}

static void walk_cols(struct cpu_vm *v) {
    int64_t group = choose_slabs(v), width = v->code->tile;
    if (group > 1) width = DVM_MIN(width, DVM_CPU_SLAB_COLS);
    for (int64_t j = 0; j < v->n; j += width) {
        int64_t cols = DVM_MIN(width, v->n - j);
        dvm_cpu_fold_start(v, cols);
        for (int64_t i = 0; i < v->m; i += group)
            tile_group(v, i, DVM_MIN(group, v->m - i), j, cols);
        v->j = j;
        dvm_cpu_fold_end(v, cols);
    }
}

/* ---- flat */

static void walk_flat(struct cpu_vm *v) {
    int64_t k = v->code->tile / v->n;
    bool cols = v->code->c.strip.mode == DVM_MODE_COL;
    if (cols) dvm_cpu_fold_start(v, v->n);
    for (int64_t i = 0; i < v->m; i += k) {
        v->rows = DVM_MIN(k, v->m - i);
        v->count = v->rows * v->n;
        set_row(v, i);
        exec(v, &v->code->flat.tile);
    }
    if (cols) dvm_cpu_fold_end(v, v->n);
}

/* ---- the entry */

/* Every row starts where the one before it ends. */
static bool rows_touch(const struct dvm_strip *s, const struct dvm_strip_args *a) {
    for (int o = 0; o < s->nopnd; o++)
        if (s->opnd[o].kind != DVM_OPND_UNIF && a->opnd[o].rs != a->n * a->opnd[o].cs) return false;
    return true;
}

static void set_pointers(struct cpu_vm *v) {
    const struct cpu_code *c = v->code;
    const struct cpu_prog *p = prog(v);
    char *scratch = v->args->scratch, *num = scratch + c->at.num, *tile = scratch + c->at.tile;
    char **at = v->at;
    for (int i = 0; i < p->nnum; i++, num += sizeof(uint64_t)) *at++ = num;
    at += p->nmove;
    for (int i = 0; i < p->ntile; i++, tile += c->tile_bytes) *at++ = tile;
}

void dvm_cpu_run(const struct dvm_code *code, const struct dvm_strip_args *a) {
    const struct cpu_code *c = (const struct cpu_code *)code;
    if (a->m == 0 || a->n == 0) {
        dvm_cpu_fold_none(c, a);
        return;
    }
    struct cpu_vm v = {
        .code = c, .args = a, .m = a->m, .n = a->n, .in_place = !a->alias && !a->stream};
    v.at = a->scratch;
    v.row = (char **)(void *)((char *)a->scratch + c->at.row);
    if (v.m > 1 && c->one_row && rows_touch(&c->c.strip, a)) v.n *= v.m, v.m = 1;
    v.flat = v.m > 1 && v.n <= c->tile / 4;
    set_pointers(&v);
    set_row(&v, 0);
    exec_numbers(&v, &prog(&v)->uni);
    if (v.flat)
        walk_flat(&v);
    else if (c->c.strip.mode == DVM_MODE_COL)
        walk_cols(&v);
    else
        walk_rows(&v);
    if (a->stream) c->k->mem->fence();
}
