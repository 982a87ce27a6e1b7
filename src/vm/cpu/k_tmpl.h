/* For k_*_tmpl.c only: names of the level being built and the loop shapes of elementwise kernels. A kernel is an
 * inline function of one element; the macros wrap it into loops that the compiler vectorises. */
#ifndef DVM_VM_CPU_K_TMPL_H
#define DVM_VM_CPU_K_TMPL_H
#include <math.h>
#include <string.h>

#include "base/half.h"
#include "vm/cpu/k.h"

#define K_PASTE_(a, b) a##b
#define K_PASTE(a, b) K_PASTE_(a, b)
#define K_TABLE(family) K_PASTE(dvm_k_##family##_, DVM_K_ISA)

#define K_UNUSED ((void)a_, (void)b_, (void)c_)

/* name_v from R name(A). */
#define K_UN(name, R, A)                                   \
    static void name##_v(DVM_K_ARGS) {                     \
        R *DVM_RESTRICT d = d_;                            \
        const A *a = a_;                                   \
        K_UNUSED;                                          \
        for (int64_t i = 0; i < n; i++) d[i] = name(a[i]); \
    }
/* name_vv, name_vs, name_sv from R name(A, A). */
#define K_BIN_VV(name, R, A)                                     \
    static void name##_vv(DVM_K_ARGS) {                          \
        R *DVM_RESTRICT d = d_;                                  \
        const A *a = a_, *b = b_;                                \
        K_UNUSED;                                                \
        for (int64_t i = 0; i < n; i++) d[i] = name(a[i], b[i]); \
    }
#define K_BIN_VS(name, R, A)                                  \
    static void name##_vs(DVM_K_ARGS) {                       \
        R *DVM_RESTRICT d = d_;                               \
        const A *a = a_, b = *(const A *)b_;                  \
        K_UNUSED;                                             \
        for (int64_t i = 0; i < n; i++) d[i] = name(a[i], b); \
    }
#define K_BIN_SV(name, R, A)                                  \
    static void name##_sv(DVM_K_ARGS) {                       \
        R *DVM_RESTRICT d = d_;                               \
        const A a = *(const A *)a_, *b = b_;                  \
        K_UNUSED;                                             \
        for (int64_t i = 0; i < n; i++) d[i] = name(a, b[i]); \
    }
#define K_BIN(name, R, A) K_BIN_VV(name, R, A) K_BIN_VS(name, R, A) K_BIN_SV(name, R, A)
/* name_vvv, name_vvs, name_vsv, name_vss from T name(C, T, T). */
#define K_TER(name, C, T)                                              \
    static void name##_vvv(DVM_K_ARGS) {                               \
        T *DVM_RESTRICT d = d_;                                        \
        const C *a = a_;                                               \
        const T *b = b_, *c = c_;                                      \
        for (int64_t i = 0; i < n; i++) d[i] = name(a[i], b[i], c[i]); \
    }                                                                  \
    static void name##_vvs(DVM_K_ARGS) {                               \
        T *DVM_RESTRICT d = d_;                                        \
        const C *a = a_;                                               \
        const T *b = b_, c = *(const T *)c_;                           \
        for (int64_t i = 0; i < n; i++) d[i] = name(a[i], b[i], c);    \
    }                                                                  \
    static void name##_vsv(DVM_K_ARGS) {                               \
        T *DVM_RESTRICT d = d_;                                        \
        const C *a = a_;                                               \
        const T b = *(const T *)b_, *c = c_;                           \
        for (int64_t i = 0; i < n; i++) d[i] = name(a[i], b, c[i]);    \
    }                                                                  \
    static void name##_vss(DVM_K_ARGS) {                               \
        T *DVM_RESTRICT d = d_;                                        \
        const C *a = a_;                                               \
        const T b = *(const T *)b_, c = *(const T *)c_;                \
        for (int64_t i = 0; i < n; i++) d[i] = name(a[i], b, c);       \
    }
/* name_svv, name_svs beside them. */
#define K_TER_S(name, T)                                            \
    static void name##_svv(DVM_K_ARGS) {                            \
        T *DVM_RESTRICT d = d_;                                     \
        const T a = *(const T *)a_, *b = b_, *c = c_;               \
        for (int64_t i = 0; i < n; i++) d[i] = name(a, b[i], c[i]); \
    }                                                               \
    static void name##_svs(DVM_K_ARGS) {                            \
        T *DVM_RESTRICT d = d_;                                     \
        const T a = *(const T *)a_, *b = b_, c = *(const T *)c_;    \
        for (int64_t i = 0; i < n; i++) d[i] = name(a, b[i], c);    \
    }

/* Table slots, by variant. */
#define K_OF_UN(name) {name##_v}
#define K_OF_VV(name) {name##_vv}
#define K_OF_BIN(name) {name##_vv, name##_sv, name##_vs}
#define K_OF_TER(name) {name##_vvv, NULL, name##_vsv, NULL, name##_vvs, NULL, name##_vss}
#define K_OF_TER_S(name)                                                           \
    {name##_vvv, name##_svv, name##_vsv, NULL, name##_vvs, name##_svs, name##_vss}
static_assert(DVM_K_SA == 1 && DVM_K_SB == 2 && DVM_K_SC == 4, "order of the slots above");
#endif
