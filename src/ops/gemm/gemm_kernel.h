/* A product of a plan, run by the matrix engine. */
#ifndef DVM_OPS_GEMM_GEMM_KERNEL_H
#define DVM_OPS_GEMM_GEMM_KERNEL_H
#include "vm/dev.h"

/* dvm_launch.product; level is a struct dvm_gemm_isa, whose k is NULL for the scalar loop. */
dvm_status dvm_gemm_kernel(const struct dvm_launch *l, uint32_t kernel);
#endif
