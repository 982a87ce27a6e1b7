/* Memory: every allocation of the library goes through a dvm_alloc_fn with sizes, so that tests can
 * fail the n-th one and leaks show as a byte balance. Two lifetimes: a struct that owns blocks
 * (mem_new / mem_free) and an arena that is dropped at once (compile-time scratch). */
#ifndef DVM_BASE_MEM_H
#define DVM_BASE_MEM_H
#include <dvm/dvm.h>

#include "base/cc.h"

enum { DVM_ALIGN = 64 };

struct dvm_mem {
    dvm_alloc_fn fn;
    void *user;
};

/* Default allocator: 64-byte aligned system memory. */
void *dvm_mem_system(void *user, void *old, size_t old_size, size_t new_size);

/* NULL with the error text set when memory is out. size 0 gives a unique pointer. Zeroed. */
void *dvm_mem_new(const struct dvm_mem *m, size_t size);
void dvm_mem_free(const struct dvm_mem *m, void *p, size_t size);

/* Growable array of T: struct { T *p; uint32_t n, cap; }. */
#define DVM_VEC(T)       \
    struct {             \
        T *p;            \
        uint32_t n, cap; \
    }
dvm_status dvm_vec_grow(const struct dvm_mem *m, void **p, uint32_t *cap, uint32_t want,
                        size_t elem);
#define DVM_VEC_RESERVE(m, v, extra)                                                     \
    ((v).n + (extra) <= (v).cap                                                          \
         ? DVM_OK                                                                        \
         : dvm_vec_grow((m), (void **)&(v).p, &(v).cap, (v).n + (extra), sizeof *(v).p))
#define DVM_VEC_FREE(m, v)                                                                         \
    (dvm_mem_free((m), (v).p, (size_t)(v).cap * sizeof *(v).p), (v).p = NULL, (v).n = (v).cap = 0)

/* Arena: bump allocation in chunks; nothing is freed singly. Zeroed memory, 16-byte aligned. */
struct dvm_arena {
    const struct dvm_mem *mem;
    struct dvm_arena_chunk *head;
    char *cur, *end;
};
void dvm_arena_init(struct dvm_arena *a, const struct dvm_mem *m);
/* Keeps the newest chunk for reuse. */
void dvm_arena_reset(struct dvm_arena *a);
void dvm_arena_drop(struct dvm_arena *a);
/* Begins a fresh arena in memory of another one, so that little needs no chunk of its own. */
bool dvm_arena_within(struct dvm_arena *a, struct dvm_arena *outer, size_t size);
/* What was taken since the mark is free again. */
struct dvm_arena_mark {
    struct dvm_arena_chunk *head;
    char *cur, *end;
};
DVM_INLINE struct dvm_arena_mark dvm_arena_mark(const struct dvm_arena *a) {
    return (struct dvm_arena_mark){a->head, a->cur, a->end};
}
void dvm_arena_release(struct dvm_arena *a, struct dvm_arena_mark m);
void *dvm_arena_slow(struct dvm_arena *a, size_t size);
/* Uninitialized memory. NULL (error text set) when memory is out. */
DVM_INLINE void *dvm_arena_raw(struct dvm_arena *a, size_t size) {
    size = (size + 15) & ~(size_t)15;
    if (DVM_LIKELY((size_t)(a->end - a->cur) >= size)) {
        void *p = a->cur;
        a->cur += size;
        return p;
    }
    return dvm_arena_slow(a, size);
}
void *dvm_arena_new(struct dvm_arena *a, size_t size);
#endif
