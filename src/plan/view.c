/* Index maps between kernel axes and node axes: composing them with broadcast, permute, slice and reshape. */
#include <string.h>

#include "plan/plan_int.h"

int64_t dvm_view_inc(const struct group *g, const struct view *v, const struct dvm_shape *s, int a,
                     int j) {
    if (v) return v->inc[a][j];
    if (a >= g->naxes || s->d[j] == 1) return 0;
    return g->ax[a].dim - (g->rank - s->rank) == j ? g->ax[a].mult : 0;
}

struct view *dvm_view_new(struct planner *p, int rank) {
    struct view *v = dvm_arena_new(p->a, sizeof *v);
    if (!v) {
        p->st = DVM_ERR_NOMEM;
        p->stop = STOP_ERROR;
        return NULL;
    }
    v->rank = rank;
    return v;
}

struct view *dvm_view_std(struct planner *p, const struct group *g, const struct dvm_shape *s) {
    struct view *v = dvm_view_new(p, s->rank);
    for (int a = 0; v && a < g->naxes; a++)
        for (int j = 0; j < s->rank; j++) v->inc[a][j] = dvm_view_inc(g, NULL, s, a, j);
    return v;
}

const struct view *dvm_view_intern(const struct group *g, struct view *v,
                                   const struct dvm_shape *s) {
    bool std = true;
    for (int j = 0; std && j < s->rank; j++) {
        std = v->off[j] == 0 && v->inc[g->naxes][j] == 0;
        for (int a = 0; std && a < g->naxes; a++)
            std = v->inc[a][j] == dvm_view_inc(g, NULL, s, a, j);
    }
    if (std) return NULL;
    for (int b = 0; b < 2 * g->npass; b++) {
        const struct sb *sb = b & 1 ? g->vecs[b / 2] : g->full[b / 2];
        for (uint32_t i = 0; sb && i < sb->vmemo.n; i++) {
            const struct view *w = sb->vmemo.p[i].v;
            if (w->rank == v->rank && !memcmp(w->off, v->off, sizeof v->off) &&
                !memcmp(w->inc, v->inc, sizeof v->inc[0] * (size_t)(g->naxes + 1)))
                return w;
        }
    }
    return v;
}

const struct view *dvm_view_broadcast(struct planner *p, struct group *g,
                                      const struct dvm_shape *ns, const struct dvm_shape *xs,
                                      const struct view *v) {
    if (!v) return NULL;
    struct view *w = dvm_view_new(p, xs->rank);
    int shift = ns->rank - xs->rank;
    for (int j = 0; w && j < xs->rank; j++) {
        if (xs->d[j] == 1) continue;
        w->off[j] = v->off[j + shift];
        for (int a = 0; a <= g->naxes; a++) w->inc[a][j] = v->inc[a][j + shift];
    }
    return w;
}

/* ---- reshape -------------------------------------------------------------------------------------- */

/* A run of axes [o0, o1) of the result and [i0, i1) of the operand with the same number of elements. */
struct run {
    int o0, o1, i0, i1;
};

static bool next_run(const struct dvm_shape *o, const struct dvm_shape *x, struct run *r) {
    r->o0 = r->o1;
    r->i0 = r->i1;
    if (r->o0 >= o->rank && r->i0 >= x->rank) return false;
    int64_t po = 1, pi = 1;
    if (r->o1 < o->rank) po = o->d[r->o1++];
    if (r->i1 < x->rank) pi = x->d[r->i1++];
    while (po != pi) {
        if (po < pi && r->o1 < o->rank)
            po *= o->d[r->o1++];
        else if (r->i1 < x->rank)
            pi *= x->d[r->i1++];
        else
            break; /* equal totals: only sizes of 1 can be left */
    }
    return true;
}

/* Step `lin` of axis a (size n) within the operand axes of run r: which axis and how far. */
static bool place(const struct dvm_shape *x, struct run r, int64_t lin, int64_t n, int *dim,
                  int64_t *step, int64_t *cut) {
    int64_t inner = 1, mag = lin < 0 ? -lin : lin;
    *cut = 0;
    for (int i = r.i1 - 1; i >= r.i0; i--) {
        if (x->d[i] == 1) continue;
        if (mag % inner == 0 && mag / inner < x->d[i]) {
            int64_t c = mag / inner;
            *dim = i;
            *step = lin / inner;
            if (c * (n - 1) < x->d[i]) return true;
            if (x->d[i] % c == 0 && n % (x->d[i] / c) == 0) *cut = x->d[i] / c;
            return false;
        }
        inner *= x->d[i];
    }
    return false;
}

