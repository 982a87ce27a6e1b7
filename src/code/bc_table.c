/* Opcode names, fields and types, derived from ops.def and bc.def. */
#include "code/bc_table.h"

static const struct {
    const char *name, *fields;
} beyond[DVM_NBC - DVM_NOP] = {
#define X(NAME, text, fields, meaning) [DVM_BC_##NAME - DVM_NOP] = {text, fields},
#include "code/bc.def"
#undef X
};

const char *dvm_bc_name(int op) {
    if (op < 0 || op >= DVM_NBC) return "?";
    return op < DVM_NOP ? dvm_op_table[op].text : beyond[op - DVM_NOP].name;
}

const char *dvm_bc_fields(int op) {
    static const char *const by_arity[] = {"---", "v--", "vv-", "vvv"};
    if (op < 0 || op >= DVM_NBC) return by_arity[0];
    if (op >= DVM_NOP) return beyond[op - DVM_NOP].fields;
    return by_arity[dvm_bc_is_ew(op) ? dvm_op_table[op].arity : 0];
}

enum {
    B1 = 1 << DVM_VT_B1,
    I32 = 1 << DVM_VT_I32,
    I64 = 1 << DVM_VT_I64,
    F32 = 1 << DVM_VT_F32,
    F64 = 1 << DVM_VT_F64
};

unsigned dvm_bc_types(int op) {
    static const uint8_t sets[] = {
        [DVM_TYPES_F] = F32,
        [DVM_TYPES_N] = F32 | I32 | I64,
        [DVM_TYPES_I] = I32 | I64,
        [DVM_TYPES_B] = B1,
        [DVM_TYPES_L] = B1 | I32 | I64,
        [DVM_TYPES_A] = B1 | F32 | I32 | I64,
        [DVM_TYPES_W] = B1 | F32 | I32 | I64,
    };
    if (!dvm_bc_is_ew(op) && !dvm_bc_is_red(op) && op != DVM_OP_CUMSUM) return 0;
    unsigned set = sets[dvm_op_table[op].types];
    /* f64 moves and changes type, nothing else. Sums of bool and i32 count in i64 (ops.def, note 6):
     * the strip casts first. */
    if (op == DVM_OP_COPY || op == DVM_OP_CAST) set |= F64;
    if (op == DVM_OP_SUM || op == DVM_OP_PROD) set &= F32 | I64;
    return set;
}

enum dvm_vt dvm_bc_result(int op, enum dvm_vt t) {
    return dvm_bc_is_ew(op) && dvm_op_table[op].result == DVM_RESULT_BOOL ? DVM_VT_B1 : t;
}

const char *dvm_vt_name(int vt) {
    static const char *const names[DVM_NVT] = {"b1", "i32", "i64", "f32", "f64"};
    return vt >= 0 && vt < DVM_NVT ? names[vt] : "?";
}

dvm_dtype dvm_vt_dtype(enum dvm_vt vt) {
    static const uint8_t dtype[DVM_NVT] = {DVM_BOOL, DVM_I32, DVM_I64, DVM_F32, DVM_F64};
    return (dvm_dtype)dtype[vt];
}
