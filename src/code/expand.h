/*
 * expand.h - the transcendental functions and the number conversions, each written once.
 *
 * The text below is C over macros. What a value is, the includer says: a float, and a function is
 * a plain C function that a loop vectorises (expand_c.h); a value number, and a function appends
 * operations to a program (machine code, PTX). Every operation is exactly defined by IEEE 754 or
 * by integer arithmetic and their order is fixed here, so all instances give the same bits.
 *
 * The text is straight-line and single-assignment, without branches, loops or memory, one
 * operation an argument deep except constants, so the order in which a builder sees operations
 * does not depend on the C compiler. NaN in gives NaN out; its payload and sign are not defined.
 *
 *   XF f(XF)      exp exp2 expm1 log log2 log1p tanh sigmoid erf rsqrt sin cos sin_small cos_small
 *   XF pow(XF, XF)
 *   XI f(XF)      f32_to_f16 f32_to_bf16 f32_to_i32       XF f(XI)      f16_to_f32 bf16_to_f32
 * The others are parts of these.
 *
 * Protocol. The includer defines everything of this list; the end of this file undefines it, and
 * the file may be included again.
 *
 *   XFN(name)            name of the instance's function
 *   XDEF                 what stands before a definition; `static inline` when undefined
 *   XF XI XB             types: fp32 value, 32-bit integer value, mask
 *   XCTX XCTX_           first parameter with its comma, the same as an argument; may be empty. Locals
 *                        here have no underscore in their names
 *   XK(f) XKI(i)         constants: float literal; integer literal (taken modulo 2^32)
 *   X_ADD X_SUB X_MUL X_DIV (a,b)  X_SQRT(a)  X_FMA(a,b,c)   a*b+c, one rounding
 *   X_NEG(a) X_ABS(a)    sign bit only
 *   X_RINT(a)            to integral, half to even
 *   X_MIN(a,b) X_MAX(a,b)   a<b ? a : b and a>b ? a : b. The first operand is always a constant,
 *                        never zero or NaN, so "minimum/maximum that propagates NaN" is the same
 *   X_LT X_LE X_EQ X_NE (a,b)   ordered but for NE: false, NE true, when an operand is NaN
 *   X_SEL(m,a,b)         m ? a : b
 *   X_F2I(a) X_I2F(i)    same bits
 *   X_CVT_I2F(i)         signed integer to float, half to even
 *   X_CVT_F2I(a)         float to signed integer, toward zero; the value is always in range
 *   XI_ADD XI_SUB XI_AND XI_OR XI_XOR (i,j)   wrapping
 *   XI_SHL XI_SHR XI_SAR (i,n)   n is a C constant in 1..31
 *   XI_LT XI_EQ (i,j)    signed
 *   XI_SEL(m,i,j)
 *   XB_AND XB_OR (m,m) XB_NOT(m)
 * Optional:
 *   X_FMS(a,b,c)         a*b-c, one rounding; X_FMA(a,b,X_NEG(c)) when undefined
 *   X_FNMA(a,b,c)        c-a*b, one rounding; X_FMA(X_NEG(a),b,c) when undefined
 *   X_SCALEF(a,b)        a*2^b, b integral, |b| <= 160, one rounding; multiplications when undefined
 *   XI_MUL(i,j) XI_UMULH(i,j)   low and unsigned high half of the product
 *   XI_SHLV(i,j) XI_SHRV(i,j)   shifts by a value in 0..31
 *                        without these four there is no full-range sin and cos, only sin_small and
 *                        cos_small, valid for |x| <= X_TRIG_BOUND
 *
 * Polynomial coefficients are minimax fits made for this file: a linear program minimises the
 * largest weighted error at 600 Chebyshev points, the lowest coefficient is rounded to fp32, the
 * rest is fitted again, and so on upwards. Each comment states the interval and the size of the
 * fit's error relative to the function's result. tools/ulp.c measures all inputs.
 */

#ifndef XDEF
#define XDEF static inline
#endif
#ifndef X_FMS
#define X_FMS(a, b, c) X_FMA(a, b, X_NEG(c))
#endif
#ifndef X_FNMA
#define X_FNMA(a, b, c) X_FMA(X_NEG(a), b, c)
#endif

/* Adding this rounds to an integer, half to even, and leaves that integer in the low bits. */
#define X_MAGIC 0x1.8p23f
/* sin_small and cos_small hold up to here. */
#define X_TRIG_BOUND 0x1p17f

/* ------------------------------------------------------------------------------ exponentials */

/*
 * e^x = 2^n e^r, r in +-ln2/2, e^r = 1 + r + r^2 Q(r). ln2 in two parts: x - n hi is exact in one fma. The
 * arguments are limited to where the result has become 0, 1, -1 or infinite.
 */

/* (e^r - 1 - r) / r^2 on +-0.35: 2^-28.1 of e^r. */
XDEF XF XFN(exp_q)(XCTX XF r) {
    XF q3 = X_FMA(r, XK(0x1.6a4eaep-10f), XK(0x1.123e62p-7f));
    XF q2 = X_FMA(q3, r, XK(0x1.5558b8p-5f));
    XF q1 = X_FMA(q2, r, XK(0x1.55548cp-3f));
    XF q0 = X_FMA(q1, r, XK(0x1.fffffcp-2f));
    return q0;
}

/*
 * p * 2^n, one rounding. t = n + X_MAGIC, |n| <= 160; neg says n <= 0, its negation n >= 0. Two
 * factors, 2^(n+-64) and 2^-+64, both in range.
 */
