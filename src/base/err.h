/* Error flow: functions return dvm_status; the text of the newest error of a thread stands in a
 * thread-local buffer, so that it needs no allocation and no handle. DVM_FAIL sets it, DVM_TRY
 * forwards it. */
#ifndef DVM_BASE_ERR_H
#define DVM_BASE_ERR_H
#include <dvm/dvm.h>

#include "base/cc.h"

dvm_status dvm_err_set(dvm_status st, const char *fmt, ...) DVM_PRINTF(2, 3);
/* Prefix the current text with context ("in kernel @f: ..."). Returns st. */
dvm_status dvm_err_context(dvm_status st, const char *fmt, ...) DVM_PRINTF(2, 3);

#define DVM_FAIL(code, ...) return dvm_err_set(DVM_ERR_##code, __VA_ARGS__)
#define DVM_TRY(expr)                                     \
    do {                                                  \
        dvm_status try_st_ = (expr);                      \
        if (DVM_UNLIKELY(try_st_ != DVM_OK)) return try_st_; \
    } while (0)
#endif
