/* Values to strip instructions. A root is emitted by walking down from it: elementwise nodes become instructions,
 * views change the index map, loads and values of earlier kernels become operands with strides, reductions of the same
 * kernel become row vectors in scratch. Where a value cannot be had this way, emission stops and says what must change
 * (plan_int.h, enum stop). */
#include <string.h>

#include "plan/emit.h"
#include "plan/plan_int.h"

static int emit(struct planner *p, struct sb *b, uint32_t n, const struct view *v);

static int stop_at(struct planner *p, enum stop why, uint32_t node) {
    if (p->stop == STOP_NONE) {
        p->stop = why;
        p->stop_node = node;
    }
    return -1;
}

static const struct dvm_shape *shape_of(const struct planner *p, uint32_t n) {
    return &p->shape.p[p->node.p[n].shape];
}

static bool is_half(int t) { return t == DVM_F16 || t == DVM_BF16; }

/* Computed by a kernel that runs before g? */
static bool earlier(const struct pnode *x, const struct group *g) {
    return x->group != NO_GROUP && x->group < g->index;
}

/* ---- writing ---------------------------------------------------------------------------------------- */

/* What a strip holds, in instructions: as many operands as it can have weigh as much as as many instructions. */
static uint32_t fill_of(const struct sb *b) {
    return b->ins.n + b->opnd.n * (DVM_STRIP_MAX_INS / DVM_STRIP_MAX_OPND);
}

static bool can_keep(const struct pnode *x) {
    return (x->cls == DVM_CLS_EW || x->op == DVM_OP_GATHER) && x->mat != MAT_FAR;
}

/* The strip is full. A root that is alone in its kernel is cut at a value that is kept in memory: the first shared one of
 * some size, which others than this root need as well; else the largest that is finished; where all of them are small, the
 * first under way that began after a quarter. */
enum { QUARTER = DVM_STRIP_MAX_INS / 4 };
static uint32_t where_to_cut(const struct planner *p, const struct sb *b) {
    uint32_t part = 0, most = 0, late = 0;
    if (b->shared) return b->shared;
    for (const struct open_value *o = p->open; o; o = o->below) {
        if (o->b != b) continue;
        if (o->part && o->part_size > most) most = o->part_size, part = o->part;
        if (o->at >= QUARTER && o->below && can_keep(&p->node.p[o->node])) late = o->node;
    }
    return most >= QUARTER || !late ? part : late;
}

static int stop_full(struct planner *p, const struct sb *b) {
    return stop_at(p, STOP_FULL, where_to_cut(p, b));
}

/* Values leave room for the stores and folds of their root. */
enum { ROOM = 16 };
static uint32_t room_for(const struct planner *p, const struct sb *b) {
    return p->open && p->open->b == b ? ROOM : 0;
}

static int put(struct planner *p, struct sb *b, int op, int type, int a, int bb, int c) {
    if (b->ins.n + room_for(p, b) >= DVM_STRIP_MAX_INS) return stop_full(p, b);
    struct dvm_ins *i = PUSH(p, b->ins);
    if (!i) return -1;
    *i = (struct dvm_ins){(uint8_t)op, (uint8_t)type, (uint16_t)a, (uint16_t)bb, (uint16_t)c};
    return (int)b->ins.n - 1;
}

static struct popnd *new_opnd(struct planner *p, struct sb *b, int src, int index, int dtype,
                              int role) {
    if (b->opnd.n + room_for(p, b) >= DVM_STRIP_MAX_OPND) {
        stop_full(p, b);
        return NULL;
    }
    struct popnd *o = PUSH(p, b->opnd);
    if (!o) return NULL;
    memset(o, 0, sizeof *o);
    o->desc.dtype = (uint8_t)dtype;
    o->desc.role = (uint8_t)role;
    o->src = (uint8_t)src;
    o->index = (uint16_t)index;
    o->buffer = -1;
    o->vec = -1;
    return o;
}

/* Offsets and strides of an operand: node axes (stride in elements) seen through v. */
static void place_opnd(const struct group *g, struct popnd *o, const struct view *v,
                       const struct dvm_shape *s, const int64_t *stride, int64_t offset) {
    int64_t es = (int64_t)dvm_dtype_size((dvm_dtype)o->desc.dtype);
    if (!v) {
        int shift = g->rank - s->rank;
        for (int a = 0; a < g->naxes; a++) {
            int j = g->ax[a].dim - shift;
            o->stride[a] = j >= 0 && s->d[j] != 1 ? g->ax[a].mult * stride[j] * es : 0;
        }
        o->offset = offset * es;
        return;
    }
    for (int a = 0; a < g->naxes; a++)
        for (int j = 0; j < s->rank; j++) o->stride[a] += v->inc[a][j] * stride[j] * es;
    for (int j = 0; j < s->rank; j++) offset += v->off[j] * stride[j];
    o->offset = offset * es;
}

static int16_t new_param(struct planner *p, struct sb *b, struct dvm_pparam par) {
    uint32_t i = 0;
    while (i < p->param.n && memcmp(&p->param.p[i], &par, sizeof par)) i++;
    if (i == p->param.n) {
        struct dvm_pparam *q = PUSH(p, p->param);
        if (!q) return -1;
        *q = par;
    }
    uint32_t k = 0;
    while (k < b->param.n && b->param.p[k] != i) k++;
    if (k == b->param.n) {
        uint16_t *q = PUSH(p, b->param);
        if (!q) return -1;
        *q = (uint16_t)i;
    }
    return (int16_t)k;
}

