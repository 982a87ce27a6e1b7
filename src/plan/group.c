/* Which roots share a kernel. Roots are stores, reductions, values that must be kept in memory, and the pieces of a
 * concat. They are visited in order; each joins the first kernel that is not older than anything it rests on, has the
 * same space (or, for a value of the rows, the same kept axes) and accepts it; else it opens a new kernel. Emission
 * decides whether a kernel accepts a root; when it refuses, the reason is remembered as a fact about a node, and grouping
 * goes back to that node. Every fact forbids something, so there is an end. */
#include <string.h>

#include "plan/emit.h"
#include "plan/plan_int.h"

enum { MAX_ROOTS = 96, MAX_CUTS = 8, ALONE = INT32_MAX }; /* ALONE: as min_group, in a new kernel */

static const struct dvm_shape *shape_of(const struct planner *p, uint32_t n) {
    return &p->shape.p[p->node.p[n].shape];
}

static bool no_memory(struct planner *p) {
    p->st = DVM_ERR_NOMEM;
    p->stop = STOP_ERROR;
    return false;
}

/* ---- what a value rests on -------------------------------------------------------------------------- */

static void rest_on(struct planner *p, struct pnode *n, uint32_t o) {
    const struct pnode *x = &p->node.p[o];
    int32_t need = x->need;
    int pass = x->pass;
    if (x->cls == DVM_CLS_RED) pass++;
    if (x->op == DVM_OP_CONCAT || x->mat == MAT_FAR) need = x->group + 1, pass = 0;
    if (need > n->need)
        n->need = need, n->pass = (uint8_t)DVM_MIN(pass, 255);
    else if (need == n->need)
        n->pass = (uint8_t)DVM_MAX(n->pass, DVM_MIN(pass, 255));
    bool kept = x->cls == DVM_CLS_RED || x->mat || x->op == DVM_OP_CONCAT ||
                x->op == DVM_OP_CUMSUM || dvm_is_product(x->op);
    uint32_t c = kept ? 0 : x->cost;
    n->cost = n->cost + c < n->cost ? UINT32_MAX : n->cost + c;
}

static void analyse(struct planner *p, uint32_t i) {
    struct pnode *n = &p->node.p[i];
    n->need = -1;
    n->pass = 0;
    n->cost = n->cls == DVM_CLS_EW ? dvm_plan_cost(n->op) : n->op == DVM_OP_GATHER ? 4 : 0;
    for (int k = 0; k < n->nin; k++) rest_on(p, n, n->in[k]);
    if (n->op == DVM_OP_GATHER) {
        /* The source lies in memory: what computes it is an earlier kernel. */
        uint32_t x = n->in[0];
        while (p->node.p[x].cls == DVM_CLS_VIEW && !p->node.p[x].mat) x = p->node.p[x].in[0];
        if (p->node.p[x].group >= n->need) n->need = p->node.p[x].group + 1, n->pass = 0;
    }
    if (n->pass >= MAX_PASS) n->need++, n->pass = 0; /* a new kernel starts here */
}

static void count_uses(struct planner *p) {
    for (uint32_t i = 1; i < p->node.n; i++) {
        struct pnode *n = &p->node.p[i];
        int cnt = n->op == DVM_OP_CONCAT ? (int)n->nat - 1 : n->nin;
        for (int k = 0; k < cnt; k++) {
            struct pnode *x = &p->node.p[n->op == DVM_OP_CONCAT ? p->pref[n->at[1 + k]] : n->in[k]];
            x->uses++;
            x->user = i;
        }
    }
}

/* Stored values may be read back from where they are stored. */
static void mark_stored(struct planner *p) {
    for (uint32_t i = p->node.n; --i > 0;) {
        const struct pnode *n = &p->node.p[i];
        const bool down = n->op == DVM_OP_STORE || (n->cls == DVM_CLS_VIEW && n->stored);
        if (down) p->node.p[n->in[0]].stored = 1;
    }
}

/* What a gather reads and nothing else puts in memory is kept there, known before anything is grouped. */
static void keep_gathered(struct planner *p) {
    for (uint32_t i = 1; i < p->node.n; i++) {
        const struct pnode *n = &p->node.p[i];
        if (n->op != DVM_OP_GATHER || p->numel.p[n->shape] == 0) continue;
        uint32_t x = n->in[0];
        while (p->node.p[x].cls == DVM_CLS_VIEW && p->node.p[x].op != DVM_OP_RESHAPE)
            x = p->node.p[x].in[0];
        struct pnode *b = &p->node.p[x];
        const bool computed = b->cls == DVM_CLS_EW || b->op == DVM_OP_GATHER;
        if (computed && !b->stored && p->numel.p[b->shape]) b->mat = MAT_NEAR;
    }
}

