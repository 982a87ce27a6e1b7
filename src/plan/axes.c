/* Loop axes of a kernel: neighbours that every operand walks through alike become one, then they are put in the order
 * of plan.h: kept | reduced | strip. */
#include <string.h>

#include "plan/plan_int.h"

static struct sb *sb_at(const struct group *g, int i) {
    return i & 1 ? g->vecs[i / 2] : g->full[i / 2];
}

static bool can_merge(const struct group *g, int a) {
    if (g->ax[a].reduced != g->ax[a + 1].reduced) return false;
    if (g->scan && a + 1 == g->naxes - 1) return false;
    int64_t n = g->ax[a + 1].size;
    for (int i = 0; i < 2 * g->npass; i++) {
        const struct sb *b = sb_at(g, i);
        for (uint32_t k = 0; b && k < b->opnd.n; k++) {
            const struct popnd *o = &b->opnd.p[k];
            if (o->src != DVM_SRC_SCRATCH && o->stride[a] != o->stride[a + 1] * n) return false;
        }
    }
    return true;
}

static void drop_axis(struct group *g, int a) {
    for (int i = 0; i < 2 * g->npass; i++) {
        struct sb *b = sb_at(g, i);
        for (uint32_t k = 0; b && k < b->opnd.n; k++) {
            int64_t *st = b->opnd.p[k].stride;
            memmove(&st[a], &st[a + 1], sizeof *st * (size_t)(g->naxes - a - 1));
            st[g->naxes - 1] = 0;
        }
    }
    memmove(&g->ax[a], &g->ax[a + 1], sizeof g->ax[0] * (size_t)(g->naxes - a - 1));
    g->naxes--;
}

static void merge(struct group *g) {
    for (int a = g->naxes - 2; a >= 0; a--) {
        if (!can_merge(g, a)) continue;
        g->ax[a + 1].size *= g->ax[a].size;
        drop_axis(g, a);
    }
}

/* An axis of size 1 before position at. */
static void insert_axis(struct group *g, int at, bool reduced) {
    for (int i = 0; i < 2 * g->npass; i++) {
        struct sb *b = sb_at(g, i);
        for (uint32_t k = 0; b && k < b->opnd.n; k++) {
            int64_t *st = b->opnd.p[k].stride;
            memmove(&st[at + 1], &st[at], sizeof *st * (size_t)(g->naxes - at));
            st[at] = 0;
        }
    }
    memmove(&g->ax[at + 1], &g->ax[at], sizeof g->ax[0] * (size_t)(g->naxes - at));
    g->ax[at] = (struct axis){.size = 1, .dim = -1, .reduced = reduced};
    g->naxes++;
}

static void swap_axes(struct group *g, int a, int b) {
    struct axis t = g->ax[a];
    g->ax[a] = g->ax[b];
    g->ax[b] = t;
    for (int i = 0; i < 2 * g->npass; i++) {
        struct sb *s = sb_at(g, i);
        for (uint32_t k = 0; s && k < s->opnd.n; k++) {
            int64_t *st = s->opnd.p[k].stride, x = st[a];
            st[a] = st[b];
            st[b] = x;
        }
    }
}

static int64_t magnitude(int64_t x) { return x < 0 ? -x : x; }

/* MAP: the axis along which the first store moves least becomes the strip, so that outputs are written in order. */
static void order_by_store(struct group *g) {
    const struct popnd *st = NULL;
    const struct sb *b = g->full[0];
    for (uint32_t k = 0; !st && k < b->opnd.n; k++)
        if (b->opnd.p[k].desc.role == DVM_ROLE_STORE) st = &b->opnd.p[k];
    for (int i = 1; st && i < g->naxes; i++)
        for (int a = i; a > 0 && magnitude(st->stride[a - 1]) < magnitude(st->stride[a]); a--)
            swap_axes(g, a - 1, a);
    merge(g);
}

/* A strip walks a box of the last two axes, and finding the operands of a box takes as long as walking some hundred
 * elements. Where these axes are short, the longest of the others takes the place of the rows; the order of kept axes
 * changes no result. */
enum { SMALL_BOX = 256 };

static void lengthen_rows(struct group *g) {
    const int row = g->naxes - 2;
    int longest = row;
    if (row < 1 || g->ax[row].size * g->ax[row + 1].size >= SMALL_BOX) return;
    for (int a = 0; a < row; a++)
        if (g->ax[a].size > g->ax[longest].size) longest = a;
    if (longest != row) swap_axes(g, longest, row);
}

static int count_reduced(const struct group *g) {
    int n = 0;
    for (int a = 0; a < g->naxes; a++) n += g->ax[a].reduced;
    return n;
}

/* A row that no single strip can walk. First its reductions get a kernel without other full-size roots, whose strides may
 * be in the way; if that was not it, their operands go to memory first, where they are dense. What another kernel of this
 * round has asked for may be what this one needs: only a round in which nothing changed has failed. */