/* Bits of a number in the value type of dtype. */
uint64_t dvm_plan_bits(int dtype, int64_t attr) {
    double d;
    float f;
    uint32_t w;
    if (!dvm_is_float(dtype))
        return dvm_vt_of(dtype) == DVM_VT_I64 ? (uint64_t)attr : (uint64_t)(uint32_t)attr;
    if (dtype == DVM_F64) return (uint64_t)attr;
    memcpy(&d, &attr, 8);
    f = (float)d;
    memcpy(&w, &f, 4);
    return w;
}

static int emit_number(struct planner *p, struct sb *b, const struct pnode *n) {
    int vt = dvm_vt_of(n->dtype);
    struct dvm_pparam par;
    memset(&par, 0, sizeof par);
    par.vt = (uint8_t)vt;
    par.dtype = n->dtype;
    par.input = -1;
    if (n->op == DVM_OP_CONST) {
        uint64_t bits = dvm_plan_bits(n->dtype, n->at[0]);
        uint32_t k = 0;
        while (k < b->lit.n && b->lit.p[k] != bits) k++;
        if (k == b->lit.n) {
            uint64_t *q = PUSH(p, b->lit);
            if (!q) return -1;
            *q = bits;
        }
        return put(p, b, DVM_BC_LIT, vt, (int)k, 0, 0);
    }
    if (n->op == DVM_OP_SIZE)
        par.bits = (uint64_t)n->at[0];
    else
        par.input = (int16_t)n->at[0];
    int k = new_param(p, b, par);
    return k < 0 ? -1 : put(p, b, DVM_BC_PARAM, vt, k, 0, 0);
}

/* ---- memory operands ---------------------------------------------------------------------------------- */

int32_t dvm_plan_home(struct planner *p, uint32_t n) {
    struct pnode *x = &p->node.p[n];
    if (x->home >= 0) return x->home;
    const bool made =
        x->cls == DVM_CLS_RED || dvm_is_product(x->op); /* a load, whatever is below */
    if (!made && p->below + p->depth > MAX_DEPTH) return stop_at(p, STOP_EARLY, n);
    if (!dvm_plan_touch_node(p, n) || !dvm_plan_touch_group(p, p->group.p[x->group])) return -1;
    struct buffer *bf = PUSH(p, p->buffer);
    struct root *r = PUSH(p, p->root);
    if (!bf || !r) return -1;
    const struct dvm_shape *s = &p->shape.p[x->shape];
    static const uint8_t ws_dtype[DVM_NVT] = {DVM_BOOL, DVM_I32, DVM_I64, DVM_F32, DVM_F64};
    memset(bf, 0, sizeof *bf);
    bf->src = DVM_SRC_WS;
    bf->dtype = ws_dtype[dvm_vt_of(x->dtype)];
    if (x->op == DVM_OP_CAST && is_half(x->dtype))
        bf->dtype = x->dtype; /* rounded: nothing is lost */
    bf->first = bf->last = x->group;
    int64_t step = 1;
    for (int j = s->rank - 1; j >= 0; j--) {
        bf->stride[j] = step;
        step *= s->d[j];
    }
    bf->bytes = step * (int64_t)dvm_dtype_size((dvm_dtype)bf->dtype);
    int32_t id = (int32_t)p->buffer.n - 1;
    memset(r, 0, sizeof *r);
    r->kind = ROOT_MAT;
    r->node = n;
    r->buffer = id;
    r->dtype = bf->dtype;
    r->group = x->group;
    /* In the kernel of a product another shape may be that of tiles with rows told apart otherwise. */
    r->outer = x->shape != p->group.p[x->group]->shape &&
               (!p->group.p[x->group]->gemm || x->pass > 0 || x->cls == DVM_CLS_RED);
    memcpy(r->stride, bf->stride, sizeof r->stride);
    x->home = id;
    enum stop before = p->stop;
    const int depth = p->depth;
    p->below += depth;
    const bool done = dvm_plan_emit_root(p, p->group.p[x->group], r);
    p->below -= depth;
    p->depth = depth;
    if (!done) {
        if (!p->blame) p->blame = n;
        return -1;
    }
    p->stop = before;
    return id;
}

/* Is node n, through reshapes, a tensor that lies densely in memory? Then its elements are one axis, whatever its shape. */
static bool dense_below(struct planner *p, const struct group *g, uint32_t n) {
    while (p->node.p[n].op == DVM_OP_RESHAPE && !p->node.p[n].mat) n = p->node.p[n].in[0];
    const struct pnode *x = &p->node.p[n];
    const struct dvm_shape *s = shape_of(p, n);
    bool elsewhere = earlier(x, g);
    if (x->op == DVM_OP_LOAD && !(x->mat && elsewhere)) {
        const int64_t *st = p->in_arg[x->at[0]].stride;
        int64_t step = 1;
        for (int j = s->rank - 1; j >= 0; j--) {
            if (s->d[j] != 1 && st[j] != step) return false;
            step *= s->d[j];
        }
        return true;
    }
    bool kept = x->mat || x->cls == DVM_CLS_RED || x->home >= 0 || dvm_is_product(x->op);
    if (elsewhere && kept && !x->direct)
        return x->home < 0 || p->buffer.p[x->home].src == DVM_SRC_WS;
    return false;
}