XDEF XF XFN(scale)(XCTX XF p, XF n, XF t, XB neg) {
#ifdef X_SCALEF
    (void)t, (void)neg;
    return X_SCALEF(p, n);
#else
    (void)n;
    XI i = XI_SHL(X_F2I(t), 23);
    XI b = XI_SEL(neg, XKI(0x5f800000), XKI(0x1f800000));
    XI s = XI_ADD(i, b);
    XF q = X_MUL(p, X_I2F(s));
    XF k = X_SEL(neg, XK(0x1p-64f), XK(0x1p64f));
    return X_MUL(q, k);
#endif
}

XDEF XF XFN(exp)(XCTX XF x) {
    XF lo = X_MAX(XK(-104.0f), x);
    XF c = X_MIN(XK(89.0f), lo);
    XF t = X_FMA(c, XK(0x1.715476p0f), XK(X_MAGIC));
    XF n = X_SUB(t, XK(X_MAGIC));
    XF rh = X_FMA(n, XK(-0x1.62e43p-1f), c);
    XF r = X_FMA(n, XK(0x1.05c61p-29f), rh);
    XF q = XFN(exp_q)(XCTX_ r);
    XF p1 = X_FMA(q, r, XK(1.0f));
    XF p = X_FMA(p1, r, XK(1.0f));
    XB neg = X_LT(x, XK(0.0f));
    return XFN(scale)(XCTX_ p, n, t, neg);
}

/* (2^r - 1) / r on +-0.51: 2^-28.1 of 2^r. */
XDEF XF XFN(exp2_q)(XCTX XF r) {
    XF q4 = X_FMA(r, XK(0x1.417a54p-13f), XK(0x1.5f1598p-10f));
    XF q3 = X_FMA(q4, r, XK(0x1.3b2de2p-7f));
    XF q2 = X_FMA(q3, r, XK(0x1.c6af6ap-5f));
    XF q1 = X_FMA(q2, r, XK(0x1.ebfbdcp-3f));
    XF q0 = X_FMA(q1, r, XK(0x1.62e43p-1f));
    return q0;
}

XDEF XF XFN(exp2)(XCTX XF x) {
    XF lo = X_MAX(XK(-151.0f), x);
    XF c = X_MIN(XK(129.0f), lo);
    XF t = X_ADD(c, XK(X_MAGIC));
    XF n = X_SUB(t, XK(X_MAGIC));
    XF r = X_SUB(c, n);
    XF q = XFN(exp2_q)(XCTX_ r);
    XF p = X_FMA(r, q, XK(1.0f));
    XB neg = X_LT(x, XK(0.0f));
    return XFN(scale)(XCTX_ p, n, t, neg);
}

/*
 * e^x - 1 = (S - 1) + S rh + S z: S = 2^n, rh = x - n hi exact, z the rest, below 0.07. The first two terms
 * make a, what their two roundings lose makes bl; both matter only for a few n. At half size, so that S
 * does not overflow; that loses bits of subnormal x, and such x are their own result.
 */
XDEF XF XFN(expm1)(XCTX XF x) {
    XF lo = X_MAX(XK(-30.0f), x);
    XF c = X_MIN(XK(89.0f), lo);
    XF t = X_FMA(c, XK(0x1.715476p0f), XK(X_MAGIC));
    XF n = X_SUB(t, XK(X_MAGIC));
    XF rh = X_FMA(n, XK(-0x1.62e43p-1f), c);
    XF rl = X_MUL(n, XK(0x1.05c61p-29f));
    XF r = X_ADD(rh, rl);
    XF q = XFN(exp_q)(XCTX_ r);
    XF rr = X_MUL(r, r);
    XF z = X_FMA(rr, q, rl);
    XI i = XI_SHL(X_F2I(t), 23);
    XF s = X_I2F(XI_ADD(i, XKI(0x3f000000)));
    XF s1 = X_SUB(s, XK(0.5f));
    XF a = X_FMA(s, rh, s1);
    XF sa = X_SUB(s1, a);
    XF al = X_FMA(s, rh, sa);
    XF s2 = X_SUB(s, s1);
    XF s3 = X_SUB(s2, XK(0.5f));
    XF bl = X_ADD(al, s3);
    XF b = X_FMA(s, z, bl);
    XF h = X_ADD(a, b);
    XF v = X_ADD(h, h);
    XF ax = X_ABS(x);
    XB tiny = X_LT(ax, XK(0x1p-26f));
    return X_SEL(tiny, x, v);
}

/*
 * 1 / (1 + E), E = e^-x = S (1 + w), S = 2^n. Below -40 the one no longer counts and is left out, and E is
 * taken 2^-64 smaller, for it would overflow. One unit of the denominator can be two of the quotient,
 * so the denominator has two parts, dh + dl, and one step corrects the quotient.
 */
