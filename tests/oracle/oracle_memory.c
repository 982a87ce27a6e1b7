/* See oracle_memory.h. */
#include "oracle_memory.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle_int.h"

enum { ALIGN = 64, POISON = 0xa7 };
static const int64_t MOST = (int64_t)1 << 32; /* elements from first to last */

/* ------------------------------------------------------------------ elements */

static uint16_t to_half(double v) {
    int sign = signbit(v) ? 0x8000 : 0, e;
    double a = fabs(round_to(DVM_F16, v));
    if (isnan(v)) return 0x7e00;
    if (isinf(a)) return (uint16_t)(sign | 0x7c00);
    if (a < 0x1p-14) return (uint16_t)(sign | (int)(a * 0x1p24));
    double m = frexp(a, &e); /* in [0.5, 1) */
    return (uint16_t)(sign | ((e + 14) << 10) | ((int)(m * 2048) - 1024));
}

void oracle_put(dvm_dtype t, void *p, double v) {
    union {
        uint8_t u8;
        uint16_t u16;
        int32_t i32;
        int64_t i64;
        float f;
        double d;
        uint32_t u32;
    } x = {.i64 = 0};
    switch (t) {
    case DVM_BOOL: x.u8 = v != 0; break;
    case DVM_U8:
    case DVM_I8: x.u8 = (uint8_t)to_int(v, t); break;
    case DVM_F16: x.u16 = to_half(v); break;
    case DVM_BF16:
        x.f = (float)round_to(DVM_BF16, v);
        x.u16 = isnan(v) ? 0x7fc0 : (uint16_t)(x.u32 >> 16);
        break;
    case DVM_F32: x.f = (float)v; break;
    case DVM_I32: x.i32 = (int32_t)to_int(v, t); break;
    case DVM_I64: x.i64 = to_int(v, t); break;
    default: x.d = v;
    }
    memcpy(p, &x, size_of(t));
}

double oracle_get(dvm_dtype t, const void *p) {
    elem x = load_elem(t, p);
    return is_f(t) ? x.v : (double)x.i;
}

void oracle_each(int rank, const int64_t *dims, const int64_t *strides,
                 void (*visit)(void *arg, int64_t k, int64_t offset), void *arg) {
    int64_t at[R10] = {0}, n = 1, off = 0;
    for (int i = 0; i < rank; i++)
        if (dims[i] == 0) return;
    for (int i = 0; i < rank; i++) n *= dims[i];
    for (int64_t k = 0; k < n; k++) {
        visit(arg, k, off);
        for (int i = rank - 1; i >= 0; i--) {
            off += strides[i];
            if (++at[i] < dims[i]) break;
            off -= strides[i] * dims[i];
            at[i] = 0;
        }
    }
}

/* ------------------------------------------------------------------ blocks */

int oracle_alloc(struct oracle_memory *m, dvm_dtype t, int rank, const int64_t *dims,
                 const int64_t *strides) {
    int64_t lo = 0, hi = 0, n = 1, far;
    for (int i = 0; i < rank; i++) n = dims[i] ? n : 0;
    for (int i = 0; n && i < rank; i++) {
        int64_t *end = strides[i] < 0 ? &lo : &hi;
        if (__builtin_mul_overflow(strides[i], dims[i] - 1, &far) ||
            __builtin_add_overflow(*end, far, end) || *end < -MOST || *end > MOST)
            return -1;
    }
    m->elem = size_of(t);
    m->bytes = n ? (size_t)(hi - lo + 1) * m->elem : 0;
    /* As large as the data, so that wrong strides show as a message and not as a damaged heap. */
    size_t guard = m->bytes < (1 << 20) ? m->bytes : 1 << 20;
    guard = (guard + 2 * ALIGN) / ALIGN * ALIGN;
    m->total = (m->bytes + 2 * guard + ALIGN) / ALIGN * ALIGN;
    m->block = aligned_alloc(ALIGN, m->total);
    if (!m->block) return -1;
    memset(m->block, POISON, m->total);
    m->data = m->block + guard - (n ? lo : 0) * (int64_t)m->elem;
    return 0;
}

void oracle_release(struct oracle_memory *m) {
    free(m->block);
    *m = (struct oracle_memory){0};
}