/* Map of the flattened node. */
static struct view *flat_view(struct planner *p, const struct group *g, const struct view *v,
                              const struct dvm_shape *s) {
    struct view *w = dvm_view_new(p, 1);
    int64_t step = 1;
    for (int j = s->rank - 1; w && j >= 0; j--) {
        for (int a = 0; a <= g->naxes; a++) w->inc[a][0] += dvm_view_inc(g, v, s, a, j) * step;
        if (v) w->off[0] += v->off[j] * step;
        step *= s->d[j];
    }
    return w;
}

static struct popnd *memory(struct planner *p, struct sb *b, uint32_t n, const struct view *v,
                            int role);

/* A reshape of dense memory. */
static struct popnd *dense_memory(struct planner *p, struct sb *b, uint32_t n, const struct view *v,
                                  int role) {
    struct view *w = flat_view(p, b->g, v, shape_of(p, n));
    while (p->node.p[n].op == DVM_OP_RESHAPE && !p->node.p[n].mat) n = p->node.p[n].in[0];
    struct popnd *o = w ? memory(p, b, n, NULL, role) : NULL;
    if (!o) return NULL;
    const struct dvm_shape flat = {.rank = 1, .d = {p->numel.p[p->node.p[n].shape]}};
    memset(o->stride, 0, sizeof o->stride);
    place_opnd(b->g, o, w, &flat, (int64_t[]){1}, 0);
    return o;
}

/* An operand over memory: a load, or a value kept by an earlier kernel, through views. */
static struct popnd *memory(struct planner *p, struct sb *b, uint32_t n, const struct view *v,
                            int role) {
    struct pnode *x = &p->node.p[n];
    struct group *g = b->g;
    bool kept = x->mat && earlier(x, g);
    if (x->op == DVM_OP_LOAD && !kept) {
        struct popnd *o = new_opnd(p, b, DVM_SRC_INPUT, (int)x->at[0], x->dtype, role);
        if (o) place_opnd(g, o, v, shape_of(p, n), p->in_arg[x->at[0]].stride, 0);
        return o;
    }
    if (x->op == DVM_OP_RESHAPE && !kept && dense_below(p, g, n))
        return dense_memory(p, b, n, v, role);
    if (x->cls == DVM_CLS_VIEW && !kept) {
        bool ok;
        const struct view *w = dvm_view_through(p, g, x, shape_of(p, x->in[0]), v, &ok);
        return ok ? memory(p, b, p->node.p[n].in[0], w, role) : NULL;
    }
    /* A stored output that a later kernel writes is no home for this one. */
    bool root =
        x->cls == DVM_CLS_RED || x->mat || (x->home >= 0 && earlier(x, g)) || dvm_is_product(x->op);
    if (!root || !earlier(x, g)) {
        stop_at(p, root ? STOP_GROUP : STOP_MAT, n);
        return NULL;
    }
    int32_t h = dvm_plan_home(p, n);
    if (h < 0) return NULL;
    struct buffer *bf = &p->buffer.p[h];
    struct popnd *o = new_opnd(p, b, bf->src, bf->index, bf->dtype, role);
    if (!o || !dvm_plan_touch_buffer(p, h)) return NULL;
    o->buffer = h;
    bf->last = DVM_MAX(bf->last, g->index);
    place_opnd(g, o, v, shape_of(p, n), bf->stride, bf->src == DVM_SRC_OUTPUT ? bf->offset : 0);
    return o;
}

DVM_NOINLINE static int emit_memory(struct planner *p, struct sb *b, uint32_t n,
                                    const struct view *v) {
    struct popnd *o = memory(p, b, n, v, DVM_ROLE_LOAD);
    if (!o) return -1;
    return put(p, b, DVM_BC_LOAD, dvm_vt_of(p->node.p[n].dtype), (int)(o - b->opnd.p), 0, 0);
}

static int emit_iota(struct planner *p, struct sb *b, uint32_t n, const struct view *v) {
    const struct pnode *x = &p->node.p[n];
    const struct dvm_shape *s = shape_of(p, n);
    int j = (int)x->at[0];
    struct popnd *o = new_opnd(p, b, DVM_SRC_NONE, 0, x->dtype, DVM_ROLE_IOTA);
    if (!o) return -1;
    for (int a = 0; a < b->g->naxes; a++) o->stride[a] = dvm_view_inc(b->g, v, s, a, j);
    o->offset = v ? v->off[j] : 0;
    return put(p, b, DVM_BC_LOAD, dvm_vt_of(x->dtype), (int)b->opnd.n - 1, 0, 0);
}

/* The source of a gather. What has no elements is never computed, so it lies nowhere. */
static struct popnd *gathered(struct planner *p, struct sb *b, uint32_t n, const struct view *v) {
    const struct pnode *x = &p->node.p[n];
    if (p->numel.p[x->shape] == 0 && x->op != DVM_OP_LOAD)
        return new_opnd(p, b, DVM_SRC_WS, 0, x->dtype, DVM_ROLE_PICK);
    return memory(p, b, n, v, DVM_ROLE_PICK);
}

