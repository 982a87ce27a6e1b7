/* The loop driver: runs the kernels of a plan in order. A kernel is cut into units (drive.h), the
 * same ones whoever runs them, and the threads of the pool take units until none is left. A kernel
 * of few units is split along its cut axis instead: every FULL phase becomes a loop over units and
 * chunks, chunks being whole subtrees of the reduction, joined by the caller.
 *
 * Cutting never shows in a result: maps are elementwise, a row or column is folded by the tree of its
 * whole length wherever its parts are computed. All memory of a kernel is taken before it starts, so
 * that threads cannot fail. */
#include "vm/drive.h"

#include <stdalign.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "plan/emit.h"
#include "vm/pool.h"

enum {
    PAYS = 512 << 10,       /* additions: below, threads cost more than they bring (threads_for) */
    SMALL = 32 << 10,       /* elements: below, not even a pool that cuts everything is asked */
    GRAIN = 16 << 10,       /* elements of the smallest piece of work */
    LONG_ROW = 64 << 10,    /* elements: rows below are not split */
    STREAM_LEAST = 1 << 18, /* elements: fewer never bypass the cache */
    FAR = 8 << 20,          /* bytes: more are not in the second-level cache */
    STACK = 16 << 10,       /* bytes of scratch that need no block */
    PER_THREAD = 4          /* pieces of work for each thread, to even out */
};

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
static size_t pad(size_t n) { return (n + 63) & ~(size_t)63; }

/* ---- facts of a kernel -------------------------------------------------------------------------- */

static void space_of(const struct dvm_kplan *k, struct dvm_space *s) {
    bool col = k->kind == DVM_MODE_COL;
    int na = k->naxes;
    *s = (struct dvm_space){.k = k, .block_axis = col ? na - 1 : na - 2, .outer = 1, .cut = 1};
    s->nouter = col ? na - 1 - k->nm : na - 2;
    for (int a = 0; a < s->nouter; a++) s->outer *= k->size[a];
    s->len = k->size[s->block_axis];
    if (!col) s->cut = k->size[na - 1];
    for (int a = s->nouter; col && a < na - 1; a++) s->cut *= k->size[a];
}

static void set_units(struct dvm_space *s, int64_t block, int64_t piece) {
    s->block = DVM_MAX(block, 1);
    s->piece = DVM_MAX(piece, 1);
    s->nblock = ceil_div(s->len, s->block);
    s->npiece = s->cut ? ceil_div(s->cut, s->piece) : s->k->kind != DVM_MODE_MAP;
    s->nunit = s->outer * s->nblock * s->npiece;
}

static int64_t count_ins(const struct dvm_launch *l, const struct dvm_kplan *k) {
    int64_t n = 0;
    for (int p = 0; p < k->nphase; p++) n += l->plan->strip[k->phase[p].strip].nins;
    return n;
}

/* Rough cost of an element in additions. */
static int64_t weigh(const struct dvm_launch *l, const struct dvm_kplan *k) {
    int64_t n = 0;
    for (int p = 0; p < k->nphase; p++) {
        const struct dvm_strip *s = &l->plan->strip[k->phase[p].strip];
        for (int i = 0; i < s->nins; i++) n += dvm_plan_cost(s->ins[i].op);
    }
    return DVM_MAX(n, 1);
}

/* Half a million additions take about 10 us on one AVX2 core while the data are in its cache; with 200 000 of them one
 * thread took 3.7 us and two took 4.4, the second one being awake. */
static int threads_for(const struct dvm_launch *l, const struct dvm_space *s) {
    const int threads = dvm_launch_threads(l, s->k->cores);
    const int64_t elements = s->outer * s->len * s->cut, ins = threads > 1 ? count_ins(l, s->k) : 0;
    if (threads == 1 || elements < PAYS / (12 * DVM_MAX(ins, 1))) return 1;
    if (dvm_pool_eager(l->pool)) return elements * (1 + ins / 16) < SMALL ? 1 : threads;
    return elements < PAYS / weigh(l, s->k) ? 1 : threads;
}

