/* See meet.h. The search takes the terms from the largest coefficient down: what is left must lie between 0 and what the
 * smaller terms can reach, and be a multiple of their greatest common divisor. Where each stride steps past all smaller
 * ones, as in every view of a dense tensor, that leaves one or two candidates a term. */
#include "base/meet.h"

enum { STEPS = 10000 };

static int64_t gcd(int64_t a, int64_t b) {
    while (b) {
        int64_t t = a % b;
        a = b;
        b = t;
    }
    return a;
}

void dvm_terms_add(struct dvm_terms *s, int64_t c, int64_t last) {
    if (c == 0 || last <= 0) return;
    if (c < 0) { /* x = last - x' */
        s->d -= c * last;
        c = -c;
    }
    for (int k = 0; k < s->n; k++)
        if (s->t[k].c == c) { /* the sum of both takes every value */
            s->t[k].last += last;
            return;
        }
    s->t[s->n].c = c;
    s->t[s->n++].last = last;
}

static void sort(struct dvm_terms *s) {
    for (int i = 1; i < s->n; i++)
        for (int k = i; k > 0 && s->t[k - 1].c < s->t[k].c; k--) {
            int64_t c = s->t[k].c, last = s->t[k].last;
            s->t[k] = s->t[k - 1];
            s->t[k - 1].c = c;
            s->t[k - 1].last = last;
        }
}

/* What the terms from k on can make. */
struct rest {
    int64_t reach, unit;
};

static bool search(const struct dvm_terms *s, const struct rest *r, int k, int64_t d, int *steps) {
    if (d < 0 || d > r[k].reach) return false;
    if (d == 0) return true;
    if (d % r[k].unit != 0) return false;
    if (k == s->n - 1) return true;
    const int64_t c = s->t[k].c, most = d / c, over = d - r[k + 1].reach;
    int64_t from = over > 0 ? (over + c - 1) / c : 0;
    const int64_t to = DVM_MIN(most, s->t[k].last), unit = r[k + 1].unit;
    /* d - c x is a multiple of unit for every period-th x. */
    const int64_t period = unit / gcd(unit, c);
    for (int64_t tried = 0; from <= to && tried < period && (d - c * from) % unit != 0; tried++) {
        if (--*steps < 0) return true;
        from++;
    }
    for (int64_t x = from; x <= to; x += period) {
        if (--*steps < 0) return true;
        if (search(s, r, k + 1, d - c * x, steps)) return true;
    }
    return false;
}

bool dvm_terms_meet(struct dvm_terms *s) {
    struct rest r[2 * DVM_MAX_RANK + 2] = {{0}};
    int steps = STEPS;
    sort(s);
    for (int k = s->n - 1; k >= 0; k--) {
        r[k].reach = r[k + 1].reach + s->t[k].c * s->t[k].last;
        r[k].unit = gcd(s->t[k].c, r[k + 1].unit);
    }
    return s->n ? search(s, r, 0, s->d, &steps) : s->d == 0;
}

/* Two places with one address differ first at some axis i, by at least 1, and at any later one by anything. */
bool dvm_strides_meet(int rank, const int64_t *d, const int64_t *stride) {
    for (int i = 0; i < rank; i++) {
        struct dvm_terms s = {.d = -stride[i]};
        if (d[i] < 2) continue;
        dvm_terms_add(&s, stride[i], d[i] - 2);
        for (int j = i + 1; j < rank; j++) {
            s.d += stride[j] * (d[j] - 1);
            dvm_terms_add(&s, stride[j], 2 * (d[j] - 1));
        }
        if (stride[i] == 0 || dvm_terms_meet(&s)) return true;
    }
    return false;
}