/* Maps of source and index of a gather whose result is seen through v. The gathered axis becomes row naxes. */
DVM_NOINLINE static int emit_gather(struct planner *p, struct sb *b, uint32_t n,
                                    const struct view *v) {
    const struct pnode x = p->node.p[n];
    struct group *g = b->g;
    const struct dvm_shape ss = *shape_of(p, x.in[0]), is = *shape_of(p, x.in[1]),
                           rs = *shape_of(p, n);
    int axis = (int)(x.at[0] < 0 ? x.at[0] + ss.rank : x.at[0]);
    if (!v) v = dvm_view_std(p, g, &rs);
    struct view *sv = dvm_view_new(p, ss.rank), *iv = dvm_view_new(p, is.rank);
    if (!v || !sv || !iv) return -1;
    int wide = x.at[1] == 1 ? is.rank - 1 : 0; /* axes the index adds */
    for (int j = 0; j < rs.rank; j++) {
        bool of_index = x.at[1] == 0 || (j >= axis && j < axis + is.rank);
        bool of_src = x.at[1] == 0 ? j != axis : !(j >= axis && j < axis + is.rank);
        int ij = x.at[1] == 0 ? j : j - axis, sj = x.at[1] == 0 || j < axis ? j : j - wide;
        for (int a = 0; a <= g->naxes; a++) {
            int64_t inc = a == g->naxes ? 0 : v->inc[a][j];
            if (of_index) iv->inc[a][ij] = is.d[ij] == 1 ? 0 : inc;
            if (of_src) sv->inc[a][sj] = ss.d[sj] == 1 ? 0 : inc;
        }
        if (of_index) iv->off[ij] = v->off[j];
        if (of_src) sv->off[sj] = v->off[j];
    }
    int idx = emit(p, b, x.in[1], dvm_view_intern(g, iv, &is));
    if (idx < 0) return -1;
    sv->inc[g->naxes][axis] = 1;
    g->ax[g->naxes] = (struct axis){.size = ss.d[axis]};
    struct popnd *o = gathered(p, b, x.in[0], sv);
    int64_t gs = 0;
    if (o && ss.d[axis] > 1) {
        /* The step of the gathered axis: the same operand one element further along row naxes. */
        struct view one = *sv;
        one.off[axis] = 1;
        struct popnd *q = gathered(p, b, x.in[0], &one);
        if (!q) return -1;
        o = q - 1;
        gs = q->offset - o->offset;
        b->opnd.n--;
    }
    g->ax[g->naxes] = (struct axis){0};
    if (!o) {
        if (p->stop == STOP_SPLIT) return stop_at(p, STOP_MAT, x.in[0]);
        return -1;
    }
    o->gs = gs;
    o->gn = ss.d[axis];
    o->gref = x.gref;
    return put(p, b, DVM_BC_PICK, dvm_vt_of(x.dtype), (int)(o - b->opnd.p), idx, 0);
}

/* ---- values at the kept axes --------------------------------------------------------------------------- */

static bool invariant(const struct group *g, const struct view *v, const struct dvm_shape *s) {
    for (int a = 0; a < g->naxes; a++) {
        if (!g->ax[a].reduced) continue;
        for (int j = 0; j < s->rank; j++)
            if (dvm_view_inc(g, v, s, a, j) != 0) return false;
    }
    return true;
}

/* Is the result of reduction n, seen through v, the one of this very row? */
static bool aligned(const struct group *g, const struct view *v, const struct dvm_shape *s) {
    if (s->rank != g->rank) return false; /* normal form keeps reduced axes as 1 */
    for (int j = 0; v && j < s->rank; j++)
        if (v->off[j] != 0) return false;
    for (int a = 0; a < g->naxes; a++) {
        const struct axis *x = &g->ax[a];
        for (int j = 0; j < s->rank; j++) {
            int64_t want = !x->reduced && j == x->dim && s->d[j] != 1 ? x->mult : 0;
            if (dvm_view_inc(g, v, s, a, j) != want) return false;
        }
    }
    return true;
}

struct sb *dvm_plan_new_sb(struct planner *p, struct group *g, int pass, bool vec) {
    struct sb **at = vec ? &g->vecs[pass] : &g->full[pass];
    if (*at) return dvm_plan_touch_sb(p, *at) ? *at : NULL;
    struct sb *b = dvm_arena_new(p->a, sizeof *b);
    uint16_t *memo = dvm_arena_new(p->a, sizeof *memo * p->node.n);
    if (!b || !memo) {
        p->st = DVM_ERR_NOMEM;
        stop_at(p, STOP_ERROR, 0);
        return NULL;
    }
    b->g = g;
    b->pass = (uint8_t)pass;
    b->vec = vec;
    b->memo = memo;
    g->npass = DVM_MAX(g->npass, pass + 1);
    *at = b;
    return b;
}

static int32_t new_rowvec(struct planner *p, struct group *g, int vt, bool kept) {
    static const uint8_t dtype[DVM_NVT] = {DVM_BOOL, DVM_I32, DVM_I64, DVM_F32, DVM_F64};
    struct rowvec *r = PUSH(p, g->vec);
    if (!r) return -1;
    *r = (struct rowvec){.dtype = dtype[vt], .kept = kept};
    return (int32_t)g->vec.n - 1;
}

static int load_rowvec(struct planner *p, struct sb *b, int32_t id, int vt) {
    struct popnd *o = new_opnd(p, b, DVM_SRC_SCRATCH, 0, b->g->vec.p[id].dtype, DVM_ROLE_LOAD);
    if (!o) return -1;
    o->vec = id;
    return put(p, b, DVM_BC_LOAD, vt, (int)b->opnd.n - 1, 0, 0);
}

