/* Compiled strips by content, shared by all kernels of a context: a new shape whose strips are known compiles nothing.
 * Entries in use are counted; unused ones stay up to a bound. Thread-safe. */
#ifndef DVM_CACHE_STRIP_CACHE_H
#define DVM_CACHE_STRIP_CACHE_H
#include "base/mem.h"
#include "code/strip.h"

struct dvm_strip_cache;
struct dvm_strip_entry;

/* How the owner compiles and frees code. */
struct dvm_strip_maker {
    dvm_status (*compile)(void *user, const struct dvm_strip *s, struct dvm_code **out);
    void (*destroy)(void *user, struct dvm_code *c);
    void *user;
};

dvm_status dvm_strip_cache_create(const struct dvm_mem *m, struct dvm_strip_maker maker,
                                  struct dvm_strip_cache **out);
void dvm_strip_cache_destroy(struct dvm_strip_cache **c);
/* The entry of a strip, compiled when new (*fresh then true); to be released once. */
dvm_status dvm_strip_cache_get(struct dvm_strip_cache *c, const struct dvm_strip *s,
                               struct dvm_strip_entry **out, bool *fresh);
void dvm_strip_cache_release(struct dvm_strip_cache *c, struct dvm_strip_entry *e);
struct dvm_code *dvm_strip_entry_code(const struct dvm_strip_entry *e);
#endif
