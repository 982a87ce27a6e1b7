/* The only file that calls the system allocator. See mem.h. */
#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"

void *dvm_mem_system(void *user, void *old, size_t old_size, size_t new_size) {
    (void)user;
    (void)old_size;
    if (new_size == 0) {
        free(old);
        return NULL;
    }
    size_t rounded = (new_size + DVM_ALIGN - 1) & ~(size_t)(DVM_ALIGN - 1);
    if (rounded < new_size) return NULL;
    return aligned_alloc(DVM_ALIGN, rounded);
}

void *dvm_mem_new(const struct dvm_mem *m, size_t size) {
    void *p = m->fn(m->user, NULL, 0, size ? size : 1);
    if (!p) {
        dvm_err_set(DVM_ERR_NOMEM, "out of memory: %zu bytes", size);
        return NULL;
    }
    memset(p, 0, size ? size : 1);
    return p;
}

void dvm_mem_free(const struct dvm_mem *m, void *p, size_t size) {
    if (p) m->fn(m->user, p, size ? size : 1, 0);
}

dvm_status dvm_vec_grow(const struct dvm_mem *m, void **p, uint32_t *cap, uint32_t want,
                        size_t elem) {
    uint32_t ncap = *cap ? *cap : 16;
    while (ncap < want) {
        if (ncap > UINT32_MAX / 2) DVM_FAIL(LIMIT, "array of more than 2^31 entries");
        ncap *= 2;
    }
    void *q = dvm_mem_new(m, ncap * elem);
    if (!q) return DVM_ERR_NOMEM;
    if (*p) memcpy(q, *p, *cap * elem);
    dvm_mem_free(m, *p, *cap * elem);
    *p = q;
    *cap = ncap;
    return DVM_OK;
}

enum { CHUNK = 32 << 10 };

struct dvm_arena_chunk {
    struct dvm_arena_chunk *next;
    size_t size;
    alignas(16) char data[];
};

void dvm_arena_init(struct dvm_arena *a, const struct dvm_mem *m) {
    *a = (struct dvm_arena){.mem = m};
}

static void free_chunks(struct dvm_arena *a, struct dvm_arena_chunk *c) {
    while (c) {
        struct dvm_arena_chunk *next = c->next;
        a->mem->fn(a->mem->user, c, c->size, 0);
        c = next;
    }
}

void dvm_arena_reset(struct dvm_arena *a) {
    if (!a->head) return;
    free_chunks(a, a->head->next);
    a->head->next = NULL;
    a->cur = a->head->data;
}

void dvm_arena_drop(struct dvm_arena *a) {
    free_chunks(a, a->head);
    a->head = NULL;
    a->cur = a->end = NULL;
}

bool dvm_arena_within(struct dvm_arena *a, struct dvm_arena *outer, size_t size) {
    a->cur = dvm_arena_raw(outer, size);
    a->end = a->cur ? a->cur + size : NULL;
    return a->cur != NULL;
}

void dvm_arena_release(struct dvm_arena *a, struct dvm_arena_mark m) {
    while (a->head != m.head) {
        struct dvm_arena_chunk *c = a->head;
        a->head = c->next;
        a->mem->fn(a->mem->user, c, c->size, 0);
    }
    a->cur = m.cur;
    a->end = m.end;
}

void *dvm_arena_slow(struct dvm_arena *a, size_t size) {
    size_t want = sizeof(struct dvm_arena_chunk) + size;
    if (want < CHUNK) want = CHUNK;
    struct dvm_arena_chunk *c = a->mem->fn(a->mem->user, NULL, 0, want);
    if (!c) {
        dvm_err_set(DVM_ERR_NOMEM, "out of memory: %zu bytes", want);
        return NULL;
    }
    c->next = a->head;
    c->size = want;
    a->head = c;
    a->cur = c->data + size;
    a->end = (char *)c + want;
    return c->data;
}

void *dvm_arena_new(struct dvm_arena *a, size_t size) {
    void *p = dvm_arena_raw(a, size);
    if (p) memset(p, 0, size);
    return p;
}