static bool store_value(struct planner *p, struct sb *b, int32_t vec, int value, int vt) {
    struct popnd *o = new_opnd(p, b, DVM_SRC_SCRATCH, 0, b->g->vec.p[vec].dtype, DVM_ROLE_STORE);
    if (!o) return false;
    o->vec = vec;
    b->nstore++;
    return put(p, b, DVM_BC_STORE, vt, (int)b->opnd.n - 1, value, 0) >= 0;
}

static struct outer *find_outer(struct group *g, uint32_t n, const struct view *v) {
    for (uint32_t i = 0; i < g->outer.n; i++)
        if (g->outer.p[i].node == n && g->outer.p[i].v == v) return &g->outer.p[i];
    return NULL;
}

/* A value of the row, computed between passes over all rows of the block, for use in a later pass. */
static int outer_value(struct planner *p, struct sb *b, uint32_t n, const struct view *v) {
    int vt = dvm_vt_of(p->node.p[n].dtype);
    struct outer *o = find_outer(b->g, n, v);
    if (o && o->pass < b->pass) return load_rowvec(p, b, o->vec, vt);
    int pass = p->node.p[n].pass - 1;
    if (pass < 0 || pass >= b->pass) return stop_at(p, STOP_GROUP, n);
    struct sb *vb = dvm_plan_new_sb(p, b->g, pass, true);
    int value = vb ? emit(p, vb, n, v) : -1;
    int32_t id = value < 0 ? -1 : new_rowvec(p, b->g, vt, false);
    if (id < 0 || !store_value(p, vb, id, value, vt)) return -1;
    struct outer *q = PUSH(p, b->g->outer);
    if (!q) return -1;
    *q = (struct outer){n, v, id, (uint8_t)pass};
    return load_rowvec(p, b, id, vt);
}

/* Strict mode: a 16-bit result is rounded where it is made; half of a reduction is no result. */
static int round_strict(struct planner *p, struct sb *b, const struct pnode *x, int value) {
    if (value < 0 || !p->in->strict || !is_half(x->dtype) || x->first) return value;
    return put(p, b, DVM_BC_RND, DVM_VT_F32, value, x->dtype, 0);
}

DVM_NOINLINE static int emit_red(struct planner *p, struct sb *b, uint32_t n,
                                 const struct view *v) {
    struct pnode *x = &p->node.p[n];
    if (x->group != b->g->index) return round_strict(p, b, x, emit_memory(p, b, n, v));
    struct outer *o = find_outer(b->g, n, NULL);
    bool ready = o && (b->vec ? o->pass <= b->pass : o->pass < b->pass);
    if (!ready || !aligned(b->g, v, shape_of(p, n))) return stop_at(p, STOP_GROUP, n);
    return round_strict(p, b, x, load_rowvec(p, b, o->vec, dvm_vt_of(x->dtype)));
}

/* ---- elementwise ---------------------------------------------------------------------------------------- */

static bool is_small(int t) { return is_half(t) || t == DVM_U8 || t == DVM_I8; }

static int emit_cast(struct planner *p, struct sb *b, int x, int from, int to) {
    int vf = dvm_vt_of(from), vt = dvm_vt_of(to);
    if (vf != vt) x = put(p, b, DVM_OP_CAST, vt, x, 0, 0);
    bool wider = to == from || (vf == vt && !is_small(to)) || (to == DVM_U8 && from == DVM_BOOL) ||
                 (to == DVM_I8 && from == DVM_BOOL);
    if (x < 0 || !is_small(to) || wider) return x;
    return put(p, b, DVM_BC_RND, vt, x, to, 0);
}

/* Exact on values already rounded: no new rounding in strict mode. */
static bool exact(int op) {
    switch (op) {
    case DVM_OP_COPY:
    case DVM_OP_NEG:
    case DVM_OP_ABS:
    case DVM_OP_SIGN:
    case DVM_OP_RELU:
    case DVM_OP_MAX:
    case DVM_OP_MIN:
    case DVM_OP_SELECT:
    case DVM_OP_FLOOR:
    case DVM_OP_CEIL:
    case DVM_OP_TRUNC:
    case DVM_OP_ROUND: return true;
    default: return false;
    }
}

static bool costly(int op) {
    switch (op) {
    case DVM_OP_EXP:
    case DVM_OP_EXP2:
    case DVM_OP_EXPM1:
    case DVM_OP_LOG:
    case DVM_OP_LOG2:
    case DVM_OP_LOG1P:
    case DVM_OP_SIN:
    case DVM_OP_COS:
    case DVM_OP_TANH:
    case DVM_OP_SIGMOID:
    case DVM_OP_ERF:
    case DVM_OP_POW:
    case DVM_OP_REM:
    case DVM_OP_FMOD:
    case DVM_OP_PHILOX:
    case DVM_OP_FLOORDIV:
    case DVM_OP_TRUNCDIV: return true;
    default: return false;
    }
}

uint32_t dvm_plan_cost(int op) { return costly(op) ? 12 : 1; }

/* A costly value of an earlier pass over the same row: kept in scratch instead of computed again. Roots may come to any pass
 * at any time: what a later pass keeps is not there yet. */
