/* What the loop driver knows of a pool beside dev.h. */
#ifndef DVM_VM_POOL_H
#define DVM_VM_POOL_H
#include "vm/dev.h"

/* Whether kernels are cut however little that brings: for tests, whose tensors are small. */
bool dvm_pool_eager(const struct dvm_pool *p);
void dvm_pool_set_eager(struct dvm_pool *p, bool on);

/* A block of at least `size` bytes, aligned and not zeroed; the pool keeps the newest one given back,
 * so that launches in a row do not ask the allocator. NULL (error text set) when memory is out. p may
 * be NULL: then there is no keeping. *got is the true size, to be handed back with the block. */
void *dvm_pool_take(struct dvm_pool *p, const struct dvm_mem *m, size_t size, size_t *got);
void dvm_pool_give(struct dvm_pool *p, const struct dvm_mem *m, void *block, size_t got);
#endif
