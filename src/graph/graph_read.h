/* Inside of the text reader: its state, and the part that reads words, numbers, dimensions and types
 * (graph_read_type.c) for the part that reads statements (graph_read.c). */
#ifndef DVM_GRAPH_GRAPH_READ_H
#define DVM_GRAPH_GRAPH_READ_H
#include "base/err.h"
#include "graph/graph_lex.h"
#include "graph/graph_text.h"

/* Dimensions of result types stand before what they may name, so they are read twice. */
enum dvm_read_mode { DVM_READ_BUILD, DVM_READ_SKIP, DVM_READ_CHECK };

/* An operand: a value, or a literal that becomes a constant once its dtype is known. */
struct dvm_operand {
    bool literal, typed, is_int, is_bool;
    dvm_dtype t;
    int64_t i;
    double f;
    dvm_val val;
    struct dvm_tok at;
};

struct dvm_reader {
    struct dvm_lex lx;
    struct dvm_graph *g;
    struct dvm_names names;
    DVM_VEC(dvm_val) store;
    DVM_VEC(struct dvm_operand) opnd; /* of the statement */
    DVM_VEC(dvm_val) vals;            /* of concat */
    int depth;
    enum dvm_read_mode mode;
    struct dvm_tok at; /* start of the statement */
    char where[256];   /* the same, as the graph knows it */
    /* Sizes that the load being read names for the first time. */
    struct dvm_tok fresh[DVM_MAX_RANK];
    uint8_t fresh_axis[DVM_MAX_RANK];
    int nfresh;
};

#define LX (&r->lx)
#define TOK (&r->lx.tok)

#define BUILT(expr) DVM_TRY(dvm_read_built(r, expr))

/* Start of a statement: errors of the builder are placed here. */
dvm_status dvm_read_here(struct dvm_reader *r);
/* Status of a builder call, its text with the position in front. */
dvm_status dvm_read_built(struct dvm_reader *r, dvm_status st);
/* Adds "did you mean" to the error when one of the words is near the token. */
dvm_status dvm_read_near(dvm_status st, const struct dvm_tok *t, const char *const *word, int n);
/* One of n words; its index. */
dvm_status dvm_read_word(struct dvm_reader *r, const char *what, const char *const *word, int n,
                         int *out);
dvm_status dvm_read_dtype(struct dvm_reader *r, dvm_dtype *out);
dvm_status dvm_read_int(struct dvm_reader *r, int64_t lo, int64_t hi, int64_t *out);
dvm_status dvm_read_small(struct dvm_reader *r, int *out);
/* A %name in scope. */
dvm_status dvm_read_value(struct dvm_reader *r, dvm_val *out);

/* "[" item "," ... "]", at most DVM_MAX_RANK of them. */
typedef dvm_status dvm_item_fn(struct dvm_reader *r, void *array, int i);
dvm_status dvm_read_list(struct dvm_reader *r, dvm_item_fn *item, void *array, int *n);
dvm_item_fn dvm_item_int, dvm_item_step, dvm_item_dim; /* arrays of int, int64_t, dvm_dim */

dvm_status dvm_read_dim(struct dvm_reader *r, dvm_dim *out);
struct dvm_type {
    dvm_dtype t;
    int rank;
    dvm_dim dims[DVM_MAX_RANK];
};
dvm_status dvm_read_type(struct dvm_reader *r, struct dvm_type *out);
/* type ["strides=" list] as a new argument. */
dvm_status dvm_read_load(struct dvm_reader *r, dvm_val *out);
#endif