static int reuse_kept(struct planner *p, struct sb *b, uint32_t n) {
    struct group *g = b->g;
    int vt = dvm_vt_of(p->node.p[n].dtype);
    for (uint32_t i = 0; i < g->outer.n; i++) {
        const struct outer *o = &g->outer.p[i];
        if (o->node == n && !o->v && o->pass < b->pass && g->vec.p[o->vec].kept)
            return load_rowvec(p, b, o->vec, vt);
    }
    for (int q = 0; q < b->pass; q++) {
        struct sb *e = g->full[q];
        if (!e || !e->memo[n] || e->opnd.n + ROOM >= DVM_STRIP_MAX_OPND) continue;
        int32_t id = new_rowvec(p, g, vt, true);
        struct outer *no = id < 0 ? NULL : PUSH(p, g->outer);
        if (!no || !dvm_plan_touch_sb(p, e) || !store_value(p, e, id, e->memo[n] - 1, vt))
            return -1;
        *no = (struct outer){n, NULL, id, (uint8_t)q};
        return load_rowvec(p, b, id, vt);
    }
    return -2;
}

static const struct view *operand_view(struct planner *p, struct sb *b, uint32_t n, uint32_t x,
                                       const struct view *v, bool *ok) {
    *ok = true;
    if (!v || p->node.p[x].shape == p->node.p[n].shape) return v;
    const struct dvm_shape xs = *shape_of(p, x), ns = *shape_of(p, n);
    const struct view *w = dvm_view_broadcast(p, b->g, &ns, &xs, v);
    *ok = w != NULL;
    return w ? dvm_view_intern(b->g, (struct view *)(uintptr_t)w, &xs) : NULL;
}

static int emit_ew(struct planner *p, struct sb *b, uint32_t n, const struct view *v) {
    const struct pnode x = p->node.p[n];
    struct group *g = b->g;
    int val[3] = {0};
    if (!b->vec && g->kind != DVM_MODE_MAP && x.need == g->index && x.pass > 0 &&
        invariant(g, v, shape_of(p, n)))
        return outer_value(p, b, n, v);
    if (!b->vec && !v && g->keep_ok && costly(x.op)) {
        int k = reuse_kept(p, b, n);
        if (k != -2) return k;
    }
    for (int i = 0; i < x.nin; i++) {
        bool ok;
        const struct view *w = operand_view(p, b, n, x.in[i], v, &ok);
        if (!ok || (val[i] = emit(p, b, x.in[i], w)) < 0) return -1;
    }
    if (x.op == DVM_OP_COPY) return val[0];
    if (x.op == DVM_OP_CAST) return emit_cast(p, b, val[0], p->node.p[x.in[0]].dtype, x.dtype);
    int r = put(p, b, x.op, dvm_vt_of(x.dtype), val[0], val[1], val[2]);
    bool small =
        is_half(x.dtype) ? p->in->strict && !exact(x.op) : is_small(x.dtype) && !exact(x.op);
    return r >= 0 && small ? put(p, b, DVM_BC_RND, dvm_vt_of(x.dtype), r, x.dtype, 0) : r;
}

/* A long chain that an earlier kernel computes anyway is kept in memory there and read here. */
static bool keep_there(struct planner *p, const struct sb *b, uint32_t n) {
    struct pnode *x = &p->node.p[n];
    int32_t here = b->g->index;
    if (x->seen == 0) {
        uint32_t *at = PUSH(p, p->seen);
        if (!at) return false;
        *at = n;
        x->seen = (uint32_t)here + 1;
    }
    int32_t there = x->need >= 0 ? x->need : (int32_t)x->seen - 1;
    if (there >= here || x->uses < 2 || x->cost < HEAVY || x->mat || x->min_group > there)
        return false;
    const struct sb *full = p->group.p[there]->full[0];
    if (full && fill_of(full) > DVM_STRIP_MAX_INS / 2) return false; /* no room for more */
    /* Not a value of that kernel's space, or one whose strides would stand in the way of its reductions. */
    if (p->group.p[there]->shape != x->shape || p->group.p[there]->alone) {
        stop_at(p, STOP_MAT, n);
        return false;
    }
    if (!dvm_plan_touch_node(p, n)) return false;
    x->mat = MAT_NEAR;
    x->group = there;
    if (x->need < 0) x->pass = 0;
    x->need = there;
    return true;
}

static int emit_scan(struct planner *p, struct sb *b, uint32_t n, const struct view *v) {
    struct pnode *x = &p->node.p[n];
    if (x->group != b->g->index)
        return x->group == NO_GROUP ? stop_at(p, STOP_MAT, n)
                                    : round_strict(p, b, x, emit_memory(p, b, n, v));
    if (v || !b->g->scan || b->g->shape != x->shape) return stop_at(p, STOP_GROUP, n);
    int vt = dvm_vt_of(x->dtype), in = emit(p, b, x->in[0], NULL);
    return in < 0 ? -1 : round_strict(p, b, x, put(p, b, DVM_BC_SCAN, vt, in, 0, 0));
}

static int tile_opnd(struct planner *p, struct sb *b, int role) {
    struct popnd *o = new_opnd(p, b, DVM_SRC_TILE, 0, DVM_F32, role);
    if (!o) return -1;
    o->stride[b->g->naxes - 1] = 4;
    return (int)b->opnd.n - 1;
}

