/* Do strided tensors meet? Both questions are one: is there a choice of whole numbers x with sum of c[k] * x[k] = d and
 * 0 <= x[k] <= last[k]? Exact for the strides that tensors have; where the search gives up, the answer is yes. */
#ifndef DVM_BASE_MEET_H
#define DVM_BASE_MEET_H
#include <dvm/dvm.h>

#include "base/cc.h"

struct dvm_terms {
    int n;
    int64_t d;
    struct {
        int64_t c, last; /* c > 0 once added */
    } t[2 * DVM_MAX_RANK + 1];
};
/* Adds c * x for x in [0, last]; any sign of c. Sums of |c| * last and d stay below 2^62. */
void dvm_terms_add(struct dvm_terms *s, int64_t c, int64_t last);
bool dvm_terms_meet(struct dvm_terms *s);

/* Do two elements of a tensor with these sizes and strides, all sizes > 0, have one place? */
bool dvm_strides_meet(int rank, const int64_t *d, const int64_t *stride);
#endif