/* Elements of the smallest piece. */
static int64_t grain_for(const struct dvm_launch *l, const struct dvm_kplan *k) {
    const bool eager = dvm_pool_eager(l->pool);
    return DVM_MAX(eager ? GRAIN / (1 + count_ins(l, k) / 16) : PAYS / 4 / weigh(l, k), 1024);
}

static bool can_split(const struct dvm_space *s) {
    return s->k->kind != DVM_MODE_MAP && !s->k->whole_rows;
}

/* Units of a MAP kernel: boxes of about `target` elements. */
static void cut_map(struct dvm_space *s, int64_t target) {
    int64_t piece = s->cut;
    if (!s->k->whole_rows && s->cut > 2 * target) piece = ceil_div(target, 1024) * 1024;
    set_units(s, DVM_MIN(s->len, target / DVM_MAX(piece, 1)), piece);
}

/* Units of a ROW or COL kernel: blocks as planned, smaller when there would be too few. Columns are
 * narrowed only where there are no rows to split, and never below a few cache lines: a narrow block
 * of a wide matrix is read in pieces that no prefetcher likes. */
static void cut_blocks(struct dvm_space *s, int threads) {
    bool col = s->k->kind == DVM_MODE_COL;
    int64_t narrow = col ? 256 : 1, block = s->k->block;
    int64_t want = ceil_div(s->outer * s->len, (int64_t)threads * PER_THREAD);
    want = DVM_MAX(ceil_div(want, narrow) * narrow, 1);
    bool keep = threads == 1 || (col && can_split(s) && s->cut > 2 * DVM_TREE_ROWS);
    set_units(s, keep ? block : DVM_MIN(block, want), s->cut);
}

/* Too few units for the threads and a long cut axis: chunks of 2^k tree blocks. A row kernel is left
 * alone when it has one unit for each thread, because its phases find the row in the cache. */
static bool cut_chunks(struct dvm_job *j, int threads, int64_t grain) {
    const struct dvm_space *s = &j->s;
    bool row = s->k->kind == DVM_MODE_ROW;
    int64_t pieces = (int64_t)threads * PER_THREAD, width = DVM_MIN(s->block, s->len);
    if (!can_split(s) || s->nunit >= (row ? threads : pieces)) return false;
    if ((row ? s->cut : s->cut * width) < LONG_ROW) return false;
    j->chunk = row ? DVM_TREE_BLOCK : DVM_TREE_ROWS;
    while (j->chunk < s->cut &&
           (j->chunk * width < grain || s->nunit * ceil_div(s->cut, j->chunk) > pieces))
        j->chunk *= 2;
    j->nchunk = ceil_div(s->cut, j->chunk);
    return j->nchunk > 1;
}

/* Decides units; returns whether the kernel is split. */
static bool partition(struct dvm_job *j, int threads) {
    struct dvm_space *s = &j->s;
    int64_t elements = s->outer * s->len * s->cut;
    int64_t grain = threads > 1 ? grain_for(j->l, s->k) : GRAIN;
    if (s->k->kind != DVM_MODE_MAP)
        cut_blocks(s, threads);
    else if (threads == 1)
        set_units(s, s->len, s->cut);
    else
        cut_map(s, DVM_MAX(grain, DVM_MIN(elements / (threads * 8), 8 * grain)));
    j->nslot = 1;
    j->group = DVM_MAX(s->nunit, 1);
    if (threads == 1) return false;
    if (cut_chunks(j, threads, grain)) {
        j->nslot = (int)DVM_MIN(threads, s->nunit * j->nchunk);
        return true;
    }
    int64_t unit = DVM_MAX(DVM_MIN(s->block, s->len) * DVM_MIN(s->piece, s->cut), 1);
    j->group = ceil_div(grain, unit);
    j->nslot = (int)DVM_MAX(DVM_MIN(threads, ceil_div(s->nunit, j->group)), 1);
    return false;
}