/* A product: the tile at hand in its own kernel, memory in later ones. */
static int emit_product(struct planner *p, struct sb *b, uint32_t n, const struct view *v) {
    struct pnode *x = &p->node.p[n];
    if (x->group != b->g->index) return round_strict(p, b, x, emit_memory(p, b, n, v));
    if (v || b->g->gemm != n) return stop_at(p, STOP_GROUP, n);
    int o = tile_opnd(p, b, DVM_ROLE_LOAD);
    return o < 0 ? -1 : round_strict(p, b, x, put(p, b, DVM_BC_LOAD, DVM_VT_F32, o, 0, 0));
}

static int emit_new(struct planner *p, struct sb *b, uint32_t n, const struct view *v) {
    const struct pnode *x = &p->node.p[n];
    bool elsewhere = earlier(x, b->g);
    switch (x->cls) {
    case DVM_CLS_LEAF:
        if (x->op == DVM_OP_LOAD || (x->mat && elsewhere)) return emit_memory(p, b, n, v);
        return x->op == DVM_OP_IOTA ? emit_iota(p, b, n, v) : emit_number(p, b, x);
    case DVM_CLS_EW:
        if (elsewhere && x->mat) return emit_memory(p, b, n, v);
        if (x->home >= 0 && elsewhere && x->cost > 1) return emit_memory(p, b, n, v);
        if (keep_there(p, b, n)) return emit_memory(p, b, n, v);
        return p->stop != STOP_NONE ? -1 : emit_ew(p, b, n, v);
    case DVM_CLS_VIEW: {
        if (elsewhere && x->mat) return emit_memory(p, b, n, v);
        if (x->op == DVM_OP_RESHAPE && dense_below(p, b->g, n)) return emit_memory(p, b, n, v);
        bool ok;
        const struct view *w = dvm_view_through(p, b->g, x, shape_of(p, x->in[0]), v, &ok);
        return ok ? emit(p, b, p->node.p[n].in[0], w) : -1;
    }
    case DVM_CLS_RED: return emit_red(p, b, n, v);
    default: break;
    }
    if (x->op == DVM_OP_SIZE) return emit_number(p, b, x);
    if (x->op == DVM_OP_STORE) return emit(p, b, x->in[0], v);
    if (x->op == DVM_OP_CUMSUM) return emit_scan(p, b, n, v);
    if (dvm_is_product(x->op)) return emit_product(p, b, n, v);
    if (x->op == DVM_OP_GATHER)
        return elsewhere && x->mat ? emit_memory(p, b, n, v) : emit_gather(p, b, n, v);
    return emit_memory(p, b, n, v); /* CONCAT */
}

static void note_part(const struct planner *p, const struct open_value *done, struct sb *b) {
    struct open_value *o = done->below;
    const struct pnode *x = &p->node.p[done->node];
    const uint32_t size = fill_of(b) - done->at;
    const bool keep = can_keep(x);
    if (!o || o->b != b) return;
    if (keep && x->uses > 1 && size >= QUARTER && !b->shared) b->shared = done->node;
    if (size <= o->part_size) return;
    o->part = keep ? done->node : done->part;
    o->part_size = size;
}

static int emit(struct planner *p, struct sb *b, uint32_t n, const struct view *v) {
    if (!v && b->memo[n]) return b->memo[n] - 1;
    for (uint32_t i = 0; v && i < b->vmemo.n; i++)
        if (b->vmemo.p[i].node == n && b->vmemo.p[i].v == v) return b->vmemo.p[i].value;
    bool in_memory = p->node.p[n].mat && earlier(&p->node.p[n], b->g);
    if (++p->depth > MAX_DEPTH && !in_memory) return stop_at(p, STOP_MAT, n);
    struct open_value open = {.below = p->open, .b = b, .node = n, .at = fill_of(b)};
    p->open = &open;
    p->work++;
    int r = emit_new(p, b, n, v);
    p->open = open.below;
    p->depth--;
    if (r < 0) return -1;
    note_part(p, &open, b);
    if (!v) {
        uint32_t *noted = PUSH(p, b->noted);
        if (!noted) return -1;
        *noted = n;
        b->memo[n] = (uint16_t)(r + 1);
        return r;
    }
    struct vmemo *m = PUSH(p, b->vmemo);
    if (!m) return -1;
    *m = (struct vmemo){n, v, (uint16_t)r};
    return r;
}

/* ---- roots ------------------------------------------------------------------------------------------------ */

/* A reduction of no elements reads none: any number of the right type will do. */
static int fold_operand(struct planner *p, struct sb *b, uint32_t x) {
    static const int64_t zero;
    const struct pnode *n = &p->node.p[x];
    if (p->numel.p[n->shape] != 0) return emit(p, b, x, NULL);
    return emit_number(p, b, &(struct pnode){.op = DVM_OP_CONST, .dtype = n->dtype, .at = &zero});
}

