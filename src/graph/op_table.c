/* The rows of ops.def as a table. */
#include <string.h>

#include "graph/graph.h"

const struct dvm_op_info dvm_op_table[DVM_NOP] = {
#define X(NAME, txt, ar, c, ty, res, tolerance, mean)                                             \
    [DVM_OP_##NAME] = {txt, ar, DVM_CLS_##c, DVM_TYPES_##ty, DVM_RESULT_##res, #tolerance, mean},
#include <dvm/ops.def>
#undef X
};

const char *dvm_op_name(dvm_op op) { return (unsigned)op < DVM_NOP ? dvm_op_table[op].text : "?"; }

dvm_op dvm_op_find(const char *text, size_t n) {
    for (int i = 0; i < DVM_NOP; i++)
        if (strlen(dvm_op_table[i].text) == n && !memcmp(dvm_op_table[i].text, text, n))
            return (dvm_op)i;
    return DVM_NOP;
}
