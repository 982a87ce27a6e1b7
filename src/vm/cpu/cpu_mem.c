/* Steps that touch operands, and the binding of operands to a call. A tile is `rows` rows of `count / rows` columns,
 * one after the other; in the walk by rows it is one row from column j on, in the flat walk it is whole rows, or (down)
 * one number of each row. */
#include <string.h>

#include "vm/cpu/cpu.h"

/* ---- binding */

static void bind(const struct cpu_vm *v, int x) {
    const struct dvm_opnd *o = &v->code->c.strip.opnd[x];
    const struct dvm_opnd_arg *a = &v->args->opnd[x];
    struct cpu_opnd q = {.row = a->ptr, .rs = a->rs, .cs = a->cs};
    q.size = (uint8_t)dvm_dtype_size((dvm_dtype)o->dtype);
    q.vsize = (uint8_t)dvm_cpu_vt_size(dvm_vt_of(o->dtype));
    if (o->kind == DVM_OPND_UNIF)
        q.rs = q.cs = 0;
    else if (o->kind == DVM_OPND_ROW)
        q.cs = 0;
    else if (v->n == 1 && o->role != DVM_ROLE_IOTA)
        q.cs = q.size;
    q.line = q.cs == q.size && (!v->flat || q.rs == v->n * q.size);
    q.direct = q.line && q.size == q.vsize;
    v->opnd[x] = q;
}

void dvm_cpu_bind(struct cpu_vm *v) {
    for (int x = 0; x < v->code->c.strip.nopnd; x++) bind(v, x);
}

static int64_t magnitude(int64_t x) { return x < 0 ? -x : x; }

/* Transposed: a step down the rows is shorter than one along them, so that rows share cache lines. */
int64_t dvm_cpu_choose_slabs(struct cpu_vm *v) {
    const struct cpu_code *c = v->code;
    char *slab = (char *)v->args->scratch + c->at.slab;
    int64_t group = 1, size = DVM_CPU_SLAB_ROWS * DVM_CPU_SLAB_PITCH * c->slab_bytes;
    for (int s = 0; s < c->nslab && v->m >= 4; s++) {
        struct cpu_opnd *o = &v->opnd[c->slab_opnd[s]];
        if (magnitude(o->rs) > 16 || magnitude(o->cs) <= magnitude(o->rs)) continue;
        o->slab = slab + s * size;
        o->direct = false;
        group = DVM_CPU_SLAB_ROWS;
    }
    return group;
}

void dvm_cpu_load_slabs(struct cpu_vm *v, int64_t rows, int64_t cols) {
    const struct cpu_code *c = v->code;
    for (int s = 0; s < c->nslab; s++) {
        int x = c->slab_opnd[s];
        const struct cpu_opnd *o = &v->opnd[x];
        if (!o->slab) continue;
        c->k->mem->load_block[c->c.strip.opnd[x].dtype](
            o->slab, DVM_CPU_SLAB_PITCH, o->row + v->j * o->cs, o->rs, o->cs, rows, cols);
    }
}

/* ---- loads */

/* An operand as a step meets it. */
struct place {
    char *p; /* first element of the tile */
    int64_t rs, cs, rows, cols;
    int dtype;
    bool line;
};

static struct place locate(const struct cpu_vm *v, int x) {
    const struct cpu_opnd *o = &v->opnd[x];
    int dtype = v->code->c.strip.opnd[x].dtype;
    if (v->down) return (struct place){o->row, 0, o->rs, 1, v->count, dtype, o->rs == o->size};
    char *p = (char *)((uintptr_t)o->row + (uintptr_t)v->j * (uintptr_t)o->cs);
    return (struct place){p, o->rs, o->cs, v->rows, v->count / v->rows, dtype, o->line};
}

/* The same row again and again: loaded once, doubled. */
static void repeat(char *d, int64_t row, int64_t total) {
    for (int64_t have = row; have < total; have *= 2)
        memcpy(d + have, d, (size_t)DVM_MIN(have, total - have));
}

static void load(const struct cpu_vm *v, const struct place *q, int64_t vsize, char *d) {
    const struct dvm_k_mem *mem = v->code->k->mem;
    bool contig = q->cs == (int64_t)dvm_dtype_size((dvm_dtype)q->dtype);
    int64_t step = q->cols * vsize, rows = q->rs ? q->rows : 1;
    char *p = q->p, *to = d;
    if (q->line) {
        int64_t bytes = q->rows * q->cols * (int64_t)dvm_dtype_size((dvm_dtype)q->dtype);
        if (v->args->stream) mem->prefetch(p + bytes, bytes);
        mem->load[q->dtype](d, p, NULL, NULL, q->rows * q->cols);
        return;
    }
    if (rows > 1 && magnitude(q->rs) < magnitude(q->cs)) {
        mem->load_block[q->dtype](d, q->cols, p, q->rs, q->cs, rows, q->cols);
        return;
    }
    for (int64_t r = 0; r < rows; r++, p += q->rs, to += step) {
        if (contig)
            mem->load[q->dtype](to, p, NULL, NULL, q->cols);
        else
            mem->load_str[q->dtype](to, p, q->cs, q->cols);
    }
    if (rows < q->rows) repeat(d, step, q->rows * step);
}

static void step_load(struct cpu_vm *v, const struct cpu_step *s) {
    const struct cpu_opnd *o = &v->opnd[s->x];
    struct place q = locate(v, s->x);
    if (o->slab)
        memcpy(v->at[s->d], o->slab + v->r * DVM_CPU_SLAB_PITCH * o->vsize,
               (size_t)(v->count * o->vsize));
    else
        load(v, &q, o->vsize, v->at[s->d]);
}