static bool emit_fold(struct planner *p, struct sb *b, const struct root *r) {
    const struct pnode n = p->node.p[r->node];
    struct group *g = b->g;
    int vt = dvm_vt_of(n.op == DVM_OP_ARGMAX || n.op == DVM_OP_ARGMIN ? p->node.p[n.in[0]].dtype
                                                                      : n.dtype);
    int x = fold_operand(p, b, n.in[0]);
    if (x < 0) return false;
    bool arg = n.op == DVM_OP_ARGMAX || n.op == DVM_OP_ARGMIN;
    int32_t id = new_rowvec(p, g, arg ? DVM_VT_I64 : vt, false);
    struct popnd *o =
        id < 0 ? NULL : new_opnd(p, b, DVM_SRC_SCRATCH, 0, g->vec.p[id].dtype, DVM_ROLE_FOLD);
    if (!o) return false;
    o->vec = id;
    int at = (int)b->opnd.n - 1;
    if (arg) {
        int32_t id2 = new_rowvec(p, g, vt, false);
        o = id2 < 0 ? NULL : new_opnd(p, b, DVM_SRC_SCRATCH, 0, g->vec.p[id2].dtype, DVM_ROLE_FOLD);
        if (!o) return false;
        o->vec = id2;
    }
    struct outer *q = PUSH(p, g->outer);
    if (!q) return false;
    *q = (struct outer){r->node, NULL, id, b->pass};
    return put(p, b, DVM_BC_FOLD, vt, x, n.op, at) >= 0;
}

/* Map from the kept axes to the axes of an outer root, matched in order. */
static const struct view *outer_view(struct planner *p, const struct group *g,
                                     const struct dvm_shape *s, bool *ok) {
    struct view *v = dvm_view_new(p, s->rank);
    *ok = v != NULL;
    if (!v) return NULL;
    const struct dvm_shape *gs = &p->shape.p[g->shape];
    int j = 0;
    for (int d = 0; d < gs->rank; d++) {
        if ((g->mask >> d & 1) || gs->d[d] == 1) continue;
        while (j < s->rank && s->d[j] == 1) j++;
        for (int a = 0; a < g->naxes; a++)
            if (g->ax[a].dim == d) v->inc[a][j] = g->ax[a].mult;
        j++;
    }
    return dvm_view_intern(g, v, s);
}

/* Map from the space of a product to a root that is a reshape of it. */
static const struct view *reshaped_view(struct planner *p, struct group *g, const struct root *r,
                                        bool *ok) {
    const struct dvm_shape s = *shape_of(p, r->node);
    const struct pnode space = {.op = DVM_OP_RESHAPE, .shape = g->shape, .in = {r->node}};
    const struct view *v = dvm_view_through(p, g, &space, &s, NULL, ok);
    if (!*ok && p->stop == STOP_MAT) p->stop = STOP_GROUP;
    return v;
}

static bool emit_store(struct planner *p, struct sb *b, const struct root *r) {
    const struct dvm_shape s = *shape_of(p, r->node);
    bool ok = true;
    const struct view *v = r->outer ? outer_view(p, b->g, &s, &ok) : NULL;
    if (b->g->gemm && !r->outer && p->node.p[r->node].shape != b->g->shape)
        v = reshaped_view(p, b->g, r, &ok);
    int x = ok ? emit(p, b, r->node, v) : -1;
    if (x < 0) return false;
    const struct dvm_ins *in = &b->ins.p[x];
    if (in->op == DVM_BC_RND && in->b == r->dtype) x = in->a; /* the store rounds the same way */
    int src = DVM_SRC_OUTPUT, index = r->buffer;
    if (r->kind != ROOT_STORE) {
        src = p->buffer.p[r->buffer].src;
        index = p->buffer.p[r->buffer].index;
    }
    struct popnd *o = new_opnd(p, b, src, index, r->dtype, DVM_ROLE_STORE);
    if (!o) return false;
    if (r->kind != ROOT_STORE) o->buffer = r->buffer;
    place_opnd(b->g, o, v, &s, r->stride, r->offset);
    b->nstore++;
    return put(p, b, DVM_BC_STORE, b->ins.p[x].type, (int)b->opnd.n - 1, x, 0) >= 0;
}

bool dvm_plan_emit_root(struct planner *p, struct group *g, struct root *r) {
    const struct pnode *n = &p->node.p[r->node];
    int pass = n->need == g->index ? n->pass : 0;
    if (n->cls == DVM_CLS_RED && n->group == g->index && r->kind != ROOT_RED) pass = n->pass + 1;
    if (pass >= MAX_PASS + r->outer) return stop_at(p, STOP_GROUP, r->node), false;
    p->depth = 0;
    if (r->kind == ROOT_RED) {
        struct sb *b = dvm_plan_new_sb(p, g, n->pass, false);
        return b && emit_fold(p, b, r);
    }
    if (r->outer && pass == 0) return stop_at(p, STOP_GROUP, r->node), false;
    struct sb *b = dvm_plan_new_sb(p, g, r->outer ? pass - 1 : pass, r->outer);
    return b && emit_store(p, b, r);
}

/* ---- factors of a product ------------------------------------------------------------------------------- */

struct popnd *dvm_plan_emit_memory(struct planner *p, struct sb *b, uint32_t n,
                                   const struct view *v) {
    return memory(p, b, n, v, DVM_ROLE_LOAD);
}

bool dvm_plan_emit_tile(struct planner *p, struct sb *b, uint32_t n, const struct view *v) {
    p->depth = 0;
    int x = emit(p, b, n, v), o = x < 0 ? -1 : tile_opnd(p, b, DVM_ROLE_STORE);
    if (o < 0) return false;
    b->nstore++;
    return put(p, b, DVM_BC_STORE, DVM_VT_F32, o, x, 0) >= 0;
}