XDEF XF XFN(sigmoid)(XCTX XF x) {
    XF lo = X_MAX(XK(-104.0f), x);
    XF c = X_MIN(XK(30.0f), lo);
    XF t = X_FMA(c, XK(-0x1.715476p0f), XK(X_MAGIC));
    XF n = X_SUB(t, XK(X_MAGIC));
    XF rh = X_FMA(n, XK(0x1.62e43p-1f), c);
    XF r = X_FMA(n, XK(-0x1.05c61p-29f), rh);
    XF g = X_NEG(r);
    XF q = XFN(exp_q)(XCTX_ g);
    XF rr = X_MUL(r, r);
    XF w = X_FMA(rr, q, g);
    XB low = X_LT(c, XK(-40.0f));
    XI i = XI_SHL(X_F2I(t), 23);
    XI b = XI_SEL(low, XKI(0x1f800000), XKI(0x3f800000));
    XF s = X_I2F(XI_ADD(i, b));
    XF one = X_SEL(low, XK(0.0f), XK(1.0f));
    XF k = X_SEL(low, XK(0x1p-64f), XK(1.0f));
    XF d = X_ADD(one, s);
    XF ds = X_SUB(d, s);
    XF e0 = X_SUB(one, ds);
    XF dh = X_FMA(s, w, d);
    XF dd = X_SUB(d, dh);
    XF e1 = X_FMA(s, w, dd);
    XF dl = X_ADD(e0, e1);
    XF y = X_DIV(XK(1.0f), dh);
    XF m0 = X_FNMA(y, dh, XK(1.0f));
    XF m1 = X_FNMA(y, dl, m0);
    XF v = X_FMA(y, m1, y);
    return X_MUL(v, k);
}

/*
 * Up to 0.95 an odd polynomial; above, 1 - 2 / D, D = 1 + e^2a = 1 + S (1 + w). There D is 7 and more, and
 * what its rounding does to the result is small.
 */
XDEF XF XFN(tanh)(XCTX XF x) {
    XF a = X_ABS(x);
    /* (tanh a / a - 1) / a^2 on a <= 0.95: 2^-28.6 of tanh. */
    XF s = X_MUL(a, a);
    XF p5 = X_FMA(s, XK(-0x1.a9803ep-12f), XK(0x1.40aa7ep-9f));
    XF p4 = X_FMA(p5, s, XK(-0x1.0a0e96p-7f));
    XF p3 = X_FMA(p4, s, XK(0x1.61b2cep-6f));
    XF p2 = X_FMA(p3, s, XK(-0x1.b9a0bcp-5f));
    XF p1 = X_FMA(p2, s, XK(0x1.110dfep-3f));
    XF p0 = X_FMA(p1, s, XK(-0x1.555548p-2f));
    XF as = X_MUL(a, s);
    XF near = X_FMA(as, p0, a);

    XF b = X_MIN(XK(10.0f), a);
    XF c = X_ADD(b, b);
    XF t = X_FMA(c, XK(0x1.715476p0f), XK(X_MAGIC));
    XF n = X_SUB(t, XK(X_MAGIC));
    XF rh = X_FMA(n, XK(-0x1.62e43p-1f), c);
    XF r = X_FMA(n, XK(0x1.05c61p-29f), rh);
    XF q = XFN(exp_q)(XCTX_ r);
    XF rr = X_MUL(r, r);
    XF w = X_FMA(rr, q, r);
    XI i = XI_SHL(X_F2I(t), 23);
    XF e = X_I2F(XI_ADD(i, XKI(0x3f800000)));
    XF d = X_ADD(e, XK(1.0f));
    XF dh = X_FMA(e, w, d);
    XF y = X_DIV(XK(2.0f), dh);
    XF far = X_SUB(XK(1.0f), y);

    XB small = X_LT(a, XK(0.95f));
    XF v = X_SEL(small, near, far);
    XI sign = XI_AND(X_F2I(x), XKI(0x80000000));
    return X_I2F(XI_OR(X_F2I(v), sign));
}

/*
 * Up to T an odd polynomial; above, 1 - erfc with erfc a = erfc T * 2^(z L(z)), z = a - T: what L loses
 * to rounding is multiplied by z, which is small where erfc is not. T = 0.844 is chosen so that
 * erfc T is an fp32 number to 2^-36.
 */
XDEF XF XFN(erf)(XCTX XF x) {
    XF a = X_ABS(x);
    /* erf a / a - 1 in a^2 on a <= T: 2^-27.2 of erf. */
    XF s = X_MUL(a, a);
    XF p4 = X_FMA(s, XK(-0x1.4e2fbcp-11f), XK(0x1.4bba3ep-8f));
    XF p3 = X_FMA(p4, s, XK(-0x1.b73f1ep-6f));
    XF p2 = X_FMA(p3, s, XK(0x1.ce25e6p-4f));
    XF p1 = X_FMA(p2, s, XK(-0x1.812728p-2f));
    XF p0 = X_FMA(p1, s, XK(0x1.06eba8p-3f));
    XF near = X_FMA(a, p0, a);

    /* log2(erfc(T + z) / erfc T) / z up to 4: an error of 2^-28.7 in erf. */
    XF c = X_MIN(XK(4.0f), a);
    XF z = X_SUB(c, XK(0x1.b02b34p-1f));
    XF l4 = X_FMA(z, XK(0x1.33d992p-12f), XK(-0x1.8a9586p-9f));
    XF l3 = X_FMA(l4, z, XK(0x1.10c2ap-6f));
    XF l2 = X_FMA(l3, z, XK(-0x1.1d30c6p-4f));
    XF l1 = X_FMA(l2, z, XK(-0x1.2fa3bep0f));
    XF l0 = X_FMA(l1, z, XK(-0x1.b75ccap1f));
    XF t = X_FMA(l0, z, XK(X_MAGIC));
    XF n = X_SUB(t, XK(X_MAGIC));
    XF r = X_FMS(l0, z, n);
    /* (2^r - 1) / r * erfc T on +-0.5, where r > 0 comes with e <= 1/2: 2^-26.0 in erf. */
    XF q3 = X_FMA(r, XK(0x1.4293f8p-12f), XK(0x1.26da7ep-9f));
    XF q2 = X_FMA(q3, r, XK(0x1.a71098p-7f));
    XF q1 = X_FMA(q2, r, XK(0x1.c9b7cep-5f));
    XF q0 = X_FMA(q1, r, XK(0x1.4a2de2p-3f));
    XF p = X_FMA(q0, r, XK(0x1.dc5922p-3f));
    XI i = XI_SHL(X_F2I(t), 23);
    XF e = X_I2F(XI_ADD(i, XKI(0x3f800000)));
    XF far = X_FNMA(e, p, XK(1.0f));

    XB small = X_LT(a, XK(0x1.b02b34p-1f));
    XF v = X_SEL(small, near, far);
    XI sign = XI_AND(X_F2I(x), XKI(0x80000000));
    return X_I2F(XI_OR(X_F2I(v), sign));
}

