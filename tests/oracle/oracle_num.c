/* Numbers: dtypes, rounding, bounds. See oracle.h for the rule. */
#include "oracle_int.h"

#include <float.h>
#include <string.h>

struct format {
    int mant, emin;
    double max;
};
static struct format format(dvm_dtype t) {
    switch (t) {
    case DVM_F16: return (struct format){10, -14, 65504.0};
    case DVM_BF16: return (struct format){7, -126, 0x1.fep127};
    case DVM_F32: return (struct format){23, -126, FLT_MAX};
    default: return (struct format){52, -1022, DBL_MAX};
    }
}

size_t size_of(dvm_dtype t) {
    return t == DVM_F64 || t == DVM_I64 ? 8 : t == DVM_F32 || t == DVM_I32 ? 4 : is_16(t) ? 2 : 1;
}

elem undecided(void) { return (elem){.i = 0, .e = INFINITY}; }
elem of_int(int64_t i) { return (elem){.i = i}; }

/* The bound is kept as a float, rounded up. */
elem of_float(double v, double e) {
    elem x = {.v = v, .e = (float)e};
    if (isnan(e)) return undecided();
    if (x.e < e) x.e = nextafterf(x.e, INFINITY);
    return x;
}

double ulp_of(dvm_dtype t, double v) {
    struct format f = format(t);
    int e = v == 0 || isnan(v) || isinf(v) ? f.emin : ilogb(v);
    return ldexp(1, (e < f.emin ? f.emin : e) - f.mant);
}

double round_to(dvm_dtype t, double v) {
    if (t == DVM_F64 || v == 0 || isnan(v) || isinf(v)) return v;
    if (t == DVM_F32) return (float)v;
    double u = ulp_of(t, v), r = rint(v / u) * u;
    return fabs(r) > format(t).max ? copysign(INFINITY, v) : r;
}

int64_t wrap_to(dvm_dtype t, int64_t v) {
    switch (t) {
    case DVM_BOOL: return v != 0;
    case DVM_U8: return v & 255;
    case DVM_I8: return ((v & 255) ^ 128) - 128;
    case DVM_I32: return ((v & INT64_C(0xffffffff)) ^ INT64_C(0x80000000)) - INT64_C(0x80000000);
    default: return v;
    }
}

static double half(unsigned h) {
    unsigned e = h >> 10 & 31, m = h & 1023;
    double v = e == 31 ? (m ? NAN : INFINITY) : e ? ldexp(1024 + m, (int)e - 25) : ldexp(m, -24);
    return h >> 15 ? -v : v;
}

elem load_elem(dvm_dtype t, const void *p) {
    unsigned char b[8] = {0};
    uint64_t bits = 0;
    float f;
    double d;
    memcpy(b, p,
           t == DVM_F64 || t == DVM_I64   ? 8
           : t == DVM_F32 || t == DVM_I32 ? 4
           : is_16(t)                     ? 2
                                          : 1);
    for (int i = 7; i >= 0; i--) bits = bits << 8 | b[i];
    uint32_t low = (uint32_t)(t == DVM_BF16 ? bits << 16 : bits);
    memcpy(&f, &low, 4);
    memcpy(&d, &bits, 8);
    switch (t) {
    case DVM_F16: return of_float(half((unsigned)bits), 0);
    case DVM_BF16:
    case DVM_F32: return of_float(f, 0);
    case DVM_F64: return of_float(d, 0);
    default: return of_int(wrap_to(t, (int64_t)bits));
    }
}

elem rounded(dvm_dtype t, double v, double e) {
    double y = round_to(t, v), lo = round_to(t, v - e), hi = round_to(t, v + e);
    if (isinf(e)) return undecided();
    if (isnan(y) || e == 0) return of_float(y, 0);
    if (isinf(lo) || isinf(hi)) return lo == hi ? of_float(y, 0) : undecided();
    /* Zeros of both signs differ where something is divided by them. */
    double either = y == 0 && signbit(lo) != signbit(hi) ? FLT_TRUE_MIN : 0;
    return of_float(y, fmax(either, fmax(hi - y, y - lo)));
}

elem finish(dvm_dtype t, double y, double e, const char *tol, bool strict) {
    if (isinf(e) || isnan(e)) return undecided();
    if (isnan(y) || isinf(y)) return of_float(y, 0);
    double own = tol[0] == 'U' ? (tol[1] - '0') * ulp_of(DVM_F32, y) : 0;
    if (tol[0] != 'U') {
        if (e == 0)
            y = (float)y;
        else if (tol[0] == 'R')
            own = ulp_of(DVM_F32, fabs(y) + e) / 2;
    }
    e += own;
    double most = fabs(y) + e, least = fmax(0, fabs(y) - e);
    if (isinf((float)most))
        return isinf((float)least) ? of_float(copysign(INFINITY, y), 0) : undecided();
    if (!is_16(t)) return of_float(y, e);
    if (strict) return rounded(t, y, e);
    if (e == 0 && round_to(t, y) == y) return of_float(y, 0);
    if (isinf(round_to(t, most))) return undecided();
    return of_float(y, e + ulp_of(t, most) / 2);
}

int64_t to_int(double v, dvm_dtype t) {
    double limit = t == DVM_I64 ? 0x1p63 : 0x1p31;
    if (isnan(v)) return 0;
    if (v >= limit) return wrap_to(t, t == DVM_I64 ? INT64_MAX : INT32_MAX);
    if (v < -limit) return wrap_to(t, t == DVM_I64 ? INT64_MIN : INT32_MIN);
    return wrap_to(t, (int64_t)v);
}

elem cast_elem(dvm_dtype from, dvm_dtype to, elem x) {
    if (from == to || any(x)) return x;
    if (is_f(from)) {
        if (to == DVM_F64) return x;
        if (is_f(to)) {
            if (from != DVM_F64 && to == DVM_F32) return x;
            elem y = rounded(to, x.v, x.e);
            double twice = round_to(to, (float)x.v); /* a way through f32 is as good */
            return twice == y.v || isnan(twice) || any(y) ? y
                                                          : of_float(y.v, y.e + fabs(twice - y.v));
        }
        if (to == DVM_BOOL) {
            bool lo = x.v - x.e != 0, hi = x.v + x.e != 0;
            bool sure = x.e == 0 || (lo == hi && (x.v - x.e < 0) == (x.v + x.e < 0));
            return sure ? of_int(x.v != 0) : undecided();
        }
        dvm_dtype full = to == DVM_I64 ? to : DVM_I32; /* wrapped ends may meet by chance */
        int64_t lo = to_int(x.v - x.e, full), hi = to_int(x.v + x.e, full);
        return lo == hi ? of_int(to_int(x.v, to)) : undecided();
    }
    if (!is_f(to)) return of_int(wrap_to(to, x.i));
    if (to == DVM_F64) return of_float((double)x.i, 0);
    float once = (float)x.i;
    if (to == DVM_F32) return of_float(once, 0);
    double direct = round_to(to, (double)x.i), through = round_to(to, once);
    return isinf(direct) != isinf(through)
               ? undecided()
               : of_float(through, isinf(direct) ? 0 : fabs(direct - through));
}
