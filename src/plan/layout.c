/* The finished plan in one block: block sizes and scratch, operand kinds, strips without repetition, workspace by
 * lifetime. */
#include <string.h>

#include "code/strip_text.h"
#include "plan/plan_int.h"

static struct sb *sb_at(const struct group *g, int i) {
    return i & 1 ? g->vecs[i / 2] : g->full[i / 2];
}

static bool live(const struct sb *b) {
    for (uint32_t i = 0; b && i < b->ins.n; i++)
        if (b->ins.p[i].op == DVM_BC_STORE || b->ins.p[i].op == DVM_BC_FOLD) return true;
    return false;
}

static int64_t esize(const struct popnd *o) {
    return (int64_t)dvm_dtype_size((dvm_dtype)o->desc.dtype);
}

/* ---- blocks and scratch ------------------------------------------------------------------------------- */

static int64_t block_size(const struct group *g, size_t cache) {
    int64_t bytes = 0, passes = 0;
    for (int i = 0; i < g->npass; i++) {
        if (!live(g->full[i])) continue;
        passes++;
        for (uint32_t k = 0; k < g->full[i]->opnd.n; k++) bytes += esize(&g->full[i]->opnd.p[k]);
    }
    bytes = DVM_MAX(bytes, 4);
    int64_t room = (int64_t)cache / (passes > 1 ? 4 : 2), n = g->ax[g->naxes - 1].size, b;
    if (g->kind == DVM_MODE_ROW) {
        /* what passes read again is counted for each of them, so this is about half of the cache; fewer rows are
         * too few for reading by turns: norms of 64 MiB took 1.1 to 1.6 times as long with a quarter of it */
        if (passes > 1) room = (int64_t)cache;
        b = room / (bytes * DVM_MAX(n, 1));
        b = DVM_MIN(DVM_MAX(b, 1), 512);
        return DVM_MIN(b, DVM_MAX(g->ax[g->naxes - 2].size, 1));
    }
    if (g->kind != DVM_MODE_COL) return 1;
    int64_t rows = 1;
    for (int a = g->naxes - 1 - g->nm; a < g->naxes - 1; a++) rows *= g->ax[a].size;
    b = passes > 1 ? room / (bytes * DVM_MAX(rows, 1)) : 1024;
    b = DVM_MIN(DVM_MAX(b / 64 * 64, 64), 1024);
    return DVM_MIN(b, DVM_MAX(n, 1));
}

static size_t lay_scratch(struct group *g, int64_t block) {
    int64_t at = 0;
    for (uint32_t i = 0; i < g->vec.n; i++) {
        struct rowvec *r = &g->vec.p[i];
        if (r->gone) continue;
        r->offset = at;
        int64_t each =
            (int64_t)dvm_dtype_size((dvm_dtype)r->dtype) * (r->kept ? g->ax[g->naxes - 1].size : 1);
        at += (each * block + 63) / 64 * 64;
    }
    return (size_t)at;
}

/* ---- operands ------------------------------------------------------------------------------------------ */

static void scratch_strides(const struct group *g, struct popnd *o) {
    const struct rowvec *r = &g->vec.p[o->vec];
    int64_t es = esize(o), n = g->ax[g->naxes - 1].size;
    memset(o->stride, 0, sizeof o->stride);
    o->offset = r->offset;
    if (g->kind == DVM_MODE_COL) {
        o->stride[g->naxes - 1] = es;
        return;
    }
    o->stride[g->naxes - 2] = r->kept ? n * es : es;
    o->stride[g->naxes - 1] = r->kept ? es : 0;
}

static uint8_t opnd_kind(const struct group *g, const struct popnd *o, bool vec) {
    int col = vec && g->kind == DVM_MODE_ROW ? g->naxes - 2 : g->naxes - 1;
    int64_t cs = o->stride[col];
    bool iota = o->desc.role == DVM_ROLE_IOTA,
         out = o->desc.role == DVM_ROLE_STORE || o->desc.role == DVM_ROLE_FOLD;
    if (o->desc.role == DVM_ROLE_FOLD)
        return g->kind == DVM_MODE_COL ? DVM_OPND_CONTIG : DVM_OPND_ROW;
    if (!iota && (cs == esize(o) || (out && g->ax[col].size <= 1))) return DVM_OPND_CONTIG;
    if (cs != 0) return DVM_OPND_STRIDED;
    for (int a = 0; a < g->naxes; a++)
        if (o->stride[a] != 0) return DVM_OPND_ROW;
    return DVM_OPND_UNIF;
}

