/* DVM: fused tensor kernels compiled to tile bytecode at run time. C interface.
 *
 *   dvm_ctx      device, threads, caches; shared by any number of threads
 *   dvm_graph    a program being built; one thread at a time
 *   dvm_kernel   a compiled program; any number of threads may run it at once
 *
 * Every function that can fail returns a dvm_status; dvm_error_text() then says what was wrong, where,
 * and what to do. A failing call changes nothing, except that one
 * which gives an object sets it to NULL. Outputs of a failed run are unspecified but never
 * written outside their bounds; nothing is written when the arguments are refused.
 * create/compile/parse give an object that the caller destroys; destroy takes the address of the
 * handle, sets it to NULL and accepts NULL. Pointers passed in are borrowed for the call only. */
#ifndef DVM_DVM_H
#define DVM_DVM_H
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define DVM_API __attribute__((visibility("default")))
#else
#define DVM_API
#endif

#define DVM_VERSION_MAJOR 0
#define DVM_VERSION_MINOR 1
#define DVM_VERSION_PATCH 0
/* Version of the bytecode and the text form; a program file of another number is refused. */
#define DVM_FORMAT 3

/* Limits. */
enum { DVM_MAX_RANK = 10, DVM_MAX_ARGS = 1024, DVM_MAX_NODES = 1 << 20 };

typedef enum dvm_status {
#define X(name, number, text) DVM_ERR_##name = number,
#include <dvm/status.def>
#undef X
    DVM_OK = 0
} dvm_status;

/* Text of the newest failed call of this thread; stays until the next failure. */
DVM_API const char *dvm_error_text(void);
DVM_API const char *dvm_status_text(dvm_status st);
DVM_API const char *dvm_status_name(dvm_status st);
DVM_API const char *dvm_version(void);

/* The first six numbers are those of the Ascend interface. f64, u8 and i8 can be loaded, stored and
 * cast, not computed with. */
typedef enum dvm_dtype {
    DVM_BOOL = 0,
    DVM_F16 = 1,
    DVM_BF16 = 2,
    DVM_F32 = 3,
    DVM_I32 = 4,
    DVM_I64 = 5,
    DVM_F64 = 6,
    DVM_U8 = 7,
    DVM_I8 = 8,
    DVM_NDTYPE = 9
} dvm_dtype;
DVM_API const char *dvm_dtype_name(dvm_dtype t);
DVM_API size_t dvm_dtype_size(dvm_dtype t);

typedef enum dvm_op {
#define X(name, text, arity, cls, types, result, tol, meaning) DVM_OP_##name,
#include <dvm/ops.def>
#undef X
    DVM_NOP
} dvm_op;
DVM_API const char *dvm_op_name(dvm_op op);

typedef enum dvm_kind {
    DVM_VECTOR = 0, /* one fused kernel or an error */
    DVM_CUBE = 1,
    DVM_MIX = 2,
    DVM_PARALLEL = 3, /* independent sections side by side */
    DVM_SEQ = 4,      /* ordered sections */
    DVM_SPLIT = 5,    /* the planner cuts freely */
    DVM_EAGER = 6     /* split, meant to be built for one use */
} dvm_kind;
enum {
    DVM_DYN = 1,      /* shapes of loads are placeholders; any rank and sizes at run time */
    DVM_UNIFY_WS = 2, /* accepted; workspace is always one block */
    DVM_SPEC = 4,     /* vector: may be cut after a reduction */
    DVM_STRICT = 8    /* round 16-bit floats after every operation */
};

/* Allocator: new_size 0 frees old; otherwise old is NULL and new_size bytes, 64-byte aligned, are wanted
 * (NULL when there are none). Called from any thread. */
typedef void *(*dvm_alloc_fn)(void *user, void *old, size_t old_size, size_t new_size);

/* Parallel loop of a foreign thread pool: call body(arg, i) for i in [0, n) and return when all are done. */
typedef void (*dvm_parallel_fn)(void *user, int n, void (*body)(void *arg, int i), void *arg);

