/* i32, i64 and b1 operations on tiles. Integers wrap: arithmetic is done unsigned. Odd cases are those of ops.def:
 * division and remainder by zero give 0, the count of a shift is taken modulo the width, a negative exponent gives 0
 * except for bases 1 and -1. A b1 is 0 or 1; sums and products of b1 are or and and. */
#include "vm/cpu/k_tmpl.h"

#include "code/philox.h"

#define INT_OPS(T, U, S)                                                                         \
    DVM_INLINE T copy_##S(T x) { return x; }                                                     \
    DVM_INLINE T neg_##S(T x) { return (T)(0 - (U)x); }                                          \
    DVM_INLINE T abs_##S(T x) { return x < 0 ? (T)(0 - (U)x) : x; }                              \
    DVM_INLINE T sign_##S(T x) { return (x > 0) - (x < 0); }                                     \
    DVM_INLINE T relu_##S(T x) { return x > 0 ? x : 0; }                                         \
    DVM_INLINE T not_##S(T x) { return ~x; }                                                     \
    DVM_INLINE T add_##S(T x, T y) { return (T)((U)x + (U)y); }                                  \
    DVM_INLINE T sub_##S(T x, T y) { return (T)((U)x - (U)y); }                                  \
    DVM_INLINE T mul_##S(T x, T y) { return (T)((U)x * (U)y); }                                  \
    DVM_INLINE T max_##S(T x, T y) { return x > y ? x : y; }                                     \
    DVM_INLINE T min_##S(T x, T y) { return x < y ? x : y; }                                     \
    DVM_INLINE int32_t eq_##S(T x, T y) { return x == y; }                                       \
    DVM_INLINE int32_t ne_##S(T x, T y) { return x != y; }                                       \
    DVM_INLINE int32_t lt_##S(T x, T y) { return x < y; }                                        \
    DVM_INLINE int32_t le_##S(T x, T y) { return x <= y; }                                       \
    DVM_INLINE int32_t gt_##S(T x, T y) { return x > y; }                                        \
    DVM_INLINE int32_t ge_##S(T x, T y) { return x >= y; }                                       \
    DVM_INLINE T and_##S(T x, T y) { return x & y; }                                             \
    DVM_INLINE T or_##S(T x, T y) { return x | y; }                                              \
    DVM_INLINE T xor_##S(T x, T y) { return x ^ y; }                                             \
    DVM_INLINE T shl_##S(T x, T y) { return (T)((U)x << ((U)y & (sizeof(T) * 8 - 1))); }         \
    DVM_INLINE T shr_##S(T x, T y) { return x >> ((U)y & (sizeof(T) * 8 - 1)); }                 \
    DVM_INLINE T truncdiv_##S(T x, T y) { return y == 0 ? 0 : y == -1 ? (T)(0 - (U)x) : x / y; } \
    DVM_INLINE T fmod_##S(T x, T y) { return y == 0 || y == -1 ? 0 : x % y; }                    \
    DVM_INLINE T floordiv_##S(T x, T y) {                                                        \
        T r = fmod_##S(x, y);                                                                    \
        return truncdiv_##S(x, y) - (r != 0 && (r < 0) != (y < 0));                              \
    }                                                                                            \
    DVM_INLINE T rem_##S(T x, T y) {                                                             \
        T r = fmod_##S(x, y);                                                                    \
        return r != 0 && (r < 0) != (y < 0) ? r + y : r;                                         \
    }                                                                                            \
    DVM_INLINE T pow_##S(T x, T y) {                                                             \
        if (y < 0) return x == 1 ? 1 : x == -1 ? (y & 1 ? -1 : 1) : 0;                           \
        U r = 1, b = (U)x;                                                                       \
        for (; y; y >>= 1, b *= b) r *= y & 1 ? b : 1;                                           \
        return (T)r;                                                                             \
    }                                                                                            \
    DVM_INLINE T select_##S(int32_t c, T x, T y) { return c ? x : y; }                           \
    DVM_INLINE T philox_##S(T x, T y, T z) {                                                     \
        return (T)dvm_philox_word((uint64_t)x, (uint64_t)y, (uint64_t)z);                        \
    }                                                                                            \
    K_UN(copy_##S, T, T)                                                                         \
    K_UN(neg_##S, T, T)                                                                          \
    K_UN(abs_##S, T, T)                                                                          \
    K_UN(sign_##S, T, T)                                                                         \
    K_UN(relu_##S, T, T)                                                                         \
    K_UN(not_##S, T, T)                                                                          \
    K_BIN(add_##S, T, T)                                                                         \
    K_BIN(sub_##S, T, T)                                                                         \
    K_BIN(mul_##S, T, T)                                                                         \
    K_BIN(max_##S, T, T)                                                                         \
    K_BIN(min_##S, T, T)                                                                         \
    K_BIN(eq_##S, int32_t, T)                                                                    \
    K_BIN(ne_##S, int32_t, T)                                                                    \
    K_BIN(lt_##S, int32_t, T)                                                                    \
    K_BIN(le_##S, int32_t, T)                                                                    \
    K_BIN(gt_##S, int32_t, T)                                                                    \
    K_BIN(ge_##S, int32_t, T)                                                                    \
    K_BIN(and_##S, T, T)                                                                         \
    K_BIN(or_##S, T, T)                                                                          \
    K_BIN(xor_##S, T, T)                                                                         \
    K_BIN(shl_##S, T, T)                                                                         \
    K_BIN(shr_##S, T, T)                                                                         \
    K_BIN_VV(truncdiv_##S, T, T)                                                                 \
    K_BIN_VV(fmod_##S, T, T)                                                                     \
    K_BIN_VV(floordiv_##S, T, T)                                                                 \
    K_BIN_VV(rem_##S, T, T)                                                                      \
    K_BIN_VV(pow_##S, T, T)                                                                      \
    K_TER(select_##S, int32_t, T)                                                                \
    K_TER(philox_##S, T, T)

INT_OPS(int32_t, uint32_t, i32)
INT_OPS(int64_t, uint64_t, i64)

DVM_INLINE int32_t not_b1(int32_t x) { return x ^ 1; }
K_UN(not_b1, int32_t, int32_t)

#define COMPARE_ROWS(S)                                                  \
    [DVM_OP_EQ] = K_OF_BIN(eq_##S), [DVM_OP_NE] = K_OF_BIN(ne_##S),      \
    [DVM_OP_LT] = K_OF_BIN(lt_##S), [DVM_OP_LE] = K_OF_BIN(le_##S),      \
    [DVM_OP_GT] = K_OF_BIN(gt_##S), [DVM_OP_GE] = K_OF_BIN(ge_##S),      \
    [DVM_OP_AND] = K_OF_BIN(and_##S), [DVM_OP_OR] = K_OF_BIN(or_##S),    \
    [DVM_OP_XOR] = K_OF_BIN(xor_##S), [DVM_OP_MAX] = K_OF_BIN(max_##S),  \
    [DVM_OP_MIN] = K_OF_BIN(min_##S), [DVM_OP_COPY] = K_OF_UN(copy_##S), \
    [DVM_OP_SELECT] = K_OF_TER(select_##S)
#define INT_ROWS(S)                                                                                \
    COMPARE_ROWS(S), [DVM_OP_NEG] = K_OF_UN(neg_##S), [DVM_OP_ABS] = K_OF_UN(abs_##S),             \
                     [DVM_OP_SIGN] = K_OF_UN(sign_##S), [DVM_OP_RELU] = K_OF_UN(relu_##S),         \
                     [DVM_OP_NOT] = K_OF_UN(not_##S), [DVM_OP_ADD] = K_OF_BIN(add_##S),            \
                     [DVM_OP_SUB] = K_OF_BIN(sub_##S), [DVM_OP_MUL] = K_OF_BIN(mul_##S),           \
                     [DVM_OP_SHL] = K_OF_BIN(shl_##S), [DVM_OP_SHR] = K_OF_BIN(shr_##S),           \
                     [DVM_OP_TRUNCDIV] = K_OF_VV(truncdiv_##S), [DVM_OP_FMOD] = K_OF_VV(fmod_##S), \
                     [DVM_OP_FLOORDIV] = K_OF_VV(floordiv_##S), [DVM_OP_REM] = K_OF_VV(rem_##S),   \
                     [DVM_OP_POW] = K_OF_VV(pow_##S), [DVM_OP_PHILOX] = K_OF_TER(philox_##S)

const struct dvm_k_int K_TABLE(int) = {
    .i32 = {INT_ROWS(i32)},
    .i64 = {INT_ROWS(i64)},
    .b1 = {COMPARE_ROWS(i32), [DVM_OP_NOT] = K_OF_UN(not_b1), [DVM_OP_ADD] = K_OF_BIN(or_i32),
           [DVM_OP_SUB] = K_OF_BIN(xor_i32), [DVM_OP_MUL] = K_OF_BIN(and_i32)},
};
