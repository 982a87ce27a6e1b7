/* The scalar reference: the meaning of every opcode, one element at a time. Written to be read; no
 * tier may differ from it in a bit (NaNs count as one value). */
#ifndef DVM_VM_REF_REF_H
#define DVM_VM_REF_REF_H
#include "code/tree.h"
#include "vm/dev.h"

/* A value of a strip. b1 and i32 are zero-extended in bits, so that a bool is 0 or 1 there. */
union ref_val {
    uint64_t bits;
    int32_t i32;
    int64_t i64;
    float f;
    double d;
};

/* ref_ops.c: an elementwise row on operands of type t (for CAST: from t to `to`). v holds arity
 * values. */
union ref_val dvm_ref_ew(int op, enum dvm_vt t, enum dvm_vt to, const union ref_val v[3]);

/* ref_mem.c: an element of memory of a dtype, and a value as this dtype would hold it. */
union ref_val dvm_ref_load(int dtype, const char *p);
void dvm_ref_store(int dtype, char *p, union ref_val v);
union ref_val dvm_ref_round(int dtype, union ref_val v);

/* ref_trans.c: functions that are sequences of IEEE operations. */
float dvm_ref_trans(int op, float x, float y);
#endif