/* ---- kernels ------------------------------------------------------------------------------------------ */

static bool cut_axis(struct group *g, int a, int64_t at) {
    if (g->naxes >= DVM_MAX_AXES || a >= g->naxes || g->ax[a].size % at) return false;
    memmove(&g->ax[a + 1], &g->ax[a], sizeof g->ax[0] * (size_t)(g->naxes - a));
    g->ax[a].size /= at;
    g->ax[a].mult *= at;
    g->ax[a + 1].size = at;
    g->naxes++;
    g->nsplit++;
    return true;
}

static struct group *open_group(struct planner *p, int32_t shape, uint32_t user) {
    struct group *g = dvm_arena_new(p->a, sizeof *g);
    struct group **at = g ? PUSH(p, p->group) : NULL;
    if (!at) return no_memory(p), NULL;
    *at = g;
    const struct dvm_shape *s = &p->shape.p[shape];
    g->index = (int32_t)p->group.n - 1;
    g->kind = DVM_MODE_MAP;
    g->shape = shape;
    g->rank = s->rank;
    g->first = user;
    for (int d = 0; d < s->rank; d++)
        if (s->d[d] != 1) g->ax[g->naxes++] = (struct axis){.size = s->d[d], .dim = d, .mult = 1};
    return g;
}

static void make_cuts(const struct planner *p, struct group *g) {
    for (uint32_t i = 0; i < p->cut.n; i++)
        if (p->cut.p[i].first == g->first && p->cut.p[i].shape == g->shape &&
            !cut_axis(g, p->cut.p[i].axis, p->cut.p[i].at))
            break;
}

static struct group *new_group(struct planner *p, int32_t shape, uint32_t user) {
    struct group *g = open_group(p, shape, user);
    if (g) make_cuts(p, g);
    return g;
}

static void adopt(struct planner *p, struct group *g, const struct pnode *red) {
    const struct dvm_shape *s = &p->shape.p[g->shape];
    int64_t len = 1;
    g->kind = red->inner ? DVM_MODE_ROW : DVM_MODE_COL;
    g->mask = red->mask;
    for (int a = 0; a < g->naxes; a++) g->ax[a].reduced = red->mask >> g->ax[a].dim & 1;
    for (int d = 0; d < s->rank; d++)
        if (red->mask >> d & 1) len *= s->d[d];
    g->keep_ok = red->inner && len <= 16384;
}

/* Same sizes as the kept axes, leaving out ones. */
static bool kept_shape(const struct planner *p, const struct group *g, const struct dvm_shape *s) {
    const struct dvm_shape *gs = &p->shape.p[g->shape];
    int j = 0;
    for (int d = 0; d < gs->rank; d++) {
        if ((g->mask >> d & 1) || gs->d[d] == 1) continue;
        while (j < s->rank && s->d[j] == 1) j++;
        if (j >= s->rank || s->d[j] != gs->d[d]) return false;
        j++;
    }
    while (j < s->rank && s->d[j] == 1) j++;
    return j == s->rank;
}

/* As many elements in rows as long as those of the kernel: a product of [b * s, n] seen as [b, s, n]. */
static bool same_rows(const struct planner *p, const struct group *g, int32_t shape) {
    const struct dvm_shape *a = &p->shape.p[g->shape], *b = &p->shape.p[shape];
    return b->rank && p->numel.p[g->shape] == p->numel.p[shape] &&
           a->d[a->rank - 1] == b->d[b->rank - 1];
}

enum fit { FIT_NO, FIT_FULL, FIT_OUTER };

/* What works on finished tiles, at their shape or with rows told apart otherwise; on whole rows of them, their reductions and
 * what rests on those. */
static enum fit fits_product(const struct planner *p, const struct group *g, const struct root *r) {
    const struct pnode *n = &p->node.p[r->node];
    if (n->need != g->index || n->op == DVM_OP_CUMSUM) return FIT_NO;
    if (r->kind == ROOT_RED) {
        const bool rows = n->inner && n->mask == 1u << (g->rank - 1) && !n->alone;
        return rows && p->node.p[n->in[0]].shape == g->shape && dvm_plan_may_fold(p, g) ? FIT_FULL
                                                                                        : FIT_NO;
    }
    if (n->shape == g->shape) return FIT_FULL;
    if (n->pass > 0 || n->cls == DVM_CLS_RED)
        return kept_shape(p, g, &p->shape.p[n->shape]) ? FIT_OUTER : FIT_NO;
    return !g->fixed && same_rows(p, g, n->shape) ? FIT_FULL : FIT_NO;
}

