/* Transcendental functions of f32 on tiles: the expansions of code/expand.h as straight-line C, one loop each. */
#include "vm/cpu/k_tmpl.h"

#define XFN(name) x_##name
#include "code/expand_c.h"
#include "code/expand.h"

K_UN(x_exp, float, float)
K_UN(x_exp2, float, float)
K_UN(x_expm1, float, float)
K_UN(x_log, float, float)
K_UN(x_log2, float, float)
K_UN(x_log1p, float, float)
K_UN(x_rsqrt, float, float)
K_UN(x_sin, float, float)
K_UN(x_cos, float, float)
K_UN(x_tanh, float, float)
K_UN(x_sigmoid, float, float)
K_UN(x_erf, float, float)
K_BIN_VV(x_pow, float, float)

const struct dvm_k_math K_TABLE(math) = {{
    [DVM_OP_EXP] = x_exp_v,
    [DVM_OP_EXP2] = x_exp2_v,
    [DVM_OP_EXPM1] = x_expm1_v,
    [DVM_OP_LOG] = x_log_v,
    [DVM_OP_LOG2] = x_log2_v,
    [DVM_OP_LOG1P] = x_log1p_v,
    [DVM_OP_RSQRT] = x_rsqrt_v,
    [DVM_OP_SIN] = x_sin_v,
    [DVM_OP_COS] = x_cos_v,
    [DVM_OP_TANH] = x_tanh_v,
    [DVM_OP_SIGMOID] = x_sigmoid_v,
    [DVM_OP_ERF] = x_erf_v,
    [DVM_OP_POW] = x_pow_vv,
}};
