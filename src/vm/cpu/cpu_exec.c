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
        const struct cpu_opnd *o = &v->opnd[s->x];
        switch (s->kind) {
        case CPU_EW: s->fn(at[s->d], at[s->a], at[s->b], at[s->c], n); break;
        case CPU_DIRECT:
            if (o->direct)
                at[s->d] = o->row + v->j * o->cs;
            else
                dvm_cpu_memory(v, s);
            break;
        case CPU_OUT: at[s->d] = v->in_place && o->direct ? o->row + v->j * o->cs : at[s->a]; break;
        case CPU_STORE:
            if (!(s->c && v->in_place && o->direct)) dvm_cpu_memory(v, s);
            break;
        default: step_other(v, s);
        }
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
    const struct dvm_opnd_arg *a = v->args->opnd;
    v->i = i;
    for (int x = 0; x < v->code->c.strip.nopnd; x++)
        v->opnd[x].row = (char *)((uintptr_t)a[x].ptr + (uintptr_t)i * (uintptr_t)v->opnd[x].rs);
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

/* A transposed operand has a page for each column: blocks of rows use up what they touch of a few columns before going
 * on, or every load would miss the TLB. */
static void walk_blocks(struct cpu_vm *v) {
    enum { ROWS = DVM_CPU_SLAB_ROWS, BLOCK = 16 * ROWS, COLS = DVM_CPU_SLAB_COLS };
    int64_t width = DVM_MIN(v->code->tile, COLS);
    for (int64_t block = 0; block < v->m; block += BLOCK) {
        int64_t end = DVM_MIN(block + BLOCK, v->m);
        for (int64_t j = 0; j < v->n; j += width)
            for (int64_t i = block; i < end; i += ROWS)
                tile_group(v, i, DVM_MIN(ROWS, end - i), j, DVM_MIN(width, v->n - j));
    }
}

static void walk_rows(struct cpu_vm *v) {
    int64_t group = dvm_cpu_choose_slabs(v), width = v->code->tile;
    if (group > 1 && !v->code->nfold) {
        walk_blocks(v);
        return;
    }
    if (group > 1) width = DVM_MIN(width, DVM_CPU_SLAB_COLS);
    v->whole = v->n <= width;
    for (int64_t i = 0; i < v->m; i += group) {
        int64_t rows = DVM_MIN(group, v->m - i);
        if (!v->whole) dvm_cpu_fold_start(v, rows);
        for (int64_t j = 0; j < v->n; j += width)
            tile_group(v, i, rows, j, DVM_MIN(width, v->n - j));
        v->i = i;
        if (!v->whole) dvm_cpu_fold_end(v, rows);
    }
}

/* Nothing is computed: columns are folded where they stand, all rows in one step. */
static bool folds_in_memory(const struct cpu_vm *v) {
    const struct cpu_code *c = v->code;
    for (int x = 0; x < c->c.strip.nopnd && c->only_folds; x++)
        if (c->c.strip.opnd[x].role == DVM_ROLE_LOAD && !v->opnd[x].direct) return false;
    return c->only_folds;
}

static void walk_cols(struct cpu_vm *v) {
    int64_t group = dvm_cpu_choose_slabs(v), width = v->code->tile;
    if (group > 1) width = DVM_MIN(width, DVM_CPU_SLAB_COLS);
    v->in_memory = folds_in_memory(v);
    for (v->j = 0; v->j < v->n; v->j += width) {
        int64_t cols = DVM_MIN(width, v->n - v->j);
        dvm_cpu_fold_start(v, cols);
        if (v->in_memory) {
            v->rows = v->m;
            v->count = v->m * cols;
            exec(v, &v->code->rows.tile);
        } else {
            for (int64_t i = 0; i < v->m; i += group)
                tile_group(v, i, DVM_MIN(group, v->m - i), v->j, cols);
        }
        dvm_cpu_fold_end(v, cols);
    }
}

/* ---- flat */

/* Numbers of the rows: as if the tile were one row that runs down the box. */
static void exec_down(struct cpu_vm *v, int64_t rows) {
    if (!v->code->flat.row.n) return;
    v->down = true;
    v->rows = 1;
    v->count = rows;
    exec(v, &v->code->flat.row);
    v->down = false;
}

static void walk_flat(struct cpu_vm *v) {
    int64_t k = v->code->tile / v->n;
    bool cols = v->code->c.strip.mode == DVM_MODE_COL;
    v->whole = true;
    if (cols) dvm_cpu_fold_start(v, v->n);
    for (int64_t i = 0; i < v->m; i += k) {
        int64_t rows = DVM_MIN(k, v->m - i);
        set_row(v, i);
        exec_down(v, rows);
        v->rows = rows;
        v->count = rows * v->n;
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
    v.opnd = (struct cpu_opnd *)(void *)((char *)a->scratch + c->at.opnd);
    if (v.m > 1 && c->one_row && rows_touch(&c->c.strip, a)) v.n *= v.m, v.m = 1;
    v.flat = v.m > 1 && v.n <= c->tile / 4;
    set_pointers(&v);
    dvm_cpu_bind(&v);
    exec_numbers(&v, &prog(&v)->uni);
    if (v.flat)
        walk_flat(&v);
    else if (c->c.strip.mode == DVM_MODE_COL)
        walk_cols(&v);
    else
        walk_rows(&v);
    if (a->stream) c->k->mem->fence();
}
