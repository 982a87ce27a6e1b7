/* Error flow: functions return dvm_status; the text of the newest error of a thread stands in a
 * thread-local buffer, so that it needs no allocation and no handle. DVM_FAIL sets it, DVM_TRY
 * forwards it. */
#ifndef DVM_BASE_ERR_H
#define DVM_BASE_ERR_H
#include <dvm/dvm.h>

#include "base/cc.h"

dvm_status dvm_err_set(dvm_status st, const char *fmt, ...) DVM_PRINTF(2, 3);
/* Prefix the current text with context ("in kernel @f: ..."). The macro's value is st. */
void dvm_err_prefix(const char *fmt, ...) DVM_PRINTF(1, 2);
#define dvm_err_context(st, ...) (dvm_err_prefix(__VA_ARGS__), (st))

#define DVM_FAIL(code, ...)                       \
    do {                                          \
        dvm_err_set(DVM_ERR_##code, __VA_ARGS__); \
        return DVM_ERR_##code;                    \
    } while (0)
#define DVM_TRY(expr)                                        \
    do {                                                     \
        dvm_status try_st_ = (expr);                         \
        if (DVM_UNLIKELY(try_st_ != DVM_OK)) return try_st_; \
    } while (0)
#endif
