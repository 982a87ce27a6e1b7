/* Attention: softmax(scale (Q K^T + pse)) V over the visible positions, forward and backward, in the argument
 * conventions of npu_fusion_attention. docs/attention.md says what every argument means; strings and numbers are
 * checked here, in the order listed there, and the error text names the argument and its value.
 *
 * Tensors are dvm_args: strides in elements or NULL for dense, any memory order. NULL: absent. Nothing is written when
 * arguments are refused. Results do not depend on the number of threads, the processor or the memory order. */
#ifndef DVM_ATTN_H
#define DVM_ATTN_H
#include <dvm/dvm.h>

#ifdef __cplusplus
extern "C" {
#endif

/* SWA: sparse_mode is 0 or 4; more than 16384 packed rows (TND) turn mode 0 into mode 4.
 * STRICT: an absent atten_mask means full attention in every mode; bands with empty rows are refused.
 * PSE_ADDED: scale Q K^T + pse, not scale (Q K^T + pse). */
enum { DVM_ATTN_SWA = 1, DVM_ATTN_STRICT = 2, DVM_ATTN_PSE_ADDED = 4 };
enum { DVM_ATTN_ROWS = 8 };     /* last axis of softmax_max and softmax_sum: one number, repeated */
#define DVM_ATTN_ALL 2147483647 /* default of pre_tockens and next_tockens */

typedef struct dvm_attn {
    uint32_t flags;
    int64_t head_num; /* query heads */
    const dvm_arg *query, *key, *value;
    const dvm_arg *pse, *atten_mask, *sink;
    const char *input_layout;   /* BSH SBH BSND BNSD TND, any case */
    const char *softmax_layout; /* NULL or "": per sequence; TND: per row */
    double scale, keep_prob;
    int64_t pre_tockens, next_tockens, sparse_mode;
    const int64_t *prefix, *actual_seq_qlen, *actual_seq_kvlen;
    int64_t nprefix, nqlen, nkvlen; /* entries */
    int64_t seed, offset;           /* of dropout; read when keep_prob < 1 */

    /* Backward only. */
    const dvm_arg *dy, *softmax_max, *softmax_sum, *attention_in;
    int64_t numels; /* as the forward gave it; read when keep_prob < 1 */
} dvm_attn;

typedef struct dvm_attn_shape {
    int out_rank, stat_rank;
    int64_t out[4], stat[4];
    int64_t numels;      /* elements that dropout is drawn for */
    int64_t sparse_mode; /* the mode that holds, after the rule of DVM_ATTN_SWA */
} dvm_attn_shape;

/* Checks a call and says what its forward gives; data pointers are not read. */
DVM_API dvm_status dvm_attn_infer(const dvm_attn *a, int backward, dvm_attn_shape *out);
/* out: attention_out, softmax_max, softmax_sum. */
DVM_API dvm_status dvm_attn_forward(dvm_ctx *ctx, const dvm_attn *a, const dvm_arg *const out[3]);
/* grad: of query, key, value, pse, sink; the last two may be NULL. dtypes and shapes are those of the inputs. */
DVM_API dvm_status dvm_attn_backward(dvm_ctx *ctx, const dvm_attn *a, const dvm_arg *const grad[5]);

#ifdef __cplusplus
}
#endif
#endif
