/* Compiler extensions live here and nowhere else. */
#ifndef DVM_BASE_CC_H
#define DVM_BASE_CC_H
#include <assert.h>
#include <stdalign.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#ifdef DVM_COMPACT /* the build asks for small code: a sanitizer makes inlined bodies huge */
#define DVM_INLINE static inline
#else
#define DVM_INLINE static inline __attribute__((always_inline))
#endif
#define DVM_NOINLINE __attribute__((noinline))
#define DVM_PRINTF(f, a) __attribute__((format(printf, f, a)))
#define DVM_LIKELY(x) __builtin_expect(!!(x), 1)
#define DVM_UNLIKELY(x) __builtin_expect(!!(x), 0)
#define DVM_MUST_USE __attribute__((warn_unused_result))
#define DVM_TARGET(isa) __attribute__((target(isa)))
#define DVM_RESTRICT __restrict__
/* Into the second-level cache; any address will do. */
#define DVM_PREFETCH(p) __builtin_prefetch((p), 0, 2)
/* Before a short loop of constant length over an array that is to live in registers. */
#if defined(DVM_COMPACT)
#define DVM_UNROLL
#elif defined(__clang__)
#define DVM_UNROLL _Pragma("unroll")
#else
#define DVM_UNROLL _Pragma("GCC unroll 16")
#endif
#if defined(__x86_64__)
/* c = fma(a, b, c) for vectors of floats, c staying in its register: a compiler moves sums about when a loop has as many as there
 * are registers. For code that has fused multiply-adds. */
#define DVM_FMA_INTO(c, a, b) __asm__("vfmadd231ps %2, %1, %0" : "+v"(c) : "v"(a), "v"(b))
#endif
#if defined(__aarch64__)
/* c = fma(b, a, c) in f32 on the low or the high halves of b's words, bf16, with element `lane` of a. For functions whose target has
 * bf16. The intrinsics of gcc 12 put a into registers that the instructions cannot name. */
#define DVM_BFMLALB_INTO(c, b, a, lane)                                             \
    __asm__("bfmlalb %0.4s, %1.8h, %2.h[%3]" : "+w"(c) : "w"(b), "x"(a), "i"(lane))
#define DVM_BFMLALT_INTO(c, b, a, lane)                                             \
    __asm__("bfmlalt %0.4s, %1.8h, %2.h[%3]" : "+w"(c) : "w"(b), "x"(a), "i"(lane))
#endif
#if defined(__clang__)
/* Before a loop whose arrays are the same or apart, never shifted: it may be vectorized. */
#define DVM_ELEMENTWISE _Pragma("clang loop vectorize(assume_safety)")
#else
#define DVM_ELEMENTWISE _Pragma("GCC ivdep")
#endif
#if defined(__aarch64__)
DVM_INLINE uint64_t dvm_get_fpcr(void) {
    uint64_t v;
    __asm__ volatile("mrs %0, fpcr" : "=r"(v));
    return v;
}
DVM_INLINE void dvm_set_fpcr(uint64_t v) { __asm__ volatile("msr fpcr, %0" : : "r"(v) : "memory"); }
DVM_INLINE uint64_t dvm_get_fpsr(void) {
    uint64_t v;
    __asm__ volatile("mrs %0, fpsr" : "=r"(v) : : "memory");
    return v;
}
DVM_INLINE void dvm_set_fpsr(uint64_t v) { __asm__ volatile("msr fpsr, %0" : : "r"(v) : "memory"); }
#endif
#else
#error "gcc or clang is needed"
#endif

#define DVM_COUNT(a) (sizeof(a) / sizeof((a)[0]))
#define DVM_MIN(a, b) ((a) < (b) ? (a) : (b))
#define DVM_MAX(a, b) ((a) > (b) ? (a) : (b))

/* a * b and a + b on sizes; false when the result leaves int64. */
DVM_INLINE bool dvm_mul_ok(int64_t a, int64_t b, int64_t *r) {
    return !__builtin_mul_overflow(a, b, r);
}
DVM_INLINE bool dvm_add_ok(int64_t a, int64_t b, int64_t *r) {
    return !__builtin_add_overflow(a, b, r);
}
#endif
