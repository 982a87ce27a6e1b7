/* Costs and number bits shared by the planner's files. */
#ifndef DVM_PLAN_EMIT_H
#define DVM_PLAN_EMIT_H
#include <stdint.h>

/* Bits of a CONST attribute in the value type of dtype. */
uint64_t dvm_plan_bits(int dtype, int64_t attr);
/* Rough cost of one elementwise operation, in additions. */
uint32_t dvm_plan_cost(int op);
#endif