/* ---- memory ------------------------------------------------------------------------------------- */

struct needs {
    int nopnd, all_opnds, all_params, nfold, all_folds; /* of a phase, of all */
    size_t code, part; /* code scratch; a vector of each fold of a phase */
};

static int find_folds(const struct dvm_strip *s, struct dvm_fold *out) {
    int n = 0;
    for (int i = 0; i < s->nins; i++) {
        const struct dvm_ins *ins = &s->ins[i];
        if (ins->op != DVM_BC_FOLD) continue;
        bool arg = ins->b == DVM_OP_ARGMAX || ins->b == DVM_OP_ARGMIN;
        out[n++] = (struct dvm_fold){(uint8_t)ins->b, ins->type, arg, ins->c};
    }
    return n;
}

/* Folds of the phases are looked at only where the driver joins parts. */
static bool joins(const struct dvm_job *j) { return j->s.k->kind == DVM_MODE_COL || j->nchunk > 1; }

static struct needs needs_of(const struct dvm_job *j) {
    struct needs n = {0};
    const struct dvm_plan *plan = j->l->plan;
    for (int p = 0; p < j->s.k->nphase; p++) {
        const struct dvm_phase *f = &j->s.k->phase[p];
        n.nopnd = DVM_MAX(n.nopnd, f->nbind);
        n.all_opnds += f->nbind;
        n.all_params += f->nparam;
        n.code = DVM_MAX(n.code, plan->code[f->strip]->scratch);
        if (!joins(j) || f->pass == DVM_MODE_MAP) continue;
        struct dvm_fold fold[DVM_STRIP_MAX_OPND];
        int nfold = find_folds(&plan->strip[f->strip], fold);
        size_t part = 0;
        for (int i = 0; i < nfold; i++) part += dvm_vec_bytes(&fold[i], j->s.block);
        n.nfold = DVM_MAX(n.nfold, nfold);
        n.all_folds += nfold;
        n.part = DVM_MAX(n.part, part);
    }
    return n;
}

/* Units whose phases run over all of them before the next phase: small column kernels of several phases, whose code goes
 * from box to box by itself. Sums over 16 rows of 64 columns, rounded in a second phase, took a call of each for 2 KiB. */
static int64_t batch_of(const struct dvm_job *j) {
    enum { MOST = 64, BYTES = 32 << 10 };
    const struct dvm_kplan *k = j->s.k;
    if (k->kind != DVM_MODE_COL || k->nphase < 2 || k->whole_rows || j->nchunk > 1) return 1;
    for (int p = 0; p < k->nphase; p++) {
        const struct dvm_phase *f = &k->phase[p];
        bool fold = f->pass == DVM_MODE_COL && j->l->plan->code[f->strip]->boxes;
        if (f->kind != DVM_PHASE_VEC && !fold) return 1;
    }
    return DVM_MAX(DVM_MIN(MOST, BYTES / DVM_MAX(dvm_scratch_step(k), 64)), 1);
}

/* Vectors per fold while a column block is folded: the levels of its counter, the group being folded
 * and a row of it. */
static int count_vectors(const struct dvm_job *j) {
    int n = 1 + DVM_TOGETHER;
    for (int64_t groups = ceil_div(j->s.cut, DVM_TREE_ROWS); groups > 0; groups /= 2) n++;
    return DVM_MIN(n, (int)DVM_VTREE_LEVELS);
}

/* Hands out parts of a block, or only measures when there is none. */
static char *carve(char *base, size_t *at, size_t size) {
    char *p = base ? base + *at : NULL;
    *at += pad(size);
    return p;
}

