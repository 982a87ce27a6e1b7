/* Inside the planner. The path: nodes.c (concrete shapes, normal form of reductions) -> args.c (strides of arguments)
 * -> group.c (which roots share a kernel) -> emit.c (values to strip instructions, views to strides, view.c) -> axes.c
 * -> layout.c (blocks, buffers, the finished plan). Everything lives in one arena that is dropped when the plan is made. */
#ifndef DVM_PLAN_PLAN_INT_H
#define DVM_PLAN_PLAN_INT_H
#include "base/err.h"
#include "graph/graph.h"
#include "plan/make.h"
#include "plan/plan.h"

enum { NO_GROUP = -1, MAX_PASS = 8, HEAVY = 32 };

/* Values are emitted by recursion, with 0.7 KB of stack a value, 2 KB a gather. A root is cut at this depth, and a root emitted
 * while another is under way starts in the first half: at most twice as many values are open, whatever the graph. */
enum { MAX_DEPTH = 500 };

/* MAT_NEAR: users in the same kernel compute the value in place; MAT_FAR: every user reads memory. */
enum { MAT_NEAR = 1, MAT_FAR = 2 };

/* A node at concrete shapes. Reductions are in normal form: every reduced axis has a size other than 1, and they are
 * either a suffix of the axes (inner: ROW) or do not contain the last axis (outer: COL). */
struct pnode {
    uint8_t op, dtype, cls, nin;
    uint8_t inner; /* RED: ROW form */
    uint8_t mat;   /* MAT_*: computed as a root of its own and read back by later kernels */
    uint8_t first,
        second; /* RED over inner and outer axes: its rows, never rounded, and what joins their results */
    uint8_t alone;  /* RED: shares a kernel with reductions like it only */
    uint8_t early;  /* kept value that is emitted when it is placed, not when it is asked for */
    uint8_t direct; /* CONCAT: written straight to output `at` of its only user */
    uint8_t stored; /* by a store, through views or not */
    uint8_t pass;   /* first pass in which the value exists, in group `need` */
    int32_t shape;  /* in shapes */
    uint32_t in[3];
    uint32_t mask; /* RED: reduced axes of the operand */
    uint32_t nat;
    const int64_t *at; /* attributes, expressions replaced */
    dvm_ref gref;      /* graph node, for messages */
    int32_t group;     /* roots: kernel that computes it */
    int32_t need;      /* newest group this value rests on */
    int32_t home;      /* buffer, or -1 */
    uint32_t cost;     /* operations of the inlined cone, saturating */
    uint32_t uses;
    uint32_t user;     /* the last one */
    uint32_t seen;     /* 1 + first kernel that inlined it */
    int32_t min_group; /* roots: earlier kernels were tried and do not fit */
    int32_t min_piece; /* the same where it is a piece of a concat */
    uint32_t touched;  /* newest visit that saved it */
};

struct buffer {
    uint8_t src; /* WS or OUTPUT */
    uint8_t dtype;
    uint16_t index;
    int32_t first, last; /* kernels that write and read it */
    int64_t offset;      /* WS: assigned at the end */
    int64_t bytes;
    int64_t stride[DVM_MAX_RANK]; /* elements, by axes of the node */
    uint32_t touched;
};

/* Index map from kernel axes to the axes of a node: index of axis j is off[j] + sum over a of i_a * inc[a][j]. Row
 * naxes is the gathered axis while a PICK is emitted. NULL stands for the standard map: the node's axes are aligned to
 * the right with those of the kernel's space. */
struct view {
    int32_t rank;
    int64_t off[DVM_MAX_RANK];
    int64_t inc[DVM_MAX_AXES + 1][DVM_MAX_RANK];
};

struct axis {
    int64_t size;
    int32_t dim;  /* axis of the space */
    int64_t mult; /* step of that axis */
    bool reduced;
};

struct popnd {
    struct dvm_opnd desc;
    uint8_t src;
    uint16_t index;
    int32_t buffer; /* WS, or OUTPUT read back: buffer, else -1 */
    int32_t vec;    /* SCRATCH: row vector; or rows kept */
    int64_t offset; /* bytes */
    int64_t stride[DVM_MAX_AXES];
    int64_t gs, gn;
    dvm_ref gref; /* PICK */
};

struct vmemo {
    uint32_t node;
    const struct view *v;
    uint16_t value;
};

/* A strip being written: one phase of one pass. */
struct sb {
    struct group *g;
    uint8_t pass, vec;
    bool dead; /* nothing in it yet */
    DVM_VEC(struct dvm_ins) ins;
    DVM_VEC(struct popnd) opnd;
    DVM_VEC(uint64_t) lit;
    DVM_VEC(uint16_t) param;
    DVM_VEC(struct vmemo) vmemo;
    uint16_t *memo;          /* by node, standard view: value + 1 */
    DVM_VEC(uint32_t) noted; /* nodes with a memo, in order */
    uint32_t shared;         /* first finished value of some size with several users, or 0 */
    uint32_t nstore;
    uint32_t touched;
};

