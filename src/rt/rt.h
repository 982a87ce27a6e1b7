/* Objects behind the public handles. */
#ifndef DVM_RT_RT_H
#define DVM_RT_RT_H
#include <pthread.h>
#include <stdatomic.h>

#include "base/err.h"
#include "cache/strip_cache.h"
#include "graph/graph.h"
#include "graph/graph_build.h"
#include "ops/gemm/gemm.h"
#include "plan/make.h"
#include "vm/dev.h"

enum { MAX_TIERS = 3, MAX_RECORDS = 128, IDLE_WORKSPACES = 4 };

struct workspace {
    char *p;
    size_t size;
};

struct dvm_ctx {
    struct dvm_mem mem;
    _Atomic int refs;
    struct dvm_dev tier[MAX_TIERS]; /* asked in order */
    int ntier;
    struct dvm_pool *pool;
    struct dvm_strip_cache *strips;
    size_t cache_bytes;
    struct dvm_gemm_isa gemm;               /* k NULL: products by the scalar loop */
    pthread_mutex_t lock;                   /* idle */
    struct workspace idle[IDLE_WORKSPACES]; /* those that no run holds; p NULL: none */
    _Atomic int nidle;                      /* changes under the lock */
    char device[32];
    char no_jit
        [120]; /* why there is no tier of machine code; "" when there is, or none was wanted */
};
void dvm_ctx_ref(struct dvm_ctx *c);
void dvm_ctx_unref(struct dvm_ctx *c);

/* Workspaces are the context's: kernels that run one after the other use the same memory. At least `size` bytes; p is
 * NULL when memory is out. */
struct workspace dvm_ctx_take_ws(struct dvm_ctx *c, size_t size);
void dvm_ctx_give_ws(struct dvm_ctx *c, struct workspace w);
/* Frees those that are idle: with a kernel goes what it may have needed. */
void dvm_ctx_drop_ws(struct dvm_ctx *c);

/* What one set of shapes and strides needs to run. Immutable once in the table. */
struct launch_record {
    struct launch_record *next; /* newest first */
    _Atomic int refs;
    uint64_t hash;
    uint32_t nkey, nkey_in; /* numbers in key; those about inputs come first */
    int64_t *key;
    struct dvm_plan *plan;
    struct dvm_strip_entry **entry; /* plan->nstrip */
    bool
        plain; /* every argument is live, has elements, and no size depends on a scalar: dvm_kernel_newest */
};

struct arg_info {
    uint8_t scalar, dtype;
    bool in_dims; /* a scalar whose value shapes depend on */
    bool live;
    bool strided; /* declared with strides, which hold when the argument brings none */
};

struct dvm_kernel {
    struct dvm_ctx *ctx;
    struct dvm_mem mem;
    struct dvm_graph *source; /* as built, for text */
    struct dvm_graph *g;      /* normal form */
    struct arg_info *arg;     /* g->n_in, then g->n_out */
    pthread_mutex_t lock;     /* table, arena, stats */
    struct launch_record *table;
    int nrecord;
    struct dvm_arena arena;
    dvm_stats stats;
};

dvm_status dvm_kernel_record(struct dvm_kernel *k, int n_in, const dvm_arg *in, const dvm_arg *out,
                             struct launch_record **r);
/* The record of the newest run when these arguments pass every check by being like those of that run; NULL: look and
 * check in full. Taken as above. */
struct launch_record *dvm_kernel_newest(struct dvm_kernel *k, const dvm_arg *in,
                                        const dvm_arg *out);
void dvm_record_unref(struct dvm_kernel *k, struct launch_record *r);

/* Kernels of attention at the level of the context's tile VM; the scalar reference has none of its own. */
struct attn_isa;
dvm_status dvm_ctx_attn_isa(const struct dvm_ctx *ctx, struct attn_isa *isa);
#endif
