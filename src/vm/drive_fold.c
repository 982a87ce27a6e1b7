/* Vectors of partial results: joined like the scalars of tree.h, many at a time. */
#include <math.h>
#include <string.h>

#include "code/bc_table.h"
#include "vm/drive.h"

static size_t value_size(const struct dvm_fold *f) {
    return dvm_dtype_size(dvm_vt_dtype((enum dvm_vt)f->vt));
}

static struct dvm_part get(const struct dvm_vtree *t, const char *p, int64_t i) {
    struct dvm_part r = {.v.bits = 0};
    size_t size = value_size(t->fold);
    memcpy(&r.v, p + (size_t)i * size, size);
    if (t->fold->arg) memcpy(&r.idx, p + 8 * (t->cap + i), 8);
    return r;
}

static void put(const struct dvm_vtree *t, char *p, int64_t i, struct dvm_part r) {
    size_t size = value_size(t->fold);
    memcpy(p + (size_t)i * size, &r.v, size);
    if (t->fold->arg) memcpy(p + 8 * (t->cap + i), &r.idx, 8);
}

/* The common folds as loops that a compiler vectorizes; the expressions are those of tree.c. */
#define JOIN(T, expr)                             \
    do {                                          \
        const T *pa = (const T *)(const void *)a; \
        const T *pb = (const T *)(const void *)b; \
        T *to = (T *)(void *)into;                \
        DVM_ELEMENTWISE                           \
        for (int64_t i = 0; i < t->n; i++) {      \
            T x = pa[i], y = pb[i];               \
            to[i] = (expr);                       \
        }                                         \
        return;                                   \
    } while (0)

void dvm_vec_join(const struct dvm_vtree *t, char *into, const char *a, const char *b) {
    int op = t->fold->op;
    if (t->fold->vt == DVM_VT_F32) {
        if (op == DVM_OP_SUM) JOIN(float, x + y);
        if (op == DVM_OP_PROD) JOIN(float, x *y);
        if (op == DVM_OP_RMAX) JOIN(float, x > y || isnan(x) ? x : y);
        if (op == DVM_OP_RMIN) JOIN(float, x < y || isnan(x) ? x : y);
    }
    if (t->fold->vt == DVM_VT_I64 && op == DVM_OP_SUM) JOIN(uint64_t, x + y);
    for (int64_t i = 0; i < t->n; i++)
        put(t, into, i, dvm_part_join(op, (enum dvm_vt)t->fold->vt, get(t, a, i), get(t, b, i)));
}

void dvm_vtree_push(struct dvm_vtree *t, char *p) {
    int l = 0;
    for (; l < DVM_VTREE_LEVELS - 1 && (t->count >> l & 1); l++) {
        dvm_vec_join(t, p, t->level[l], p);
        if (t->nspare < DVM_VTREE_LEVELS) t->spare[t->nspare++] = t->level[l];
    }
    t->level[l] = p;
    t->count++;
}

char *dvm_vtree_end(struct dvm_vtree *t) {
    char *acc = NULL;
    for (int l = 0; l < DVM_VTREE_LEVELS; l++) {
        if (!(t->count >> l & 1)) continue;
        if (acc)
            dvm_vec_join(t, acc, t->level[l], acc);
        else
            acc = t->level[l];
    }
    return acc;
}

static void bind_one(struct dvm_opnd_arg *o, char *p, size_t size, bool by_row) {
    o->ptr = p;
    o->rs = by_row ? (int64_t)size : 0;
    o->cs = by_row ? 0 : (int64_t)size;
}

void dvm_vec_bind(const struct dvm_fold *f, char *p, int64_t cap, bool by_row,
                  struct dvm_opnd_arg *opnd) {
    if (f->arg) bind_one(&opnd[f->opnd], p + 8 * cap, 8, by_row);
    bind_one(&opnd[f->opnd + f->arg], p, value_size(f), by_row);
}

static void spread(const struct dvm_opnd_arg *to, bool by_row, const char *from, size_t size,
                   int64_t n) {
    int64_t step = by_row ? to->rs : to->cs;
    if (step == (int64_t)size) {
        memcpy(to->ptr, from, (size_t)n * size);
        return;
    }
    for (int64_t i = 0; i < n; i++) memcpy(to->ptr + i * step, from + (size_t)i * size, size);
}

void dvm_vec_write(const struct dvm_vtree *t, const char *p, bool by_row,
                   const struct dvm_opnd_arg *opnd) {
    const struct dvm_fold *f = t->fold;
    if (f->arg) spread(&opnd[f->opnd], by_row, p + 8 * t->cap, 8, t->n);
    spread(&opnd[f->opnd + f->arg], by_row, p, value_size(f), t->n);
}