/* A size-1 column axis has no step of its own: give outputs one that fits their kind. */
static void fix_single(const struct group *g, struct popnd *o, bool vec) {
    int col = vec && g->kind == DVM_MODE_ROW ? g->naxes - 2 : g->naxes - 1;
    if (o->desc.role == DVM_ROLE_STORE && g->ax[col].size <= 1) o->stride[col] = esize(o);
}

static int64_t traffic(const struct group *g, const struct popnd *o) {
    if (o->src == DVM_SRC_SCRATCH || o->src == DVM_SRC_NONE || o->src == DVM_SRC_TILE) return 0;
    int64_t n = esize(o);
    for (int a = 0; a < g->naxes; a++)
        if (o->stride[a] != 0) n *= g->ax[a].size;
    return n;
}

/* ---- workspace ------------------------------------------------------------------------------------------ */

/* Buffers placed so far that a later one may meet, by offset. */
struct placed_buffers {
    uint32_t *at, n;
};

/* The lowest place for b; where it goes in the list. */
static uint32_t first_fit(const struct planner *p, const struct placed_buffers *l,
                          struct buffer *b) {
    uint32_t k = 0;
    b->offset = 0;
    for (; k < l->n; k++) {
        const struct buffer *c = &p->buffer.p[l->at[k]];
        if (c->first > b->last || b->first > c->last) continue;
        if (c->offset >= b->offset + b->bytes) break;
        b->offset = DVM_MAX(b->offset, c->offset + c->bytes);
    }
    for (k = l->n; k > 0 && p->buffer.p[l->at[k - 1]].offset > b->offset; k--) {}
    return k;
}

/* Leaves out what ends before `from`. */
static void drop_ended(const struct planner *p, struct placed_buffers *l, int32_t from) {
    uint32_t n = 0;
    for (uint32_t k = 0; k < l->n; k++)
        if (p->buffer.p[l->at[k]].last >= from) l->at[n++] = l->at[k];
    l->n = n;
}

/* In the order in which they were made, which is nearly that of the kernels; -1: out of memory. */
static int64_t lay_workspace(struct planner *p) {
    int64_t top = 0;
    struct placed_buffers l = {dvm_arena_raw(p->a, (p->buffer.n + 1) * sizeof *l.at), 0};
    int32_t *from = dvm_arena_raw(p->a, (p->buffer.n + 1) * sizeof *from), ended = 0;
    if (!l.at || !from) return -1;
    from[p->buffer.n] = INT32_MAX; /* the first kernel of this buffer or a later one */
    for (uint32_t i = p->buffer.n; i-- > 0;) from[i] = DVM_MIN(from[i + 1], p->buffer.p[i].first);
    for (uint32_t i = 0; i < p->buffer.n; i++) {
        struct buffer *b = &p->buffer.p[i];
        if (b->src != DVM_SRC_WS) continue;
        b->bytes = (b->bytes + 63) / 64 * 64;
        b->last = DVM_MAX(b->last, b->first);
        if (from[i] > ended) drop_ended(p, &l, ended = from[i]);
        const uint32_t k = first_fit(p, &l, b);
        memmove(&l.at[k + 1], &l.at[k], (l.n++ - k) * sizeof *l.at);
        l.at[k] = i;
        top = DVM_MAX(top, b->offset + b->bytes);
    }
    return top;
}

/* ---- the block -------------------------------------------------------------------------------------------- */

struct bump {
    char *p, *end;
};
static void *take(struct bump *b, size_t n) {
    void *r = b->p;
    b->p += (n + 15) & ~(size_t)15;
    return r;
}

static size_t measure_strip(const struct sb *b) {
    size_t n = sizeof(struct dvm_phase) + sizeof(struct dvm_strip) + sizeof(void *) + 128;
    n += b->opnd.n * (sizeof(struct dvm_bind) + sizeof(struct dvm_opnd)) +
         b->ins.n * sizeof(struct dvm_ins);
    return n + b->lit.n * sizeof(uint64_t) + b->param.n * sizeof(uint16_t);
}

