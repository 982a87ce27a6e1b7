/* What a device offers: it turns strips into code and runs plans. vm/ref and vm/cpu are tiers behind one loop driver
 * (drive.c); a GPU has its own launch. */
#ifndef DVM_VM_DEV_H
#define DVM_VM_DEV_H
#include "base/mem.h"
#include "base/text.h"
#include "plan/plan.h"

struct dvm_pool; /* threads: vm/pool.c */

struct dvm_dev {
    const char *name; /* "jit", "vm", "ref": the tier that its code names */
    const char *isa;  /* "base", "avx2", "avx512" */
    /* Compiles a verified strip. The code owns a copy of the strip. A tier that cannot take it returns
     * DVM_ERR_UNSUPPORTED and the next one is asked. */
    dvm_status (*compile)(const struct dvm_dev *d, const struct dvm_mem *m,
                          const struct dvm_strip *s, struct dvm_code **out);
    void (*destroy)(const struct dvm_dev *d, const struct dvm_mem *m, struct dvm_code *c);
    /* The machine code of a strip as text; NULL: this tier makes none. */
    dvm_status (*list)(const struct dvm_dev *d, const struct dvm_mem *m, const struct dvm_strip *s,
                       struct dvm_text *out);
    const void *table; /* tier's own: kernel table of the ISA level */
};

/* NULL isa: the best level of this processor not above DVM_ISA. Unknown name or level not available: DVM_ERR_ARG with
 * the list of levels. */
dvm_status dvm_dev_cpu(const char *isa, struct dvm_dev *out);
dvm_status dvm_dev_ref(struct dvm_dev *out);
/* Machine code of the level dvm_dev_cpu chose; DVM_ERR_UNSUPPORTED with the reason where there is none. */
dvm_status dvm_dev_jit(const char *isa, struct dvm_dev *out);

/* One run: addresses of inputs and outputs as bound, strides already in the plan. */
struct dvm_launch {
    const struct dvm_plan *plan;
    char *const *in;
    char *const *out;
    char *ws;
    const uint64_t *param; /* plan->nparam numbers */
    bool alias;            /* some output is exactly an input */
    uint32_t *fault_node;  /* NULL, or where DVM_ERR_INDEX leaves dvm_bind.node */
    struct dvm_pool *pool;
    const struct dvm_mem *mem;
    /* Products (kernels of kind GEMM) have a schedule of their own, in src/ops, which stands above this room: whoever
     * launches hands it over, with the level that it is to use. */
    dvm_status (*product)(const struct dvm_launch *l, uint32_t kernel);
    const void *level;
};
/* DVM_ERR_INDEX when a PICK met an index out of range, DVM_ERR_NOMEM without scratch. */
dvm_status dvm_drive(const struct dvm_launch *l);
/* DVM_ERR_INDEX in words: the gather through bind b met f. */
dvm_status dvm_fault_report(const struct dvm_launch *l, const struct dvm_fault *f,
                            const struct dvm_bind *b);

/* Threads. A pool of n threads counts the caller. run calls body(arg, i) for i in [0, n) and waits; safe from many
 * threads at once (a busy pool runs the caller's work on the caller). Callers are in the environment of base/fpenv.h; the
 * other threads are while they run body. */
dvm_status dvm_pool_create(const struct dvm_mem *m, int threads, dvm_parallel_fn fn, void *user,
                           struct dvm_pool **out);
void dvm_pool_destroy(struct dvm_pool **p);
int dvm_pool_size(const struct dvm_pool *p);
dvm_status dvm_pool_resize(struct dvm_pool *p, int threads);
void dvm_pool_run(struct dvm_pool *p, int n, void (*body)(void *arg, int i), void *arg);
/* Threads of a kernel that may have `cores`, 0: all. */
DVM_INLINE int dvm_launch_threads(const struct dvm_launch *l, int cores) {
    int threads = l->pool ? dvm_pool_size(l->pool) : 1;
    return cores ? DVM_MIN(threads, cores) : threads;
}
#endif
