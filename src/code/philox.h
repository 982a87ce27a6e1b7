/* Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", 2011): its numbers, and one
 * round on words c0..c3 that the caller has. The key grows by the Weyl constants between rounds. */
#ifndef DVM_CODE_PHILOX_H
#define DVM_CODE_PHILOX_H
#include <stdint.h>

#include "base/cc.h"

#define DVM_PHILOX_M0 0xd2511f53u
#define DVM_PHILOX_M1 0xcd9e8d57u
#define DVM_PHILOX_W0 0x9e3779b9u
#define DVM_PHILOX_W1 0xbb67ae85u
enum { DVM_PHILOX_ROUNDS = 10 };

#define DVM_PHILOX_ROUND(k0, k1)                                                               \
    {                                                                                          \
        uint64_t p0 = (uint64_t)DVM_PHILOX_M0 * c0, p1 = (uint64_t)DVM_PHILOX_M1 * c2;         \
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ (k0), n2 = (uint32_t)(p0 >> 32) ^ c3 ^ (k1); \
        c1 = (uint32_t)p1, c3 = (uint32_t)p0, c0 = n0, c2 = n2;                                \
    }

/* Word index % 4 of the block with this key and counter (offset, index / 4). */
DVM_INLINE uint32_t dvm_philox_word(uint64_t key, uint64_t offset, uint64_t index) {
    uint32_t c0 = (uint32_t)offset, c1 = (uint32_t)(offset >> 32);
    uint32_t c2 = (uint32_t)(index / 4), c3 = (uint32_t)(index / 4 >> 32);
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (uint32_t r = 0; r < DVM_PHILOX_ROUNDS; r++)
        DVM_PHILOX_ROUND(k0 + r * DVM_PHILOX_W0, k1 + r * DVM_PHILOX_W1)
    uint32_t even = index & 2 ? c2 : c0, odd = index & 2 ? c3 : c1;
    return index & 1 ? odd : even;
}
#endif
