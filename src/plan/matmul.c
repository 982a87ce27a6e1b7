/* Matrix products in a plan: kernels of their own (plan.h, DVM_KIND_GEMM). A factor is read where it lies, through any
 * views that are steps; one that is computed goes to memory first, or, where that is little work, is made by a strip while
 * the product packs it. Needs nodes at concrete shapes; what follows the product joins its kernel in group.c. */
#include <string.h>

#include "plan/emit.h"
#include "plan/plan_int.h"

enum { SIDE_A, SIDE_B, SIDE_LIST };

static const struct dvm_shape *shape_of(const struct planner *p, uint32_t n) {
    return &p->shape.p[p->node.p[n].shape];
}
static bool by_rows(const struct pnode *x) {
    return x->op == DVM_OP_GROUPED && x->at[2] == DVM_GROUP_M;
}
static bool is_half(int t) { return t == DVM_F16 || t == DVM_BF16; }

/* ---- factors as the product takes them ------------------------------------------------------------------ */

/* Do the values of x have bits that its 16-bit dtype holds, wherever they are computed? */
static bool is_rounded(const struct planner *p, uint32_t n) {
    for (;;) {
        const struct pnode *x = &p->node.p[n];
        if (x->op == DVM_OP_LOAD || x->op == DVM_OP_CAST || x->op == DVM_OP_CONST) return true;
        if (x->cls != DVM_CLS_VIEW && x->op != DVM_OP_GATHER && x->op != DVM_OP_STORE) return false;
        n = x->in[0];
    }
}

static uint32_t cast_to(struct planner *p, uint32_t n, int dtype) {
    const struct pnode *x = &p->node.p[n];
    return dvm_plan_new_node(p, (struct pnode){.op = DVM_OP_CAST,
                                               .dtype = (uint8_t)dtype,
                                               .nin = 1,
                                               .in = {n},
                                               .gref = x->gref,
                                               .shape = x->shape});
}

/* Views stay on top, so that what is kept in memory is what was computed. */
uint32_t dvm_plan_factor(struct planner *p, uint32_t n) {
    struct pnode x = p->node.p[n];
    if (x.op == DVM_OP_STORE) return dvm_plan_factor(p, x.in[0]);
    if (x.cls == DVM_CLS_VIEW) {
        uint32_t y = dvm_plan_factor(p, x.in[0]);
        if (y == x.in[0] || !y) return y ? n : 0;
        x.in[0] = y;
        x.dtype = p->node.p[y].dtype;
        return dvm_plan_new_node(p, x);
    }
    if (x.op == DVM_OP_CAST && x.dtype == DVM_F32 && is_half(p->node.p[x.in[0]].dtype) &&
        is_rounded(p, x.in[0]))
        return dvm_plan_factor(p, x.in[0]);
    if (!is_half(x.dtype) || is_rounded(p, n)) return n;
    uint32_t wide = cast_to(p, n, DVM_F32);
    return wide ? cast_to(p, wide, x.dtype) : 0;
}

/* ---- spaces --------------------------------------------------------------------------------------------- */

/* Axes of the space: those that move, and the last `keep`. */
static void set_axes(const struct planner *p, struct group *g, int keep) {
    const struct dvm_shape *s = &p->shape.p[g->shape];
    g->naxes = 0;
    g->rank = s->rank;
    for (int d = 0; d < s->rank; d++)
        if (s->d[d] != 1 || d >= s->rank - keep)
            g->ax[g->naxes++] = (struct axis){.size = s->d[d], .dim = d, .mult = 1};
}

static struct group *new_side(struct planner *p, const struct group *g, const struct dvm_shape *s) {
    struct group *side = dvm_arena_new(p->a, sizeof *side);
    int32_t shape = dvm_plan_shape(p, s);
    if (!side || shape < 0) {
        p->st = DVM_ERR_NOMEM;
        p->stop = STOP_ERROR;
        return NULL;
    }
    side->index = g->index;
    side->kind = DVM_MODE_MAP;
    side->gemm = g->gemm;
    side->fixed = true;
    side->shape = shape;
    side->rank = s->rank;
    return side;
}

/* Batch axes and rows of the kernel, then K. */
static void axes_a(const struct group *g, struct group *side, int64_t k) {
    side->fixed = g->fixed; /* its rows are the kernel's: cutting them cuts those */
    side->naxes = g->naxes;
    memcpy(side->ax, g->ax, sizeof side->ax);
    side->ax[g->naxes - 1] = (struct axis){.size = k, .dim = side->rank - 1, .mult = 1};
}

/* Batch axes, K, columns. Rows that were cut in parts leave axes along which this factor stands still. */
static void axes_b(const struct group *g, struct group *side, int64_t k) {
    side->naxes = g->naxes;
    memcpy(side->ax, g->ax, sizeof side->ax);
    for (int a = 0; a < g->naxes - 2; a++)
        if (g->ax[a].dim == g->rank - 2) side->ax[a].dim = -1;
    side->ax[g->naxes - 2] = (struct axis){.size = k, .dim = side->rank - 2, .mult = 1};
}

