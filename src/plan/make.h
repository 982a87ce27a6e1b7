/* Entry of the planner. */
#ifndef DVM_PLAN_MAKE_H
#define DVM_PLAN_MAKE_H
#include "graph/graph.h"
#include "plan/plan.h"

/* What a plan depends on. Strides in elements; NULL entries: as declared, else dense. */
struct dvm_plan_in {
    const struct dvm_graph *g;         /* normal form (opt/) */
    const struct dvm_shape *shape;     /* by argument; scalars: rank 0 */
    const int64_t *const *in_stride;   /* by argument */
    const dvm_number *scalar;          /* by argument: values of scalars used as dimensions */
    const int64_t *const *out_stride;  /* by output */
    const struct dvm_shape *out_shape; /* by output: of the caller's tensors; NULL: not known */
    size_t cache_bytes;                /* of one core: sizes blocks */
    bool strict;
};

/* Shapes of the outputs only. */
dvm_status dvm_plan_infer(const struct dvm_plan_in *in, struct dvm_arena *a,
                          struct dvm_plan_arg *out);
dvm_status dvm_plan_make(const struct dvm_plan_in *in, struct dvm_arena *a,
                         const struct dvm_mem *mem, struct dvm_plan **out);
/* Sets lo and hi; false: beyond all memory. */
bool dvm_plan_span(struct dvm_plan_arg *a);
/* The caller's output i has the shape that comes out, or the error says so. */
dvm_status dvm_plan_check_output(int i, const struct dvm_shape *have, const struct dvm_shape *want);
void dvm_plan_destroy(struct dvm_plan **p);
#endif
