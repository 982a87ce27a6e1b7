/* What the operations mean, one element at a time, and reductions. See oracle.h for the bounds. */
#include "oracle_int.h"

#include <float.h>
#include <stdlib.h>
#include <string.h>

static const char *tolerance(dvm_op op) {
    static const char *const tol[] = {
#define X(name, text, arity, cls, types, result, tol, meaning) #tol,
#include <dvm/ops.def>
#undef X
    };
    return tol[op];
}

/* ------------------------------------------------------------------ integers and bool */

static int64_t ipow(int64_t a, int64_t b) {
    uint64_t r = 1, base = (uint64_t)a;
    if (b < 0) return a == 1 ? 1 : a == -1 ? (b % 2 ? -1 : 1) : 0;
    for (; b; b >>= 1) {
        if (b & 1) r *= base;
        base *= base;
    }
    return (int64_t)r;
}

static int64_t idiv(int64_t a, int64_t b) {
    return b == 0 ? 0 : b == -1 ? (int64_t)(0 - (uint64_t)a) : a / b;
}
static int64_t imod(int64_t a, int64_t b) { return b == 0 || b == -1 ? 0 : a % b; }
static bool below(int64_t a, int64_t b) { return imod(a, b) != 0 && (a < 0) != (b < 0); }

/* Philox4x32 with ten rounds: left and right halves of two products, from the definition in the paper of its authors. */
static int64_t random_word(uint64_t key, uint64_t offset, uint64_t index) {
    static const uint64_t mult[2] = {0xD2511F53, 0xCD9E8D57}, bump[2] = {0x9E3779B9, 0xBB67AE85};
    const uint64_t low = 0xFFFFFFFF;
    uint64_t left[2] = {offset & low, index / 4 & low}, right[2] = {offset >> 32, index / 4 >> 32};
    uint64_t k[2] = {key & low, key >> 32};
    for (int round = 0; round < 10; round++) {
        uint64_t product[2] = {mult[0] * left[0], mult[1] * left[1]};
        for (int i = 0; i < 2; i++) {
            left[i] = product[1 - i] >> 32 ^ right[i] ^ k[i];
            right[i] = product[1 - i] & low;
        }
        for (int i = 0; i < 2; i++) k[i] = (k[i] + bump[i]) & low;
    }
    return (int64_t)(index % 2 ? right : left)[index / 2 % 2];
}

static int64_t int_op(dvm_op op, dvm_dtype t, int64_t a, int64_t b) {
    uint64_t ua = (uint64_t)a, ub = (uint64_t)b;
    int width = t == DVM_I64 ? 64 : 32;
    switch (op) {
    case DVM_OP_NEG: return (int64_t)(0 - ua);
    case DVM_OP_ABS: return a < 0 ? (int64_t)(0 - ua) : a;
    case DVM_OP_SIGN: return a > 0 ? 1 : a < 0 ? -1 : 0;
    case DVM_OP_RELU: return a > 0 ? a : 0;
    case DVM_OP_NOT: return t == DVM_BOOL ? !a : ~a;
    case DVM_OP_ADD: return t == DVM_BOOL ? (a | b) : (int64_t)(ua + ub);
    case DVM_OP_SUB: return t == DVM_BOOL ? (a ^ b) : (int64_t)(ua - ub);
    case DVM_OP_MUL: return (int64_t)(ua * ub);
    case DVM_OP_FLOORDIV: return idiv(a, b) - below(a, b);
    case DVM_OP_TRUNCDIV: return idiv(a, b);
    case DVM_OP_REM: return imod(a, b) + (below(a, b) ? b : 0);
    case DVM_OP_FMOD: return imod(a, b);
    case DVM_OP_POW: return ipow(a, b);
    case DVM_OP_MAX: return a > b ? a : b;
    case DVM_OP_MIN: return a < b ? a : b;
    case DVM_OP_EQ: return a == b;
    case DVM_OP_NE: return a != b;
    case DVM_OP_LT: return a < b;
    case DVM_OP_LE: return a <= b;
    case DVM_OP_GT: return a > b;
    case DVM_OP_GE: return a >= b;
    case DVM_OP_AND: return a & b;
    case DVM_OP_OR: return a | b;
    case DVM_OP_XOR: return a ^ b;
    case DVM_OP_SHL: return (int64_t)(ua << ((unsigned)b % (unsigned)width));
    case DVM_OP_SHR: return a >> ((unsigned)b % (unsigned)width);
    default: return a;
    }
}

/* ------------------------------------------------------------------ floats */