/* Map of factor x: its last two axes are those of the space, exchanged when it is stored transposed; batch axes are
 * aligned to the right. */
static const struct view *factor_view(struct planner *p, const struct group *side,
                                      const struct dvm_shape *x, bool trans, bool *ok) {
    struct view *v = dvm_view_new(p, x->rank);
    *ok = v != NULL;
    if (!v) return NULL;
    for (int a = 0; a < side->naxes; a++) {
        int j = side->ax[a].dim - (side->rank - x->rank);
        if (trans && j >= x->rank - 2) j = 2 * x->rank - 3 - j;
        if (j >= 0 && x->d[j] != 1) v->inc[a][j] = side->ax[a].mult;
    }
    return dvm_view_intern(side, v, x);
}

/* What a factor is computed from, below its views. */
static uint32_t base_of(const struct planner *p, const struct group *g, uint32_t n) {
    for (;;) {
        const struct pnode *x = &p->node.p[n];
        bool kept = x->mat && x->group != NO_GROUP && x->group < g->index;
        if (x->cls != DVM_CLS_VIEW || kept) return n;
        n = x->in[0];
    }
}

static bool in_memory(const struct planner *p, const struct group *g, uint32_t n) {
    const struct pnode *x = &p->node.p[n];
    if (x->op == DVM_OP_LOAD) return true;
    bool held = x->mat || x->home >= 0 || x->cls == DVM_CLS_RED || x->op == DVM_OP_CUMSUM ||
                x->op == DVM_OP_CONCAT || dvm_is_product(x->op);
    return held && x->group != NO_GROUP && x->group < g->index;
}

static bool stop_for(struct planner *p, uint32_t node) {
    p->stop = STOP_MAT;
    p->stop_node = node;
    return false;
}

enum { LIGHT = 16 }; /* additions for an element: less than a pass through memory */

/* May the product make this factor while it packs it? Every tile of the other factor's columns may ask again, so only
 * what is little work and has no other user; a bf16 factor in memory can use instructions that f32 cannot. */
static bool may_pack(const struct planner *p, uint32_t n, uint32_t base) {
    const struct pnode *x = &p->node.p[base];
    if (x->cls != DVM_CLS_EW || x->cost > LIGHT || x->mat || p->node.p[n].dtype == DVM_BF16)
        return false;
    for (; n != base; n = p->node.p[n].in[0])
        if (p->node.p[n].uses > 1) return false;
    for (int casts = 0; casts < 2 && x->op == DVM_OP_CAST; casts++) { /* the rounding of a factor */
        if (x->uses > 1) return false;
        x = &p->node.p[x->in[0]];
    }
    return x->uses <= 1 || x->op == DVM_OP_LOAD;
}

/* Made in rows, a factor that is read across them would cost more than a pass through memory. */
static bool reads_along(const struct sb *b) {
    int last = b->g->naxes - 1;
    for (uint32_t i = 0; i < b->opnd.n; i++) {
        const struct popnd *o = &b->opnd.p[i];
        int64_t es = (int64_t)dvm_dtype_size((dvm_dtype)o->desc.dtype);
        if (o->src < DVM_SRC_NONE && o->stride[last] != 0 && o->stride[last] != es) return false;
    }
    return true;
}

static bool emit_side(struct planner *p, struct group *g, struct group *side, uint32_t n,
                      bool trans) {
    uint32_t base = base_of(p, g, n);
    bool ok, held = side == g->side[SIDE_LIST] ||
                    (side == g->side[SIDE_B] && by_rows(&p->node.p[g->gemm]));
    const struct dvm_shape s = *shape_of(p, n);
    const struct view *v = factor_view(p, side, &s, trans, &ok);
    struct sb *b = ok ? dvm_plan_new_sb(p, side, 0, false) : NULL;
    if (!b) return false;
    if (in_memory(p, g, base)) return dvm_plan_emit_memory(p, b, n, v) != NULL;
    if (held || !may_pack(p, n, base)) return stop_for(p, base);
    if (dvm_plan_emit_tile(p, b, n, v)) return reads_along(b) || stop_for(p, base);
    if (p->stop == STOP_ERROR || p->stop == STOP_SPLIT || p->blame) return false;
    return stop_for(p, base);
}

/* ---- entry ---------------------------------------------------------------------------------------------- */

int64_t dvm_plan_depth(const struct planner *p, const struct group *g) {
    const struct pnode *x = &p->node.p[g->gemm];
    const struct dvm_shape *a = shape_of(p, x->in[0]);
    return a->d[a->rank - (x->at[0] ? 2 : 1)];
}