static size_t measure(const struct planner *p) {
    size_t n = sizeof(struct dvm_plan) + 1024;
    n += p->group.n * sizeof(struct dvm_kplan) + p->param.n * sizeof(struct dvm_pparam);
    n += (size_t)(p->g->n_in + p->g->n_out) * sizeof(struct dvm_plan_arg);
    for (uint32_t i = 0; i < p->group.n; i++) {
        const struct group *g = p->group.p[i];
        for (int k = 0; k < 2 * g->npass; k++) {
            const struct sb *b = sb_at(g, k);
            if (live(b)) n += measure_strip(b);
        }
        if (g->gemm) n += sizeof(struct dvm_gplan) + 16;
        for (int k = 0; k < 3; k++)
            if (g->side[k]) n += measure_strip(g->side[k]->full[0]);
    }
    return n;
}

static uint32_t add_strip(struct dvm_plan *pl, struct bump *bm, const struct sb *b, bool scan) {
    struct dvm_strip s = {.nins = (uint16_t)b->ins.n,
                          .nopnd = (uint16_t)b->opnd.n,
                          .nlit = (uint16_t)b->lit.n,
                          .nparam = (uint16_t)b->param.n,
                          .mode = DVM_MODE_MAP};
    struct dvm_opnd *od = take(bm, b->opnd.n * sizeof *od);
    struct dvm_ins *in = take(bm, b->ins.n * sizeof *in);
    uint64_t *lit = take(bm, b->lit.n * sizeof *lit);
    for (uint32_t i = 0; i < b->opnd.n; i++) od[i] = b->opnd.p[i].desc;
    memcpy(in, b->ins.p, b->ins.n * sizeof *in);
    if (b->lit.n) memcpy(lit, b->lit.p, b->lit.n * sizeof *lit);
    for (uint32_t i = 0; i < b->ins.n; i++)
        if (in[i].op == DVM_BC_FOLD) s.mode = b->g->kind;
    s.flags = scan && !b->vec ? DVM_STRIP_WHOLE_ROWS : 0;
    s.opnd = od;
    s.ins = in;
    s.lit = lit;
    s.hash = dvm_strip_hash(&s);
    struct dvm_strip *all = (struct dvm_strip *)(uintptr_t)pl->strip;
    for (uint32_t i = 0; i < pl->nstrip; i++)
        if (dvm_strip_same(&all[i], &s)) return i;
    all[pl->nstrip] = s;
    return pl->nstrip++;
}

static void bind_opnd(const struct planner *p, const struct popnd *o, int naxes,
                      struct dvm_bind *bd) {
    bd->src = o->src;
    bd->index = o->index;
    bd->offset = o->offset;
    if (o->buffer >= 0 && o->src == DVM_SRC_WS) bd->offset += p->buffer.p[o->buffer].offset;
    for (int a = 0; a < naxes; a++) bd->stride[a] = o->stride[a];
    bd->gs = o->gs;
    bd->gn = o->gn;
    bd->node = o->gref;
}

static void add_phase(struct planner *p, struct dvm_plan *pl, struct bump *bm, struct sb *b,
                      struct dvm_kplan *k, struct dvm_phase *ph) {
    const struct group *g = b->g;
    struct dvm_bind *bd = take(bm, b->opnd.n * sizeof *bd);
    uint16_t *par = take(bm, b->param.n * sizeof *par);
    for (uint32_t i = 0; i < b->opnd.n; i++) {
        struct popnd *o = &b->opnd.p[i];
        if (o->src == DVM_SRC_SCRATCH) scratch_strides(g, o);
        o->desc.kind = opnd_kind(g, o, b->vec);
        fix_single(g, o, b->vec);
        bind_opnd(p, o, g->naxes, &bd[i]);
        k->bytes += traffic(g, o);
    }
    if (b->param.n) memcpy(par, b->param.p, b->param.n * sizeof *par);
    *ph = (struct dvm_phase){.kind = b->vec ? DVM_PHASE_VEC : DVM_PHASE_FULL,
                             .nbind = (uint16_t)b->opnd.n,
                             .nparam = (uint16_t)b->param.n,
                             .bind = bd,
                             .param = par};
    ph->strip = add_strip(pl, bm, b, g->scan);
    ph->pass = pl->strip[ph->strip].mode;
    pl->ninstructions += b->ins.n;
}