/* -------------------------------------------------------------------------------- logarithms */

/*
 * x = 2^e m, m in sqrt(1/2) .. sqrt(2), f = m - 1: log x = e ln2 + f + f^2 Q(f). The exponent is
 * kept where it is in the word, e * 2^23, and the constants take that factor.
 */

/* log x with its special cases: v where x is positive and finite. */
XDEF XF XFN(log_edge)(XCTX XF x, XF v) {
    XF inf = X_I2F(XKI(0x7f800000));
    XF a = X_SEL(X_LT(x, inf), v, x);
    XF b = X_SEL(X_EQ(x, XK(0.0f)), X_I2F(XKI(0xff800000)), X_I2F(XKI(0x7fc00000)));
    return X_SEL(X_LE(x, XK(0.0f)), b, a);
}

XDEF XF XFN(log)(XCTX XF x) {
    XB sub = X_LT(x, XK(0x1p-126f));
    XF xs = X_MUL(x, XK(0x1p23f));
    XF u = X_SEL(sub, xs, x);
    XI i = XI_SUB(X_F2I(u), XKI(0x3f3504f3));
    XI em = XI_AND(i, XKI(0xff800000));
    XF m = X_I2F(XI_SUB(X_F2I(u), em));
    XF f = X_SUB(m, XK(1.0f));
    XI es = XI_SEL(sub, XKI(0x0b800000), XKI(0));
    XF e = X_CVT_I2F(XI_SUB(em, es));
    /* (log(1+f) - f) / f^2: 2^-27.8 of log. */
    XF q7 = X_FMA(f, XK(-0x1.381392p-4f), XK(0x1.087506p-3f));
    XF q6 = X_FMA(q7, f, XK(-0x1.0f520ap-3f));
    XF q5 = X_FMA(q6, f, XK(0x1.226c84p-3f));
    XF q4 = X_FMA(q5, f, XK(-0x1.5423e8p-3f));
    XF q3 = X_FMA(q4, f, XK(0x1.99a41cp-3f));
    XF q2 = X_FMA(q3, f, XK(-0x1.000438p-2f));
    XF q1 = X_FMA(q2, f, XK(0x1.55555p-2f));
    XF q0 = X_FMA(q1, f, XK(-0x1.fffff8p-2f));
    XF ff = X_MUL(f, f);
    XF z = X_MUL(ff, q0);
    XF zl = X_FMA(e, XK(-0x1.05c61p-52f), z);
    XF w = X_ADD(f, zl);
    XF v = X_FMA(e, XK(0x1.62e43p-24f), w);
    return XFN(log_edge)(XCTX_ x, v);
}

/* log2 x = e + f (H + f Q(f)), H = log2(e) rounded; its rest is in the first coefficient. */
XDEF XF XFN(log2)(XCTX XF x) {
    XB sub = X_LT(x, XK(0x1p-126f));
    XF xs = X_MUL(x, XK(0x1p23f));
    XF u = X_SEL(sub, xs, x);
    XI i = XI_SUB(X_F2I(u), XKI(0x3f3504f3));
    XI em = XI_AND(i, XKI(0xff800000));
    XF m = X_I2F(XI_SUB(X_F2I(u), em));
    XF f = X_SUB(m, XK(1.0f));
    XI es = XI_SEL(sub, XKI(0x0b800000), XKI(0));
    XF e = X_CVT_I2F(XI_SUB(em, es));
    /* log2(1+f) / f - H: 2^-27.7 of log2. */
    XF q8 = X_FMA(f, XK(-0x1.c1e51p-4f), XK(0x1.7eb912p-3f));
    XF q7 = X_FMA(q8, f, XK(-0x1.881702p-3f));
    XF q6 = X_FMA(q7, f, XK(0x1.a2dc7ap-3f));
    XF q5 = X_FMA(q6, f, XK(-0x1.eaa0fep-3f));
    XF q4 = X_FMA(q5, f, XK(0x1.277ec8p-2f));
    XF q3 = X_FMA(q4, f, XK(-0x1.715bp-2f));
    XF q2 = X_FMA(q3, f, XK(0x1.ec7096p-2f));
    XF q1 = X_FMA(q2, f, XK(-0x1.71547p-1f));
    XF q0 = X_FMA(q1, f, XK(0x1.49dc8p-26f));
    XF z = X_MUL(f, q0);
    XF w = X_FMA(f, XK(0x1.715476p0f), z);
    XF v = X_FMA(e, XK(0x1p-23f), w);
    return XFN(log_edge)(XCTX_ x, v);
}

/*
 * log(1 + x) = k ln2 + log(1 + f), 1 + f = 2^-k (1 + x) in 3/4 .. 3/2. k comes from the rounded sum,
 * f from x itself: F = 4f = 2^(2-k) x + (2^(2-k) - 4), exact or nearly so; the 4 keeps the scale
 * factor a normal number.
 */
