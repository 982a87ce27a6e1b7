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
/* The whole range costs five times the reduction that serves below the bound. Where all of a tile is below it (or NaN),
 * that reduction alone gives what x_trig would have selected. */
static bool all_near(const float *a, int64_t n) {
    int far = 0;
    for (int64_t i = 0; i < n; i++) far |= fabsf(a[i]) > X_TRIG_BOUND;
    return !far;
}
DVM_INLINE float near(float x, int phase) {
    float a = fabsf(x), t = x_trig_n(a);
    float v = x_trig_eval(x_trig_r(a, t), xc_bits(t) + phase);
    return xc_float(xc_bits(v) ^ (xc_bits(x) & (phase ? 0 : INT32_MIN)));
}
#define TRIG(name, phase)                                            \
    DVM_INLINE float near_##name(float x) { return near(x, phase); } \
    K_UN(near_##name, float, float)                                  \
    K_UN(x_##name, float, float)                                     \
    static void name##_v(DVM_K_ARGS) {                               \
        if (all_near(a_, n))                                         \
            near_##name##_v(d_, a_, b_, c_, n);                      \
        else                                                         \
            x_##name##_v(d_, a_, b_, c_, n);                         \
    }
TRIG(sin, 0)
TRIG(cos, 1)
K_UN(x_tanh, float, float)
K_UN(x_sigmoid, float, float)
K_UN(x_erf, float, float)
K_BIN_VV(x_pow, float, float)
K_TER(xc_fma, float, float)

const struct dvm_k_math K_TABLE(math) = {.fma = K_OF_TER(xc_fma),
                                         .op = {
                                             [DVM_OP_EXP] = x_exp_v,
                                             [DVM_OP_EXP2] = x_exp2_v,
                                             [DVM_OP_EXPM1] = x_expm1_v,
                                             [DVM_OP_LOG] = x_log_v,
                                             [DVM_OP_LOG2] = x_log2_v,
                                             [DVM_OP_LOG1P] = x_log1p_v,
                                             [DVM_OP_RSQRT] = x_rsqrt_v,
                                             [DVM_OP_SIN] = sin_v,
                                             [DVM_OP_COS] = cos_v,
                                             [DVM_OP_TANH] = x_tanh_v,
                                             [DVM_OP_SIGMOID] = x_sigmoid_v,
                                             [DVM_OP_ERF] = x_erf_v,
                                             [DVM_OP_POW] = x_pow_vv,
                                         }};
