/* Which outputs may share memory with inputs. A plan knows the strides that hold; outputs that overlap themselves are
 * refused while planning. */
#include <string.h>

#include "base/meet.h"
#include "rt/run.h"

struct tensor {
    char *data;
    const struct dvm_plan_arg *a;
};

static int64_t esize(const struct tensor *t) {
    return (int64_t)dvm_dtype_size((dvm_dtype)t->a->dtype);
}

static bool meet(struct tensor a, struct tensor b) {
    uintptr_t alo = (uintptr_t)a.data + (uintptr_t)a.a->lo,
              ahi = (uintptr_t)a.data + (uintptr_t)a.a->hi;
    uintptr_t blo = (uintptr_t)b.data + (uintptr_t)b.a->lo,
              bhi = (uintptr_t)b.data + (uintptr_t)b.a->hi;
    return alo < bhi && blo < ahi && alo < ahi && blo < bhi;
}

static bool identical(struct tensor a, struct tensor b) {
    if (a.data != b.data || a.a->rank != b.a->rank || a.a->dtype != b.a->dtype) return false;
    for (int j = 0; j < a.a->rank; j++)
        if (a.a->d[j] != b.a->d[j] || (a.a->d[j] > 1 && a.a->stride[j] != b.a->stride[j]))
            return false;
    return true;
}

/* Their bytes are apart, though one lies within the reach of the other: views of one larger tensor. */
static bool apart(struct tensor a, struct tensor b) {
    const struct tensor *both[] = {&a, &b};
    struct dvm_terms s = {.d = (int64_t)((intptr_t)b.data - (intptr_t)a.data)};
    for (int i = 0; i < 2; i++) {
        const struct tensor *t = both[i];
        const int64_t sign = i ? -1 : 1;
        for (int j = 0; j < t->a->rank; j++)
            dvm_terms_add(&s, sign * t->a->stride[j] * esize(t), t->a->d[j] - 1);
        dvm_terms_add(&s, sign, esize(t) - 1); /* the bytes of an element */
    }
    return !dvm_terms_meet(&s);
}

/* In place is safe when one kernel does everything, in one last pass, and reads each element of the input where it
 * writes it. */
static bool in_place_safe(const struct dvm_plan *p, int input, int output) {
    if (p->nkernel != 1 || p->kernel[0].kind >= DVM_MODE_COL) return false;
    const struct dvm_kplan *k = &p->kernel[0];
    const struct dvm_bind *w = NULL;
    int wrote = -1;
    for (int f = 0; f < k->nphase; f++)
        for (int i = 0; i < k->phase[f].nbind; i++) {
            const struct dvm_bind *b = &k->phase[f].bind[i];
            if (b->src != DVM_SRC_OUTPUT || b->index != output) continue;
            if (w || k->phase[f].kind == DVM_PHASE_VEC) return false;
            if (p->strip[k->phase[f].strip].opnd[i].role != DVM_ROLE_STORE) return false;
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

/* Header of a copy, in front of its bytes. */
struct dvm_copy {
    struct dvm_copy *next;
    size_t size;
};

static dvm_status copy_input(struct dvm_kernel *k, struct tensor t, char **ptr,
                             struct dvm_copy **list) {
    size_t size = (size_t)(t.a->hi - t.a->lo) + DVM_ALIGN;
    struct dvm_copy *c = k->mem.fn(k->mem.user, NULL, 0, size);
    if (!c) DVM_FAIL(NOMEM, "out of memory: %zu bytes for an input that is overwritten", size);
    *c = (struct dvm_copy){*list, size};
    *list = c;
    char *to = (char *)c + DVM_ALIGN;
    memcpy(to, t.data + t.a->lo, size - DVM_ALIGN);
    *ptr = to - t.a->lo;
    return DVM_OK;
}

void dvm_copies_drop(struct dvm_kernel *k, struct dvm_copy **list) {
    while (*list) {
        struct dvm_copy *c = *list;
        *list = c->next;
        k->mem.fn(k->mem.user, c, c->size, 0);
    }
}

static dvm_status check_outputs(const struct dvm_plan *p, const dvm_arg *out) {
    for (uint32_t o = 0; o < p->nout; o++)
        for (uint32_t q = 0; q < o; q++) {
            struct tensor a = {out[o].data, &p->out[o]}, b = {out[q].data, &p->out[q]};
            if (meet(a, b) && !apart(a, b)) DVM_FAIL(OVERLAP, "outputs %u and %u overlap", q, o);
        }
    return DVM_OK;
}

dvm_status dvm_check_overlap(struct dvm_kernel *k, const struct launch_record *r, const dvm_arg *in,
                             const dvm_arg *out, char **ptr, bool *alias,
                             struct dvm_copy **copies) {
    const struct dvm_plan *p = r->plan;
    DVM_TRY(check_outputs(p, out));
    for (uint32_t i = 0; i < p->nin; i++) {
        struct tensor a = {in[i].data, &p->in[i]};
        if (a.a->rank < 0) continue;
        for (uint32_t o = 0; o < p->nout; o++) {
            struct tensor b = {out[o].data, &p->out[o]};
            if (!meet(a, b) || apart(a, b)) continue;
            if (!identical(a, b))
                DVM_FAIL(OVERLAP,
                         "output %u overlaps input %u in part; give it memory of its own, or "
                         "exactly the input's",
                         o, i);
            *alias = true;
            if (in_place_safe(p, (int)i, (int)o)) continue;
            DVM_TRY(copy_input(k, a, &ptr[i], copies));
            break;
        }
    }
    return DVM_OK;
}
