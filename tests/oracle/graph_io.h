/* What makers of random texts read and write: a string of bytes that decides, zeros behind its end; a text that grows. */
#ifndef DVM_TESTS_GRAPH_IO_H
#define DVM_TESTS_GRAPH_IO_H
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

struct graph_io {
    const uint8_t *p, *end;
    char *text;
    size_t n, cap;
};

static inline unsigned graph_io_pick(struct graph_io *g, unsigned n) {
    return g->p < g->end ? *g->p++ % n : 0;
}

/* At most 1023 characters at a time. */
static inline void graph_io_put(struct graph_io *g, const char *fmt, ...) {
    va_list ap;
    if (g->cap - g->n < 1024) g->text = realloc(g->text, g->cap = 2 * g->cap + 4096);
    va_start(ap, fmt);
    g->n += (size_t)vsnprintf(g->text + g->n, g->cap - g->n, fmt, ap);
    va_end(ap);
}
#endif
