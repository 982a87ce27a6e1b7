/* Growing text buffer. See text.h. */
#include "base/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"

void dvm_text_init(struct dvm_text *t, const struct dvm_mem *m) {
    *t = (struct dvm_text){.mem = m};
}

static bool room(struct dvm_text *t, size_t extra) {
    if (t->failed) return false;
    if (t->n + extra + 1 <= t->cap) return true;
    size_t cap = t->cap ? t->cap * 2 : 512;
    while (cap < t->n + extra + 1) cap *= 2;
    char *p = t->mem->fn(t->mem->user, NULL, 0, cap);
    if (!p) {
        t->failed = true;
        return false;
    }
    if (t->p) memcpy(p, t->p, t->n);
    dvm_mem_free(t->mem, t->p, t->cap);
    t->p = p;
    t->cap = cap;
    t->p[t->n] = 0;
    return true;
}

void dvm_text_put(struct dvm_text *t, const char *s, size_t n) {
    if (!room(t, n)) return;
    memcpy(t->p + t->n, s, n);
    t->n += n;
    t->p[t->n] = 0;
}

void dvm_text_add(struct dvm_text *t, const char *fmt, ...) {
    char small[256];
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(small, sizeof small, fmt, ap);
    if (n >= 0 && (size_t)n < sizeof small) {
        dvm_text_put(t, small, (size_t)n);
    } else if (n >= 0 && room(t, (size_t)n)) {
        vsnprintf(t->p + t->n, (size_t)n + 1, fmt, again);
        t->n += (size_t)n;
    }
    va_end(again);
    va_end(ap);
}

void dvm_text_drop(struct dvm_text *t) {
    dvm_mem_free(t->mem, t->p, t->cap);
    t->p = NULL;
    t->n = t->cap = 0;
}

dvm_status dvm_text_take(struct dvm_text *t, char **out) {
    *out = NULL;
    if (t->failed || !room(t, 0)) {
        dvm_text_drop(t);
        DVM_FAIL(NOMEM, "out of memory while writing text");
    }
    /* The block is handed out with its size in front, so that freeing needs no size. */
    size_t total = t->n + 1 + DVM_ALIGN;
    char *q = t->mem->fn(t->mem->user, NULL, 0, total);
    if (!q) {
        dvm_text_drop(t);
        DVM_FAIL(NOMEM, "out of memory while writing text");
    }
    struct {
        struct dvm_mem mem;
        size_t size;
    } head = {*t->mem, total};
    static_assert(sizeof head <= DVM_ALIGN, "header fits before the text");
    memcpy(q, &head, sizeof head);
    memcpy(q + DVM_ALIGN, t->p, t->n + 1);
    dvm_text_drop(t);
    *out = q + DVM_ALIGN;
    return DVM_OK;
}

void dvm_string_free(char **s) {
    if (!s || !*s) return;
    char *q = *s - DVM_ALIGN;
    struct {
        struct dvm_mem mem;
        size_t size;
    } head;
    memcpy(&head, q, sizeof head);
    dvm_mem_free(&head.mem, q, head.size);
    *s = NULL;
}