/* One column, or one row in all: those of a batch count together where the second factor has no batch, and a batch of rows with a
 * factor each has one row in each. The shapes of the nodes decide, nothing that depends on steps or on what else shares the
 * kernel; and the rows of a group are data, so groups never. */
bool dvm_plan_in_lanes(const struct planner *p, const struct group *g) {
    const struct pnode *x = &p->node.p[g->gemm];
    const struct dvm_shape *s = shape_of(p, g->gemm), *b = shape_of(p, x->in[1]);
    if (x->op != DVM_OP_MATMUL) return false;
    int64_t rows = s->d[s->rank - 2], factors = 1;
    for (int d = 0; d < b->rank - 2; d++) factors *= b->d[d];
    for (int d = 0; d < s->rank - 2 && factors == 1; d++) rows *= s->d[d];
    return rows == 1 || s->d[s->rank - 1] == 1;
}

/* Rows of a panel: UNIT suits the kernels of every level; below LEAST rows each value of the second factor is loaded for too few.
 * The panel takes half of the cache, or all of it where it has to; the other half is for what is packed. */
enum { UNIT = 12, LEAST = 48, WANTED = 8, SMALL_WORK = 1 << 22 };

static int64_t rows_of(const struct planner *p, const struct group *g) {
    const struct dvm_shape *s = &p->shape.p[g->shape];
    return p->numel.p[g->shape] / s->d[s->rank - 1];
}

/* Threads share panels, not columns: too few of them leave threads idle, unless the work is one thread's anyway. */
bool dvm_plan_may_fold(const struct planner *p, const struct group *g) {
    const struct dvm_shape *s = &p->shape.p[g->shape];
    const int64_t n = s->d[s->rank - 1], rows = rows_of(p, g), k = dvm_plan_depth(p, g);
    if (p->node.p[g->gemm].op != DVM_OP_MATMUL) return false;
    if (n > (int64_t)p->in->cache_bytes / (4 * LEAST)) return false;
    return rows >= WANTED * LEAST || rows * n <= SMALL_WORK / DVM_MAX(k, 1);
}

int64_t dvm_plan_panel(const struct planner *p, const struct group *g) {
    const int64_t n = g->ax[g->naxes - 1].size, m = DVM_MAX(g->ax[g->naxes - 2].size, 1);
    int64_t most = (int64_t)p->in->cache_bytes / 2 / (4 * DVM_MAX(n, 1));
    most = DVM_MIN(DVM_MIN(most, rows_of(p, g) / WANTED), DVM_PANEL_MOST);
    most = DVM_MAX(most, LEAST) / UNIT * UNIT;
    const int64_t panels = (m + most - 1) / most, even = (m + panels - 1) / panels;
    return DVM_MIN((even + UNIT - 1) / UNIT * UNIT, m);
}

void dvm_plan_product_axes(struct planner *p, struct group *g, uint32_t n) {
    g->gemm = n;
    g->fixed = p->node.p[n].op == DVM_OP_GROUPED;
    set_axes(p, g, 2);
}

static bool emit_a(struct planner *p, struct group *g, const struct pnode *x, int64_t k) {
    struct dvm_shape s = p->shape.p[g->shape];
    s.d[s.rank - 1] = k;
    struct group *side = g->side[SIDE_A] = new_side(p, g, &s);
    if (!side) return false;
    axes_a(g, side, k);
    return emit_side(p, g, side, x->in[0], x->at[0] != 0);
}

static bool emit_b(struct planner *p, struct group *g, const struct pnode *x, int64_t k) {
    struct dvm_shape s = p->shape.p[g->shape];
    if (by_rows(x))
        s = (struct dvm_shape){.rank = 3, .d = {shape_of(p, x->in[1])->d[0], k, s.d[1]}};
    else
        s.d[s.rank - 2] = k;
    if (by_rows(x) && s.d[0] == 0) return true; /* no group: every row is 0 */
    struct group *side = g->side[SIDE_B] = new_side(p, g, &s);
    if (!side) return false;
    if (by_rows(x))
        set_axes(p, side, 3);
    else
        axes_b(g, side, k);
    return emit_side(p, g, side, x->in[1], x->at[1] != 0);
}

bool dvm_plan_emit_factors(struct planner *p, struct group *g, uint32_t n) {
    const struct pnode x = p->node.p[n];
    int64_t k = dvm_plan_depth(p, g);
    if (k && (!emit_a(p, g, &x, k) || !emit_b(p, g, &x, k))) return false;
    if (x.op == DVM_OP_MATMUL) return true;
    const struct dvm_shape list = *shape_of(p, x.in[2]);
    if (list.d[0] == 0) return true;
    g->side[SIDE_LIST] = new_side(p, g, &list);
    if (!g->side[SIDE_LIST]) return false;
    set_axes(p, g->side[SIDE_LIST], 1);
    return emit_side(p, g, g->side[SIDE_LIST], x.in[2], false);
}
