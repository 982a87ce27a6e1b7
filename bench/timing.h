/* What the C benchmarks share: a clock in nanoseconds, and an order for times. */
#ifndef DVM_BENCH_TIMING_H
#define DVM_BENCH_TIMING_H
#include <time.h>

static inline double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

/* For qsort. */
static inline int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
#endif
