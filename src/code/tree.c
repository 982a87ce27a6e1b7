/* Parts of reductions and the order in which they are joined. See tree.h and strip.h.
 *
 * Identities are neutral bit for bit: join(identity, x) and join(x, identity) give x, but for a sum
 * of -0, which becomes 0. argmax of nothing has an index above every real one, so that the rule
 * "smaller index among equals" needs no exception. */
#include "code/tree.h"

#include <math.h>

enum { LEVELS = DVM_COUNT(((struct dvm_tree *)0)->level) };

/* The largest or the smallest number of a type. */
static struct dvm_part extreme(enum dvm_vt t, bool largest) {
    struct dvm_part p = {.idx = INT64_MAX};
    switch (t) {
    case DVM_VT_B1: p.v.i32 = largest; break;
    case DVM_VT_I32: p.v.i32 = largest ? INT32_MAX : INT32_MIN; break;
    case DVM_VT_I64: p.v.i64 = largest ? INT64_MAX : INT64_MIN; break;
    default: p.v.f = largest ? INFINITY : -INFINITY; break;
    }
    return p;
}

static struct dvm_part one(enum dvm_vt t) {
    struct dvm_part p = {.idx = 0};
    if (t == DVM_VT_F32)
        p.v.f = 1;
    else
        p.v.i64 = 1;
    return p;
}

struct dvm_part dvm_part_identity(int red_op, enum dvm_vt t) {
    switch (red_op) {
    case DVM_OP_PROD:
    case DVM_OP_ALL: return one(t);
    case DVM_OP_RMAX:
    case DVM_OP_ARGMAX: return extreme(t, false);
    case DVM_OP_RMIN:
    case DVM_OP_ARGMIN: return extreme(t, true);
    default: return (struct dvm_part){.v.bits = 0};
    }
}

static int64_t as_int(enum dvm_vt t, struct dvm_part p) {
    return t == DVM_VT_I64 ? p.v.i64 : p.v.i32;
}

/* a comes before b in the order of `<`; a NaN is neither. */
static bool less(enum dvm_vt t, struct dvm_part a, struct dvm_part b) {
    return t == DVM_VT_F32 ? a.v.f < b.v.f : as_int(t, a) < as_int(t, b);
}

static bool nan_part(enum dvm_vt t, struct dvm_part p) { return t == DVM_VT_F32 && isnan(p.v.f); }

static struct dvm_part arith(int red_op, enum dvm_vt t, struct dvm_part a, struct dvm_part b) {
    bool sum = red_op == DVM_OP_SUM;
    if (t == DVM_VT_F32) {
        a.v.f = sum ? a.v.f + b.v.f : a.v.f * b.v.f;
    } else { /* the low half of a 64-bit sum or product is the 32-bit one */
        uint64_t r = sum ? a.v.bits + b.v.bits : a.v.bits * b.v.bits;
        a.v.bits = t == DVM_VT_I32 ? (uint32_t)r : r;
    }
    return a;
}

static struct dvm_part arg(enum dvm_vt t, bool max, struct dvm_part a, struct dvm_part b) {
    bool na = nan_part(t, a), nb = nan_part(t, b);
    if (na != nb) return na ? a : b;
    if (!na && less(t, a, b)) return max ? b : a;
    if (!na && less(t, b, a)) return max ? a : b;
    return a.idx <= b.idx ? a : b;
}

struct dvm_part dvm_part_join(int red_op, enum dvm_vt t, struct dvm_part a, struct dvm_part b) {
    switch (red_op) {
    case DVM_OP_RMAX: return less(t, b, a) || nan_part(t, a) ? a : b;
    case DVM_OP_RMIN: return less(t, a, b) || nan_part(t, a) ? a : b;
    case DVM_OP_ANY: return a.v.bits ? a : b;
    case DVM_OP_ALL: return a.v.bits ? b : a;
    case DVM_OP_ARGMAX: return arg(t, true, a, b);
    case DVM_OP_ARGMIN: return arg(t, false, a, b);
    default: return arith(red_op, t, a, b);
    }
}

void dvm_tree_push(struct dvm_tree *t, int red_op, enum dvm_vt vt, struct dvm_part p) {
    int l = 0;
    for (; l < LEVELS - 1 && (t->count >> l & 1); l++)
        p = dvm_part_join(red_op, vt, t->level[l], p);
    t->level[l] = p;
    t->count++;
}

struct dvm_part dvm_tree_end(const struct dvm_tree *t, int red_op, enum dvm_vt vt) {
    struct dvm_part acc = dvm_part_identity(red_op, vt);
    bool any = false;
    for (int l = 0; l < LEVELS; l++) {
        if (!(t->count >> l & 1)) continue;
        acc = any ? dvm_part_join(red_op, vt, t->level[l], acc) : t->level[l];
        any = true;
    }
    return acc;
}