static size_t lay_slot(const struct dvm_job *j, const struct needs *n, char *base) {
    size_t at = 0;
    struct dvm_slot *s = (struct dvm_slot *)carve(base, &at, sizeof *s), measure;
    if (!base) s = &measure;
    s->fault = (struct dvm_fault *)carve(base, &at, j->s.k->nphase * sizeof *s->fault);
    if (base) memset(s->fault, 0, j->s.k->nphase * sizeof *s->fault);
    size_t opnds = (size_t)DVM_MAX((1 + DVM_TOGETHER) * n->nopnd, n->all_opnds);
    s->opnd = (struct dvm_opnd_arg *)carve(base, &at, opnds * sizeof *s->opnd);
    s->box = base ? s->opnd + n->nopnd : NULL;
    s->param = (uint64_t *)carve(base, &at, (size_t)n->all_params * sizeof *s->param);
    s->code_scratch = carve(base, &at, n->code);
    size_t buffers = (size_t)(dvm_scratch_step(j->s.k) * DVM_MAX(j->batch, 1));
    s->scratch = carve(base, &at, j->nchunk > 1 ? 0 : buffers);
    s->tree = (struct dvm_vtree *)carve(base, &at, (size_t)n->nfold * sizeof *s->tree);
    s->vec = carve(base, &at, n->part * (size_t)j->nvec);
    return at;
}

static size_t lay_job(struct dvm_job *j, const struct needs *n, char *base,
                      struct dvm_fold **folds) {
    size_t at = 0;
    j->info = (struct dvm_pinfo *)carve(base, &at, j->s.k->nphase * sizeof *j->info);
    *folds = (struct dvm_fold *)carve(base, &at, (size_t)n->all_folds * sizeof **folds);
    j->part_bytes = n->part;
    j->scratch_bytes = pad(j->s.k->scratch);
    if (j->nchunk > 1) {
        j->part = carve(base, &at, (size_t)(j->s.nunit * j->nchunk) * j->part_bytes);
        j->scratch = carve(base, &at, (size_t)j->s.nunit * j->scratch_bytes);
    }
    j->slot_bytes = lay_slot(j, n, NULL);
    j->slots = carve(base, &at, (size_t)j->nslot * j->slot_bytes);
    for (int i = 0; base && i < j->nslot; i++) lay_slot(j, n, j->slots + (size_t)i * j->slot_bytes);
    return at;
}

static struct dvm_slot *slot(const struct dvm_job *j, int i) {
    return (struct dvm_slot *)(j->slots + (size_t)i * j->slot_bytes);
}

/* Half of the last-level cache: what is written beyond will not be read from it. Virtual machines report the
 * whole host's cache, of which one process gets a part: no more than 64 MiB is believed. */
static int64_t stream_bytes(void) {
    static atomic_llong known;
    int64_t n = atomic_load_explicit(&known, memory_order_relaxed);
    if (n) return n;
#ifdef _SC_LEVEL3_CACHE_SIZE
    n = sysconf(_SC_LEVEL3_CACHE_SIZE);
#endif
    n = (n > 0 ? DVM_MIN(n, (int64_t)64 << 20) : (int64_t)32 << 20) / 2;
    atomic_store_explicit(&known, n, memory_order_relaxed);
    return n;
}

static int64_t elements_of(const struct dvm_job *j) { return j->s.outer * j->s.len * j->s.cut; }

/* Whether the tensors that a phase writes are larger than the cache, and nothing it writes is
 * block-local. */
static bool streams(const struct dvm_job *j, const struct dvm_phase *p, const struct dvm_strip *s) {
    int64_t elements = elements_of(j), bytes = 0;
    if (p->kind == DVM_PHASE_VEC || elements < STREAM_LEAST) return false;
    for (int o = 0; o < p->nbind; o++) {
        if (s->opnd[o].role != DVM_ROLE_STORE) continue;
        if (p->bind[o].src == DVM_SRC_SCRATCH) return false;
        bytes += elements * (int64_t)dvm_dtype_size((dvm_dtype)s->opnd[o].dtype);
    }
    return bytes > stream_bytes();
}

