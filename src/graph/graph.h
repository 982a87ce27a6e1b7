/* The graph: nodes as values in one array, references as 32-bit indices, attributes and dimensions in
 * int64 pools. Built by graph_build.c (checks and symbolic inference while adding), read back from text
 * by graph_read.c, written by graph_write.c, rewritten by opt/.
 *
 * A number in an attribute is a literal (dimensions: -1 is unknown, inferred or kept, by op; slice starts may be
 * any negative number) or, far below zero, an entry of the expression table: see dvm_dim_is_expr. Nodes stand in
 * topological order: operands come before users. */
#ifndef DVM_GRAPH_GRAPH_H
#define DVM_GRAPH_GRAPH_H
#include <dvm/dvm.h>

#include "base/mem.h"

typedef uint32_t dvm_ref; /* node index; 0 is none */

/* 32 bytes:  op dtype nin rank | section where | in[3] | attr nattr | dims */
struct dvm_node {
    uint8_t op;
    uint8_t dtype;
    uint8_t nin;      /* operands in in[]; CONCAT has its own in the attributes */
    int8_t rank;      /* as far as known at build time; -1 unknown */
    uint16_t section; /* of a parallel / seq / spec graph */
    uint16_t where;   /* entry of the position table; 0 none */
    dvm_ref in[3];
    uint32_t attr;
    uint32_t nattr;
    uint32_t dims; /* rank entries in the dims pool: >= 0 or -1 unknown */
};
static_assert(sizeof(struct dvm_node) == 32, "two nodes a cache line");

/* Attributes (int64) by op:
 *   LOAD       input, has_strides, dims[rank], strides[rank]     rank of the node; -1: no dims
 *   SCALAR     input
 *   CONST      bits: integers as int64, floats as the bits of a double
 *   IOTA       axis, dims[rank]
 *   SIZE       axes...            none: all
 *   BROADCAST  dims...    RESHAPE dims...    PERMUTE perm...
 *   SLICE      start[r], size[r], step[r]
 *   RED ops    keepdims, axes...  none: all
 *   GATHER     axis, mode
 *   CONCAT     axis, operands...
 *   MATMUL     trans_a, trans_b
 *   GROUPED    trans_a, trans_b, DVM_GROUP_M or DVM_GROUP_K, DVM_LIST_*
 *   STORE      output, strides... none: dense */

enum dvm_dim_kind { DVM_DIMX_SCALAR = 16, DVM_DIMX_OF, DVM_DIMX_CONST };
struct dvm_dim_expr {
    int32_t kind;   /* DVM_DIM_* of dvm.h, or dvm_dim_kind */
    int64_t a;      /* dimension; SCALAR, OF: node; CONST: value */
    int64_t b;      /* dimension; OF: axis */
    int32_t weight; /* leaves of the whole expression: bounds its evaluation */
};
enum { DVM_DIM_MAX_WEIGHT = 4096 };

#define DVM_DIM_EXPR0 (INT64_MIN / 2)
/* An expression whose value is not known yet, in attributes with expressions replaced by numbers. */
#define DVM_DIM_UNKNOWN INT64_MIN
DVM_INLINE bool dvm_dim_is_expr(int64_t d) {
    return d >= DVM_DIM_EXPR0 && d < DVM_DIM_EXPR0 + DVM_MAX_NODES;
}
DVM_INLINE uint32_t dvm_dim_expr_id(int64_t d) { return (uint32_t)(d - DVM_DIM_EXPR0); }

struct dvm_section {
    uint8_t kind;
    uint32_t flags; /* DVM_CORES in the high half */
};
DVM_INLINE uint32_t dvm_section_cores(const struct dvm_section *s) { return s->flags >> 16; }

struct dvm_graph {
    struct dvm_ctx *ctx;
    struct dvm_mem mem;
    uint32_t serial; /* upper half of every dvm_val of this graph */
    uint32_t flags;
    uint8_t kind;
    bool closed;
    int n_in, n_out;
    uint16_t where; /* position of the nodes being added */
    char name[64];
    DVM_VEC(struct dvm_node) node; /* entry 0 is a filler */
    DVM_VEC(int64_t) attr;
    DVM_VEC(int64_t) dims;
    DVM_VEC(struct dvm_dim_expr) expr;
    DVM_VEC(dvm_ref) input;  /* LOAD or SCALAR node of each argument */
    DVM_VEC(dvm_ref) output; /* STORE node of each output */
    DVM_VEC(struct dvm_section) section;
    DVM_VEC(char)
    wheres; /* zero-terminated strings, one after the other; entry i starts at where_at[i] */
    DVM_VEC(uint32_t) where_at;
};

