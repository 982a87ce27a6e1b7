/* Kernels of kind GEMM (plan.h): binds the factors, reads the list of groups, and gives the engine callbacks that run
 * the plan's strips: those that make a factor while it is packed, and the one that works on finished tiles. Memory is
 * taken before the engine starts, so that threads cannot fail. */
#include "ops/gemm/gemm_kernel.h"

#include <string.h>

#include "base/err.h"
#include "ops/gemm/gemm.h"
#include "vm/pool.h"

static_assert((int)DVM_PANEL_MOST <= (int)DVM_GEMM_TM, "a panel is a tile");

/* What a thread works with. */
struct slot {
    struct dvm_fault *fault; /* one per phase */
    struct dvm_opnd_arg *opnd;
    uint64_t *param;
    void *scratch;
    char *block; /* of the rows at hand */
};

struct job {
    const struct dvm_launch *l;
    const struct dvm_kplan *k;
    char *slots;
    size_t slot_bytes;
    int64_t *ends;
};

static size_t pad(size_t n) { return (n + 63) & ~(size_t)63; }

/* ---- memory ------------------------------------------------------------------------------------- */

static size_t head_size(const struct job *j) {
    return pad(sizeof(struct slot) + j->k->nphase * sizeof(struct dvm_fault));
}

static size_t slot_size(const struct job *j, size_t *opnd, size_t *param, size_t *code) {
    *opnd = *param = *code = 0;
    for (int i = 0; i < j->k->nphase; i++) {
        const struct dvm_phase *f = &j->k->phase[i];
        *opnd = DVM_MAX(*opnd, pad(f->nbind * sizeof(struct dvm_opnd_arg)));
        *param = DVM_MAX(*param, pad(f->nparam * sizeof(uint64_t)));
        *code = DVM_MAX(*code, pad(j->l->plan->code[f->strip]->scratch));
    }
    return head_size(j) + *opnd + *param + *code + pad(j->k->scratch);
}

static struct slot *slot_at(const struct job *j, int thread) {
    return (struct slot *)(void *)(j->slots + (size_t)thread * j->slot_bytes);
}

static void lay_slots(struct job *j, int threads) {
    size_t opnd, param, code;
    j->slot_bytes = slot_size(j, &opnd, &param, &code);
    for (int t = 0; t < threads; t++) {
        struct slot *s = slot_at(j, t);
        char *p = (char *)s + head_size(j);
        memset(s, 0, head_size(j));
        *s = (struct slot){.fault = (struct dvm_fault *)(void *)(s + 1),
                           .opnd = (struct dvm_opnd_arg *)(void *)p,
                           .param = (uint64_t *)(void *)(p + opnd),
                           .scratch = p + opnd + param,
                           .block = p + opnd + param + code};
    }
}

static char *address(const struct job *j, const struct dvm_bind *b) {
    switch (b->src) {
    case DVM_SRC_INPUT: return (char *)((uintptr_t)j->l->in[b->index] + (uintptr_t)b->offset);
    case DVM_SRC_OUTPUT: return (char *)((uintptr_t)j->l->out[b->index] + (uintptr_t)b->offset);
    case DVM_SRC_WS: return (char *)((uintptr_t)j->l->ws + (uintptr_t)b->offset);
    default: return (char *)(uintptr_t)b->offset; /* IOTA: a number */
    }
}

/* ---- strips ------------------------------------------------------------------------------------- */

/* A box of m x n at row row0, column col0 of matrix `batch`; tile operands are at `tile`. Of a phase over vectors the box is one
 * row, as long as there are rows. */
static void run_phase(const struct job *j, int thread, const struct dvm_phase *f, int64_t batch,
                      const int64_t *at, int64_t m, int64_t n, float *tile, int64_t ld) {
    struct slot *s = slot_at(j, thread);
    const bool vec = f->kind == DVM_PHASE_VEC;
    int na = j->k->naxes;
    int64_t outer[DVM_MAX_AXES];
    for (int a = na - 3; a >= 0; a--) {
        outer[a] = batch % j->k->size[a];
        batch /= j->k->size[a];
    }
    for (int o = 0; o < f->nbind; o++) {
        const struct dvm_bind *b = &f->bind[o];
        struct dvm_opnd_arg *p = &s->opnd[o];
        if (b->src == DVM_SRC_TILE) {
            *p = (struct dvm_opnd_arg){.ptr = (char *)tile, .rs = ld * 4, .cs = 4};
            continue;
        }
        const bool local = b->src == DVM_SRC_SCRATCH;
        uintptr_t q = local ? (uintptr_t)s->block + (uintptr_t)b->offset : (uintptr_t)address(j, b);
        for (int a = 0; !local && a < na - 2; a++) q += (uintptr_t)(outer[a] * b->stride[a]);
        for (int a = 0; !local && a < 2; a++) q += (uintptr_t)(at[a] * b->stride[na - 2 + a]);
        *p = (struct dvm_opnd_arg){.ptr = (char *)q,
                                   .rs = vec ? 0 : b->stride[na - 2],
                                   .cs = b->stride[vec ? na - 2 : na - 1],
                                   .gs = b->gs,
                                   .gn = b->gn};
    }
    for (int i = 0; i < f->nparam; i++) s->param[i] = j->l->param[f->param[i]];
    const struct dvm_code *code = j->l->plan->code[f->strip];
    struct dvm_strip_args a = {.opnd = s->opnd,
                               .param = s->param,
                               .m = vec ? 1 : m,
                               .n = vec ? m : n,
                               .pos = vec ? at[0] : 0,
                               .scratch = s->scratch,
                               .fault = &s->fault[f - j->k->phase],
                               .alias = j->l->alias};
    code->run(code, &a);
}