static enum fit fits(const struct planner *p, const struct group *g, const struct root *r) {
    const struct pnode *n = &p->node.p[r->node];
    if (g->full_up || g->roots.n >= MAX_ROOTS) return FIT_NO;
    if (g->gemm) return fits_product(p, g, r);
    if (r->kind == ROOT_RED) {
        const struct pnode *x = &p->node.p[n->in[0]];
        if (g->scan || x->shape != g->shape || (n->alone != 0) != g->alone) return FIT_NO;
        if (g->kind == DVM_MODE_MAP) return FIT_FULL;
        return g->mask == n->mask && (g->kind == DVM_MODE_ROW) == (n->inner != 0) ? FIT_FULL
                                                                                  : FIT_NO;
    }
    if (n->op == DVM_OP_CUMSUM)
        return r->kind != ROOT_MAT && n->group == g->index ? FIT_FULL : FIT_NO;
    if (n->shape == g->shape && !g->alone && !(g->scan && n->need != g->index)) return FIT_FULL;
    bool rests = n->need == g->index && (n->pass > 0 || n->cls == DVM_CLS_RED);
    if (g->kind != DVM_MODE_MAP && rests && kept_shape(p, g, &p->shape.p[n->shape]))
        return FIT_OUTER;
    return FIT_NO;
}

/* A root that found a kernel full opens a new one, and what would have taken it is closed for those that follow. */
static struct group *choose(struct planner *p, struct root *r) {
    const struct pnode *n = &p->node.p[r->node];
    const int32_t min = r->kind == ROOT_PIECE ? DVM_MAX(p->node.p[r->user].min_group, n->min_piece)
                                              : p->node.p[r->user].min_group;
    const int32_t from = min == ALONE ? n->need : DVM_MAX(n->need, min);
    for (int32_t i = DVM_MAX(from, 0); i < (int32_t)p->group.n; i++) {
        struct group *g = p->group.p[i];
        enum fit f = fits(p, g, r);
        if (f == FIT_NO) continue;
        r->outer = f == FIT_OUTER;
        if (min != ALONE) return g;
        if (!dvm_plan_touch_group(p, g)) return NULL;
        g->full_up = true;
    }
    r->outer = 0;
    return new_group(p, r->kind == ROOT_RED ? p->node.p[n->in[0]].shape : n->shape, r->user);
}

/* Kept values are emitted when they are first read, but for those that stood in the way of others. */
static bool emit_early(struct planner *p, uint32_t n) {
    return !p->node.p[n].early || dvm_plan_home(p, n) >= 0;
}

/* Puts a root where it belongs and emits it. */
static bool place(struct planner *p, struct root r) {
    struct group *g = choose(p, &r);
    if (!g || !dvm_plan_touch_group(p, g)) return false;
    r.group = g->index;
    struct placed *at = PUSH(p, g->roots);
    if (!at) return no_memory(p);
    *at = (struct placed){r.user, r.kind == ROOT_PIECE ? r.node : 0};
    struct pnode *n = &p->node.p[r.node];
    if (r.kind == ROOT_RED) {
        g->second = n->second && (g->second || g->roots.n == 1);
        if (g->kind == DVM_MODE_MAP) adopt(p, g, n);
        g->alone = n->alone;
    }
    if (r.kind == ROOT_RED || r.kind == ROOT_MAT) {
        n->group = g->index;
        if (n->need != g->index) n->pass = 0;
        n->need = g->index;
        if (n->op == DVM_OP_CUMSUM) g->scan = true;
    }
    if (r.kind == ROOT_MAT) return emit_early(p, r.node);
    struct root *q = PUSH(p, p->root);
    if (!q) return no_memory(p);
    *q = r;
    return dvm_plan_emit_root(p, g, &r) && (r.kind != ROOT_RED || emit_early(p, r.node));
}

/* ---- stores ------------------------------------------------------------------------------------------- */

static void out_strides(const struct planner *p, uint32_t store, int64_t *st) {
    memcpy(st, p->out_arg[p->node.p[store].at[0]].stride, sizeof p->out_arg->stride);
}

