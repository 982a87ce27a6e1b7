/* The reference against libm in double precision: each float row of ops.def within its tolerance
 * class. Exact and correctly rounded rows must be the rounded double result; U1 and U2 may be off by
 * one and two units in the last place. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kern/ck.h"
#include "vm/ref/ref.h"

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }
static double rsqrt(double x) { return 1 / sqrt(x); }
static double recip(double x) { return 1 / x; }
static double add(double x, double y) { return x + y; }
static double sub(double x, double y) { return x - y; }
static double mul(double x, double y) { return x * y; }
static double divide(double x, double y) { return x / y; }

static const struct row {
    int op;
    double (*one)(double);
    double (*two)(double, double);
} rows[] = {
    {DVM_OP_SQRT, sqrt, NULL},       {DVM_OP_RSQRT, rsqrt, NULL}, {DVM_OP_RECIP, recip, NULL},
    {DVM_OP_EXP, exp, NULL},         {DVM_OP_EXP2, exp2, NULL},   {DVM_OP_EXPM1, expm1, NULL},
    {DVM_OP_LOG, log, NULL},         {DVM_OP_LOG2, log2, NULL},   {DVM_OP_LOG1P, log1p, NULL},
    {DVM_OP_SIN, sin, NULL},         {DVM_OP_COS, cos, NULL},     {DVM_OP_TANH, tanh, NULL},
    {DVM_OP_SIGMOID, sigmoid, NULL}, {DVM_OP_ERF, erf, NULL},     {DVM_OP_FLOOR, floor, NULL},
    {DVM_OP_CEIL, ceil, NULL},       {DVM_OP_TRUNC, trunc, NULL}, {DVM_OP_ROUND, rint, NULL},
    {DVM_OP_ABS, fabs, NULL},        {DVM_OP_ADD, NULL, add},     {DVM_OP_SUB, NULL, sub},
    {DVM_OP_MUL, NULL, mul},         {DVM_OP_DIV, NULL, divide},  {DVM_OP_FMOD, NULL, fmod},
    {DVM_OP_POW, NULL, pow},
};

const char *ck_math_name(int i) {
    return i < (int)DVM_COUNT(rows) ? dvm_bc_name(rows[i].op) : NULL;
}

/* Size of the last place of a float near x. */
static double ulp(double x) {
    int e;
    frexp(x, &e);
    return ldexp(1, DVM_MAX(e, -125) - 24);
}

static bool close_enough(float got, double want, double limit) {
    if (isnan(want) || isnan(got)) return isnan(want) && isnan(got);
    float rounded = (float)want;
    if (got == rounded) return signbit(got) == signbit(rounded) || want != 0;
    if (limit == 0) return false;
    if (isinf(got)) return fabs(want) > (double)0x1.fffffep127f - limit * 0x1p104;
    return fabs((double)got - want) <= limit * ulp(want);
}

bool ck_math(int i, uint64_t seed) {
    const struct row *row = &rows[i];
    const char *tol = dvm_op_table[row->op].tol;
    double limit = tol[0] == 'U' ? tol[1] - '0' : 0;
    struct ck_rng r = {seed};
    for (int k = 0; k < 200000; k++) {
        union ref_val v[3] = {{0}};
        v[0].bits = ck_element(&r, DVM_F32, k & 1);
        v[1].bits = ck_element(&r, DVM_F32, k & 1);
        double want =
            row->one ? row->one((double)v[0].f) : row->two((double)v[0].f, (double)v[1].f);
        float got = dvm_ref_ew(row->op, DVM_VT_F32, DVM_VT_F32, v).f;
        if (close_enough(got, want, limit)) continue;
        printf("    %s(%.9g, %.9g) = %.9g, libm %.17g, allowed %g units in the last place\n",
               dvm_bc_name(row->op), (double)v[0].f, (double)v[1].f, (double)got, want, limit);
        return false;
    }
    return true;
}
