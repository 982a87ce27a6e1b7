/* Conversions of single numbers: constants while building, scalar arguments at every run. */
#include <math.h>
#include <string.h>

#include "graph/graph_build.h"

/* To a binary float with `mant` explicit fraction bits and smallest normal exponent `emin`; overflow past `max`. */
static double round_float(double v, int mant, int emin, double max) {
    if (v == 0 || isnan(v) || isinf(v)) return v;
    int e;
    frexp(v, &e); /* v = f * 2^e, 0.5 <= |f| < 1 */
    int ulp = DVM_MAX(e - 1, emin) - mant;
    double r = ldexp(nearbyint(ldexp(v, -ulp)), ulp);
    return fabs(r) > max ? copysign((double)INFINITY, v) : r;
}

double dvm_round_to(dvm_dtype t, double v) {
    switch (t) {
    case DVM_F16: return round_float(v, 10, -14, 65504.0);
    case DVM_BF16: return round_float(v, 7, -126, 0x1.fep127);
    case DVM_F32: return (double)(float)v;
    default: return v;
    }
}

int64_t dvm_wrap_to(dvm_dtype t, int64_t v) {
    switch (t) {
    case DVM_BOOL: return v != 0;
    case DVM_I32: return (int32_t)(uint32_t)v;
    case DVM_U8: return (uint8_t)v;
    case DVM_I8: return (int8_t)(uint8_t)v;
    default: return v;
    }
}

bool dvm_number_fits(dvm_dtype t, dvm_number v) {
    return dvm_is_float(t) || t == DVM_BOOL || dvm_wrap_to(t, v.i) == v.i;
}

static int64_t trunc_sat(double v, double lo, double hi_excl, int64_t min, int64_t max) {
    if (isnan(v)) return 0;
    if (v < lo) return min;
    if (v >= hi_excl) return max;
    return (int64_t)v;
}

dvm_number dvm_number_cast(dvm_dtype from, dvm_dtype to, dvm_number v) {
    dvm_number r = {0};
    bool ff = dvm_is_float(from), tf = dvm_is_float(to);
    if (ff && tf)
        r.f = dvm_round_to(to, v.f);
    else if (tf)
        r.f = to == DVM_F64   ? (double)v.i
              : to == DVM_F32 ? (double)(float)v.i
                              : dvm_round_to(to, (double)(float)v.i);
    else if (!ff)
        r.i = dvm_wrap_to(to, v.i);
    else if (to == DVM_BOOL)
        r.i = v.f != 0;
    else if (to == DVM_I64)
        r.i = trunc_sat(v.f, -0x1p63, 0x1p63, INT64_MIN, INT64_MAX);
    else
        r.i = dvm_wrap_to(to, trunc_sat(v.f, -0x1p31, 0x1p31, INT32_MIN, INT32_MAX));
    return r;
}