/* torch.floor_divide, in f32 */
static double floor_divide(float a, float b) {
    if (b == 0) return a / b;
    float m = fmodf(a, b), q = (a - m) / b;
    if (m != 0 && (b < 0) != (m < 0)) q -= 1;
    if (q == 0) return copysignf(0, a / b);
    float f = floorf(q);
    return q - f > 0.5f ? f + 1 : f;
}

static double remainder_of(double a, double b) {
    double m = fmod(a, b);
    return m != 0 && (m < 0) != (b < 0) ? (double)((float)m + (float)b) : m;
}

static double float_op(dvm_op op, double a, double b, double c) {
    switch (op) {
    case DVM_OP_NEG: return -a;
    case DVM_OP_ABS: return fabs(a);
    case DVM_OP_SIGN: return a > 0 ? 1 : a < 0 ? -1 : 0;
    case DVM_OP_RELU: return a > 0 || isnan(a) ? a : 0;
    case DVM_OP_SQRT: return sqrt(a);
    case DVM_OP_RSQRT: return 1 / sqrt(a);
    case DVM_OP_RECIP: return 1 / a;
    case DVM_OP_EXP: return exp(a);
    case DVM_OP_EXP2: return exp2(a);
    case DVM_OP_EXPM1: return expm1(a);
    case DVM_OP_LOG: return log(a);
    case DVM_OP_LOG2: return log2(a);
    case DVM_OP_LOG1P: return log1p(a);
    case DVM_OP_SIN: return sin(a);
    case DVM_OP_COS: return cos(a);
    case DVM_OP_TANH: return tanh(a);
    case DVM_OP_SIGMOID: return a >= 0 ? 1 / (1 + exp(-a)) : exp(a) / (1 + exp(a));
    case DVM_OP_ERF: return erf(a);
    case DVM_OP_FLOOR: return floor(a);
    case DVM_OP_CEIL: return ceil(a);
    case DVM_OP_TRUNC: return trunc(a);
    case DVM_OP_ROUND: return rint(a);
    case DVM_OP_ADD: return a + b;
    case DVM_OP_SUB: return a - b;
    case DVM_OP_MUL: return a * b;
    case DVM_OP_DIV: return a / b;
    case DVM_OP_FLOORDIV: return floor_divide((float)a, (float)b);
    case DVM_OP_TRUNCDIV: return trunc((float)(a / b));
    case DVM_OP_REM: return remainder_of(a, b);
    case DVM_OP_FMOD: return fmod(a, b);
    case DVM_OP_POW: return pow(a, b);
    case DVM_OP_MAX: return a > b || isnan(a) ? a : b;
    case DVM_OP_MIN: return a < b || isnan(a) ? a : b;
    case DVM_OP_FMA: return fma(a, b, c);
    default: return a;
    }
}

static bool float_test(dvm_op op, double a, double b) {
    switch (op) {
    case DVM_OP_ISFINITE: return isfinite((float)a);
    case DVM_OP_ISNAN: return isnan(a);
    case DVM_OP_EQ: return a == b;
    case DVM_OP_NE: return a != b;
    case DVM_OP_LT: return a < b;
    case DVM_OP_LE: return a <= b;
    case DVM_OP_GT: return a > b;
    default: return a >= b;
    }
}

static bool is_test(dvm_op op) {
    return op == DVM_OP_ISFINITE || op == DVM_OP_ISNAN || (op >= DVM_OP_EQ && op <= DVM_OP_GE);
}

/* Intervals that touch leave every comparison open. */
static elem test(dvm_op op, const elem x[3]) {
    bool unary = op == DVM_OP_ISFINITE || op == DVM_OP_ISNAN;
    if (any(x[0]) || (!unary && any(x[1]))) return undecided();
    bool open =
        !unary && (x[0].e > 0 || x[1].e > 0) && fabs(x[0].v - x[1].v) <= (double)x[0].e + x[1].e;
    return open ? undecided() : of_int(float_test(op, x[0].v, x[1].v));
}

