/* Steps that touch operands. A tile is `rows` rows of `n / rows` columns, one after the other; in the walk by rows it
 * is one row from column j on, in the flat walk it is whole rows. */
#include <string.h>

#include "vm/cpu/cpu.h"

/* One operand as a step meets it. */
struct place {
    const struct dvm_opnd *o;
    char *p; /* first element of the tile */
    int64_t rs, cs;
    int64_t rows, cols;
    bool line; /* contiguous over the whole tile */
};

static struct place locate(const struct cpu_vm *v, int x) {
    const struct dvm_opnd_arg *a = &v->args->opnd[x];
    struct place q = {
        .o = &v->code->c.strip.opnd[x], .rs = a->rs, .rows = v->rows, .cols = v->count / v->rows};
    int64_t size = (int64_t)dvm_dtype_size((dvm_dtype)q.o->dtype);
    q.cs = q.o->kind == DVM_OPND_UNIF || q.o->kind == DVM_OPND_ROW ? 0
           : q.o->kind == DVM_OPND_CONTIG                          ? size
                                                                   : a->cs;
    if (q.o->kind == DVM_OPND_UNIF) q.rs = 0;
    q.p = (char *)((uintptr_t)v->row[x] + (uintptr_t)v->j * (uintptr_t)q.cs);
    q.line = (q.cs == size || v->count == 1) && (q.rows == 1 || q.rs == q.cols * q.cs);
    return q;
}

static void load(const struct cpu_vm *v, const struct place *q, int vt, char *d) {
    const struct dvm_k_mem *mem = v->code->k->mem;
    int t = q->o->dtype;
    int64_t step = q->cols * dvm_cpu_vt_size(vt), rs = q->rs < 0 ? -q->rs : q->rs,
            cs = q->cs < 0 ? -q->cs : q->cs;
    char *p = q->p;
    if (q->line)
        mem->load[t](d, p, NULL, NULL, q->rows * q->cols);
    else if (q->rows > 1 && rs < cs)
        mem->load_block[t](d, q->cols, p, q->rs, q->cs, q->rows, q->cols);
    else if (q->o->kind == DVM_OPND_CONTIG)
        for (int64_t r = 0; r < q->rows; r++, p += q->rs, d += step)
            mem->load[t](d, p, NULL, NULL, q->cols);
    else
        for (int64_t r = 0; r < q->rows; r++, p += q->rs, d += step)
            mem->load_str[t](d, p, q->cs, q->cols);
}

/* Where the row of the tile stands in a block that was loaded for it, or NULL. */
static char *in_slab(const struct cpu_vm *v, int x) {
    for (int s = 0; s < v->code->nslab; s++)
        if (v->code->slab_opnd[s] == x && v->slab[s])
            return v->slab[s] + v->r * DVM_CPU_SLAB_PITCH *
                                    dvm_cpu_vt_size(dvm_vt_of(v->code->c.strip.opnd[x].dtype));
    return NULL;
}

static void step_load(struct cpu_vm *v, const struct cpu_step *s) {
    char *slab = v->count > 1 ? in_slab(v, s->x) : NULL;
    if (slab) {
        memcpy(v->at[s->d], slab, (size_t)(v->count * dvm_cpu_vt_size(s->vt)));
        return;
    }
    struct place q = locate(v, s->x);
    load(v, &q, s->vt, v->at[s->d]);
}

static void step_direct(struct cpu_vm *v, const struct cpu_step *s) {
    char *slab = in_slab(v, s->x);
    if (slab) {
        v->at[s->d] = slab;
        return;
    }
    struct place q = locate(v, s->x);
    bool whole = (int64_t)dvm_dtype_size((dvm_dtype)q.o->dtype) == dvm_cpu_vt_size(s->vt);
    v->at[s->d] = q.line && whole ? q.p : v->at[s->a];
    if (!(q.line && whole)) load(v, &q, s->vt, v->at[s->a]);
}

static void step_iota(struct cpu_vm *v, const struct cpu_step *s) {
    const struct dvm_k_mem *mem = v->code->k->mem;
    const struct dvm_opnd_arg *a = &v->args->opnd[s->x];
    int kind = v->code->c.strip.opnd[s->x].kind;
    uint64_t cs = kind == DVM_OPND_UNIF || kind == DVM_OPND_ROW ? 0 : (uint64_t)a->cs;
    uint64_t rs = kind == DVM_OPND_UNIF ? 0 : (uint64_t)a->rs;
    int64_t cols = v->count / v->rows;
    char *d = v->at[s->d];
    for (int64_t r = 0; r < v->rows; r++) {
        uint64_t base =
            (uint64_t)(uintptr_t)a->ptr + (uint64_t)(v->i + r) * rs + (uint64_t)v->j * cs;
        if (s->vt == DVM_VT_I64)
            mem->iota64((int64_t *)(void *)d + r * cols, (int64_t)base, (int64_t)cs, cols);
        else
            mem->iota32((int32_t *)(void *)d + r * cols, (int64_t)base, (int64_t)cs, cols);
    }
}