/* Phases of this kind, or of that one. */
static void run_kind(const struct job *j, int kind, int or_kind, int thread, int64_t batch,
                     int64_t row0, int64_t col0, int64_t m, int64_t n, float *tile, int64_t ld) {
    if (j->k->gemm->form == DVM_PRODUCT_ROWS) batch = 0; /* a group is no batch axis here */
    for (int i = 0; i < j->k->nphase; i++)
        if (j->k->phase[i].kind == kind || j->k->phase[i].kind == or_kind)
            run_phase(j, thread, &j->k->phase[i], batch, (int64_t[]){row0, col0}, m, n, tile, ld);
}

static void finish_tile(void *ctx, int thread, int64_t batch, int64_t row0, int64_t col0, int64_t m,
                        int64_t n, float *tile, int64_t ld) {
    run_kind(ctx, DVM_PHASE_FULL, DVM_PHASE_VEC, thread, batch, row0, col0, m, n, tile, ld);
}
static void make_a(void *ctx, int thread, int64_t batch, int64_t row0, int64_t col0, int64_t r,
                   int64_t c, float *dst, int64_t ld) {
    run_kind(ctx, DVM_PHASE_PACK_A, DVM_PHASE_PACK_A, thread, batch, row0, col0, r, c, dst, ld);
}
static void make_b(void *ctx, int thread, int64_t batch, int64_t row0, int64_t col0, int64_t r,
                   int64_t c, float *dst, int64_t ld) {
    run_kind(ctx, DVM_PHASE_PACK_B, DVM_PHASE_PACK_B, thread, batch, row0, col0, r, c, dst, ld);
}

/* ---- the product -------------------------------------------------------------------------------- */

static struct dvm_gemm_mat matrix(const struct job *j, const struct dvm_bind *b, int dtype) {
    struct dvm_gemm_mat m = {.t = (dvm_dtype)dtype};
    int na = j->k->naxes;
    if (b->src == DVM_SRC_NONE) return m;
    m.p = address(j, b);
    m.rs = b->stride[na - 2];
    m.cs = b->stride[na - 1];
    for (int a = 0; a < na - 2; a++) m.bs[a] = b->stride[a];
    if (j->k->gemm->form == DVM_PRODUCT_ROWS) m.bs[0] = b->gs;
    return m;
}

static int phases_of(const struct job *j, int kind) {
    int n = 0;
    for (int i = 0; i < j->k->nphase; i++) n += j->k->phase[i].kind == kind;
    return n;
}

/* Rows that are finished together: 0 where no phase wants whole rows. */
static int64_t panel_of(const struct dvm_kplan *k) {
    bool rows = k->scratch > 0;
    for (int i = 0; i < k->nphase; i++)
        rows |= k->phase[i].kind == DVM_PHASE_VEC || k->phase[i].pass == DVM_MODE_ROW;
    return rows ? k->block : 0;
}

static struct dvm_gemm product(struct job *j) {
    const struct dvm_kplan *k = j->k;
    const struct dvm_gplan *p = k->gemm;
    static const enum dvm_gemm_form form[] = {DVM_GEMM_BATCH, DVM_GEMM_GROUPM, DVM_GEMM_GROUPK};
    struct dvm_gemm g = {.m = k->size[k->naxes - 2],
                         .n = k->size[k->naxes - 1],
                         .k = p->k,
                         .a = matrix(j, &p->a, p->a_dtype),
                         .b = matrix(j, &p->b, p->b_dtype),
                         .lanes = p->lanes,
                         .form = form[p->form],
                         .ctx = j,
                         .epilogue = finish_tile,
                         .panel = panel_of(k)};
    if (phases_of(j, DVM_PHASE_PACK_A)) g.pack_a = make_a;
    if (phases_of(j, DVM_PHASE_PACK_B)) g.pack_b = make_b;
    if (p->form == DVM_PRODUCT_BATCH) {
        g.nbatch = k->naxes - 2;
        memcpy(g.bdim, k->size, (size_t)g.nbatch * sizeof *g.bdim);
    } else {
        g.ngroup = p->list.gn;
    }
    return g;
}