/* Where the operation has a pole, a jump or a turn between a - e and a + e. */
static bool breaks(dvm_op op, const elem x[3]) {
    double a = x[0].v, ea = x[0].e, b = x[1].v, eb = x[1].e;
    switch (op) {
    case DVM_OP_RECIP:
    case DVM_OP_RSQRT: return fabs(a) <= ea;
    case DVM_OP_DIV:
    case DVM_OP_FLOORDIV:
    case DVM_OP_TRUNCDIV: return fabs(b) <= eb;
    case DVM_OP_REM:
        return fabs(b) <= eb || floor((a - ea) / b) != floor((a + ea) / b) ||
               floor(a / (b - eb)) != floor(a / (b + eb));
    case DVM_OP_FMOD:
        return fabs(b) <= eb || trunc((a - ea) / b) != trunc((a + ea) / b) ||
               trunc(a / (b - eb)) != trunc(a / (b + eb));
    case DVM_OP_POW:
        if (isnan(b)) return fabs(a - 1) <= ea; /* 1 to the power NaN is 1 */
        return (a - ea <= 0 && (ea > 0 || eb > 0)) || (isnan(a) && fabs(b) <= eb);
    default: return false;
    }
}

/* Largest change of the result over the corners of the operands' intervals. */
static double spread(dvm_op op, int n, const elem x[3], double y) {
    double most = 0;
    for (int corner = 0; corner < 1 << n; corner++) {
        double p[3];
        for (int i = 0; i < 3; i++)
            p[i] = x[i].v + (i < n ? (corner >> i & 1 ? 1.0 : -1.0) * x[i].e : 0);
        double z = float_op(op, p[0], p[1], p[2]);
        if (isnan(y) && isnan(z)) continue;
        if (isnan(y) || isnan(z)) return INFINITY;
        if (isinf(y) || isinf(z)) {
            if (y != z) return INFINITY;
            continue;
        }
        most = fmax(most, fabs(z - y));
        if (y == 0 && signbit(z) != signbit(y)) most = fmax(most, FLT_TRUE_MIN); /* either zero */
    }
    /* Turns inside the interval. */
    if (op == DVM_OP_SIN || op == DVM_OP_COS) most = fmin(2, fmax(most, x[0].e));
    if (op == DVM_OP_ABS) most = x[0].e;
    return most;
}

static elem choose(dvm_dtype t, const elem x[3]) {
    if (!any(x[0])) return x[0].i ? x[1] : x[2];
    if (any(x[1]) || any(x[2])) return undecided();
    if (!is_f(t)) return x[1].i == x[2].i ? x[1] : undecided();
    if (isnan(x[1].v) && isnan(x[2].v)) return x[1];
    if (x[1].v == x[2].v) {
        double either = signbit(x[1].v) != signbit(x[2].v) ? FLT_TRUE_MIN : 0; /* zeros */
        return of_float(x[1].v, fmax(either, fmax(x[1].e, x[2].e)));
    }
    double far = nextafter(fabs(x[1].v - x[2].v) + x[2].e, INFINITY);
    return isfinite(far) ? of_float(x[1].v, fmax(far, x[1].e)) : undecided();
}

elem apply(dvm_op op, dvm_dtype t, const elem x[3], bool strict) {
    static const int arity[] = {
#define X(name, text, n, cls, types, result, tol, meaning) n,
#include <dvm/ops.def>
#undef X
    };
    int n = arity[op];
    if (op == DVM_OP_SELECT) return choose(t, x);
    if (op == DVM_OP_COPY) return x[0];
    if (is_f(t) && is_test(op)) return test(op, x);
    double e = 0;
    for (int i = 0; i < n; i++) {
        if (any(x[i])) return undecided();
        e = fmax(e, x[i].e);
    }
    if (op == DVM_OP_PHILOX)
        return of_int(
            wrap_to(t, random_word((uint64_t)x[0].i, (uint64_t)x[1].i, (uint64_t)x[2].i)));
    if (!is_f(t))
        return of_int(is_test(op) ? int_op(op, t, x[0].i, x[1].i)
                                  : wrap_to(t, int_op(op, t, x[0].i, x[1].i)));
    if (op == DVM_OP_FMA && e == 0)
        return finish(t, fmaf((float)x[0].v, (float)x[1].v, (float)x[2].v), 0, "R", strict);
    double y = float_op(op, x[0].v, n > 1 ? x[1].v : 0, n > 2 ? x[2].v : 0);
    const char *tol = tolerance(op);
    if (op == DVM_OP_REM) tol = "R"; /* the last addition of Python's rule rounds */
    if (e == 0) return finish(t, y, 0, tol, strict);
    if (breaks(op, x)) return undecided();
    e = spread(op, n, x, y);
    if (op == DVM_OP_MAX || op == DVM_OP_MIN || op == DVM_OP_NEG || op == DVM_OP_ABS ||
        op == DVM_OP_RELU) {
        if (isinf(e) || isnan(e)) return undecided();
        return is_16(t) && strict ? rounded(t, y, e)
                                  : of_float(y, e); /* picks an operand: no rounding of its own */
    }
    return finish(t, y, e, tol, strict);
}