static void refuse(struct planner *p, const struct group *g) {
    bool changed = false;
    for (int step = 0; step < 2 && !changed; step++) {
        for (uint32_t k = 0; k < p->root.n; k++) {
            const struct root *r = &p->root.p[k];
            if (r->group != g->index || r->kind != ROOT_RED) continue;
            struct pnode *n = &p->node.p[r->node], *x = &p->node.p[n->in[0]];
            if (step == 0 ? n->alone : x->mat == MAT_FAR) continue;
            if (step == 0)
                n->alone = 1;
            else
                x->mat = MAT_FAR;
            changed = true;
        }
    }
    if (changed) p->stop = STOP_GROUP;
    if (p->stop != STOP_NONE) return;
    p->stop = STOP_ERROR;
    p->st = dvm_err_set(DVM_ERR_INTERNAL, "planner cannot lay out a row kernel");
}

/* Rows that are reduced and lie a few at a time, each few elsewhere, are walked one by one. What the reductions read goes
 * to memory first, where the rows follow each other: written by the kernel that computes it anyway, and only where that
 * did not help by one of its own. */
enum { FEW_ROWS = 8 };

static void ask_for_dense(struct planner *p, const struct group *g) {
    if (g->nm < 2 || g->ax[g->naxes - 2].size >= FEW_ROWS) return;
    for (uint32_t k = 0; k < p->root.n; k++) {
        const struct root *r = &p->root.p[k];
        if (r->group != g->index || r->kind != ROOT_RED) continue;
        struct pnode *x = &p->node.p[p->node.p[r->node].in[0]];
        const bool computed = x->cls == DVM_CLS_EW || x->op == DVM_OP_GATHER;
        if (!computed || x->mat == MAT_FAR) continue;
        x->mat = x->mat ? MAT_FAR : MAT_NEAR;
        p->stop = STOP_GROUP;
    }
}

static void order_col(struct group *g) {
    /* kept axes but the last move to the front, both kinds keeping their order */
    for (int i = 1; i < g->naxes - 1; i++)
        for (int a = i; a > 0 && g->ax[a - 1].reduced && !g->ax[a].reduced; a--)
            swap_axes(g, a - 1, a);
    g->nm = count_reduced(g);
}

static bool steps_fit(const struct group *g, int a, bool fixed) {
    for (int i = 0; i < 2 * g->npass; i++) {
        const struct sb *b = sb_at(g, i);
        for (uint32_t k = 0; b && k < b->opnd.n; k++) {
            const struct popnd *o = &b->opnd.p[k];
            int64_t want = fixed ? 0 : o->stride[a + 1] * g->ax[a + 1].size;
            if (o->src != DVM_SRC_TILE && o->src != DVM_SRC_SCRATCH && o->stride[a] != want)
                return false;
        }
    }
    return true;
}

static void join_axis(struct group *g, int a, bool fixed) {
    if (!fixed) g->ax[a + 1].size *= g->ax[a].size;
    drop_axis(g, a);
}

/* A row in lanes stays one row, whatever its second factor's steps. */
static bool may_grow(const struct planner *p, const struct group *g) {
    return g->ax[g->naxes - 1].size == 1 || !dvm_plan_in_lanes(p, g);
}

/* Batch axes of a product that everything walks alike become one. The last one becomes rows where the second factor does
 * not move with it and everything else walks on from one matrix to the next: one large product instead of many. */
static void fold_batch(struct planner *p, struct group *g) {
    if (p->node.p[g->gemm].op != DVM_OP_MATMUL || !g->side[0] || !g->side[1]) return;
    for (int a = g->naxes - 3; a >= 0; a--) {
        bool rows = a == g->naxes - 3 && may_grow(p, g) && steps_fit(g->side[1], a, true);
        if (!steps_fit(g, a, false) || !steps_fit(g->side[0], a, false)) continue;
        if (!rows && (a == g->naxes - 3 || !steps_fit(g->side[1], a, false))) continue;
        join_axis(g, a, false);
        join_axis(g->side[0], a, false);
        join_axis(g->side[1], a, rows);
    }
}

static void axes(struct planner *p, struct group *g) {
    if (g->gemm) {
        fold_batch(p, g);
        return;
    }
    const struct dvm_shape *s = &p->shape.p[g->shape];
    if (g->scan && s->rank > 0 && s->d[s->rank - 1] == 1) insert_axis(g, g->naxes, false);
    merge(g);
    g->nm = 0;
    if (g->kind == DVM_MODE_MAP && !g->scan) order_by_store(g);
    if (g->kind == DVM_MODE_ROW && count_reduced(g) != 1) {
        refuse(p, g);
        return;
    }
    if (g->kind != DVM_MODE_COL && !g->scan) lengthen_rows(g);
    if (g->kind == DVM_MODE_COL) {
        order_col(g);
        ask_for_dense(p, g);
    }
    while (g->kind != DVM_MODE_COL && g->naxes < 2) insert_axis(g, 0, false);
}

void dvm_plan_axes(struct planner *p) {
    for (uint32_t i = 0; i < p->group.n && p->stop != STOP_ERROR; i++) {
        struct group *g = p->group.p[i];
        if (g->npass && (g->full[0] || g->kind != DVM_MODE_MAP)) axes(p, g);
    }
}
