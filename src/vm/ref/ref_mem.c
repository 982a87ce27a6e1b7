/* Elements of memory and the values that stand for them: widening, rounding, narrowing. */
#include <math.h>
#include <string.h>

#include "vm/ref/ref.h"

static uint32_t bits_of(float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}

static float float_of(uint32_t u) {
    float x;
    memcpy(&x, &u, 4);
    return x;
}

/* IEEE binary16: sign, 5 bits of exponent biased by 15, 10 of fraction. */
static float from_f16(uint16_t h) {
    float sign = h >> 15 ? -1.0f : 1.0f;
    int exponent = h >> 10 & 31, fraction = h & 1023;
    if (exponent == 31) return fraction ? NAN : sign * INFINITY;
    if (exponent == 0) return sign * ldexpf((float)fraction, -24);
    return sign * ldexpf((float)(1024 + fraction), exponent - 25);
}

/* Nearest, ties to even: the number is counted in units of the last place of its own binade (or of
 * the smallest one), which rintf rounds exactly so. A carry into the next binade, or into infinity,
 * is right by itself, because fraction and exponent are adjacent fields. */
static uint16_t to_f16(float x) {
    uint16_t sign = (uint16_t)(bits_of(x) >> 16 & 0x8000);
    if (isnan(x)) return 0x7e00;
    float a = fabsf(x);
    if (a >= 65520.0f) return sign | 0x7c00;
    int e = a < 0x1p-14f ? -14 : ilogbf(a);
    int units = (int)rintf(ldexpf(a, 10 - e));
    return (uint16_t)(sign | (units + ((e + 14) << 10)));
}

static float from_bf16(uint16_t h) { return float_of((uint32_t)h << 16); }

static uint16_t to_bf16(float x) {
    uint32_t u = bits_of(x);
    if (isnan(x)) return 0x7fc0;
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static union ref_val value_i32(int32_t x) { return (union ref_val){.bits = (uint32_t)x}; }
static union ref_val value_f(float x) { return (union ref_val){.bits = bits_of(x)}; }

union ref_val dvm_ref_load(int dtype, const char *p) {
    union ref_val v = {.bits = 0};
    size_t size = dvm_dtype_size((dvm_dtype)dtype);
    memcpy(&v, p, size);
    switch (dtype) {
    case DVM_BOOL: return value_i32(v.bits != 0);
    case DVM_U8: return value_i32((int32_t)(v.bits & 255));
    case DVM_I8: return value_i32((int8_t)(v.bits & 255));
    case DVM_F16: return value_f(from_f16((uint16_t)v.bits));
    case DVM_BF16: return value_f(from_bf16((uint16_t)v.bits));
    default: return v;
    }
}

void dvm_ref_store(int dtype, char *p, union ref_val v) {
    size_t size = dvm_dtype_size((dvm_dtype)dtype);
    if (dtype == DVM_F16) v.bits = to_f16(v.f);
    if (dtype == DVM_BF16) v.bits = to_bf16(v.f);
    memcpy(p, &v, size);
}

union ref_val dvm_ref_round(int dtype, union ref_val v) {
    char element[8] = {0};
    dvm_ref_store(dtype, element, v);
    return dvm_ref_load(dtype, element);
}