/* ------------------------------------------------------------------ reductions */

static double sum_factor(int64_t n) {
    double h = 96 + 2 * log2((double)(n > 1 ? n : 2));
    return (n < h ? (double)n : h) * 0x1p-24;
}

struct total {
    double v, e, mag,
        quantum; /* quantum: every term is a multiple of it, 0 when that is not known */
    bool nan, pos, neg, open;
};

static void add_term(struct total *s, elem x) {
    s->open |= any(x);
    s->nan |= isnan(x.v);
    s->pos |= x.v == INFINITY;
    s->neg |= x.v == -INFINITY;
    if (any(x) || !isfinite(x.v)) return;
    s->v += x.v;
    s->e += x.e;
    s->mag += fabs(x.v) + x.e;
    if (x.e > 0 || x.v != rint(x.v)) s->quantum = 0;
}

static elem sum_of(const struct total *s, dvm_dtype t, double factor, bool strict) {
    if (s->open) return undecided();
    if (s->nan || (s->pos && s->neg)) return of_float(NAN, 0);
    bool may_overflow = s->mag * (1 + factor) >= FLT_MAX;
    if (s->pos || s->neg)
        return may_overflow ? undecided() : of_float(s->pos ? INFINITY : -INFINITY, 0);
    if (may_overflow) return undecided();
    /* Integers below 2^24 are added without rounding in every order. */
    bool exact = s->quantum > 0 && s->mag <= 0x1p24;
    double e = s->e + (exact ? 0 : factor * s->mag);
    return finish(t, s->v, e, "E", strict);
}

static elem float_sum(dvm_dtype t, const elem *x, int64_t n, bool strict) {
    struct total s = {.quantum = 1};
    for (int64_t k = 0; k < n; k++) add_term(&s, x[k]);
    return sum_of(&s, t, sum_factor(n), strict);
}

/* a b for a sum of products: the factors' bounds spread to the product. */
static elem term(elem a, elem b) {
    if (any(a) || any(b)) return undecided();
    double v = a.v * b.v, e = fabs(a.v) * b.e + fabs(b.v) * a.e + (double)a.e * b.e;
    bool open =
        (isinf(a.v) && b.e > 0 && fabs(b.v) <= b.e) || (isinf(b.v) && a.e > 0 && fabs(a.v) <= a.e);
    if (open) return undecided();
    return of_float(v, isfinite(v) ? e : 0);
}

/* Products are added in f32 with one rounding each: chains of 256, then the chains' sums, in order. */
elem dot(dvm_dtype t, const elem *a, int64_t sa, const elem *b, int64_t sb, int64_t n,
         bool strict) {
    struct total s = {.quantum = 1};
    for (int64_t k = 0; k < n; k++) add_term(&s, term(a[k * sa], b[k * sb]));
    double chain = n < 256 ? (double)n : 256, chains = ceil((double)n / 256);
    s.e += s.quantum > 0 ? 0 : (double)n * 0x1p-149;
    return sum_of(&s, t, (chain + chains) * 0x1.01p-24, strict);
}

static elem float_prod(dvm_dtype t, const elem *x, int64_t n, bool strict) {
    double p = 1, e = 0, up = 0, down = 0, most = 1;
    bool exact = true, nan = false, zero = false, inf = false, open = false;
    for (int64_t k = 0; k < n; k++) {
        if (any(x[k])) return undecided();
        double a = x[k].v, ea = x[k].e;
        nan |= isnan(a);
        zero |= a == 0;
        inf |= isinf(a);
        open |= ea > 0 && fabs(a) <= ea;
        if (a != 0 && isfinite(a)) *(fabs(a) > 1 ? &up : &down) += fabs(log2(fabs(a) + ea));
        e = fabs(p) * ea + fabs(a) * e + e * ea + fabs(p * a) * 0x1p-24;
        p *= a;
        most *= fmax(1, fabs(a));
        exact &= ea == 0 && a == rint(a);
    }
    if (nan) return of_float(NAN, 0);
    if (open && (inf || p == 0))
        return undecided(); /* infinity times zero, or a zero of either sign */
    if (exact && most <= 0x1p24) return finish(t, p, 0, "E", strict);
    /* Partial products leave the range of f32 in some order. */
    if (up > 127 || down > 125) return undecided();
    if (inf || zero)
        return e == 0 || isnan(e) ? finish(t, p, 0, "E", strict) : finish(t, p, e, "E", strict);
    return finish(t, p, e, "E", strict);
}