static bool is_far(const struct dvm_job *j, const struct dvm_phase *p, const struct dvm_strip *s) {
    int64_t elements = elements_of(j), bytes = 0;
    if (p->kind == DVM_PHASE_VEC || elements < STREAM_LEAST) return false;
    for (int o = 0; o < p->nbind; o++)
        if (s->opnd[o].role == DVM_ROLE_LOAD && s->opnd[o].kind == DVM_OPND_CONTIG &&
            p->bind[o].src != DVM_SRC_SCRATCH)
            bytes += elements * (int64_t)dvm_dtype_size((dvm_dtype)s->opnd[o].dtype);
    return bytes > FAR;
}

/* The last of several phases over rows: what the first one will read of the next block can be on its way, where there is
 * work enough to hide it. 64 MiB on a busy machine: layer norm f32 took 0.91 of the time, bf16 0.9, RMS norm bf16 0.9; RMS
 * norm f32, two passes of little work, 1.1. */
static bool reads_next(const struct dvm_job *j, int phase) {
    const struct dvm_kplan *k = j->s.k;
    const struct dvm_phase *f = &k->phase[phase];
    const struct dvm_strip *s = &j->l->plan->strip[f->strip];
    const int asked = j->l->plan->code[f->strip]->asked;
    int passes = 0;
    if (k->kind != DVM_MODE_ROW || phase == 0 || phase != k->nphase - 1 || j->nslot > 1)
        return false;
    if (f->pass != DVM_MODE_MAP || asked < 0 || f->bind[asked].src == DVM_SRC_SCRATCH) return false;
    for (int p = 0; p < k->nphase; p++) passes += k->phase[p].kind != DVM_PHASE_VEC;
    return passes > 2 || (passes == 2 && dvm_dtype_size((dvm_dtype)s->opnd[asked].dtype) == 2);
}

static void fill_info(struct dvm_job *j, struct dvm_fold *folds) {
    const struct dvm_plan *plan = j->l->plan;
    for (int p = 0; p < j->s.k->nphase; p++) {
        const struct dvm_phase *f = &j->s.k->phase[p];
        const struct dvm_strip *s = &plan->strip[f->strip];
        struct dvm_pinfo *i = &j->info[p];
        *i = (struct dvm_pinfo){.p = f, .strip = s, .code = plan->code[f->strip], .fold = folds};
        i->stream = streams(j, f, s);
        i->far = is_far(j, f, s);
        i->next = reads_next(j, p);
        if (joins(j) && f->pass != DVM_MODE_MAP) i->nfold = find_folds(s, folds);
        folds += i->nfold;
    }
}

/* ---- running ------------------------------------------------------------------------------------ */

static void run_units(const struct dvm_job *j, struct dvm_slot *s, int64_t from, int64_t to) {
    struct dvm_unit u;
    if (to - from > 1 && dvm_unit_is_box(j)) {
        dvm_unit_boxes(j, s, from, to);
        return;
    }
    for (int64_t i = from; i < to; i++) {
        dvm_unit_at(j, i, &u);
        u.scratch = s->scratch;
        for (int p = 0; p < j->s.k->nphase; p++) {
            if (j->info[p].p->kind == DVM_PHASE_VEC)
                dvm_unit_vec(j, s, &j->info[p], &u);
            else
                dvm_unit_full(j, s, &j->info[p], &u, NULL);
        }
    }
}

static void take_units(void *arg, int i) {
    struct dvm_job *j = arg;
    for (;;) {
        int64_t from = atomic_fetch_add_explicit(&j->next, j->group, memory_order_relaxed);
        if (from >= j->s.nunit) return;
        run_units(j, slot(j, i), from, DVM_MIN(from + j->group, j->s.nunit));
    }
}

static void split_unit(const struct dvm_job *j, int64_t index, struct dvm_unit *u) {
    dvm_unit_at(j, index, u);
    u->scratch = j->scratch + (size_t)index * j->scratch_bytes;
}

static char *split_part(const struct dvm_job *j, int64_t unit, int64_t chunk) {
    return j->part + (size_t)(unit * j->nchunk + chunk) * j->part_bytes;
}