/* The factor, or the phase that makes it. */
static void add_factor(struct planner *p, struct dvm_plan *pl, struct bump *bm, struct group *side,
                       struct dvm_kplan *k, struct dvm_phase *ph, struct dvm_bind *bd,
                       uint8_t *dtype) {
    *bd = (struct dvm_bind){.src = DVM_SRC_NONE};
    *dtype = DVM_F32;
    if (!side) return;
    struct sb *b = side->full[0];
    if (live(b)) {
        add_phase(p, pl, bm, b, k, &ph[k->nphase++]);
        return;
    }
    const struct popnd *o = &b->opnd.p[0];
    *dtype = o->desc.dtype;
    bind_opnd(p, o, side->naxes, bd);
    k->bytes += traffic(side, o);
}

/* The first axis of a side that is counted, not walked: groups. */
static void count_groups(struct dvm_bind *bd, const struct group *side) {
    bd->gs = bd->stride[0];
    bd->gn = side->ax[0].size;
    memmove(bd->stride, bd->stride + 1, sizeof bd->stride - sizeof bd->stride[0]);
    bd->stride[DVM_MAX_AXES - 1] = 0;
}

static void add_product(struct planner *p, struct dvm_plan *pl, struct bump *bm, struct group *g,
                        struct dvm_kplan *k, struct dvm_phase *ph) {
    const struct pnode *x = &p->node.p[g->gemm];
    struct dvm_gplan *m = take(bm, sizeof *m);
    bool grouped = x->op == DVM_OP_GROUPED;
    *m = (struct dvm_gplan){
        .form = DVM_PRODUCT_BATCH, .k = dvm_plan_depth(p, g), .lanes = dvm_plan_in_lanes(p, g)};
    if (grouped) m->form = x->at[2] == DVM_GROUP_M ? DVM_PRODUCT_ROWS : DVM_PRODUCT_DEPTH;
    if (grouped) m->sizes = x->at[3] == DVM_LIST_SIZES;
    add_factor(p, pl, bm, g->side[0], k, ph, &m->a, &m->a_dtype);
    for (int i = 0; i < k->nphase; i++) ph[i].kind = DVM_PHASE_PACK_A;
    int made = k->nphase;
    add_factor(p, pl, bm, g->side[1], k, ph, &m->b, &m->b_dtype);
    for (int i = made; i < k->nphase; i++) ph[i].kind = DVM_PHASE_PACK_B;
    add_factor(p, pl, bm, g->side[2], k, ph, &m->list, &m->list_dtype);
    m->list.node = x->gref;
    if (g->side[2]) count_groups(&m->list, g->side[2]);
    if (m->form == DVM_PRODUCT_ROWS && g->side[1]) count_groups(&m->b, g->side[1]);
    k->kind = DVM_KIND_GEMM;
    k->why = g->kind == DVM_MODE_ROW ? "a product, whole rows finished in the cache"
                                     : "a product, each tile finished in the cache";
    k->gemm = m;
}

/* Threads for a kernel: as many as the section of any of its roots may have. */
static uint16_t cores_of(const struct planner *p, const struct group *g) {
    uint32_t most = 0;
    for (uint32_t i = 0; i < g->roots.n; i++) {
        const struct dvm_node *n = &p->g->node.p[p->node.p[g->roots.p[i].user].gref];
        uint32_t cores =
            n->section < p->g->section.n ? dvm_section_cores(&p->g->section.p[n->section]) : 0;
        if (!cores) return 0;
        most = DVM_MAX(most, cores);
    }
    return (uint16_t)most;
}