XDEF XF XFN(log1p)(XCTX XF x) {
    XF u = X_ADD(x, XK(1.0f));
    XI i = XI_SUB(X_F2I(u), XKI(0x3f400000));
    XI em = XI_AND(i, XKI(0xff800000));
    XF e = X_CVT_I2F(em);
    XF s = X_I2F(XI_SUB(XKI(0x40800000), em));
    XF s1 = X_SUB(s, XK(4.0f));
    XF f = X_FMA(s, x, s1);
    /* (log(1+f) - f) / f^2 on -0.25 .. 0.5: 2^-27.6 of log1p; coefficient k divided by 4^(k+2). */
    XF q7 = X_FMA(f, XK(-0x1.71e32cp-25f), XK(0x1.acf4a8p-22f));
    XF q6 = X_FMA(q7, f, XK(-0x1.0d98fp-19f));
    XF q5 = X_FMA(q6, f, XK(0x1.28807ap-17f));
    XF q4 = X_FMA(q5, f, XK(-0x1.54ed96p-15f));
    XF q3 = X_FMA(q4, f, XK(0x1.99699ep-13f));
    XF q2 = X_FMA(q3, f, XK(-0x1.00004ap-10f));
    XF q1 = X_FMA(q2, f, XK(0x1.5555a4p-8f));
    XF q0 = X_FMA(q1, f, XK(-0x1p-5f));
    XF ff = X_MUL(f, f);
    XF z = X_MUL(ff, q0);
    XF zl = X_FMA(e, XK(-0x1.05c61p-52f), z);
    XF w = X_FMA(f, XK(0.25f), zl);
    XF v = X_FMA(e, XK(0x1.62e43p-24f), w);
    XF inf = X_I2F(XKI(0x7f800000));
    XF a = X_SEL(X_LT(x, inf), v, x);
    XF b = X_SEL(X_EQ(x, XK(-1.0f)), X_I2F(XKI(0xff800000)), X_I2F(XKI(0x7fc00000)));
    XF c = X_SEL(X_LE(x, XK(-1.0f)), b, a);
    XI sign = XI_AND(X_F2I(x), XKI(0x80000000));
    return X_I2F(XI_OR(X_F2I(c), sign));
}

/* -------------------------------------------------------------------------------------- roots */

/*
 * y = 1 / sqrt x, rounded twice, is off by up to 1.5 units. One step repairs it; its residual
 * 1 - x y^2 is formed from the exact product x y = h + l. At 0 and infinity there is no residual and
 * no step.
 */
XDEF XF XFN(rsqrt)(XCTX XF x) {
    XF s = X_SQRT(x);
    XF y = X_DIV(XK(1.0f), s);
    XF h = X_MUL(x, y);
    XF l = X_FMS(x, y, h);
    XF d0 = X_FNMA(h, y, XK(1.0f));
    XF d = X_FNMA(l, y, d0);
    XF hy = X_MUL(y, XK(0.5f));
    XF v = X_FMA(hy, d, y);
    XB finite = X_LT(d, XK(1.0f));
    return X_SEL(finite, v, y);
}

/* --------------------------------------------------------------------------------- sin and cos */

/*
 * x = n pi/2 + r, |r| a little over pi/4 at most; n & 1 chooses between the sine and the cosine of r,
 * n & 2 the sign.
 */

/* sin(r + i pi/2); only the two lowest bits of i count. */
XDEF XF XFN(trig_eval)(XCTX XF r, XI i) {
    XF s = X_MUL(r, r);
    /* (sin r / r - 1) / r^2 on +-pi/4: 2^-27.9. */
    XF p1 = X_FMA(s, XK(-0x1.991696p-13f), XK(0x1.1106bcp-7f));
    XF p0 = X_FMA(p1, s, XK(-0x1.555544p-3f));
    XF p = X_MUL(p0, s);
    XF sn = X_FMA(p, r, r);
    /* (cos r - 1) / r^2 on +-pi/4: 2^-24.5. */
    XF q1 = X_FMA(s, XK(-0x1.64261p-10f), XK(0x1.553d96p-5f));
    XF q0 = X_FMA(q1, s, XK(-0x1.ffffaep-2f));
    XF cs = X_FMA(q0, s, XK(1.0f));
    XI odd = XI_AND(i, XKI(1));
    XF v = X_SEL(XI_EQ(odd, XKI(0)), sn, cs);
    XI sign = XI_AND(XI_SHL(i, 30), XKI(0x80000000));
    return X_I2F(XI_XOR(X_F2I(v), sign));
}

/* n + X_MAGIC, and r with pi/2 in three parts; n times the first cancels exactly. */
XDEF XF XFN(trig_n)(XCTX XF x) { return X_FMA(x, XK(0x1.45f306p-1f), XK(X_MAGIC)); }

XDEF XF XFN(trig_r)(XCTX XF x, XF t) {
    XF n = X_SUB(t, XK(X_MAGIC));
    XF r1 = X_FMA(n, XK(-0x1.921fb6p0f), x);
    XF r2 = X_FMA(n, XK(0x1.777a5cp-25f), r1);
    XF r3 = X_FMA(n, XK(0x1.ee59dap-50f), r2);
    return r3;
}

XDEF XF XFN(sin_small)(XCTX XF x) {
    XF t = XFN(trig_n)(XCTX_ x);
    XF r = XFN(trig_r)(XCTX_ x, t);
    XF v = XFN(trig_eval)(XCTX_ r, X_F2I(t));
    return X_SEL(X_EQ(x, XK(0.0f)), x, v);
}

