/* 16-bit floats as bits. Branch-free, so that a loop over them vectorises; to 16 bits rounds to nearest even, a NaN
 * becomes the one quiet NaN 0x7fc0 or 0x7e00. Needs a floating-point environment without flush-to-zero. */
#ifndef DVM_BASE_HALF_H
#define DVM_BASE_HALF_H
#include <string.h>

#include "base/cc.h"

DVM_INLINE uint32_t dvm_f32_bits(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}
DVM_INLINE float dvm_bits_f32(uint32_t u) {
    float f;
    memcpy(&f, &u, 4);
    return f;
}

DVM_INLINE float dvm_bf16_to_f32(uint16_t h) { return dvm_bits_f32((uint32_t)h << 16); }
DVM_INLINE uint16_t dvm_f32_to_bf16(float f) {
    uint32_t u = dvm_f32_bits(f);
    uint32_t r = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
    return (uint16_t)((u & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : r);
}

/* Exponent moved from bias 15 to 127; a denormal gets its leading one by a subtraction that is exact. */
DVM_INLINE float dvm_f16_to_f32(uint16_t h) {
    uint32_t o = (uint32_t)(h & 0x7fff) << 13, e = o & 0x0f800000, s = (uint32_t)(h & 0x8000) << 16;
    uint32_t normal = o + 0x38000000 + (e == 0x0f800000 ? 0x38000000u : 0);
    uint32_t denormal = dvm_f32_bits(dvm_bits_f32(o + 0x38800000) - dvm_bits_f32(0x38800000));
    return dvm_bits_f32((e ? normal : denormal) | s);
}
/* Below 2^-14 the addition of 0.5 rounds at the place of the smallest denormal. */
DVM_INLINE uint16_t dvm_f32_to_f16(float f) {
    uint32_t u = dvm_f32_bits(f), a = u & 0x7fffffff, s = (u >> 16) & 0x8000;
    uint32_t normal = (a - 0x38000000 + 0xfff + ((a >> 13) & 1)) >> 13;
    uint32_t denormal = dvm_f32_bits(dvm_bits_f32(a) + 0.5f) - 0x3f000000;
    uint32_t r = a < 0x38800000 ? denormal : a < 0x47800000 ? normal : 0x7c00;
    return (uint16_t)(a > 0x7f800000 ? 0x7e00 : (r | s));
}
#endif
