/* Random numbers of a test, the same at every run. */
#ifndef DVM_TESTS_RND_H
#define DVM_TESTS_RND_H
#include <stdint.h>

static uint64_t seed = 1;
static inline uint32_t rnd(void) {
    seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (uint32_t)(seed >> 33);
}
static inline int64_t below(int64_t n) { return rnd() % n; }
#endif
