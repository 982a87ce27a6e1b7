/* Small things threads need beside pthreads and stdatomic. */
#ifndef DVM_BASE_THREADS_H
#define DVM_BASE_THREADS_H
#include "base/cc.h"

/* Tells the processor that this is a waiting loop. */
DVM_INLINE void dvm_cpu_relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Nanoseconds of a clock that never goes back. */
int64_t dvm_clock_ns(void);
#endif