XDEF XF XFN(cos_small)(XCTX XF x) {
    XF t = XFN(trig_n)(XCTX_ x);
    XF r = XFN(trig_r)(XCTX_ x, t);
    XI i = XI_ADD(X_F2I(t), XKI(1));
    return XFN(trig_eval)(XCTX_ r, i);
}

#if defined(XI_MUL) && defined(XI_UMULH) && defined(XI_SHLV) && defined(XI_SHRV)

/*
 * The word of 2/pi (behind eight zero bits) number j of the window that starts at word 0, 1, 2 or 3,
 * chosen by the masks "1 or more", "2 or more", "3 or more".
 */
XDEF XI XFN(trig_word)(XCTX XB m1, XB m2, XB m3, XI w0, XI w1, XI w2, XI w3) {
    XI a = XI_SEL(m1, w1, w0);
    XI b = XI_SEL(m2, w2, a);
    return XI_SEL(m3, w3, b);
}

/* The high word of (a:b) << r, 0 <= r <= 31, c = 31 - r. */
XDEF XI XFN(trig_shift)(XCTX XI a, XI b, XI r, XI c) {
    XI h = XI_SHLV(a, r);
    XI b1 = XI_SHR(b, 1);
    XI l = XI_SHRV(b1, c);
    return XI_OR(h, l);
}

/*
 * sin(x + phase pi/2) for every x. Above the bound |x| = M 2^k with a 24-bit M, and of 2/pi only the
 * 96 bits count that stand where the product has the weights 2^1 .. 2^-94: bits before them make
 * whole turns. The top two bits of M times that window are the quadrant, the next 56 the fraction; the
 * closest any float comes to a multiple of pi/2 is near 2^-31, so its 24 bits are right.
 */
XDEF XF XFN(trig)(XCTX XF x, int phase) {
    XF a = X_ABS(x);
    XI ai = X_F2I(a);
    XF t = XFN(trig_n)(XCTX_ a);
    XF rs = XFN(trig_r)(XCTX_ a, t);

    XI e0 = XI_SHR(ai, 23);
    XI e = XI_SUB(e0, XKI(144));
    XB m1 = XI_LT(XKI(31), e);
    XB m2 = XI_LT(XKI(63), e);
    XB m3 = XI_LT(XKI(95), e);
    XI k0 = XKI(0x00a2f983);
    XI k1 = XKI(0x6e4e4415);
    XI k2 = XKI(0x29fc2757);
    XI k3 = XKI(0xd1f534dd);
    XI k4 = XKI(0xc0db6295);
    XI k5 = XKI(0x993c4390);
    XI k6 = XKI(0x41fe5163);
    XI w0 = XFN(trig_word)(XCTX_ m1, m2, m3, k0, k1, k2, k3);
    XI w1 = XFN(trig_word)(XCTX_ m1, m2, m3, k1, k2, k3, k4);
    XI w2 = XFN(trig_word)(XCTX_ m1, m2, m3, k2, k3, k4, k5);
    XI w3 = XFN(trig_word)(XCTX_ m1, m2, m3, k3, k4, k5, k6);
    XI sh = XI_AND(e, XKI(31));
    XI cs = XI_XOR(sh, XKI(31));
    XI v0 = XFN(trig_shift)(XCTX_ w0, w1, sh, cs);
    XI v1 = XFN(trig_shift)(XCTX_ w1, w2, sh, cs);
    XI v2 = XFN(trig_shift)(XCTX_ w2, w3, sh, cs);
    XI mf = XI_AND(ai, XKI(0x007fffff));
    XI m = XI_OR(mf, XKI(0x00800000));
    /* Product: top word p; the next one, halved and with its carry, n. */
    XI p0 = XI_MUL(m, v0);
    XI p1 = XI_UMULH(m, v1);
    XI p = XI_ADD(p0, p1);
    XI l = XI_SHR(XI_MUL(m, v1), 1);
    XI h = XI_SHR(XI_UMULH(m, v2), 1);
    XI n = XI_ADD(l, h);
    /*
     * Nearest quadrant, and the fraction from it in units of 2^-30: a multiple of 32, exact in fp32, and
     * a rest in -16 .. 16 with 26 more bits. The rest is one integer, so nothing is lost when p and n
     * all but cancel.
     */
    XI pr = XI_ADD(p, XKI(0x20000010));
    XI il = XI_SHR(pr, 30);
    XI pf = XI_AND(pr, XKI(0x3fffffff));
    XI fi = XI_SUB(pf, XKI(0x20000000));
    XI fh = XI_AND(fi, XKI(0xffffffe0));
    XI fl = XI_SHL(fi, 26);
    XI f0 = XI_AND(fl, XKI(0x7c000000));
    XI f1 = XI_SUB(f0, XKI(0x40000000));
    XI f2 = XI_ADD(f1, XI_SHR(n, 5));
    XF f = X_CVT_I2F(fh);
    XF g = X_CVT_I2F(f2);
    /* Times pi/2. */
    XF r0 = X_MUL(g, XK(0x1.921fb6p-56f));
    XF r1 = X_FMA(f, XK(-0x1.777a5cp-55f), r0);
    XF r2 = X_FMA(f, XK(0x1.921fb6p-30f), r1);
    XF bad = X_SUB(a, a);
    XF rl = X_ADD(r2, bad);

    XB small = X_LE(a, XK(X_TRIG_BOUND));
    XF r = X_SEL(small, rs, rl);
    XI q = XI_SEL(small, X_F2I(t), il);
    XI i = XI_ADD(q, XKI(phase));
    XF v = XFN(trig_eval)(XCTX_ r, i);
    XI sign = XI_AND(X_F2I(x), XKI(phase ? 0 : 0x80000000));
    return X_I2F(XI_XOR(X_F2I(v), sign));
}

