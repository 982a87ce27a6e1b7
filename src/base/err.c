/* The newest error text of each thread. See err.h. */
#include "base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { ERR_CAP = 1024 };

static _Thread_local char err_text[ERR_CAP];

static const char *const status_texts[] = {
#define X(name, number, text) [number] = text,
#include <dvm/status.def>
#undef X
};

static const char *const status_names[] = {
#define X(name, number, text) [number] = #name,
#include <dvm/status.def>
#undef X
};

dvm_status dvm_err_set(dvm_status st, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(err_text, sizeof err_text, fmt, ap);
    va_end(ap);
    return st;
}

void dvm_err_prefix(const char *fmt, ...) {
    char old[ERR_CAP];
    memcpy(old, err_text, sizeof old);
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(err_text, sizeof err_text, fmt, ap);
    va_end(ap);
    if (n >= 0 && n < ERR_CAP) snprintf(err_text + n, (size_t)(ERR_CAP - n), "%s", old);
}

const char *dvm_error_text(void) { return err_text; }

const char *dvm_status_text(dvm_status st) {
    return (unsigned)st < DVM_COUNT(status_texts) ? status_texts[st] : "unknown status";
}

const char *dvm_status_name(dvm_status st) {
    return (unsigned)st < DVM_COUNT(status_names) ? status_names[st] : "UNKNOWN";
}
