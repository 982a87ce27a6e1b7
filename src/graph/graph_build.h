/* Parts of the builder that opt/ shares: undo marks and number conversions. */
#ifndef DVM_GRAPH_GRAPH_BUILD_H
#define DVM_GRAPH_GRAPH_BUILD_H
#include "base/err.h"
#include "graph/graph.h"

struct dvm_mark {
    uint32_t node, attr, dims;
};
struct dvm_mark dvm_graph_mark(const struct dvm_graph *g);
void dvm_graph_rewind(struct dvm_graph *g, struct dvm_mark m);
void dvm_graph_free(struct dvm_graph **g);

/* Prefix of an error raised while adding: the user's position. */
dvm_status dvm_graph_at_user(const struct dvm_graph *g, dvm_status st);
/* In the functions of the interface: errors begin with the user's position. */
#define AT_FAIL(code, ...)                           \
    do {                                             \
        dvm_err_set(DVM_ERR_##code, __VA_ARGS__);    \
        return dvm_graph_at_user(g, DVM_ERR_##code); \
    } while (0)
#define AT_TRY(expr)                                                             \
    do {                                                                         \
        dvm_status at_st_ = (expr);                                              \
        if (DVM_UNLIKELY(at_st_ != DVM_OK)) return dvm_graph_at_user(g, at_st_); \
    } while (0)
/* A product's refusal, led by the shapes of its factors, where they are values of this graph. */
dvm_status dvm_graph_of_factors(const struct dvm_graph *g, const dvm_val *in, dvm_status st);
/* A MATMUL or GROUPED node with these attributes; n operands. */
dvm_status dvm_graph_product(struct dvm_graph *g, int op, int n, const dvm_val *in,
                             const int64_t *at, dvm_dtype t, dvm_val *out);

/* v rounded to a float dtype (to nearest even, once), as a double. */
double dvm_round_to(dvm_dtype t, double v);
/* v wrapped to an integer dtype; bool: v != 0. */
int64_t dvm_wrap_to(dvm_dtype t, int64_t v);
/* Integers: t holds v.i; bool and floats take any. */
bool dvm_number_fits(dvm_dtype t, dvm_number v);
/* ops.def note 3. */
dvm_number dvm_number_cast(dvm_dtype from, dvm_dtype to, dvm_number v);
#endif
