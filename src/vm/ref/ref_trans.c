/* Functions beyond single IEEE operations: the scalar instance of the expansions that all tiers
 * share. */
#include "vm/ref/ref.h"

#define XFN(name) trans_##name
#include "code/expand_c.h"
#include "code/expand.h"

float dvm_ref_trans(int op, float x, float y) {
    switch (op) {
    case DVM_OP_RSQRT: return trans_rsqrt(x);
    case DVM_OP_EXP: return trans_exp(x);
    case DVM_OP_EXP2: return trans_exp2(x);
    case DVM_OP_EXPM1: return trans_expm1(x);
    case DVM_OP_LOG: return trans_log(x);
    case DVM_OP_LOG2: return trans_log2(x);
    case DVM_OP_LOG1P: return trans_log1p(x);
    case DVM_OP_SIN: return trans_sin(x);
    case DVM_OP_COS: return trans_cos(x);
    case DVM_OP_TANH: return trans_tanh(x);
    case DVM_OP_SIGMOID: return trans_sigmoid(x);
    case DVM_OP_ERF: return trans_erf(x);
    default: return trans_pow(x, y);
    }
}