static bool run_offsets(const struct dvm_shape *x, struct run r, int64_t lin, struct view *w) {
    for (int i = r.i1 - 1; i >= r.i0; i--) {
        w->off[i] = lin % x->d[i];
        lin /= x->d[i];
    }
    return lin == 0;
}

/* Index sums must not carry from one operand axis to the next. */
static bool no_carry(const struct group *g, const struct dvm_shape *x, struct run r,
                     const struct view *w) {
    for (int i = r.i0; i < r.i1; i++) {
        int64_t lo = w->off[i], hi = lo;
        for (int a = 0; a <= g->naxes; a++) {
            int64_t reach = w->inc[a][i] * (g->ax[a].size - 1);
            if (reach > 0)
                hi += reach;
            else
                lo += reach;
        }
        if (lo < 0 || hi >= x->d[i]) return false;
    }
    return true;
}

static bool map_run(struct planner *p, struct group *g, const struct dvm_shape *o,
                    const struct dvm_shape *x, struct run r, const struct view *v, struct view *w) {
    int big = 0, last = -1;
    for (int i = r.i0; i < r.i1; i++)
        if (x->d[i] != 1) big++, last = i;
    if (!big) return true;
    int64_t off = 0, lin[DVM_MAX_AXES + 1] = {0}, st = 1;
    for (int j = r.o1 - 1; j >= r.o0; j--) {
        off += v->off[j] * st;
        for (int a = 0; a <= g->naxes; a++) lin[a] += v->inc[a][j] * st;
        st *= o->d[j];
    }
    if (big == 1) {
        w->off[last] = off;
        for (int a = 0; a <= g->naxes; a++) w->inc[a][last] = lin[a];
        return true;
    }
    bool ok = run_offsets(x, r, off, w);
    for (int a = 0; ok && a <= g->naxes; a++) {
        int dim;
        int64_t step, cut;
        if (lin[a] == 0 || g->ax[a].size <= 1) continue;
        if (place(x, r, lin[a], g->ax[a].size, &dim, &step, &cut)) {
            w->inc[a][dim] = step;
            continue;
        }
        bool may =
            cut > 1 && a < g->naxes && dvm_plan_may_cut(g, a) && !(g->scan && a == g->naxes - 1);
        if (may) {
            p->stop = STOP_SPLIT;
            p->split_group = g->index;
            p->split_axis = a;
            p->split_at = cut;
            return false;
        }
        ok = false;
    }
    return ok && no_carry(g, x, r, w);
}

static struct view *through_reshape(struct planner *p, struct group *g, const struct pnode *n,
                                    const struct dvm_shape *xs, const struct view *v) {
    struct dvm_shape o = p->shape.p[n->shape], x = *xs;
    struct view *w = dvm_view_new(p, x.rank);
    if (!w || p->numel.p[n->shape] == 0) return w;
    struct run r = {0};
    while (next_run(&o, &x, &r)) {
        if (map_run(p, g, &o, &x, r, v, w)) continue;
        if (p->stop == STOP_NONE) {
            p->stop = STOP_MAT;
            p->stop_node = n->in[0];
        }
        return NULL;
    }
    return w;
}

const struct view *dvm_view_through(struct planner *p, struct group *g, const struct pnode *n,
                                    const struct dvm_shape *xs, const struct view *v, bool *ok) {
    struct dvm_shape ns = p->shape.p[n->shape], x = *xs;
    *ok = true;
    if (n->op == DVM_OP_BROADCAST) {
        const struct view *w = dvm_view_broadcast(p, g, &ns, &x, v);
        *ok = !v || w;
        return w ? dvm_view_intern(g, (struct view *)(uintptr_t)w, &x) : NULL;
    }
    if (!v) v = dvm_view_std(p, g, &ns);
    struct view *w = !v                        ? NULL
                     : n->op == DVM_OP_RESHAPE ? through_reshape(p, g, n, &x, v)
                                               : dvm_view_new(p, x.rank);
    *ok = w != NULL;
    if (!w) return NULL;
    for (int j = 0; n->op != DVM_OP_RESHAPE && j < ns.rank; j++) {
        int64_t start = 0, step = 1, count;
        int to = j;
        if (n->op == DVM_OP_PERMUTE) {
            to = (int)n->at[j];
        } else {
            step = n->at[2 * ns.rank + j];
            dvm_slice_clamp(x.d[j], n->at[j], n->at[ns.rank + j], step, &start, &count);
        }
        w->off[to] = start + step * v->off[j];
        for (int a = 0; a <= g->naxes; a++) w->inc[a][to] = step * v->inc[a][j];
    }
    return dvm_view_intern(g, w, &x);
}
