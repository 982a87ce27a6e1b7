/* C functions that machine code calls for what has no vector form: the operands of one vector of elements stand in a
 * buffer (first at 0, second at 128), the result goes to offset 256 of it. They compute all lanes, also those beyond
 * the row, so every input has a defined result. */
#ifndef DVM_JIT_HELP_H
#define DVM_JIT_HELP_H
#include "code/strip.h"

enum dvm_j_helper {
    /* f32 */
    J_H_FMOD,
    /* i32 */
    J_H_POW32,
    /* i64 */
    J_H_POW64,
    J_H_FLOORDIV64,
    J_H_TRUNCDIV64,
    J_H_REM64,
    J_H_FMOD64,
    /* casts that AVX2 lacks */
    J_H_I64_F32,
    J_H_I64_F64,
    J_H_F32_I64,
    J_H_F64_I64,
    J_H_COUNT
};
/* lanes: of 32 bits in a vector */
typedef void dvm_j_helper_fn(void *buffer, int lanes);
extern dvm_j_helper_fn *const dvm_j_helpers[J_H_COUNT];

/* PICK: elements of operand o at the indices in the buffer. base: the operand at this row; column: of the first lane;
 * count: lanes in the row. what: value type of the indices, operand, dtype, 8 bits each. */
void dvm_j_help_pick(void *buffer, const struct dvm_strip_args *a, const char *base, int64_t column,
                     int count, int what);
/* Address of the element at the first index in the buffer. */
const char *dvm_j_help_pick_row(void *buffer, const struct dvm_strip_args *a, const char *base,
                                int what);
#endif
