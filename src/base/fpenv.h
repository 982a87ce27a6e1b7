/* The floating-point environment of the calling thread: rounding, flush to zero, traps, and the flags that say what
 * happened. Results are defined for rounding to nearest with denormals kept and no traps; a caller may have set
 * anything (torch.set_flush_denormal, -ffast-math start files, fesetround).
 *
 * Entry points that compute with floats put the defined environment in place and give the caller's back, flags
 * included:
 *
 *     struct dvm_fpenv env = dvm_fpenv_enter();
 *     ... calls into other files: the compiler may move arithmetic of this one over the border
 *     dvm_fpenv_leave(&env);
 *
 * Threads start with the environment of their creator. */
#ifndef DVM_BASE_FPENV_H
#define DVM_BASE_FPENV_H
#include "base/cc.h"

#if defined(__x86_64__)
#include <xmmintrin.h>

/* MXCSR: flags in bits 0 to 5; DAZ bit 6, masks of traps 7 to 12, rounding 13 and 14, FTZ 15. */
enum { DVM_MXCSR = 0x1f80, DVM_MXCSR_FLAGS = 0x3f };

struct dvm_fpenv {
    uint32_t mxcsr;
};

DVM_INLINE struct dvm_fpenv dvm_fpenv_enter(void) {
    struct dvm_fpenv e = {_mm_getcsr()};
    if (DVM_UNLIKELY((e.mxcsr & ~(uint32_t)DVM_MXCSR_FLAGS) != DVM_MXCSR)) _mm_setcsr(DVM_MXCSR);
    return e;
}

/* Written whatever it is: looking waits for the arithmetic before it and costs more (a pair of calls around 64
 * multiplications took 14 ns so, 30 ns with a look first, on a Zen core). */
DVM_INLINE void dvm_fpenv_leave(const struct dvm_fpenv *e) { _mm_setcsr(e->mxcsr); }

#elif defined(__aarch64__)

/* FPCR: rounding, flushing, default NaN and traps are all off at 0. FPSR: flags. */
struct dvm_fpenv {
    uint64_t fpcr, fpsr;
};

DVM_INLINE struct dvm_fpenv dvm_fpenv_enter(void) {
    struct dvm_fpenv e = {dvm_get_fpcr(), dvm_get_fpsr()};
    if (DVM_UNLIKELY(e.fpcr != 0)) dvm_set_fpcr(0);
    return e;
}

DVM_INLINE void dvm_fpenv_leave(const struct dvm_fpenv *e) {
    if (dvm_get_fpsr() != e->fpsr) dvm_set_fpsr(e->fpsr);
    if (DVM_UNLIKELY(e->fpcr != 0)) dvm_set_fpcr(e->fpcr);
}

#else
#include <fenv.h>

struct dvm_fpenv {
    fenv_t env;
};

DVM_INLINE struct dvm_fpenv dvm_fpenv_enter(void) {
    struct dvm_fpenv e;
    fegetenv(&e.env);
    fesetenv(FE_DFL_ENV);
    return e;
}

DVM_INLINE void dvm_fpenv_leave(const struct dvm_fpenv *e) { fesetenv(&e->env); }
#endif
#endif