/* Scratch of a block: one number per row (column) or, kept, one per element. */
struct rowvec {
    uint8_t dtype;
    bool kept, gone; /* one number per element; not needed after all */
    int64_t offset;
};
struct outer {
    uint32_t node;
    const struct view *v;
    int32_t vec;
    uint8_t pass;
};

/* Axis `axis` of the kernel named `first`, with this space, is cut into size / at outer and `at` inner steps. */
struct cut {
    uint32_t first;
    int32_t shape;
    int32_t axis;
    int64_t at;
};

enum root_kind { ROOT_STORE, ROOT_RED, ROOT_MAT, ROOT_PIECE };
struct root {
    uint8_t kind;
    uint8_t outer;  /* value at the kept axes only */
    uint32_t node;  /* STORE: the stored value (views pushed into the strides); PIECE: operand */
    int32_t buffer; /* STORE: output index; PIECE: buffer of the concat */
    int64_t offset; /* elements */
    int64_t stride[DVM_MAX_RANK]; /* elements, by axes of node */
    uint8_t dtype;
    int32_t group;
    uint32_t user; /* node that decides its place: STORE, CONCAT or itself */
};

/* What was put in a kernel: the root of `user`, or operand `piece` of the concat `user`. */
struct placed {
    uint32_t user, piece;
};

struct group {
    int32_t index;
    uint8_t kind; /* dvm_strip_mode */
    bool scan, keep_ok, alone;
    bool second;   /* every reduction in it is the second half of one */
    int32_t shape; /* of the space */
    uint32_t mask;
    int32_t rank;
    int32_t naxes;
    struct axis ax[DVM_MAX_AXES + 1];
    int32_t npass;
    struct sb *full[MAX_PASS], *vecs[MAX_PASS];
    DVM_VEC(struct rowvec) vec;
    DVM_VEC(struct outer) outer;
    DVM_VEC(struct placed) roots;
    int32_t nsplit;
    uint32_t first; /* user of the first root: names the group whenever it is made again */
    uint32_t gemm;  /* the product that this kernel computes; 0: none */
    bool fixed;     /* axes are never cut */
    bool full_up;   /* a strip of it was full: takes no more roots */
    uint32_t touched;
    struct group
        *side[3]; /* GEMM: spaces of the factors and the list, each with one strip; NULL: none */
    /* layout */
    int32_t order[DVM_MAX_AXES], nk, nm;
    int64_t block;
};

/* Why emission stopped; the planner changes its mind and starts again. */
enum stop { STOP_NONE, STOP_MAT, STOP_GROUP, STOP_FULL, STOP_SPLIT, STOP_EARLY, STOP_ERROR };

/* A value under way. Sizes count what a strip holds (emit.c, fill_of). */
struct open_value {
    struct open_value *below;
    const struct sb *b;
    uint32_t node, at;        /* at: what the strip held when it began */
    uint32_t part, part_size; /* the largest value finished for it; 0: none that could be kept */
};

/* Where things stood before a node was visited (undo.c). */
struct undo;
struct mark {
    DVM_VEC(void) buffer, root, group, param, seen;
    struct undo *undo;
    struct dvm_arena_mark arena;
};

struct planner {
    const struct dvm_graph *g;
    const struct dvm_plan_in *in;
    struct dvm_arena *a;       /* of what is under way: keep, or grouping */
    struct dvm_arena *keep;    /* of what going back leaves alone */
    struct dvm_arena grouping; /* of the rest, cut off by going back */
    DVM_VEC(struct dvm_shape) shape;
    DVM_VEC(int64_t) numel; /* by shape */
    DVM_VEC(struct pnode) node;
    struct dvm_plan_arg *in_arg, *out_arg;
    uint32_t *pref; /* graph node -> pnode */
    DVM_VEC(struct buffer) buffer;
    DVM_VEC(struct root) root;
    DVM_VEC(struct group *) group;
    DVM_VEC(struct dvm_pparam) param;
    DVM_VEC(uint32_t) seen;  /* nodes that were inlined, in order */
    DVM_VEC(struct cut) cut; /* found so far */
    enum stop stop;
    uint32_t stop_node;
    uint32_t blame; /* kept value whose own emission stopped */
    int32_t split_axis, split_group;
    int64_t split_at;
    dvm_status st;
    int depth; /* values open in the root under way */
    int below; /* and in the roots that wait for it */
    struct open_value *open;
    struct undo *undo; /* newest first */
    DVM_VEC(struct mark) marks;
    uint32_t *mark;   /* by node, in marks: as before its newest visit */
    uint32_t back_at; /* node that grouping went back to */
    uint32_t visited; /* nodes from here on never were */
    uint32_t visits;  /* nodes visited so far, every time */
    uint64_t work;    /* and values emitted: what planning cost */
    bool cut_full;    /* a kernel was cut because its strip was full */
};

