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
    int prec = 1;
    for (; prec < 18; prec++) {
        snprintf(buf, sizeof buf, "%.*g", prec, v);
        double again = strtod(buf, NULL);
        if (t == DVM_F64 ? again == v : (float)again == (float)v) break;
    }
    /* 10 rather than 1e+01 */
    int whole = fabs(v) >= 1 && fabs(v) < 1e9 ? 1 + (int)floor(log10(fabs(v))) : 0;
    fprintf(f, "%.*g", prec > whole ? prec : whole, v);
}

void print_type(FILE *f, dvm_dtype t, int rank, const int64_t *dims) {
    fprintf(f, "%s[", dvm_dtype_name(t));
    for (int i = 0; i < rank; i++) fprintf(f, "%s%lld", i ? ", " : "", (long long)dims[i]);
    fputs("]", f);
}

static void print_element(FILE *f, dvm_dtype t, const char *p) {
    int64_t i;
    if (t == DVM_I64) {
        memcpy(&i, p, sizeof i);
        fprintf(f, "%lld", (long long)i);
    } else {
        print_number(f, t, oracle_get(t, p));
    }
}

enum { SHOWN = 12 /* of each axis; the middle is left out */ };

static void print_axis(FILE *f, const dvm_arg *a, int axis, int64_t off) {
    dvm_dtype t = (dvm_dtype)a->dtype;
    if (axis == a->rank) {
        print_element(f, t, (const char *)a->data + off * (int64_t)dvm_dtype_size(t));
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