/* Strides of the operand's axes when a reshape of it is stored with strides st; false: not one stride an axis. */
static bool reshape_strides(const struct dvm_shape *o, const struct dvm_shape *x, int64_t *st) {
    int64_t res[DVM_MAX_RANK] = {0};
    int i = x->rank - 1, j = o->rank - 1;
    while (i >= 0 && j >= 0) {
        if (x->d[i] == 1) {
            i--;
            continue;
        }
        if (o->d[j] == 1) {
            j--;
            continue;
        }
        int64_t pi = x->d[i], pj = o->d[j], base = st[j];
        res[i--] = base;
        while (pi != pj) {
            if (pi < pj) {
                if (i < 0) return false;
                res[i] = base * pi;
                pi *= x->d[i--];
            } else {
                if (j <= 0) return false;
                j--;
                if (o->d[j] != 1 && st[j] != base * pj) return false;
                pj *= o->d[j];
            }
        }
        j--;
    }
    memcpy(st, res, sizeof res);
    return true;
}

/* Moves views from the stored value into the strides of the store, when the value below is computed rather than
 * loaded: then it is stored from the kernel that computes it. */
static uint32_t through_views(const struct planner *p, uint32_t x, int64_t *st) {
    uint32_t z = x;
    bool turned = false;
    while (p->node.p[z].cls == DVM_CLS_VIEW) {
        turned |= p->node.p[z].op == DVM_OP_PERMUTE;
        z = p->node.p[z].in[0];
    }
    const struct pnode *base = &p->node.p[z];
    if (base->cls == DVM_CLS_LEAF || base->op == DVM_OP_CONCAT ||
        (turned && base->need < 0 && base->uses == 1))
        return x;
    while (x != z) {
        const struct pnode *n = &p->node.p[x];
        const struct dvm_shape *o = &p->shape.p[n->shape], *y = shape_of(p, n->in[0]);
        if (n->op == DVM_OP_PERMUTE) {
            int64_t t[DVM_MAX_RANK];
            for (int j = 0; j < o->rank; j++) t[n->at[j]] = st[j];
            memcpy(st, t, sizeof t[0] * (size_t)o->rank);
        } else if (n->op != DVM_OP_RESHAPE || p->numel.p[n->shape] == 0 ||
                   !reshape_strides(o, y, st)) {
            return x;
        }
        x = n->in[0];
    }
    return x;
}

static bool exact_in_memory(int t) { return t != DVM_F16 && t != DVM_BF16; }

static bool visit_store(struct planner *p, uint32_t i) {
    const struct pnode *n = &p->node.p[i];
    uint32_t x = n->in[0];
    if (p->node.p[x].direct || p->numel.p[n->shape] == 0) return true;
    struct root r = {.kind = ROOT_STORE, .dtype = n->dtype, .buffer = (int32_t)n->at[0], .user = i};
    out_strides(p, i, r.stride);
    while (p->node.p[x].op == DVM_OP_STORE) x = p->node.p[x].in[0];
    r.node = through_views(p, x, r.stride);
    if (!place(p, r)) return false;
    /* Later kernels may read the stored value back. */
    struct pnode *v = &p->node.p[r.node];
    if (v->cls == DVM_CLS_EW && v->home < 0 && v->group == NO_GROUP && v->uses > 1 &&
        exact_in_memory(r.dtype)) {
        if (!dvm_plan_touch_node(p, r.node)) return false;
        struct buffer *bf = PUSH(p, p->buffer);
        if (!bf) return no_memory(p);
        *bf = (struct buffer){.src = DVM_SRC_OUTPUT, .dtype = r.dtype, .index = (uint16_t)r.buffer};
        memcpy(bf->stride, r.stride, sizeof bf->stride);
        v->home = (int32_t)p->buffer.n - 1;
        v->group = p->root.p[p->root.n - 1].group;
        for (uint32_t k = p->root.n; k-- > 0;)
            if (p->root.p[k].user == i) {
                v->group = p->root.p[k].group;
                break;
            }
    }
    return true;
}