static elem float_best(dvm_op op, const elem *x, int64_t n) {
    double sign = op == DVM_OP_RMAX ? 1 : -1, v = -INFINITY, lo = -INFINITY, hi = -INFINITY;
    bool open = false, plus = false, minus = false;
    for (int64_t k = 0; k < n; k++) {
        open |= any(x[k]);
        if (any(x[k])) continue;
        if (isnan(x[k].v)) return of_float(NAN, 0);
        if (x[k].v == 0) *(signbit(x[k].v) ? &minus : &plus) = true;
        v = fmax(v, sign * x[k].v);
        lo = fmax(lo, sign * x[k].v - x[k].e);
        hi = fmax(hi, sign * x[k].v + x[k].e);
    }
    if (open) return undecided();
    /* Which of two zeros is found depends on the order: a bound, so that a division by it is not decided. */
    double either = v == 0 && plus && minus ? FLT_TRUE_MIN : 0;
    return of_float(sign * v, isinf(v) ? 0 : fmax(either, fmax(hi - v, v - lo)));
}

/* The first of the best. Open when another element may be the best. */
static elem arg_best(dvm_op op, dvm_dtype t, const elem *x, int64_t n) {
    double sign = op == DVM_OP_ARGMAX ? 1 : -1;
    int64_t best = 0;
    for (int64_t k = 0; k < n; k++) {
        if (any(x[k])) return undecided();
        bool better = is_f(t)
                          ? !isnan(x[best].v) && (isnan(x[k].v) || sign * x[k].v > sign * x[best].v)
                          : (op == DVM_OP_ARGMAX ? x[k].i > x[best].i : x[k].i < x[best].i);
        if (better) best = k;
    }
    if (!is_f(t) || isnan(x[best].v)) return of_int(best);
    for (int64_t k = 0; k < n; k++) {
        double e = (double)x[k].e + x[best].e;
        if (k != best && e > 0 && sign * x[k].v + e >= sign * x[best].v) return undecided();
    }
    return of_int(best);
}

static elem int_fold(dvm_op op, dvm_dtype to, const elem *x, int64_t n) {
    int64_t r = op == DVM_OP_PROD || op == DVM_OP_ALL ? 1 : 0;
    bool open = false;
    if (op == DVM_OP_RMAX || op == DVM_OP_RMIN) r = n ? x[0].i : 0;
    for (int64_t k = 0; k < n; k++) {
        open |= any(x[k]);
        int64_t v = x[k].i;
        switch (op) {
        case DVM_OP_SUM: r = (int64_t)((uint64_t)r + (uint64_t)v); break;
        case DVM_OP_PROD: r = (int64_t)((uint64_t)r * (uint64_t)v); break;
        case DVM_OP_RMAX: r = v > r ? v : r; break;
        case DVM_OP_RMIN: r = v < r ? v : r; break;
        case DVM_OP_ANY: r |= v; break;
        default: r &= v; break;
        }
    }
    return open ? undecided() : of_int(wrap_to(to, r));
}

elem reduce(dvm_op op, dvm_dtype from, dvm_dtype to, const elem *x, int64_t n, bool strict) {
    switch (op) {
    case DVM_OP_ARGMAX:
    case DVM_OP_ARGMIN: return arg_best(op, from, x, n);
    case DVM_OP_SUM:
    case DVM_OP_PROD:
        if (!is_f(to)) return int_fold(op, to, x, n);
        return op == DVM_OP_SUM ? float_sum(to, x, n, strict) : float_prod(to, x, n, strict);
    case DVM_OP_RMAX:
    case DVM_OP_RMIN:
        if (is_f(from)) return float_best(op, x, n);
        return int_fold(op, to, x, n);
    default: return int_fold(op, to, x, n);
    }
}

void running_sum(dvm_dtype t, elem *x, int64_t n, bool strict) {
    struct total s = {.quantum = 1};
    int64_t r = 0;
    bool open = false;
    for (int64_t k = 0; k < n; k++) {
        if (is_f(t)) {
            add_term(&s, x[k]);
            x[k] = sum_of(&s, t, (double)(k + 1) * 0x1p-52, strict);
            continue;
        }
        open |= any(x[k]);
        r = (int64_t)((uint64_t)r + (uint64_t)x[k].i);
        x[k] = open ? undecided() : of_int(wrap_to(t, r));
    }
}