static void step_pick(struct cpu_vm *v, const struct cpu_step *s) {
    struct place q = locate(v, s->x);
    const struct dvm_opnd_arg *a = &v->args->opnd[s->x];
    char *d = v->at[s->d], *index = v->at[s->a];
    bool ok = true;
    for (int64_t r = 0; r < q.rows; r++) {
        ok &= v->code->k->mem->pick[q.o->dtype][s->type](d, q.p, q.cs, index, a->gs, a->gn, q.cols);
        d += q.cols * dvm_cpu_vt_size(s->vt);
        index += q.cols * (s->type ? 8 : 4);
        q.p += q.rs;
    }
    if (!ok) *v->args->fault = 1;
}

static void step_slice(struct cpu_vm *v, const struct cpu_step *s) {
    struct place q = locate(v, s->x);
    const struct dvm_opnd_arg *a = &v->args->opnd[s->x];
    int64_t index;
    if (s->type)
        memcpy(&index, v->at[s->a], 8);
    else
        index = *(const int32_t *)(const void *)v->at[s->a];
    char *tile = v->at[s->b];
    bool in = index >= -a->gn && index < a->gn;
    if (!in) *v->args->fault = 1;
    v->at[s->d] = tile;
    if (a->gn == 0) {
        memset(tile, 0, (size_t)(v->count * dvm_cpu_vt_size(s->vt)));
        return;
    }
    q.p += (!in ? 0 : index < 0 ? index + a->gn : index) * a->gs;
    bool whole = (int64_t)dvm_dtype_size((dvm_dtype)q.o->dtype) == dvm_cpu_vt_size(s->vt);
    if (q.line && whole)
        v->at[s->d] = q.p;
    else
        load(v, &q, s->vt, tile);
}

static void step_out(struct cpu_vm *v, const struct cpu_step *s) {
    v->at[s->d] = v->at[s->a];
    if (!v->in_place) return;
    struct place q = locate(v, s->x);
    if (q.line) v->at[s->d] = q.p;
}

/* Past the caches. 16-bit elements are converted in a tile's worth of stack first. */
static void stream_line(const struct cpu_vm *v, const struct place *q, const char *a) {
    const struct dvm_k_mem *mem = v->code->k->mem;
    int64_t size = (int64_t)dvm_dtype_size((dvm_dtype)q->o->dtype), n = q->rows * q->cols;
    alignas(64) char buffer[2 * DVM_CPU_TILE];
    if (size == 1) {
        mem->store[q->o->dtype](q->p, a, NULL, NULL, n);
        return;
    }
    if (size == 2) {
        mem->store[q->o->dtype](buffer, a, NULL, NULL, n);
        a = buffer;
    }
    mem->stream(q->p, a, n * size);
}

static void step_store(struct cpu_vm *v, const struct cpu_step *s) {
    const struct dvm_k_mem *mem = v->code->k->mem;
    struct place q = locate(v, s->x);
    char *a = v->at[s->a], *p = q.p;
    int64_t step = q.cols * dvm_cpu_vt_size(s->vt);
    if (a == p) return;
    if (q.line && v->args->stream)
        stream_line(v, &q, a);
    else if (q.line)
        mem->store[q.o->dtype](p, a, NULL, NULL, q.rows * q.cols);
    else if (q.o->kind == DVM_OPND_CONTIG)
        for (int64_t r = 0; r < q.rows; r++, p += q.rs, a += step)
            mem->store[q.o->dtype](p, a, NULL, NULL, q.cols);
    else
        for (int64_t r = 0; r < q.rows; r++, p += q.rs, a += step)
            mem->store_str[q.o->dtype](p, q.cs, a, q.cols);
}

void dvm_cpu_memory(struct cpu_vm *v, const struct cpu_step *s) {
    switch (s->kind) {
    case CPU_LOAD: step_load(v, s); break;
    case CPU_DIRECT: step_direct(v, s); break;
    case CPU_IOTA: step_iota(v, s); break;
    case CPU_PICK: step_pick(v, s); break;
    case CPU_SLICE: step_slice(v, s); break;
    case CPU_OUT: step_out(v, s); break;
    case CPU_STORE: step_store(v, s); break;
    default: break;
    }
}

void dvm_cpu_load_slabs(struct cpu_vm *v, int64_t rows, int64_t cols) {
    const struct cpu_code *c = v->code;
    for (int s = 0; s < c->nslab; s++) {
        if (!v->slab[s]) continue;
        const struct dvm_opnd_arg *a = &v->args->opnd[c->slab_opnd[s]];
        const char *p = v->row[c->slab_opnd[s]] + v->j * a->cs;
        c->k->mem->load_block[c->c.strip.opnd[c->slab_opnd[s]].dtype](
            v->slab[s], DVM_CPU_SLAB_PITCH, p, a->rs, a->cs, rows, cols);
    }
}