typedef struct dvm_options {
    dvm_alloc_fn alloc; /* NULL: system memory */
    void *alloc_user;
    const char *device; /* NULL or "cpu"; "ref" is the scalar reference */
    const char *isa;    /* NULL: best of this processor and DVM_ISA; "base", "avx2", "avx512" */
    int threads;        /* 0: DVM_NUM_THREADS or the processors available */
    dvm_parallel_fn parallel; /* NULL: own pool */
    void *parallel_user;
} dvm_options;

typedef struct dvm_ctx dvm_ctx;
typedef struct dvm_graph dvm_graph;
typedef struct dvm_kernel dvm_kernel;

/* opt may be NULL. Kernels keep their context alive. */
DVM_API dvm_status dvm_ctx_create(const dvm_options *opt, dvm_ctx **out);
DVM_API void dvm_ctx_destroy(dvm_ctx **ctx);
DVM_API dvm_status dvm_ctx_set_threads(dvm_ctx *ctx, int threads);
DVM_API int dvm_ctx_threads(const dvm_ctx *ctx);
/* Frees the workspace that runs keep for the next one. ctx may be NULL. */
DVM_API void dvm_ctx_trim(dvm_ctx *ctx);
/* "cpu avx512", "ref". */
DVM_API const char *dvm_ctx_device(const dvm_ctx *ctx);

/* ---- building -------------------------------------------------------------------------------------
 * A value is a number that carries its graph, so a value of another graph is refused. 0 is no value.
 * A dimension is >= 0, or an expression made by dvm_dim_*, or -1: unknown (load), inferred (reshape),
 * kept (broadcast). */
typedef uint64_t dvm_val;
typedef int64_t dvm_dim;
typedef union dvm_number {
    int64_t i; /* bool and integers */
    double f;  /* floats */
} dvm_number;

DVM_API dvm_status dvm_graph_create(dvm_ctx *ctx, dvm_kind kind, uint32_t flags, dvm_graph **out);
DVM_API void dvm_graph_destroy(dvm_graph **g);
DVM_API dvm_status dvm_graph_set_name(dvm_graph *g, const char *name);
/* Source position ("file:line") that errors about the following nodes name. NULL: none. */
DVM_API dvm_status dvm_graph_at(dvm_graph *g, const char *where);

/* rank DVM_ANY_RANK: decided at run time (only in DVM_DYN graphs, where dims may be NULL).
 * strides in elements or NULL for dense; they hold when the argument brings none of its own. */
#define DVM_ANY_RANK (-1)
DVM_API dvm_status dvm_graph_load(dvm_graph *g, dvm_dtype t, int rank, const dvm_dim *dims,
                                  const dvm_dim *strides, dvm_val *out);
DVM_API dvm_status dvm_graph_scalar(dvm_graph *g, dvm_dtype t, dvm_val *out);
DVM_API dvm_status dvm_graph_const(dvm_graph *g, dvm_dtype t, dvm_number v, dvm_val *out);
DVM_API dvm_status dvm_graph_iota(dvm_graph *g, dvm_dtype t, int rank, const dvm_dim *dims,
                                  int axis, dvm_val *out);
/* Any EW row of ops.def except CAST. Operands broadcast; a scalar operand (SCALAR, CONST or SIZE node)
 * is converted to the dtype of the tensor operand. */
DVM_API dvm_status dvm_graph_op(dvm_graph *g, dvm_op op, int n, const dvm_val *in, dvm_val *out);
DVM_API dvm_status dvm_graph_cast(dvm_graph *g, dvm_val x, dvm_dtype t, dvm_val *out);
DVM_API dvm_status dvm_graph_broadcast(dvm_graph *g, dvm_val x, int rank, const dvm_dim *dims,
                                       dvm_val *out);
DVM_API dvm_status dvm_graph_reshape(dvm_graph *g, dvm_val x, int rank, const dvm_dim *dims,
                                     dvm_val *out);
DVM_API dvm_status dvm_graph_permute(dvm_graph *g, dvm_val x, int rank, const int *perm,
                                     dvm_val *out);
