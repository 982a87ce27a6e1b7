/* 64-bit hash of short keys (not for hostile data: tables compare the whole key after it). */
#ifndef DVM_BASE_HASH_H
#define DVM_BASE_HASH_H
#include <string.h>

#include "base/cc.h"

DVM_INLINE uint64_t dvm_hash_mix(uint64_t h, uint64_t v) {
    h = (h ^ v) * UINT64_C(0x9e3779b97f4a7c15);
    return h ^ (h >> 29);
}

DVM_INLINE uint64_t dvm_hash_bytes(uint64_t h, const void *p, size_t n) {
    const unsigned char *s = p;
    uint64_t w;
    for (; n >= 8; n -= 8, s += 8) {
        memcpy(&w, s, 8);
        h = dvm_hash_mix(h, w);
    }
    w = n;
    for (; n; n--) w = (w << 8) | *s++;
    return dvm_hash_mix(h, w);
}
#endif