static void add_kernel(struct planner *p, struct dvm_plan *pl, struct bump *bm, struct group *g,
                       struct dvm_kplan *k) {
    static const char *const why[][2] = {
        {"one pass over every element", "passes over every element"},
        {"rows, each folded in one pass", "rows stay in cache between passes"},
        {"columns, rows in blocks of 64", "columns stay in cache between passes"}};
    int n = 0, passes = 0;
    for (int i = 0; i < 3; i++) n += g->side[i] != NULL;
    for (int i = 0; i < 2 * g->npass; i++) n += live(sb_at(g, i));
    for (int i = 0; i < g->npass; i++) passes += live(g->full[i]);
    *k = (struct dvm_kplan){.kind = g->kind,
                            .naxes = (uint8_t)g->naxes,
                            .nm = (uint8_t)g->nm,
                            .whole_rows = g->scan,
                            .cores = cores_of(p, g),
                            .why = why[g->kind][passes > 1]};
    for (int a = 0; a < g->naxes; a++) k->size[a] = g->ax[a].size;
    k->block = !g->gemm                  ? block_size(g, p->in->cache_bytes)
               : g->kind == DVM_MODE_ROW ? dvm_plan_panel(p, g)
                                         : 1;
    k->scratch = lay_scratch(g, k->block);
    for (uint32_t i = 0; i < g->vec.n; i++) k->whole_rows |= g->vec.p[i].kept;
    struct dvm_phase *ph = take(bm, (size_t)n * sizeof *ph);
    k->phase = ph;
    if (g->gemm) add_product(p, pl, bm, g, k, ph);
    for (int i = 0; i < 2 * g->npass; i++)
        if (live(sb_at(g, i))) add_phase(p, pl, bm, sb_at(g, i), k, &ph[k->nphase++]);
    pl->bytes_moved += k->bytes;
}

/* Bytes if every operation ran alone, and if every argument moved once. */
static void count_bytes(const struct planner *p, struct dvm_plan *pl) {
    for (uint32_t i = 1; i < p->node.n; i++) {
        const struct pnode *n = &p->node.p[i];
        int64_t own = p->numel.p[n->shape] * (int64_t)dvm_dtype_size((dvm_dtype)n->dtype);
        if (n->op == DVM_OP_LOAD || n->op == DVM_OP_STORE) pl->bytes_minimum += own;
        if (n->cls == DVM_CLS_LEAF || n->cls == DVM_CLS_VIEW || n->op == DVM_OP_STORE) continue;
        pl->bytes_unfused += own;
        for (int k = 0; k < n->nin; k++) {
            const struct pnode *x = &p->node.p[n->in[k]];
            pl->bytes_unfused +=
                p->numel.p[x->shape] * (int64_t)dvm_dtype_size((dvm_dtype)x->dtype);
        }
    }
}

static const struct dvm_plan_arg *keep_args(struct bump *bm, const struct dvm_plan_arg *a,
                                            uint32_t n) {
    struct dvm_plan_arg *to = take(bm, n * sizeof *to);
    if (n) memcpy(to, a, n * sizeof *to);
    return to;
}

dvm_status dvm_plan_layout(struct planner *p, const struct dvm_mem *mem, struct dvm_plan **out) {
    const int64_t ws = lay_workspace(p);
    if (ws < 0) return DVM_ERR_NOMEM;
    const size_t total = measure(p);
    struct dvm_plan *pl = dvm_mem_new(mem, total);
    if (!pl) return DVM_ERR_NOMEM;
    struct bump bm = {(char *)pl, (char *)pl + total};
    take(&bm, sizeof *pl);
    pl->mem = *mem;
    pl->total = total;
    pl->workspace = (size_t)ws;
    uint32_t nph = 0;
    for (uint32_t i = 0; i < p->group.n; i++) nph += p->group.p[i]->gemm ? 2 : 0;
    for (uint32_t i = 0; i < p->group.n; i++)
        for (int k = 0; k < 2 * p->group.p[i]->npass; k++) nph += live(sb_at(p->group.p[i], k));
    struct dvm_kplan *kp = take(&bm, p->group.n * sizeof *kp);
    struct dvm_pparam *par = take(&bm, p->param.n * sizeof *par);
    pl->nin = (uint32_t)p->g->n_in;
    pl->nout = (uint32_t)p->g->n_out;
    pl->in = keep_args(&bm, p->in_arg, pl->nin);
    pl->out = keep_args(&bm, p->out_arg, pl->nout);
    pl->strip = take(&bm, nph * sizeof *pl->strip);
    pl->code = take(&bm, nph * sizeof *pl->code);
    if (p->param.n) memcpy(par, p->param.p, p->param.n * sizeof *par);
    pl->kernel = kp;
    pl->param = par;
    pl->nparam = p->param.n;
    for (uint32_t i = 0; i < p->group.n; i++) {
        bool any = false;
        for (int k = 0; k < 2 * p->group.p[i]->npass; k++) any |= live(sb_at(p->group.p[i], k));
        if (any) add_kernel(p, pl, &bm, p->group.p[i], &kp[pl->nkernel++]);
    }
    count_bytes(p, pl);
    *out = pl;
    return DVM_OK;
}
