/* Memory that ends, or begins, at a page nobody may touch. */
#ifndef DVM_TESTS_UNIT_GUARD_H
#define DVM_TESTS_UNIT_GUARD_H
#include <stdbool.h>
#include <stddef.h>
#include <sys/mman.h>
#include <unistd.h>

struct guarded {
    char *map;
    size_t size;
    char *p;
};

static inline struct guarded guard(size_t bytes, bool at_end) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), body = (bytes + page - 1) / page * page + page;
    struct guarded g = {.size = body + 2 * page};
    g.map = mmap(NULL, g.size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(g.map != MAP_FAILED);
    assert_int_equal(mprotect(g.map, page, PROT_NONE), 0);
    assert_int_equal(mprotect(g.map + page + body, page, PROT_NONE), 0);
    g.p = at_end ? g.map + page + body - bytes : g.map + page;
    return g;
}

static inline void unguard(struct guarded *g) { munmap(g->map, g->size); }
#endif
