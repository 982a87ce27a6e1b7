/* Parts of a run. */
#ifndef DVM_RT_RUN_H
#define DVM_RT_RUN_H
#include "rt/rt.h"

dvm_status dvm_run_record(struct dvm_kernel *k, struct launch_record *r, const dvm_arg *in,
                          const dvm_arg *out);
/* Arguments against what the kernel takes; outputs against what the plan gives. */
dvm_status dvm_run_check_inputs(const struct dvm_kernel *k, int n_in, const dvm_arg *in, bool data);
dvm_status dvm_run_check_outputs(int n_out, const dvm_arg *out, const struct dvm_plan *p);
/* Scalar arguments as the bits of their value type: p->nparam numbers. */
void dvm_run_bind_params(const struct dvm_kernel *k, const struct dvm_plan *p, const dvm_arg *in,
                         uint64_t *par);
dvm_status dvm_kernel_shapes(struct dvm_kernel *k, int n_in, const dvm_arg *in, int *ranks,
                             int64_t *dims, dvm_dtype *dtypes);
/* A scalar argument of dtype t (integers in i, floats in f) as bits of the value type. */
uint64_t dvm_scalar_bits(int t, dvm_number v);

/* An input that a run had to copy because an output overwrites it before its last use. */
struct dvm_copy;
void dvm_copies_drop(struct dvm_kernel *k, struct dvm_copy **list);
/* Refuses outputs that overlap each other or, not exactly, an input; an output that is exactly an input is run in place
 * where the plan allows it, else the input is copied first and ptr[] redirected. */
dvm_status dvm_check_overlap(struct dvm_kernel *k, const struct launch_record *r, const dvm_arg *in,
                             const dvm_arg *out, char **ptr, bool *alias, struct dvm_copy **copies);
#endif
