/* Which outputs may share memory with inputs. */
#include <string.h>

#include "rt/run.h"

struct span {
    char *lo, *hi; /* bytes touched: [lo, hi); lo == hi: none */
};

static void dense(const dvm_arg *a, int64_t *st) {
    int64_t step = 1;
    for (int j = a->rank - 1; j >= 0; j--) {
        st[j] = a->strides ? a->strides[j] : step;
        step *= a->dims[j];
    }
}

static struct span span_of(const dvm_arg *a) {
    int64_t st[DVM_MAX_RANK], lo = 0, hi = 0, es = (int64_t)dvm_dtype_size((dvm_dtype)a->dtype);
    dense(a, st);
    for (int j = 0; j < a->rank; j++) {
        if (a->dims[j] == 0) return (struct span){a->data, a->data};
        int64_t reach = (a->dims[j] - 1) * st[j];
        if (reach < 0)
            lo += reach;
        else
            hi += reach;
    }
    return (struct span){(char *)a->data + lo * es, (char *)a->data + (hi + 1) * es};
}

static int64_t magnitude(int64_t x) { return x < 0 ? -x : x; }

static bool meet(struct span a, struct span b) {
    return a.lo < b.hi && b.lo < a.hi && a.lo < a.hi && b.lo < b.hi;
}

static bool identical(const dvm_arg *a, const dvm_arg *b) {
    int64_t sa[DVM_MAX_RANK], sb[DVM_MAX_RANK];
    if (a->data != b->data || a->rank != b->rank || a->dtype != b->dtype) return false;
    dense(a, sa);
    dense(b, sb);
    for (int j = 0; j < a->rank; j++)
        if (a->dims[j] != b->dims[j] || (a->dims[j] > 1 && sa[j] != sb[j])) return false;
    return true;
}

/* Two tensors cut from one larger: both repeat with the same pitch and touch different parts of each period. */
static bool interleaved(const dvm_arg *a, const dvm_arg *b) {
    const dvm_arg *t[2] = {a, b};
    int64_t st[2][DVM_MAX_RANK];
    for (int i = 0; i < 2; i++) dense(t[i], st[i]);
    for (int j = 0; j < a->rank; j++) {
        int64_t pitch = st[0][j] * (int64_t)dvm_dtype_size((dvm_dtype)a->dtype), from[2], len[2];
        bool found = false;
        if (pitch <= 0 || a->dims[j] < 2) continue;
        for (int i = 0; i < 2; i++) {
            int64_t es = (int64_t)dvm_dtype_size((dvm_dtype)t[i]->dtype), reach = es;
            for (int q = 0; q < t[i]->rank; q++) {
                int64_t s = st[i][q] * es;
                if (s < 0) return false;
                if (s < pitch)
                    reach += (t[i]->dims[q] - 1) * s;
                else if (s % pitch)
                    return false;
                else
                    found |= i == 1;
            }
            from[i] = (int64_t)((uintptr_t)t[i]->data % (uintptr_t)pitch);
            len[i] = reach;
        }
        if (found && from[0] + len[0] <= pitch && from[1] + len[1] <= pitch &&
            (from[0] + len[0] <= from[1] || from[1] + len[1] <= from[0]))
            return true;
    }
    return false;
}

/* No element of an output is written twice: from the smallest stride up, each steps past all before it. */
static bool overlaps_itself(const dvm_arg *a) {
    int64_t st[DVM_MAX_RANK], reach = 0;
    bool used[DVM_MAX_RANK] = {false};
    dense(a, st);
    for (int j = 0; j < a->rank; j++)
        if (a->dims[j] == 0) return false;
    for (int n = 0; n < a->rank; n++) {
        int best = -1;
        for (int j = 0; j < a->rank; j++)
            if (!used[j] && (best < 0 || magnitude(st[j]) < magnitude(st[best]))) best = j;
        used[best] = true;
        if (a->dims[best] == 1) continue;
        if (magnitude(st[best]) <= reach) return true;
        reach += magnitude(st[best]) * (a->dims[best] - 1);
    }
    return false;
}

/* In place is safe when one kernel does everything, in one last pass, and reads each element of the input where it
 * writes it. */
