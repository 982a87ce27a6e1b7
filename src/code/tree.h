/* Folding of reduction parts by the fixed trees of strip.h: one scalar of one reduction. Shared by the reference,
 * the VM and the loop driver, so that there is one definition of "merge a and b". */
#ifndef DVM_CODE_TREE_H
#define DVM_CODE_TREE_H
#include "code/strip.h"

/* A partial result: number and, for argmax/argmin, its index. */
struct dvm_part {
    union {
        float f;
        int32_t i32;
        int64_t i64;
        uint64_t bits;
    } v;
    int64_t idx;
};

struct dvm_part dvm_part_identity(int red_op, enum dvm_vt t);
/* a stands before b. */
struct dvm_part dvm_part_join(int red_op, enum dvm_vt t, struct dvm_part a, struct dvm_part b);

/* Binary counter over parts of equal size entering in order. */
struct dvm_tree {
    uint64_t count;
    struct dvm_part level[48];
};
void dvm_tree_push(struct dvm_tree *t, int red_op, enum dvm_vt vt, struct dvm_part p);
struct dvm_part dvm_tree_end(const struct dvm_tree *t, int red_op, enum dvm_vt vt);
#endif
