/* What the rows of ops.def and bc.def say about opcodes and value types. Needs nothing but the
 * tables; the verifier, the text form and the kernel tests ask here. */
#ifndef DVM_CODE_BC_TABLE_H
#define DVM_CODE_BC_TABLE_H
#include "code/strip.h"
#include "graph/graph.h"

/* Opcodes below DVM_NOP that a strip may hold. */
DVM_INLINE bool dvm_bc_is_ew(int op) { return op < DVM_NOP && dvm_op_table[op].cls == DVM_CLS_EW; }
DVM_INLINE bool dvm_bc_is_red(int op) {
    return op < DVM_NOP && dvm_op_table[op].cls == DVM_CLS_RED;
}
DVM_INLINE bool dvm_bc_is_arg(int op) { return op == DVM_OP_ARGMAX || op == DVM_OP_ARGMIN; }
/* Has a result that later instructions may use. */
DVM_INLINE bool dvm_bc_is_value(int op) {
    return dvm_bc_is_ew(op) || (op >= DVM_NOP && op != DVM_BC_STORE && op != DVM_BC_FOLD);
}

/* Set (bit v for enum dvm_vt v) of value types of the computed operands of an elementwise row, of
 * the value folded by a reduction row, or of that summed up by SCAN (CUMSUM). The first operand of SELECT is B1 beside that. */
unsigned dvm_bc_types(int op);
/* Type of the result for operands of type t. CAST has the type of its instruction. */
enum dvm_vt dvm_bc_result(int op, enum dvm_vt t);

const char *dvm_vt_name(int vt);
/* dtype in which results of a fold stand in memory. */
dvm_dtype dvm_vt_dtype(enum dvm_vt vt);
#endif