uint64_t oracle_hash(const struct oracle_memory *m) {
    uint64_t h = 1;
    for (size_t k = 0; m->block && k < m->total; k++)
        h = (h ^ (unsigned char)m->block[k]) * UINT64_C(0x100000001b3);
    return h;
}

struct touch {
    char *data;
    size_t elem;
    bool is_bool, odd;
};
static void poison_again(void *arg, int64_t k, int64_t offset) {
    struct touch *t = arg;
    unsigned char *p = (unsigned char *)t->data + offset * (int64_t)t->elem;
    (void)k;
    t->odd |= t->is_bool && *p > 1;
    memset(p, POISON, t->elem);
}

/* On a copy: with the elements poisoned again, everything is poison. */
int oracle_inside(const struct oracle_memory *m, dvm_dtype t, int rank, const int64_t *dims,
                  const int64_t *strides) {
    size_t n = m->total;
    char *copy = malloc(n);
    if (!copy) return 0;
    memcpy(copy, m->block, n);
    struct touch x = {copy + (m->data - m->block), m->elem, t == DVM_BOOL, false};
    oracle_each(rank, dims, strides, poison_again, &x);
    bool inside = !x.odd;
    for (size_t k = 0; k < n; k++) inside &= (unsigned char)copy[k] == POISON;
    free(copy);
    return inside;
}

/* ------------------------------------------------------------------ numbers */

static uint64_t mixed(uint64_t x) {
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

static double plain(dvm_dtype t, uint64_t r) {
    if (t == DVM_BOOL) return (double)(r & 1);
    if (t == DVM_U8) return (double)(r & 255);
    if (!is_f(t)) return (double)(r % 17) - 8;
    return (double)(r >> 11) * 0x1p-51 - 2;
}

static double special(dvm_dtype t, uint64_t r) {
    static const double floats[] = {NAN,  INFINITY, -INFINITY, 0.0,   -0.0, 1e-40, -1e-45,
                                    6e-8, FLT_MAX,  -FLT_MAX,  65504, 1,    -1,    0.5};
    static const double ints[] = {0, 1, -1, INT32_MAX, INT32_MIN, 31, 32, 63};
    if (r % 4 || t == DVM_BOOL || t == DVM_U8 || t == DVM_I8) return plain(t, r >> 8);
    if (is_f(t)) return floats[(r >> 8) % (sizeof floats / sizeof *floats)];
    return ints[(r >> 8) % (sizeof ints / sizeof *ints)];
}

struct fill {
    const struct oracle_fill *f;
    dvm_dtype t;
    char *data;
};
static void fill_one(void *arg, int64_t k, int64_t offset) {
    struct fill *s = arg;
    char *p = s->data + offset * (int64_t)size_of(s->t);
    uint64_t r = mixed(s->f->seed + (uint64_t)k * UINT64_C(0x2545f4914f6cdd1d));
    double v;
    if (s->f->limit > 0) {
        oracle_put(s->t, p,
                   (double)(int64_t)(r % (uint64_t)(2 * s->f->limit)) - (double)s->f->limit);
        return;
    }
    switch (s->f->style) {
    case ORACLE_SMALL:
        v = s->t == DVM_BOOL || s->t == DVM_U8 ? (double)(r & 1) : (double)(r % 7) - 3;
        break;
    case ORACLE_SPECIAL: v = special(s->t, r); break;
    case ORACLE_CONSTANT: v = s->f->value; break;
    case ORACLE_WIDE:
        if (!is_f(s->t) && s->t != DVM_BOOL) {
            memcpy(p, &r, size_of(s->t));
            return;
        }
        v = s->t == DVM_BOOL
                ? (double)(r & 1)
                : ldexp(plain(DVM_F32, r), (int)(mixed(r) % (s->t == DVM_F16 ? 30 : 250)) -
                                               (s->t == DVM_F16 ? 15 : 125));
        break;
    default: v = plain(s->t, r);
    }
    oracle_put(s->t, p, v);
}

void oracle_fill(const struct oracle_memory *m, dvm_dtype t, int rank, const int64_t *dims,
                 const int64_t *strides, const struct oracle_fill *f) {
    struct oracle_fill own = *f;
    own.seed = mixed(f->seed);
    struct fill s = {&own, t, m->data};
    oracle_each(rank, dims, strides, fill_one, &s);
}
