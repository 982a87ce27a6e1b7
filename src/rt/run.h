/* Parts of a run. */
#ifndef DVM_RT_RUN_H
#define DVM_RT_RUN_H
#include "rt/rt.h"

dvm_status dvm_run_record(struct dvm_kernel *k, struct launch_record *r, const dvm_arg *in,
                          const dvm_arg *out);
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