/* As numpy slices: start may be negative (from the end); size -1: up to the end; what reaches beyond an
 * axis is cut off, so a result may be shorter than size, or empty. step NULL: 1; a negative step walks
 * down from start. */
DVM_API dvm_status dvm_graph_slice(dvm_graph *g, dvm_val x, int rank, const dvm_dim *start,
                                   const dvm_dim *size, const int64_t *step, dvm_val *out);
/* n = 0: all axes. t: result dtype for SUM and PROD (accumulated in f32 or i64 and rounded once). */
DVM_API dvm_status dvm_graph_reduce(dvm_graph *g, dvm_op op, dvm_val x, int n, const int *axes,
                                    int keepdims, dvm_dtype t, dvm_val *out);
DVM_API dvm_status dvm_graph_cumsum(dvm_graph *g, dvm_val x, dvm_val *out);
/* mode 0: take along the axis, index of x's rank; mode 1: slices of x (numpy.take). */
DVM_API dvm_status dvm_graph_gather(dvm_graph *g, dvm_val x, dvm_val index, int axis, int mode,
                                    dvm_val *out);
DVM_API dvm_status dvm_graph_concat(dvm_graph *g, int n, const dvm_val *in, int axis, dvm_val *out);
/* Products over the last two axes of a ([..., M, K], or [..., K, M] if trans_a) and b ([..., K, N], or [..., N, K]), at
 * least rank 2; the axes before them broadcast. Both f16, bf16 or f32; t: result dtype, theirs or f32. bias: 0, or a
 * tensor of rank 1 and size N or 1, added in f32 before the one rounding to t. */
DVM_API dvm_status dvm_graph_matmul(dvm_graph *g, dvm_val a, dvm_val b, int trans_a, int trans_b,
                                    dvm_val bias, dvm_dtype t, dvm_val *out);
/* a and b as above. list: i64 or i32, rank 1, ends or sizes of the G groups.
 *   GROUP_M  a is M x K, b is G x K x N, bias G x N or 0: rows of group i times b[i]; rows beyond the last group are 0
 *   GROUP_N  ordinary matmul, list not read
 *   GROUP_K  a is M x K, b is K x N, no bias: result G x M x N, group i multiplies its part of K
 * Ends that decrease, sizes below 0 and groups that overrun M (K) are DVM_ERR_INDEX when the kernel runs. */
enum { DVM_GROUP_M = 0, DVM_GROUP_N = 1, DVM_GROUP_K = 2 };
enum { DVM_LIST_ENDS = 0, DVM_LIST_SIZES = 1 };
DVM_API dvm_status dvm_graph_grouped_matmul(dvm_graph *g, dvm_val a, dvm_val b, int trans_a,
                                            int trans_b, dvm_val bias, dvm_val list, int group,
                                            int list_kind, dvm_dtype t, dvm_val *out);
/* Product of the sizes of some axes (n = 0: all) as an i64 scalar. */
DVM_API dvm_status dvm_graph_size(dvm_graph *g, dvm_val x, int n, const int *axes, dvm_val *out);
/* strides NULL: dense. Outputs are numbered in the order of stores. The result may be used as a value. */
DVM_API dvm_status dvm_graph_store(dvm_graph *g, dvm_val x, const dvm_dim *strides, dvm_val *out);
/* New section of a parallel, seq or speculative vector graph. Flags may hold DVM_CORES(n): kernels of this section run on at
 * most n threads, 0 to 65535, 0 being all. A kernel of several sections takes the most that any of them may. No bit of a
 * result depends on it. */
#define DVM_CORES(n) ((uint32_t)(n) << 16)
DVM_API dvm_status dvm_graph_section(dvm_graph *g, dvm_kind kind, uint32_t flags);

