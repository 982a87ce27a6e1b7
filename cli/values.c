/* Elements in memory and on the screen. */
#include "cli.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

double now_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double from_half(uint16_t h) {
    int e = h >> 10 & 31, m = h & 1023;
    double v = e == 31 ? (m ? NAN : INFINITY) : e ? ldexp(1024 + m, e - 25) : ldexp(m, -24);
    return h >> 15 ? -v : v;
}

static uint16_t to_half(double v) {
    uint16_t sign = signbit(v) ? 0x8000 : 0;
    double a = fabs(v);
    if (isnan(v)) return 0x7e00;
    if (a == 0) return sign;
    int e;
    frexp(a, &e);
    e = e - 1 < -14 ? -14 : e - 1;
    double m = rint(ldexp(a, 10 - e)); /* 1024 .. 2048, below 1024 when subnormal */
    if (m >= 2048) {
        m /= 2;
        e++;
    }
    if (e > 15) return sign | 0x7c00;
    return (uint16_t)(sign | (m < 1024 ? (int)m : ((e + 15) << 10) + (int)m - 1024));
}

static uint16_t to_bf16(double v) {
    float f = (float)v;
    uint32_t u;
    memcpy(&u, &f, 4);
    if (isnan(v)) return 0x7fc0;
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

double get_element(dvm_dtype t, const void *p) {
    union {
        uint8_t u8;
        int8_t i8;
        uint16_t u16;
        int32_t i32;
        int64_t i64;
        float f;
        double d;
        uint32_t u32;
    } v = {.i64 = 0};
    memcpy(&v, p, dvm_dtype_size(t));
    switch (t) {
    case DVM_BOOL:
    case DVM_U8: return v.u8;
    case DVM_I8: return v.i8;
    case DVM_F16: return from_half(v.u16);
    case DVM_BF16: v.u32 = (uint32_t)v.u16 << 16; return v.f;
    case DVM_F32: return v.f;
    case DVM_I32: return v.i32;
    case DVM_I64: return (double)v.i64;
    default: return v.d;
    }
}

void put_element(dvm_dtype t, void *p, double x) {
    union {
        uint8_t u8;
        uint16_t u16;
        int32_t i32;
        int64_t i64;
        float f;
        double d;
    } v = {.i64 = 0};
    switch (t) {
    case DVM_BOOL: v.u8 = x != 0; break;
    case DVM_U8:
    case DVM_I8: v.u8 = (uint8_t)(int64_t)x; break;
    case DVM_F16: v.u16 = to_half(x); break;
    case DVM_BF16: v.u16 = to_bf16(x); break;
    case DVM_F32: v.f = (float)x; break;
    case DVM_I32: v.i32 = (int32_t)x; break;
    case DVM_I64: v.i64 = (int64_t)x; break;
    default: v.d = x;
    }
    memcpy(p, &v, dvm_dtype_size(t));
}

/* Shortest text that reads back as the same f32 (f64: as the same f64). */
void print_number(FILE *f, dvm_dtype t, double v) {
    char buf[40];
    if (t == DVM_BOOL) {
        fputs(v != 0 ? "true" : "false", f);
        return;
    }
    if (t != DVM_F16 && t != DVM_BF16 && t != DVM_F32 && t != DVM_F64) {
        fprintf(f, "%.0f", v);
        return;
    }
    if (isnan(v)) {
        fputs("nan", f);
        return;
    }
    for (int prec = 1; prec < 18; prec++) {
        snprintf(buf, sizeof buf, "%.*g", prec, v);
        double again = strtod(buf, NULL);
        if (t == DVM_F64 ? again == v : (float)again == (float)v) break;
    }
    fputs(buf, f);
}

void print_type(FILE *f, dvm_dtype t, int rank, const int64_t *dims) {
    fprintf(f, "%s[", dvm_dtype_name(t));
    for (int i = 0; i < rank; i++) fprintf(f, "%s%lld", i ? ", " : "", (long long)dims[i]);
    fputs("]", f);
}

int64_t element_count(const dvm_arg *a) {
    int64_t n = 1;
    for (int i = 0; i < a->rank; i++) n *= a->dims[i];
    return n;
}

void each_element(int rank, const int64_t *dims, const int64_t *strides,
                  void (*visit)(void *arg, int64_t k, int64_t offset), void *arg) {
    int64_t at[DVM_MAX_RANK] = {0}, n = 1, off = 0;
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

enum { SHOWN = 8 /* of each axis; the middle is left out */ };

static void print_axis(FILE *f, const dvm_arg *a, int axis, int64_t off) {
    if (axis == a->rank) {
        print_number(
            f, (dvm_dtype)a->dtype,
            get_element((dvm_dtype)a->dtype,
                        (char *)a->data + off * (int64_t)dvm_dtype_size((dvm_dtype)a->dtype)));
        return;
    }
    int64_t n = a->dims[axis];
    bool inner = axis == a->rank - 1;
    fputs("[", f);
    for (int64_t i = 0; i < n; i++) {
        if (i) fprintf(f, inner ? ", " : ",\n%*s", axis + 3, "");
        if (n > SHOWN && i == SHOWN / 2) {
            fputs("...", f);
            i = n - SHOWN / 2 - 1;
            continue;
        }
        print_axis(f, a, axis + 1, off + i * a->strides[axis]);
    }
    fputs("]", f);
}

void print_values(FILE *f, const dvm_arg *a) {
    fputs("  ", f);
    print_axis(f, a, 0, 0);
    fputs("\n", f);
}