XDEF XF XFN(sin)(XCTX XF x) { return XFN(trig)(XCTX_ x, 0); }

XDEF XF XFN(cos)(XCTX XF x) { return XFN(trig)(XCTX_ x, 1); }

#endif

/* ----------------------------------------------------------------------------------------- pow */

/*
 * |x|^y = 2^(y log2|x|), the logarithm in two parts, good to about 2^-32 of its value.
 * log2 m = C s + s^3 P(s^2), s = f / (2 + f), C = 2 log2(e).
 */
XDEF XF XFN(pow)(XCTX XF x, XF y) {
    XF inf = X_I2F(XKI(0x7f800000));
    XF a = X_ABS(x);
    XB sub = X_LT(a, XK(0x1p-126f));
    XF xs = X_MUL(a, XK(0x1p23f));
    XF u = X_SEL(sub, xs, a);
    XI ui = XI_SUB(X_F2I(u), XKI(0x3f3504f3));
    XI em = XI_AND(ui, XKI(0xff800000));
    XF m = X_I2F(XI_SUB(X_F2I(u), em));
    XF f = X_SUB(m, XK(1.0f));
    XI es = XI_SEL(sub, XKI(0x0b800000), XKI(0));
    XF ei = X_CVT_I2F(XI_SUB(em, es));
    XF e = X_MUL(ei, XK(0x1p-23f));

    /* s = sh + sl */
    XF d = X_ADD(f, XK(2.0f));
    XF d2 = X_SUB(d, XK(2.0f));
    XF dl = X_SUB(f, d2);
    XF rc = X_DIV(XK(1.0f), d);
    XF sh = X_MUL(f, rc);
    XF s1 = X_FNMA(sh, d, f);
    XF s2 = X_FNMA(sh, dl, s1);
    XF sl = X_MUL(s2, rc);
    /* sh^3 = ch + cl */
    XF t = X_MUL(sh, sh);
    XF tl = X_FMS(sh, sh, t);
    XF ch = X_MUL(sh, t);
    XF c1 = X_FMS(sh, t, ch);
    XF cl = X_FMA(sh, tl, c1);
    /* (log2 m - C s) / s^3 in s^2: 2^-36.4 of log2. */
    XF p2 = X_FMA(t, XK(0x1.58b424p-2f), XK(0x1.a5cebep-2f));
    XF p1 = X_FMA(p2, t, XK(0x1.2776e2p-1f));
    XF p0 = X_FMA(p1, t, XK(0x1.ec709ep-1f));
    /* log2 m = zh + zl, then log2|x| = lh + ll */
    XF ah = X_MUL(sh, XK(0x1.715476p1f));
    XF al = X_FMS(sh, XK(0x1.715476p1f), ah);
    XF bh = X_MUL(ch, p0);
    XF bl = X_FMS(ch, p0, bh);
    XF zh = X_ADD(ah, bh);
    XF z1 = X_SUB(zh, ah);
    XF z2 = X_SUB(bh, z1);
    XF z3 = X_ADD(al, bl);
    XF z4 = X_FMA(cl, p0, z3);
    XF g = X_FMA(t, XK(0x1.715476p1f), XK(0x1.715476p1f));
    XF z5 = X_FMA(sl, g, z4);
    XF z6 = X_FMA(sh, XK(0x1.4ae0cp-25f), z5);
    XF zl = X_ADD(z2, z6);
    XF l0 = X_ADD(e, zh);
    XF l1 = X_SUB(l0, e);
    XF l2 = X_SUB(zh, l1);
    XF ll = X_ADD(l2, zl);
    XF l3 = X_SEL(X_EQ(a, XK(0.0f)), X_I2F(XKI(0xff800000)), l0);
    XF lh = X_SEL(X_LT(a, inf), l3, a);

    /* y log2|x| = ph + pl; y is limited so that infinite y meets log2 1 = 0 as a number */
    XF y0 = X_MAX(XK(-0x1p40f), y);
    XF yc = X_MIN(XK(0x1p40f), y0);
    XF ph = X_MUL(yc, lh);
    XF pe = X_FMS(yc, lh, ph);
    XF pf = X_FMA(yc, ll, pe);
    XF pa = X_ABS(ph);
    XF pl = X_SEL(X_LT(pa, XK(200.0f)), pf, XK(0.0f));
    XF c0 = X_MAX(XK(-152.0f), ph);
    XF c = X_MIN(XK(130.0f), c0);
    XF tt = X_ADD(c, XK(X_MAGIC));
    XF n = X_SUB(tt, XK(X_MAGIC));
    XF r0 = X_SUB(c, n);
    XF r = X_ADD(r0, pl);
    XF q = XFN(exp2_q)(XCTX_ r);
    XF w = X_FMA(r, q, XK(1.0f));
    XB neg = X_LT(ph, XK(0.0f));
    XF v = XFN(scale)(XCTX_ w, n, tt, neg);

    /* sign and special cases */
    XF yr = X_RINT(y);
    XB whole = X_EQ(yr, y);
    XF yh = X_MUL(y, XK(0.5f));
    XF yhr = X_RINT(yh);
    XB half = X_NE(yhr, yh);
    XB odd = XB_AND(whole, half);
    XI so = XI_SEL(odd, XKI(0x80000000), XKI(0));
    XI sign = XI_AND(X_F2I(x), so);
    XF vs = X_I2F(XI_XOR(X_F2I(v), sign));
    XB below = X_LT(x, XK(0.0f));
    XB finite = X_LT(a, inf);
    XB frac = XB_NOT(whole);
    XB b1 = XB_AND(below, finite);
    XB bad = XB_AND(b1, frac);
    XF vn = X_SEL(bad, X_I2F(XKI(0x7fc00000)), vs);
    XB x1 = X_EQ(x, XK(1.0f));
    XB yz = X_EQ(y, XK(0.0f));
    XB one = XB_OR(x1, yz);
    return X_SEL(one, XK(1.0f), vn);
}