enum {
    DVM_DIM_ADD,
    DVM_DIM_SUB,
    DVM_DIM_MUL,
    DVM_DIM_FLOORDIV,
    DVM_DIM_MOD,
    DVM_DIM_MAX,
    DVM_DIM_MIN
};
DVM_API dvm_status dvm_dim_scalar(dvm_graph *g, dvm_val scalar, dvm_dim *out);
DVM_API dvm_status dvm_dim_of(dvm_graph *g, dvm_val x, int axis, dvm_dim *out);
DVM_API dvm_status dvm_dim_op(dvm_graph *g, int op, dvm_dim a, dvm_dim b, dvm_dim *out);

/* What is known at build time. rank DVM_ANY_RANK and dims < 0 are unknown. dims may be NULL. */
DVM_API dvm_status dvm_graph_dtype(const dvm_graph *g, dvm_val v, dvm_dtype *t);
DVM_API dvm_status dvm_graph_shape(const dvm_graph *g, dvm_val v, int *rank, dvm_dim *dims);

/* ---- compiling and running ------------------------------------------------------------------------ */
/* The graph stays the caller's and may be destroyed at once. */
DVM_API dvm_status dvm_compile(dvm_graph *g, dvm_kernel **out);
DVM_API void dvm_kernel_destroy(dvm_kernel **k);

/* One argument: a tensor (rank >= 0, strides in elements or NULL for dense) or a scalar (rank -1, value
 * in num by dtype). Inputs in declaration order of loads and scalars; outputs in order of stores. */
typedef struct dvm_arg {
    void *data;
    const int64_t *dims;
    const int64_t *strides;
    int32_t rank;
    int32_t dtype;
    dvm_number num;
} dvm_arg;

DVM_API int dvm_kernel_inputs(const dvm_kernel *k);
DVM_API int dvm_kernel_outputs(const dvm_kernel *k);
/* Shapes of the outputs for these inputs (data pointers are not read). dims: n_out x DVM_MAX_RANK. */
DVM_API dvm_status dvm_kernel_infer(dvm_kernel *k, int n_in, const dvm_arg *in, int n_out,
                                    int *ranks, int64_t *dims, dvm_dtype *dtypes);
/* Outputs may be strided. An output that overlaps an input partly, or another output, is an error. */
DVM_API dvm_status dvm_run(dvm_kernel *k, int n_in, const dvm_arg *in, int n_out,
                           const dvm_arg *out);

typedef struct dvm_stats {
    int64_t compile_ns;    /* graph to verified bytecode, newest shape */
    int64_t shapes;        /* shapes met so far */
    int64_t plans;         /* plans made (shapes not found in the table) */
    int64_t kernels;       /* launches of the newest plan */
    int64_t strips;        /* distinct bytecode strips compiled */
    int64_t instructions;  /* bytecode instructions of the newest plan */
    int64_t bytes_moved;   /* operand bytes read and written by the newest plan */
    int64_t bytes_unfused; /* the same if every graph operation ran alone */
    int64_t bytes_minimum; /* inputs read once, outputs written once */
    int64_t workspace;     /* bytes of intermediate buffers */
} dvm_stats;
DVM_API dvm_status dvm_kernel_stats(const dvm_kernel *k, dvm_stats *out);

/* ---- text ------------------------------------------------------------------------------------------ */
enum dvm_stage {
    DVM_TEXT_GRAPH,
    DVM_TEXT_OPT,
    DVM_TEXT_PLAN,
    DVM_TEXT_CODE,
    DVM_TEXT_EXPLAIN,
    DVM_TEXT_NATIVE
};
/* Strings are freed with dvm_string_free. */
DVM_API dvm_status dvm_graph_text(const dvm_graph *g, char **out);
/* stage PLAN and later: of the newest shape run, or of a static kernel. */
DVM_API dvm_status dvm_kernel_text(const dvm_kernel *k, enum dvm_stage stage, char **out);
/* file is a name for messages. The first kernel of the text. Errors name file:line:column. */
DVM_API dvm_status dvm_graph_parse(dvm_ctx *ctx, const char *file, const char *text, size_t n,
                                   dvm_graph **out);
DVM_API void dvm_string_free(char **s);

#ifdef __cplusplus
}
#endif
#endif
