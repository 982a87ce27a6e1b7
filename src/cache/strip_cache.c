/* Compiled strips by content. See strip_cache.h. */
#include "cache/strip_cache.h"

#include <pthread.h>
#include <string.h>

#include "base/err.h"
#include "code/strip_text.h"

enum { BUCKETS = 1024, MAX_IDLE = 1024 };

struct dvm_strip_entry {
    struct dvm_strip_entry *next;          /* bucket */
    struct dvm_strip_entry *newer, *older; /* idle list */
    struct dvm_code *code;
    uint32_t refs;
};

struct dvm_strip_cache {
    struct dvm_mem mem;
    struct dvm_strip_maker maker;
    pthread_mutex_t lock;
    struct dvm_strip_entry *bucket[BUCKETS];
    struct dvm_strip_entry idle; /* ring head */
    uint32_t nidle;
};

dvm_status dvm_strip_cache_create(const struct dvm_mem *m, struct dvm_strip_maker maker,
                                  struct dvm_strip_cache **out) {
    struct dvm_strip_cache *c = dvm_mem_new(m, sizeof *c);
    if (!c) return DVM_ERR_NOMEM;
    c->mem = *m;
    c->maker = maker;
    c->idle.newer = c->idle.older = &c->idle;
    pthread_mutex_init(&c->lock, NULL);
    *out = c;
    return DVM_OK;
}

static struct dvm_strip_entry **slot_of(struct dvm_strip_cache *c, uint64_t hash) {
    return &c->bucket[hash % BUCKETS];
}

static void free_entry(struct dvm_strip_cache *c, struct dvm_strip_entry *e) {
    struct dvm_strip_entry **p = slot_of(c, e->code->strip.hash);
    while (*p != e) p = &(*p)->next;
    *p = e->next;
    c->maker.destroy(c->maker.user, e->code);
    dvm_mem_free(&c->mem, e, sizeof *e);
}

void dvm_strip_cache_destroy(struct dvm_strip_cache **pc) {
    if (!pc || !*pc) return;
    struct dvm_strip_cache *c = *pc;
    for (int i = 0; i < BUCKETS; i++)
        while (c->bucket[i]) free_entry(c, c->bucket[i]);
    pthread_mutex_destroy(&c->lock);
    struct dvm_mem mem = c->mem;
    dvm_mem_free(&mem, c, sizeof *c);
    *pc = NULL;
}

static struct dvm_strip_entry *find(struct dvm_strip_cache *c, const struct dvm_strip *s) {
    struct dvm_strip_entry *e = *slot_of(c, s->hash);
    while (e && !dvm_strip_same(&e->code->strip, s)) e = e->next;
    return e;
}

static void unlink_idle(struct dvm_strip_cache *c, struct dvm_strip_entry *e) {
    e->newer->older = e->older;
    e->older->newer = e->newer;
    c->nidle--;
}

static dvm_status get_locked(struct dvm_strip_cache *c, const struct dvm_strip *s,
                             struct dvm_strip_entry **out, bool *fresh) {
    struct dvm_strip_entry *e = find(c, s);
    *fresh = e == NULL;
    if (!e) {
        e = dvm_mem_new(&c->mem, sizeof *e);
        if (!e) return DVM_ERR_NOMEM;
        dvm_status st = c->maker.compile(c->maker.user, s, &e->code);
        if (st != DVM_OK) {
            dvm_mem_free(&c->mem, e, sizeof *e);
            return st;
        }
        e->code->strip.hash = s->hash;
        e->next = *slot_of(c, s->hash);
        *slot_of(c, s->hash) = e;
    } else if (e->refs == 0) {
        unlink_idle(c, e);
    }
    e->refs++;
    *out = e;
    return DVM_OK;
}

dvm_status dvm_strip_cache_get(struct dvm_strip_cache *c, const struct dvm_strip *s,
                               struct dvm_strip_entry **out, bool *fresh) {
    pthread_mutex_lock(&c->lock);
    dvm_status st = get_locked(c, s, out, fresh);
    pthread_mutex_unlock(&c->lock);
    return st;
}

void dvm_strip_cache_release(struct dvm_strip_cache *c, struct dvm_strip_entry *e) {
    if (!e) return;
    pthread_mutex_lock(&c->lock);
    if (--e->refs == 0) {
        e->newer = &c->idle;
        e->older = c->idle.older;
        c->idle.older->newer = e;
        c->idle.older = e;
        c->nidle++;
        while (c->nidle > MAX_IDLE) {
            struct dvm_strip_entry *old = c->idle.newer;
            unlink_idle(c, old);
            free_entry(c, old);
        }
    }
    pthread_mutex_unlock(&c->lock);
}

struct dvm_code *dvm_strip_entry_code(const struct dvm_strip_entry *e) { return e->code; }