static void take_chunks(void *arg, int i) {
    struct dvm_job *j = arg;
    const struct dvm_pinfo *f = &j->info[j->phase];
    struct dvm_unit u;
    for (;;) {
        int64_t at = atomic_fetch_add_explicit(&j->next, 1, memory_order_relaxed);
        if (at >= j->s.nunit * j->nchunk) return;
        int64_t unit = at / j->nchunk, chunk = at % j->nchunk;
        split_unit(j, unit, &u);
        u.lo = chunk * j->chunk;
        u.hi = DVM_MIN(u.lo + j->chunk, j->s.cut);
        dvm_unit_full(j, slot(j, i), f, &u, f->nfold ? split_part(j, unit, chunk) : NULL);
    }
}

static void split_phase(struct dvm_job *j) {
    const struct dvm_pinfo *f = &j->info[j->phase];
    bool vec = f->p->kind == DVM_PHASE_VEC;
    struct dvm_unit u;
    if (!vec) {
        atomic_store_explicit(&j->next, 0, memory_order_relaxed);
        dvm_pool_run(j->l->pool, j->nslot, take_chunks, j);
        if (!f->nfold) return;
    }
    for (int64_t i = 0; i < j->s.nunit; i++) {
        split_unit(j, i, &u);
        if (vec)
            dvm_unit_vec(j, slot(j, 0), f, &u);
        else
            dvm_unit_join(j, slot(j, 0), f, &u, split_part(j, i, 0));
    }
}

/* Of the first phase that has one. */
static bool find_fault(const struct dvm_job *j, struct dvm_fault *f, const struct dvm_bind **bind) {
    for (int p = 0; p < j->s.k->nphase; p++) {
        for (int i = 0; i < j->nslot; i++) {
            const struct dvm_fault *s = &slot(j, i)->fault[p];
            if (s->any) dvm_fault_note(f, s->opnd, s->index, s->gn);
        }
        if (!f->any) continue;
        *bind = &j->s.k->phase[p].bind[f->opnd];
        return true;
    }
    return false;
}

dvm_status dvm_fault_report(const struct dvm_launch *l, const struct dvm_fault *f,
                            const struct dvm_bind *b) {
    char what[32] = "a computed value";
    if (b->src == DVM_SRC_INPUT) snprintf(what, sizeof what, "input %u", b->index);
    if (l->fault_node) *l->fault_node = b->node;
    if (f->gn == 0)
        DVM_FAIL(INDEX, "index %lld is out of range: the gathered axis of %s has no elements",
                 (long long)f->index, what);
    DVM_FAIL(INDEX,
             "index %lld is out of range: the gathered axis of %s has %lld element%s, so %lld to "
             "%lld are allowed",
             (long long)f->index, what, (long long)f->gn, f->gn == 1 ? "" : "s", (long long)-f->gn,
             (long long)f->gn - 1);
}

static void run_job(struct dvm_job *j) {
    if (j->nchunk > 1)
        for (; j->phase < j->s.k->nphase; j->phase++) split_phase(j);
    else if (j->nslot == 1)
        run_units(j, slot(j, 0), 0, j->s.nunit);
    else
        dvm_pool_run(j->l->pool, j->nslot, take_units, j);
}

/* ---- a small kernel: one unit, nothing to lay out ------------------------------------------------- */

enum { WHOLE_PHASES = 4, WHOLE_OPNDS = 24, WHOLE_PARAMS = 16, WHOLE_BYTES = 8 << 10 };

static bool is_whole(const struct dvm_launch *l, const struct dvm_space *s) {
    const struct dvm_kplan *k = s->k;
    bool one = k->kind == DVM_MODE_MAP || (k->kind == DVM_MODE_ROW && s->len <= k->block);
    if (!one || s->nouter || k->nphase > WHOLE_PHASES || s->len * s->cut >= STREAM_LEAST)
        return false;
    for (int p = 0; p < k->nphase; p++) {
        const struct dvm_phase *f = &k->phase[p];
        if (f->nbind > WHOLE_OPNDS || f->nparam > WHOLE_PARAMS ||
            pad(k->scratch) + l->plan->code[f->strip]->scratch > WHOLE_BYTES)
            return false;
    }
    return s->cut > 0;
}