/* Not where it stands, or exec would not have come here. */
static void step_direct(struct cpu_vm *v, const struct cpu_step *s) {
    const struct cpu_opnd *o = &v->opnd[s->x];
    struct place q = locate(v, s->x);
    v->at[s->d] = o->slab ? o->slab + v->r * DVM_CPU_SLAB_PITCH * o->vsize : v->at[s->a];
    if (!o->slab) load(v, &q, o->vsize, v->at[s->a]);
}

static void step_iota(struct cpu_vm *v, const struct cpu_step *s) {
    const struct dvm_k_mem *mem = v->code->k->mem;
    struct place q = locate(v, s->x);
    char *d = v->at[s->d];
    for (int64_t r = 0; r < q.rows; r++) {
        int64_t base = (int64_t)((uintptr_t)q.p + (uintptr_t)r * (uintptr_t)q.rs);
        if (s->vt == DVM_VT_I64)
            mem->iota64((int64_t *)(void *)d + r * q.cols, base, q.cs, q.cols);
        else
            mem->iota32((int32_t *)(void *)d + r * q.cols, base, q.cs, q.cols);
    }
}

/* ---- indexed */

static int64_t read_index(const struct cpu_step *s, const char *index, int64_t i) {
    int64_t wide;
    int32_t narrow;
    if (s->type)
        memcpy(&wide, index + 8 * i, 8);
    else
        memcpy(&narrow, index + 4 * i, 4);
    return s->type ? wide : narrow;
}

static bool in_range(int64_t index, int64_t gn) { return index >= -gn && index < gn; }

static void note_faults(const struct cpu_vm *v, const struct cpu_step *s, const char *index,
                        int64_t n) {
    int64_t gn = v->args->opnd[s->x].gn;
    for (int64_t i = 0; i < n; i++) {
        int64_t x = read_index(s, index, i);
        if (!in_range(x, gn)) dvm_fault_note(v->args->fault, s->x, x, gn);
    }
}

static void step_pick(struct cpu_vm *v, const struct cpu_step *s) {
    struct place q = locate(v, s->x);
    const struct dvm_opnd_arg *a = &v->args->opnd[s->x];
    char *d = v->at[s->d], *index = v->at[s->a];
    for (int64_t r = 0; r < q.rows; r++) {
        if (!v->code->k->mem->pick[q.dtype][s->type](d, q.p, q.cs, index, a->gs, a->gn, q.cols))
            note_faults(v, s, index, q.cols);
        d += q.cols * dvm_cpu_vt_size(s->vt);
        index += q.cols * (s->type ? 8 : 4);
        q.p += q.rs;
    }
}

static void step_slice(struct cpu_vm *v, const struct cpu_step *s) {
    struct place q = locate(v, s->x);
    const struct cpu_opnd *o = &v->opnd[s->x];
    const struct dvm_opnd_arg *a = &v->args->opnd[s->x];
    int64_t index = read_index(s, v->at[s->a], 0);
    char *tile = v->at[s->b];
    bool in = in_range(index, a->gn);
    if (!in) dvm_fault_note(v->args->fault, s->x, index, a->gn);
    v->at[s->d] = tile;
    if (a->gn == 0) {
        memset(tile, 0, (size_t)(v->count * o->vsize));
        return;
    }
    q.p += (!in ? 0 : index < 0 ? index + a->gn : index) * a->gs;
    if (o->direct)
        v->at[s->d] = q.p;
    else
        load(v, &q, o->vsize, tile);
}

/* ---- one number a row, all along it */

static void step_spread(struct cpu_vm *v, const struct cpu_step *s) {
    const struct dvm_k_cast *cast = v->code->k->cast;
    int64_t n = v->count / v->rows;
    (dvm_cpu_vt_size(s->vt) == 8 ? cast->spread8 : cast->spread4)(v->at[s->d], v->at[s->a], n,
                                                                  v->rows);
}

/* ---- stores */

static void step_store(struct cpu_vm *v, const struct cpu_step *s) {
    const struct dvm_k_mem *mem = v->code->k->mem;
    struct place q = locate(v, s->x);
    bool contig = q.cs == v->opnd[s->x].size;
    char *a = v->at[s->a], *p = q.p;
    int64_t step = q.cols * dvm_cpu_vt_size(s->vt);
    dvm_k_fn *line =
        v->args->stream && mem->stream[q.dtype] ? mem->stream[q.dtype] : mem->store[q.dtype];
    if (q.line) q.cols *= q.rows, q.rows = 1;
    for (int64_t r = 0; r < q.rows; r++, p += q.rs, a += step) {
        if (contig)
            line(p, a, NULL, NULL, q.cols);
        else
            mem->store_str[q.dtype](p, q.cs, a, q.cols);
    }
}

void dvm_cpu_memory(struct cpu_vm *v, const struct cpu_step *s) {
    switch (s->kind) {
    case CPU_DIRECT: step_direct(v, s); break;
    case CPU_STORE: step_store(v, s); break;
    case CPU_LOAD: step_load(v, s); break;
    case CPU_IOTA: step_iota(v, s); break;
    case CPU_PICK: step_pick(v, s); break;
    case CPU_SLICE: step_slice(v, s); break;
    case CPU_SPREAD: step_spread(v, s); break;
    default: break;
    }
}