static bool in_place_safe(const struct dvm_plan *p, int input, int output) {
    if (p->nkernel != 1 || p->kernel[0].kind == DVM_MODE_COL) return false;
    const struct dvm_kplan *k = &p->kernel[0];
    const struct dvm_bind *w = NULL;
    int wrote = -1;
    for (int f = 0; f < k->nphase; f++)
        for (int i = 0; i < k->phase[f].nbind; i++) {
            const struct dvm_bind *b = &k->phase[f].bind[i];
            if (b->src != DVM_SRC_OUTPUT || b->index != output) continue;
            if (w || k->phase[f].kind == DVM_PHASE_VEC) return false;
            w = b;
            wrote = f;
        }
    if (!w) return false;
    for (int f = 0; f < k->nphase; f++) {
        const struct dvm_phase *ph = &k->phase[f];
        for (int i = 0; i < ph->nbind; i++) {
            const struct dvm_bind *b = &ph->bind[i];
            if (b->src != DVM_SRC_INPUT || b->index != input) continue;
            if (f > wrote || p->strip[ph->strip].opnd[i].role == DVM_ROLE_PICK ||
                b->offset != w->offset)
                return false;
            for (int a = 0; a < k->naxes; a++)
                if (k->size[a] > 1 && b->stride[a] != w->stride[a]) return false;
        }
    }
    return true;
}

static dvm_status copy_input(struct dvm_kernel *k, const dvm_arg *a, char **ptr,
                             struct dvm_copies *c) {
    struct span s = span_of(a);
    if (c->n == (int)DVM_COUNT(c->p))
        DVM_FAIL(OVERLAP, "more than %zu inputs are overwritten by outputs", DVM_COUNT(c->p));
    size_t n = (size_t)(s.hi - s.lo);
    char *q = k->mem.fn(k->mem.user, NULL, 0, n);
    if (!q) DVM_FAIL(NOMEM, "out of memory: %zu bytes for an input that is overwritten", n);
    memcpy(q, s.lo, n);
    *ptr = q + ((char *)a->data - s.lo);
    c->p[c->n] = q;
    c->size[c->n++] = n;
    return DVM_OK;
}

void dvm_copies_drop(struct dvm_kernel *k, struct dvm_copies *c) {
    for (int i = 0; i < c->n; i++) k->mem.fn(k->mem.user, c->p[i], c->size[i], 0);
    c->n = 0;
}

/* An argument with the strides that hold: its own, the declared ones, or dense (NULL). */
static dvm_arg effective(const struct dvm_kernel *k, const struct launch_record *r, int i,
                         const dvm_arg *a) {
    dvm_arg e = *a;
    if (a->strides || !k->arg[i].strided) return e;
    if (i >= k->g->n_in) {
        e.strides = r->plan->out[i - k->g->n_in].stride;
        return e;
    }
    const struct dvm_node *n = &k->source->node.p[k->source->input.p[i]];
    const int64_t *st = dvm_node_attr(k->source, n) + 2 + n->rank;
    for (int j = 0; j < n->rank; j++)
        if (dvm_dim_is_expr(st[j])) return e;
    if (n->rank == a->rank) e.strides = st;
    return e;
}

static dvm_status check_outputs_apart(const struct dvm_kernel *k, const struct launch_record *r,
                                      const dvm_arg *out) {
    for (int o = 0; o < k->g->n_out; o++) {
        dvm_arg a = effective(k, r, k->g->n_in + o, &out[o]);
        if (a.strides && overlaps_itself(&a))
            DVM_FAIL(OVERLAP, "output %d overlaps itself: its strides reach one element twice", o);
        for (int q = 0; q < o; q++) {
            dvm_arg b = effective(k, r, k->g->n_in + q, &out[q]);
            if (meet(span_of(&a), span_of(&b)) && !interleaved(&a, &b))
                DVM_FAIL(OVERLAP, "outputs %d and %d overlap", q, o);
        }
    }
    return DVM_OK;
}

dvm_status dvm_check_overlap(struct dvm_kernel *k, const struct launch_record *r, const dvm_arg *in,
                             const dvm_arg *out, char **ptr, bool *alias,
                             struct dvm_copies *copies) {
    DVM_TRY(check_outputs_apart(k, r, out));
    for (int i = 0; i < k->g->n_in; i++) {
        if (k->arg[i].scalar || !k->arg[i].live) continue;
        dvm_arg a = effective(k, r, i, &in[i]);
        struct span si = span_of(&a);
        for (int o = 0; o < k->g->n_out; o++) {
            dvm_arg b = effective(k, r, k->g->n_in + o, &out[o]);
            if (!meet(si, span_of(&b)) || interleaved(&a, &b)) continue;
            if (!identical(&a, &b))
                DVM_FAIL(OVERLAP,
                         "output %d overlaps input %d in part; give it memory of its own, or "
                         "exactly the input's",
                         o, i);
            *alias = true;
            if (!in_place_safe(r->plan, i, o)) {
                DVM_TRY(copy_input(k, &a, &ptr[i], copies));
                break;
            }
        }
    }
    return DVM_OK;
}
