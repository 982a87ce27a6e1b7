/* Names and sizes of dtypes. */
#include <dvm/dvm.h>

#include "base/cc.h"

static const struct {
    const char *name;
    uint8_t size;
} dtypes[DVM_NDTYPE] = {
    [DVM_BOOL] = {"bool", 1}, [DVM_F16] = {"f16", 2}, [DVM_BF16] = {"bf16", 2},
    [DVM_F32] = {"f32", 4},   [DVM_I32] = {"i32", 4}, [DVM_I64] = {"i64", 8},
    [DVM_F64] = {"f64", 8},   [DVM_U8] = {"u8", 1},   [DVM_I8] = {"i8", 1},
};

const char *dvm_dtype_name(dvm_dtype t) { return (unsigned)t < DVM_NDTYPE ? dtypes[t].name : "?"; }
size_t dvm_dtype_size(dvm_dtype t) { return (unsigned)t < DVM_NDTYPE ? dtypes[t].size : 0; }
