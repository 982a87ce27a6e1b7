/* Graph to graph, in place, on the compiler's own copy. */
#ifndef DVM_OPT_OPT_H
#define DVM_OPT_OPT_H
#include "graph/graph.h"

/* Rewrites by rules that keep type, shape and bits. */
dvm_status dvm_opt_simplify(struct dvm_graph *g, struct dvm_arena *a);
/* Equal nodes become one. */
dvm_status dvm_opt_cse(struct dvm_graph *g, struct dvm_arena *a);
/* Drops what reaches no store, and closes the gaps. */
dvm_status dvm_opt_dce(struct dvm_graph *g, struct dvm_arena *a);
#endif