/* arena growth of a DVM_VEC, the second in the arena that going back leaves alone; false (p->st set) without memory */
bool dvm_plan_grow(struct planner *p, void **q, uint32_t *cap, uint32_t want, size_t elem);
bool dvm_plan_grow_kept(struct planner *p, void **q, uint32_t *cap, uint32_t want, size_t elem);
#define PUSH_BY(grow, p, v)                                                            \
    ((v).n < (v).cap || grow((p), (void **)&(v).p, &(v).cap, (v).n + 1, sizeof *(v).p) \
         ? &(v).p[(v).n++]                                                             \
         : NULL)
#define PUSH(p, v) PUSH_BY(dvm_plan_grow, p, v)
#define PUSH_KEPT(p, v) PUSH_BY(dvm_plan_grow_kept, p, v)

dvm_status dvm_plan_nodes(struct planner *p);                         /* nodes.c */
dvm_status dvm_plan_args(struct planner *p);                          /* args.c */
int32_t dvm_plan_shape(struct planner *p, const struct dvm_shape *s); /* interned */
dvm_status dvm_plan_groups(struct planner *p);                        /* group.c */
/* Buffer that holds root n (a reduction, cut or concat of an earlier kernel), made when first asked for; -1: stopped. */
int32_t dvm_plan_home(struct planner *p, uint32_t n);
bool dvm_plan_emit_root(struct planner *p, struct group *g,
                        struct root *r); /* emit.c: false: p->stop says why */
/* undo.c. Saves what is about to change in an earlier visit's things; false without memory. Going back to node i leaves
 * everything as it was before i was visited, but for facts about i and later nodes. */
bool dvm_plan_touch_node(struct planner *p, uint32_t n);
bool dvm_plan_touch_buffer(struct planner *p, int32_t i);
bool dvm_plan_touch_group(struct planner *p, struct group *g);
bool dvm_plan_touch_sb(struct planner *p, struct sb *b);
bool dvm_plan_mark(struct planner *p, uint32_t i);
void dvm_plan_go_back(struct planner *p, uint32_t i);
/* Merges and orders the axes of every kernel; p->stop set when a kernel cannot have one strip axis. */
void dvm_plan_axes(struct planner *p); /* axes.c */
/* Folds whose results are only stored write them themselves. */
void dvm_plan_direct(struct planner *p); /* direct.c */
dvm_status dvm_plan_layout(struct planner *p, const struct dvm_mem *mem,
                           struct dvm_plan **out); /* layout.c */

/* matmul.c. A product opens a kernel of its own. */
DVM_INLINE bool dvm_is_product(int op) { return op == DVM_OP_MATMUL || op == DVM_OP_GROUPED; }
/* Operands as the product takes them: 16-bit values rounded, exact casts to f32 left out. 0 without memory. */
uint32_t dvm_plan_factor(struct planner *p, uint32_t n);
uint32_t dvm_plan_new_node(struct planner *p, struct pnode n); /* nodes.c */
/* Axes of the kernel of product n, before any cut; then its factors' spaces and strips. */
void dvm_plan_product_axes(struct planner *p, struct group *g, uint32_t n);
bool dvm_plan_emit_factors(struct planner *p, struct group *g, uint32_t n);
/* Of a product only the rows may be cut: the parts become batch axes, or rows again. */
DVM_INLINE bool dvm_plan_may_cut(const struct group *g, int a) {
    return !g->fixed && g->naxes < (g->gemm ? 10 : DVM_MAX_AXES) &&
           (!g->gemm || g->ax[a].dim == g->rank - 2);
}
int64_t dvm_plan_depth(const struct planner *p, const struct group *g); /* K */
bool dvm_plan_in_lanes(const struct planner *p, const struct group *g); /* its order of additions */
/* May reductions of rows join the kernel of a product, which then finishes whole rows? How many at once, axes in place. */
bool dvm_plan_may_fold(const struct planner *p, const struct group *g);
int64_t dvm_plan_panel(const struct planner *p, const struct group *g);
struct sb *dvm_plan_new_sb(struct planner *p, struct group *g, int pass, bool vec); /* emit.c */
struct popnd *dvm_plan_emit_memory(struct planner *p, struct sb *b, uint32_t n,
                                   const struct view *v);
bool dvm_plan_emit_tile(struct planner *p, struct sb *b, uint32_t n, const struct view *v);

/* view.c. NULL on failure with p->stop set. */
int64_t dvm_view_inc(const struct group *g, const struct view *v, const struct dvm_shape *s, int a,
                     int j);
struct view *dvm_view_new(struct planner *p, int rank);
struct view *dvm_view_std(struct planner *p, const struct group *g, const struct dvm_shape *s);
/* Interns, so that equal maps are equal pointers; the standard map of s becomes NULL. */
const struct view *dvm_view_intern(const struct group *g, struct view *v,
                                   const struct dvm_shape *s);
/* The map of operand `x` of VIEW node n seen through v. *ok false: stopped. */
const struct view *dvm_view_through(struct planner *p, struct group *g, const struct pnode *n,
                                    const struct dvm_shape *xs, const struct view *v, bool *ok);
const struct view *dvm_view_broadcast(struct planner *p, struct group *g,
                                      const struct dvm_shape *ns, const struct dvm_shape *xs,
                                      const struct view *v);
#endif
