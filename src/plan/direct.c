/* Results of reductions that nothing but a store wants: the fold writes them where they belong, and the phase that
 * would have copied them from the scratch of the block is dropped. Needs axes in their final order. */
#include <string.h>

#include "plan/plan_int.h"

/* A vector of scratch as the strips of a group see it. */
struct uses {
    struct popnd *fold;
    struct sb *from;
    int count; /* operands in all */
};

static void find_uses(const struct group *g, int32_t vec, struct uses *u) {
    *u = (struct uses){NULL, NULL, 0};
    for (int i = 0; i < 2 * g->npass; i++) {
        struct sb *b = i & 1 ? g->vecs[i / 2] : g->full[i / 2];
        for (uint32_t k = 0; b && k < b->opnd.n; k++) {
            struct popnd *o = &b->opnd.p[k];
            if (o->src != DVM_SRC_SCRATCH || o->vec != vec) continue;
            u->count++;
            if (o->desc.role != DVM_ROLE_FOLD) continue;
            u->fold = o;
            u->from = b;
        }
    }
}

/* Same elements, one behind the other as a fold writes them. */
static bool fits(const struct group *g, const struct popnd *from, const struct popnd *to) {
    int axis = g->kind == DVM_MODE_COL ? g->naxes - 1 : g->naxes - 2;
    return from->desc.dtype == to->desc.dtype && to->src != DVM_SRC_SCRATCH &&
           to->stride[axis] == (int64_t)dvm_dtype_size((dvm_dtype)to->desc.dtype);
}

/* Store number k of the strip: the operand it writes, when its value is a result loaded for it alone; else NULL. */
static struct popnd *copied(const struct group *g, struct sb *b, const struct dvm_ins *st,
                            struct uses *u) {
    const struct dvm_ins *ld = &b->ins.p[st->b];
    if (st->op != DVM_BC_STORE || ld->op != DVM_BC_LOAD) return NULL;
    const struct popnd *from = &b->opnd.p[ld->a];
    struct popnd *to = &b->opnd.p[st->a];
    if (from->src != DVM_SRC_SCRATCH) return NULL;
    find_uses(g, from->vec, u);
    if (u->count != 2 || !u->fold || u->from->pass != b->pass || !fits(g, from, to)) return NULL;
    return to;
}

/* All or nothing: every instruction of the strip is such a store or the load before it. */
static bool only_copies(const struct group *g, struct sb *b) {
    struct uses u;
    uint32_t loads = 0, stores = 0;
    for (uint32_t k = 0; k < b->ins.n; k++) {
        loads += b->ins.p[k].op == DVM_BC_LOAD;
        stores += copied(g, b, &b->ins.p[k], &u) != NULL;
    }
    return stores > 0 && loads == stores && loads + stores == b->ins.n;
}

static void move(const struct group *g, struct sb *b) {
    struct uses u;
    for (uint32_t k = 0; k < b->ins.n; k++) {
        struct popnd *to = copied(g, b, &b->ins.p[k], &u);
        if (!to) continue;
        struct dvm_opnd desc = u.fold->desc;
        g->vec.p[u.fold->vec].gone = true;
        *u.fold = *to;
        u.fold->desc = desc;
    }
    b->ins.n = 0;
    b->opnd.n = 0;
    b->param.n = 0;
}

void dvm_plan_direct(struct planner *p) {
    for (uint32_t i = 0; i < p->group.n; i++) {
        struct group *g = p->group.p[i];
        for (int k = 0; g->kind != DVM_MODE_MAP && k < g->npass; k++)
            if (g->vecs[k] && only_copies(g, g->vecs[k])) move(g, g->vecs[k]);
    }
}