static bool visit_concat(struct planner *p, uint32_t i) {
    struct pnode *n = &p->node.p[i];
    const struct dvm_shape s = p->shape.p[n->shape];
    static const uint8_t ws_dtype[DVM_NVT] = {DVM_BOOL, DVM_I32, DVM_I64, DVM_F32, DVM_F64};
    struct buffer bf = {
        .src = DVM_SRC_WS, .dtype = ws_dtype[dvm_vt_of(n->dtype)], .first = INT32_MAX};
    int64_t step = 1;
    for (int j = s.rank - 1; j >= 0; j--) bf.stride[j] = step, step *= s.d[j];
    n->group = -1;
    if (n->uses == 1 && p->node.p[n->user].op == DVM_OP_STORE && p->node.p[n->user].uses == 0) {
        n->direct = 1;
        bf.src = DVM_SRC_OUTPUT;
        bf.dtype = n->dtype;
        bf.index = (uint16_t)p->node.p[n->user].at[0];
        out_strides(p, n->user, bf.stride);
    } else {
        bf.bytes = step * (int64_t)dvm_dtype_size((dvm_dtype)bf.dtype);
    }
    struct buffer *q = PUSH(p, p->buffer);
    if (!q) return no_memory(p);
    *q = bf;
    n->home = (int32_t)p->buffer.n - 1;
    int axis = (int)(n->at[0] < 0 ? n->at[0] + s.rank : n->at[0]);
    int64_t at = 0;
    uint32_t cnt = n->nat;
    for (uint32_t k = 1; k < cnt; k++) {
        uint32_t x = p->pref[p->node.p[i].at[k]];
        struct root r = {.kind = ROOT_PIECE,
                         .dtype = bf.dtype,
                         .buffer = p->node.p[i].home,
                         .node = x,
                         .user = i};
        memcpy(r.stride, bf.stride, sizeof r.stride);
        r.offset = at * bf.stride[axis];
        at += shape_of(p, x)->d[axis];
        if (p->numel.p[p->node.p[x].shape] == 0) continue;
        if (!place(p, r)) return false;
        for (uint32_t t = p->root.n; t-- > 0;) {
            if (p->root.p[t].kind != ROOT_PIECE || p->root.p[t].user != i) continue;
            struct buffer *b2 = &p->buffer.p[p->node.p[i].home];
            p->node.p[i].group = DVM_MAX(p->node.p[i].group, p->root.p[t].group);
            b2->first = DVM_MIN(b2->first, p->root.p[t].group);
            break;
        }
    }
    return true;
}

/* A product is a kernel of its own; what works on its result joins later. */
static bool visit_product(struct planner *p, uint32_t i) {
    struct pnode *n = &p->node.p[i];
    struct group *g = open_group(p, n->shape, i);
    struct placed *at = g ? PUSH(p, g->roots) : NULL;
    if (!at) return no_memory(p);
    *at = (struct placed){i, 0};
    n->group = n->need = g->index;
    n->pass = 0;
    dvm_plan_product_axes(p, g, i);
    make_cuts(p, g);
    return dvm_plan_emit_factors(p, g, i) && emit_early(p, i);
}

static bool visit(struct planner *p, uint32_t i) {
    struct pnode *n = &p->node.p[i];
    if (n->op == DVM_OP_STORE) return visit_store(p, i);
    if (n->op == DVM_OP_CONCAT) return visit_concat(p, i);
    if (p->numel.p[n->shape] == 0) return true;
    if (dvm_is_product(n->op)) return visit_product(p, i);
    if (n->cls == DVM_CLS_RED)
        return place(p, (struct root){.kind = ROOT_RED, .node = i, .user = i});
    if (n->op == DVM_OP_CUMSUM || n->mat)
        return place(p, (struct root){.kind = ROOT_MAT, .node = i, .user = i});
    return true;
}

/* ---- facts ---------------------------------------------------------------------------------------------- */

/* Node n is kept in memory; far: users of the same kernel must read memory too. A value that another one asked for is
 * emitted where it is placed, so that a chain of such values meets its next obstacle from the bottom up. */
static dvm_status learn_kept(struct planner *p, uint32_t n, bool far) {
    struct pnode *x = &p->node.p[n];
    if (x->mat == MAT_FAR)
        DVM_FAIL(INTERNAL, "planner cannot place %s (%%%u)", dvm_op_table[x->op].text, x->gref);
    const uint8_t mat = far || x->mat ? MAT_FAR : MAT_NEAR;
    const bool early = p->blame != 0 || far;
    dvm_plan_go_back(p, n);
    x->mat = mat;
    x->early |= early;
    return DVM_OK;
}

/* The kernel that refused a root at the visit of `user`. */
static struct group *refusing(const struct planner *p, uint32_t user) {
    uint32_t k = p->root.n;
    if (p->blame) return p->group.p[p->node.p[p->blame].group];
    while (k > 0 && p->root.p[k - 1].user != user) k--;
    return p->group.p[k ? p->root.p[k - 1].group : (int32_t)p->group.n - 1];
}

