/* Attention whose scores pass through functions of the caller's, compiled as kernels:
 *
 *     softmax over keys of f(scale q_i k_j, b, h, i, j), times V
 *
 * A function is a kernel over one tile of scores. The attention runs its machine code inside its own loop over tiles,
 * on the rows and keys that are there; nothing of the size of all scores is ever made. Where a position is not seen the
 * function gives -inf. Block lists say which blocks of positions are seen not at all, in part or wholly.
 *
 * query [B, H, S, D]; key [B, G, T, D] and value [B, G, T, D2], B of these may be 1; H is a multiple of G. Any strides.
 * Results do not depend on the number of threads. */
#ifndef DVM_FLEX_H
#define DVM_FLEX_H
#include <dvm/dvm.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The tile that functions are written for; they run on parts of it. */
enum { DVM_FLEX_ROWS = 96, DVM_FLEX_KEYS = 128, DVM_FLEX_PITCH = 144 };

/* What an input of a function is. Outputs are tiles: f32 (scores, gradients, addends) or i64 (places of addends). */
enum dvm_flex_role {
    DVM_FLEX_SCORE, /* f32 [ROWS, KEYS], strides [PITCH, 1]: products, not scaled yet */
    DVM_FLEX_SCALE, /* f32 [] */
    DVM_FLEX_BATCH, /* i32 [] */
    DVM_FLEX_HEAD,  /* i32 [], of queries */
    DVM_FLEX_QUERY, /* i32 [ROWS]: numbers of the rows */
    DVM_FLEX_KEY,   /* i32 [KEYS]: numbers of the keys */
    DVM_FLEX_GRAD,  /* as SCORE: gradient of what the function gave */
    DVM_FLEX_OTHER, /* a tensor or number of the caller's */
    DVM_FLEX_NROLE
};

typedef struct dvm_flex_fn {
    dvm_kernel *kernel; /* must plan to one map over the tile. NULL: nothing beyond the scale */
    int n;              /* inputs of the kernel */
    const int *role;
    const dvm_arg *other; /* n; read where the role is OTHER */
} dvm_flex_fn;

typedef struct dvm_flex {
    const dvm_arg *query, *key, *value;
    double scale;
    dvm_flex_fn part, full; /* scores of blocks seen in part, wholly */

    /* For each block of q_block rows: how many blocks of kv_block keys are seen in part, and which; i32 [b, h, rows]
     * and [b, h, rows, n], b and h those of query or 1. full_*: wholly; NULL: none. */
    const dvm_arg *num, *index, *full_num, *full_index;
    int64_t q_block, kv_block;

    /* Backward. lse: as the forward gave it; dlse, its gradient, may be NULL. */
    const dvm_arg *out, *lse, *dy, *dlse;
    dvm_flex_fn grad; /* gradient of the scaled product, from GRAD */
    /* Gradients of captured tensors: outputs 2 i and 2 i + 1 of `add` are addends, and where they go in target[i] of
     * the captured gradients, counted in elements of the dense tensor. */
    dvm_flex_fn add;
    int nadd;
    const int *target;
} dvm_flex;

/* Whether a function with these arguments can run on tiles; outputs: 1, or 2 for each addend. Elements are not read. */
DVM_API dvm_status dvm_flex_check(dvm_ctx *ctx, const dvm_flex_fn *f, int outputs);
/* out: attention [B, H, S, D2] of query's dtype; logarithm of the sum of powers and largest score, both to base 2,
 * f32 [B, H, S]. A row that sees nothing: 0, -inf, -inf. */
DVM_API dvm_status dvm_flex_forward(dvm_ctx *ctx, const dvm_flex *f, const dvm_arg *const out[3]);
/* grad: of query, key, value; those of the last two have the B of query. captured: n tensors for target[]. */
DVM_API dvm_status dvm_flex_backward(dvm_ctx *ctx, const dvm_flex *f, const dvm_arg *const grad[3],
                                     int n, const dvm_arg *captured);

#ifdef __cplusplus
}
#endif
#endif