static int64_t list_value(const char *p, int dtype) {
    int64_t v64;
    int32_t v32;
    memcpy(&v64, p, dtype == DVM_I64 ? 8 : 4);
    memcpy(&v32, p, 4);
    return dtype == DVM_I64 ? v64 : v32;
}

/* Ends of the groups: in order, within the rows (the depth). */
static dvm_status read_groups(const struct job *j, const struct dvm_gemm *g) {
    const struct dvm_gplan *p = j->k->gemm;
    int64_t most = p->form == DVM_PRODUCT_ROWS ? g->m : g->k, end = 0;
    const char *at = address(j, &p->list);
    for (int64_t i = 0; i < p->list.gn; i++, at += p->list.gs) {
        int64_t v = list_value(at, p->list_dtype), begin = end;
        bool fits = p->sizes ? v >= 0 && v <= most - begin : v >= begin && v <= most;
        end = p->sizes ? begin + v : v;
        if (!fits) {
            if (j->l->fault_node) *j->l->fault_node = p->list.node;
            DVM_FAIL(INDEX,
                     "group %lld of %lld begins at %lld and has %s %lld, for factors of "
                     "%lld x %lld and %lld x %lld: ends must not decrease nor pass %lld",
                     (long long)i, (long long)p->list.gn, (long long)begin,
                     p->sizes ? "size" : "end", (long long)v, (long long)g->m, (long long)g->k,
                     (long long)g->k, (long long)g->n, (long long)most);
        }
        j->ends[i] = end;
    }
    return DVM_OK;
}

static dvm_status find_fault(const struct job *j, int threads) {
    for (int p = 0; p < j->k->nphase; p++) {
        struct dvm_fault f = {0};
        for (int t = 0; t < threads; t++) {
            const struct dvm_fault *s = &slot_at(j, t)->fault[p];
            if (s->any) dvm_fault_note(&f, s->opnd, s->index, s->gn);
        }
        if (f.any) return dvm_fault_report(j->l, &f, &j->k->phase[p].bind[f.opnd]);
    }
    return DVM_OK;
}

static dvm_status run(struct job *j, const struct dvm_gemm *g, int threads, char *scratch) {
    const struct dvm_gemm_isa *isa = j->l->level;
    if (isa->k)
        DVM_TRY(dvm_gemm_run(g, isa, j->l->pool, j->l->mem, scratch));
    else
        DVM_TRY(dvm_gemm_ref(g, (float *)(void *)scratch));
    return find_fault(j, threads);
}

static dvm_status run_product(struct job *j, struct dvm_gemm *g) {
    const struct dvm_launch *l = j->l;
    const struct dvm_gemm_isa *isa = l->level;
    size_t a, b, c, got;
    if (g->form != DVM_GEMM_BATCH) DVM_TRY(read_groups(j, g));
    g->ends = j->ends;
    g->cores = j->k->cores;
    int threads = isa->k ? dvm_launch_threads(l, j->k->cores) : 1;
    size_t slots = slot_size(j, &a, &b, &c) * (size_t)threads,
           scratch = isa->k ? dvm_gemm_scratch(g, isa, threads) : (size_t)(g->panel ? g->n : 0) * 4;
    j->slots = dvm_pool_take(l->pool, l->mem, slots + scratch, &got);
    if (!j->slots) return DVM_ERR_NOMEM;
    lay_slots(j, threads);
    dvm_status st = run(j, g, threads, j->slots + slots);
    dvm_pool_give(l->pool, l->mem, j->slots, got);
    return st;
}

/* Scratch depends on the groups, so their ends have memory of their own. */
dvm_status dvm_gemm_kernel(const struct dvm_launch *l, uint32_t kernel) {
    enum { FEW = 128 };
    int64_t few[FEW];
    struct job j = {.l = l, .k = &l->plan->kernel[kernel], .ends = few};
    struct dvm_gemm g = product(&j);
    size_t size = (size_t)g.ngroup * sizeof *j.ends;
    if (g.ngroup > FEW && !(j.ends = dvm_mem_new(l->mem, size))) return DVM_ERR_NOMEM;
    dvm_status st = run_product(&j, &g);
    if (j.ends != few) dvm_mem_free(l->mem, j.ends, size);
    return st;
}