/* A root does not fit where it was put: the newest of its kernel, or a value kept for others that was emitted on the way.
 * It goes to a later kernel; alone and still refused, something of it is kept in memory. */
static dvm_status learn_elsewhere(struct planner *p, uint32_t user) {
    const uint32_t stop_node = p->stop_node;
    const bool full = p->stop == STOP_FULL;
    struct group *g = refusing(p, user);
    const struct placed newest = g->roots.p[g->roots.n - 1];
    struct placed r = {p->blame ? p->blame : user, newest.user == user ? newest.piece : 0};
    if (g->roots.n == 1 && g->first == r.user) {
        if (stop_node == 0 || (p->node.p[stop_node].mat && !full))
            DVM_FAIL(LIMIT, "a kernel of this graph has too many operands or passes");
        p->cut_full |= full;
        return learn_kept(p, stop_node, full);
    }
    if (g->first == r.user && !r.piece) r = newest; /* it will always be the first */
    const int32_t next = full ? ALONE : g->index + 1;
    const uint32_t n = r.piece ? r.piece : r.user;
    const uint8_t mat = p->node.p[n].mat;
    dvm_plan_go_back(p, n);
    p->node.p[n].mat = mat;
    if (r.piece)
        p->node.p[n].min_piece = next;
    else
        p->node.p[n].min_group = next;
    return DVM_OK;
}

static dvm_status learn_cut(struct planner *p) {
    const struct group *g = p->group.p[p->split_group];
    const struct cut cut = {g->first, g->shape, p->split_axis, p->split_at};
    dvm_plan_go_back(p, cut.first);
    struct cut *c = PUSH_KEPT(p, p->cut);
    if (!c) return DVM_ERR_NOMEM;
    *c = cut;
    return DVM_OK;
}

/* Remembers why emission stopped at the visit of `user`, and goes back to the first node that this changes. */
static dvm_status learn(struct planner *p, uint32_t user) {
    const uint32_t n = p->stop_node;
    switch (p->stop) {
    case STOP_MAT: return learn_kept(p, n, false);
    case STOP_GROUP:
    case STOP_FULL: return learn_elsewhere(p, user);
    case STOP_SPLIT: return learn_cut(p);
    case STOP_EARLY: {
        const uint8_t mat = p->node.p[n].mat;
        dvm_plan_go_back(p, n);
        p->node.p[n].mat = mat;
        p->node.p[n].early = 1;
        return DVM_OK;
    }
    default: return p->st != DVM_OK ? p->st : DVM_ERR_NOMEM;
    }
}

/* axes.c has moved a root away: kernels are already changed, so nothing saved helps. */
static void start_again(struct planner *p) {
    p->undo = NULL;
    dvm_plan_go_back(p, 1);
}

static bool visit_from(struct planner *p, uint32_t *i) {
    for (; *i < p->node.n; ++*i) {
        p->visits++;
        p->work++;
        p->visited = DVM_MAX(p->visited, *i + 1);
        if (!dvm_plan_mark(p, *i)) return false;
        analyse(p, *i);
        if (!visit(p, *i) || p->stop != STOP_NONE) return false;
    }
    return true;
}

dvm_status dvm_plan_groups(struct planner *p) {
    count_uses(p);
    mark_stored(p);
    keep_gathered(p);
    p->mark = dvm_arena_raw(p->a, sizeof *p->mark * (p->node.n + 1));
    if (!p->mark) return DVM_ERR_NOMEM;
    if (!dvm_arena_within(&p->grouping, p->keep, 4096 + 96 * (size_t)p->node.n))
        return DVM_ERR_NOMEM;
    p->a = &p->grouping;
    if (!dvm_plan_mark(p, 1)) return DVM_ERR_NOMEM;
    start_again(p);
    uint64_t tries = 64 + 64 * (uint64_t)p->node.n;
    uint32_t i = 1;
    for (uint64_t t = 0; t < tries; t++) {
        if (visit_from(p, &i)) {
            dvm_plan_axes(p);
            if (p->stop == STOP_NONE) return DVM_OK;
            if (p->stop != STOP_GROUP) return p->st;
            start_again(p);
            i = 1;
            continue;
        }
        DVM_TRY(learn(p, i));
        i = p->back_at;
    }
    DVM_FAIL(INTERNAL, "planner found no end after %llu tries", (unsigned long long)tries);
}