static dvm_status run_whole(const struct dvm_launch *l, const struct dvm_space *s) {
    alignas(64) char scratch[WHOLE_BYTES];
    struct dvm_opnd_arg opnd[WHOLE_OPNDS];
    uint64_t param[WHOLE_PARAMS];
    struct dvm_fault fault[WHOLE_PHASES];
    struct dvm_pinfo info[WHOLE_PHASES];
    const struct dvm_kplan *k = s->k;
    struct dvm_slot slot = {.fault = fault,
                            .opnd = opnd,
                            .param = param,
                            .scratch = scratch,
                            .code_scratch = scratch + pad(k->scratch)};
    struct dvm_unit u;
    struct dvm_job j;
    j.l = l;
    j.s = *s;
    j.s.block = s->len;
    j.info = info;
    u.start = u.lo = 0;
    u.count = s->len;
    u.hi = s->cut;
    u.scratch = scratch;
    for (int p = 0; p < k->nphase; p++) {
        const struct dvm_phase *f = &k->phase[p];
        fault[p] = (struct dvm_fault){0};
        info[p] = (struct dvm_pinfo){
            .p = f, .strip = &l->plan->strip[f->strip], .code = l->plan->code[f->strip]};
        if (f->kind == DVM_PHASE_VEC)
            dvm_unit_vec(&j, &slot, &info[p], &u);
        else
            dvm_unit_full(&j, &slot, &info[p], &u, NULL);
    }
    for (int p = 0; p < k->nphase; p++)
        if (fault[p].any) return dvm_fault_report(l, &fault[p], &k->phase[p].bind[fault[p].opnd]);
    return DVM_OK;
}

static dvm_status run_cut(const struct dvm_launch *l, const struct dvm_space *s, int threads) {
    alignas(64) char small[STACK];
    struct dvm_job j = {.l = l, .s = *s};
    if (!partition(&j, threads)) j.nchunk = 0;
    if (j.s.nunit == 0) return DVM_OK;
    j.nvec = j.s.k->kind == DVM_MODE_COL ? count_vectors(&j) : 0;
    j.batch = batch_of(&j);
    struct needs n = needs_of(&j);
    struct dvm_fold *folds;
    size_t size = lay_job(&j, &n, NULL, &folds), got = 0;
    char *block = small;
    if (size > STACK) block = dvm_pool_take(l->pool, l->mem, size, &got);
    if (!block) return DVM_ERR_NOMEM;
    lay_job(&j, &n, block, &folds);
    fill_info(&j, folds);
    run_job(&j);
    struct dvm_fault fault = {0};
    const struct dvm_bind *at;
    bool failed = find_fault(&j, &fault, &at);
    if (got) dvm_pool_give(l->pool, l->mem, block, got);
    return failed ? dvm_fault_report(l, &fault, at) : DVM_OK;
}

static dvm_status run_kernel(const struct dvm_launch *l, uint32_t index) {
    struct dvm_space s;
    space_of(&l->plan->kernel[index], &s);
    if (s.outer == 0 || s.len == 0) return DVM_OK;
    const int threads = threads_for(l, &s);
    return threads == 1 && is_whole(l, &s) ? run_whole(l, &s) : run_cut(l, &s, threads);
}

dvm_status dvm_drive(const struct dvm_launch *l) {
    for (uint32_t i = 0; i < l->plan->nkernel; i++) {
        bool product = l->plan->kernel[i].kind == DVM_KIND_GEMM;
        if (product && !l->product)
            DVM_FAIL(UNSUPPORTED, "kernel %u is a product, and this launch has none", i);
        DVM_TRY(product ? l->product(l, i) : run_kernel(l, i));
    }
    return DVM_OK;
}