/* --------------------------------------------------------------------------------- conversions */

/* To the 16 bits of a half, half to even. NaN gives 0x7e00. */
XDEF XI XFN(f32_to_f16)(XCTX XF x) {
    XI u = X_F2I(x);
    XI s0 = XI_SHR(u, 16);
    XI s = XI_AND(s0, XKI(0x8000));
    XI a = XI_AND(u, XKI(0x7fffffff));
    /* normal: exponent less 112, round by adding half an ulp less one plus the last bit kept */
    XI o0 = XI_SHR(a, 13);
    XI o = XI_AND(o0, XKI(1));
    XI n0 = XI_ADD(a, XKI(0xc8000fff));
    XI n1 = XI_ADD(n0, o);
    XI n = XI_SHR(n1, 13);
    /* subnormal: the addition rounds at 2^-24 */
    XF d = X_ADD(X_I2F(a), XK(0.5f));
    XI ds = XI_SUB(X_F2I(d), XKI(0x3f000000));
    XI r0 = XI_SEL(XI_LT(a, XKI(0x38800000)), ds, n);
    XI r1 = XI_SEL(XI_LT(a, XKI(0x477ff000)), r0, XKI(0x7c00));
    XI r2 = XI_OR(r1, s);
    return XI_SEL(XI_LT(XKI(0x7f800000), a), XKI(0x7e00), r2);
}

/* From the low 16 bits of h; the rest must be zero. */
XDEF XF XFN(f16_to_f32)(XCTX XI h) {
    XI s0 = XI_AND(h, XKI(0x8000));
    XI s = XI_SHL(s0, 16);
    XI a0 = XI_AND(h, XKI(0x7fff));
    XI a = XI_SHL(a0, 13);
    XI n = XI_ADD(a, XKI(0x38000000));
    XI e = XI_ADD(a, XKI(0x70000000));
    XI d0 = XI_ADD(a, XKI(0x38800000));
    XF d = X_SUB(X_I2F(d0), XK(0x1p-14f));
    XI r0 = XI_SEL(XI_LT(a0, XKI(0x0400)), X_F2I(d), n);
    XI r1 = XI_SEL(XI_LT(a0, XKI(0x7c00)), r0, e);
    return X_I2F(XI_OR(r1, s));
}

/* To the 16 bits of a bfloat16, half to even. NaN gives 0x7fc0. */
XDEF XI XFN(f32_to_bf16)(XCTX XF x) {
    XI u = X_F2I(x);
    XI o0 = XI_SHR(u, 16);
    XI o = XI_AND(o0, XKI(1));
    XI n0 = XI_ADD(u, XKI(0x7fff));
    XI n1 = XI_ADD(n0, o);
    XI n = XI_SHR(n1, 16);
    return XI_SEL(X_NE(x, x), XKI(0x7fc0), n);
}

XDEF XF XFN(bf16_to_f32)(XCTX XI h) { return X_I2F(XI_SHL(h, 16)); }

/* Truncation, saturating; NaN gives 0. */
XDEF XI XFN(f32_to_i32)(XCTX XF x) {
    XB big = X_LE(XK(0x1p31f), x);
    XB small = X_LE(x, XK(-0x1p31f));
    XF a = X_ABS(x);
    XF c = X_SEL(X_LT(a, XK(0x1p31f)), x, XK(0.0f));
    XI i = X_CVT_F2I(c);
    XI r = XI_SEL(big, XKI(0x7fffffff), i);
    return XI_SEL(small, XKI(0x80000000), r);
}

#undef XDEF
#undef XFN
#undef XF
#undef XI
#undef XB
#undef XCTX
#undef XCTX_
#undef XK
#undef XKI
#undef X_ADD
#undef X_SUB
#undef X_MUL
#undef X_DIV
#undef X_SQRT
#undef X_FMA
#undef X_FMS
#undef X_FNMA
#undef X_NEG
#undef X_ABS
#undef X_RINT
#undef X_MIN
#undef X_MAX
#undef X_LT
#undef X_LE
#undef X_EQ
#undef X_NE
#undef X_SEL
#undef X_F2I
#undef X_I2F
#undef X_CVT_I2F
#undef X_CVT_F2I
#undef X_SCALEF
#undef XI_ADD
#undef XI_SUB
#undef XI_AND
#undef XI_OR
#undef XI_XOR
#undef XI_SHL
#undef XI_SHR
#undef XI_SAR
#undef XI_LT
#undef XI_EQ
#undef XI_SEL
#undef XI_MUL
#undef XI_UMULH
#undef XI_SHLV
#undef XI_SHRV
#undef XB_AND
#undef XB_OR
#undef XB_NOT
