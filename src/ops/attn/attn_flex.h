/* Scores that pass through compiled functions (dvm/flex.h): the part of the tile loop that runs them, and the blocks
 * they say are seen. rt opens the kernels; here they are strips with places for the tile at hand. */
#ifndef DVM_OPS_ATTN_ATTN_FLEX_H
#define DVM_OPS_ATTN_ATTN_FLEX_H
#include <dvm/flex.h>
#include <pthread.h>

#include "code/strip.h"
#include "ops/attn/attn_tile.h"

static_assert((int)DVM_FLEX_ROWS == ATTN_BM && (int)DVM_FLEX_KEYS == ATTN_BN &&
                  (int)DVM_FLEX_PITCH == ATTN_PITCH,
              "functions are compiled for the tiles of attention");

/* Outputs of a function have the roles FLEX_OUT, FLEX_OUT + 1, ... */
enum { FLEX_OUT = DVM_FLEX_NROLE };

/* An operand of the strip: `at` bytes from where its role stands; OTHER: an address. */
struct attn_fn_opnd {
    int role;
    uint32_t node; /* of a gather, for messages */
    int64_t at, rs, cs, gs, gn;
};

struct attn_fn {
    const struct dvm_code *code; /* NULL: scale times the product */
    int nopnd;
    struct attn_fn_opnd *opnd;
    const uint64_t *param;
};

enum flex_state { FLEX_NONE, FLEX_PART, FLEX_FULL };
enum flex_use { FLEX_USE_PART, FLEX_USE_FULL, FLEX_USE_GRAD, FLEX_USE_ADD, NFLEX_USE };

struct attn_flex {
    struct attn_fn fn[NFLEX_USE];
    const dvm_flex *call;
    float scale;
    /* State of the block of rows i / q_block and keys j / kv_block. */
    const uint8_t *state;
    int64_t q_block, kv_block, bs, hs, rs; /* strides of state */
    struct attn_mat lse, dlse;             /* lse: read by the backward, written by the forward */
    struct attn_mat top;

    /* Captured gradients: where each begins among all of them. */
    int ncaptured;
    const int64_t *begin; /* ncaptured + 1 */
    const dvm_arg *captured;

    pthread_mutex_t lock;
    struct dvm_fault fault; /* of the function `blame` */
    int blame;
};

enum { FLEX_ADD_TILE = ATTN_BM * ATTN_PITCH * 8 }; /* bytes of a tile of addends */

/* Bytes of scratch of a thread; where what is needed starts. */
size_t dvm_attn_flex_room(const struct attn_flex *f, bool backward);
void dvm_attn_flex_enter(struct attn_flex_work *x, struct attn_flex *f, bool backward, char *p);

/* As dvm_attn_see. */
bool dvm_attn_flex_see(struct attn_work *w, const struct attn_block *blk, int64_t j0);
/* Products in x->raw to scores in w->s: -inf where nothing is seen, over the keys from..to of each row. */
void dvm_attn_flex_scores(struct attn_work *w, const struct attn_block *blk, int64_t j0);
/* Shrinks from..to of row r to what it sees. */
void dvm_attn_flex_trim(struct attn_work *w, int r);
/* Gradients of scores in w->t to those of the scaled products, by way of x->raw. After
 * dvm_attn_flex_scores of this tile, whose places stay. */
void dvm_attn_flex_grad(struct attn_work *w, const struct attn_block *blk);
/* Addends of captured gradients of a tile, from the gradients of scores in w->t, into sum. After them as
 * well. */
void dvm_attn_flex_add(struct attn_work *w, const struct attn_block *blk, double *sum);
#endif
