/* Growing text buffer. An allocation failure sticks: later appends do nothing and text_take fails. */
#ifndef DVM_BASE_TEXT_H
#define DVM_BASE_TEXT_H
#include "base/mem.h"

struct dvm_text {
    const struct dvm_mem *mem;
    char *p;
    size_t n, cap;
    bool failed;
};

void dvm_text_init(struct dvm_text *t, const struct dvm_mem *m);
void dvm_text_add(struct dvm_text *t, const char *fmt, ...) DVM_PRINTF(2, 3);
void dvm_text_put(struct dvm_text *t, const char *s, size_t n);
void dvm_text_drop(struct dvm_text *t);
/* Gives the zero-terminated text to the caller, to be freed by dvm_string_free. */
dvm_status dvm_text_take(struct dvm_text *t, char **out);
#endif