/* Row of ops.def. */
enum dvm_op_class { DVM_CLS_LEAF, DVM_CLS_EW, DVM_CLS_VIEW, DVM_CLS_RED, DVM_CLS_SPEC };
enum dvm_op_types {
    DVM_TYPES_F,
    DVM_TYPES_N,
    DVM_TYPES_I,
    DVM_TYPES_B,
    DVM_TYPES_L,
    DVM_TYPES_A,
    DVM_TYPES_W
};
enum dvm_op_result { DVM_RESULT_SAME, DVM_RESULT_BOOL, DVM_RESULT_ARG, DVM_RESULT_I64 };
struct dvm_op_info {
    const char *text;
    uint8_t arity, cls, types, result;
    char tol[3];
    const char *meaning;
};
extern const struct dvm_op_info dvm_op_table[DVM_NOP];
/* DVM_NOP when there is none of this name. */
dvm_op dvm_op_find(const char *text, size_t n);

DVM_INLINE bool dvm_is_float(int t) {
    return t == DVM_F16 || t == DVM_BF16 || t == DVM_F32 || t == DVM_F64;
}
DVM_INLINE bool dvm_is_int(int t) { return t == DVM_I32 || t == DVM_I64; }
DVM_INLINE bool dvm_is_leaf_scalar(int op) {
    return op == DVM_OP_SCALAR || op == DVM_OP_CONST || op == DVM_OP_SIZE;
}

/* Attributes of these ops may hold dimension expressions. */
DVM_INLINE bool dvm_op_has_dims(int op) {
    return op == DVM_OP_LOAD || op == DVM_OP_IOTA || op == DVM_OP_BROADCAST ||
           op == DVM_OP_RESHAPE || op == DVM_OP_SLICE || op == DVM_OP_STORE;
}

DVM_INLINE const int64_t *dvm_node_attr(const struct dvm_graph *g, const struct dvm_node *n) {
    return g->attr.p + n->attr;
}

struct dvm_shape {
    int32_t rank; /* -1 unknown */
    int64_t d[DVM_MAX_RANK];
};
/* The shape rule of every op, one place. in: shapes of the operands (n of them); at: the node's attributes
 * with expressions replaced by numbers or DVM_DIM_UNKNOWN. Unknown (-1) sizes and ranks pass through. Errors name the
 * operands' shapes. */
dvm_status dvm_shape_rule(const struct dvm_node *n, const int64_t *at, int n_in,
                          const struct dvm_shape *const *in, struct dvm_shape *out);
/* "[2, ?, 8]" into buf; returns buf. */
const char *dvm_shape_str(const struct dvm_shape *s, char *buf, size_t cap);

/* Sizes of a slice along one axis after wrapping and clamping. */
void dvm_slice_clamp(int64_t dim, int64_t start, int64_t size, int64_t step, int64_t *lo,
                     int64_t *count);
/* Value of dimension d (literal or expression). shape_of gives the shape of a node, scalar the value of a SCALAR
 * node; either may answer "unknown" (rank -1, false), which makes the result DVM_DIM_UNKNOWN. */
struct dvm_dim_env {
    const struct dvm_graph *g;
    const struct dvm_shape *(*shape_of)(const struct dvm_dim_env *e, dvm_ref r);
    bool (*scalar)(const struct dvm_dim_env *e, dvm_ref r, int64_t *v);
    const void *user;
};
int64_t dvm_dim_value(const struct dvm_dim_env *e, int64_t d);

/* graph_build.c: for the reader, opt and rt. */
dvm_status dvm_graph_new(struct dvm_ctx *ctx, const struct dvm_mem *mem, dvm_kind kind,
                         uint32_t flags, struct dvm_graph **out);
dvm_status dvm_graph_copy(const struct dvm_graph *g, struct dvm_graph **out);
dvm_status dvm_graph_verify(const struct dvm_graph *g);
/* kind_rule.c: what vector, cube and mix graphs and sections may hold. */
dvm_status dvm_graph_check_kinds(const struct dvm_graph *g);
/* Prefix to the error text: op and position of node r. */
dvm_status dvm_graph_blame(const struct dvm_graph *g, dvm_ref r, dvm_status st);
#endif
