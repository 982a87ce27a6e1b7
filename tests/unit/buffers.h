/* Buffers of f32 that a problem of attention is made of: inputs random, outputs poisoned. */
#ifndef DVM_TESTS_UNIT_BUFFERS_H
#define DVM_TESTS_UNIT_BUFFERS_H
#include <math.h>
#include <stdint.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <dvm/dvm.h>

struct form {
    const int64_t *dims;
    int rank;
};

static inline float rnd(uint64_t *seed) {
    *seed = *seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (float)((int64_t)(*seed >> 40) - (1 << 23)) / (1 << 22);
}

static inline size_t count(const dvm_arg *a) {
    size_t n = 1;
    for (int i = 0; i < a->rank; i++) n *= (size_t)a->dims[i];
    return n;
}

/* n buffers; from `out` on they are outputs. */
static inline void buffers_open(dvm_arg *a, const struct form *form, int n, int out) {
    uint64_t seed = 7;
    for (int i = 0; i < n; i++) {
        a[i] = (dvm_arg){.dims = form[i].dims, .rank = form[i].rank, .dtype = DVM_F32};
        size_t size = count(&a[i]);
        float *f = malloc(size * sizeof *f);
        assert_non_null(f);
        for (size_t j = 0; j < size; j++) f[j] = i < out ? rnd(&seed) : NAN;
        a[i].data = f;
    }
}

/* Of the bits of all outputs, which must be finite. */
static inline uint64_t buffers_hash(const dvm_arg *a, int n, int out) {
    uint64_t h = 14695981039346656037u;
    for (int i = out; i < n; i++) {
        const uint32_t *u = a[i].data;
        for (size_t j = 0; j < count(&a[i]); j++) {
            float f = ((const float *)a[i].data)[j];
            if (!isfinite(f)) fail_msg("buffer %d, element %zu is %g", i, j, (double)f);
            h = (h ^ u[j]) * 1099511628211u;
        }
    }
    return h;
}

static inline bool buffers_untouched(const dvm_arg *a, int n, int out) {
    for (int i = out; i < n; i++)
        for (size_t j = 0; j < count(&a[i]); j++)
            if (!isnan(((const float *)a[i].data)[j])) return false;
    return true;
}

/* A call that must be refused: its status, a part of its text, and nothing written. */
static inline void buffers_refused(dvm_status st, dvm_status want, const char *text,
                                   const dvm_arg *a, int n, int out) {
    if (st != want || !strstr(dvm_error_text(), text))
        fail_msg("status %d, text \"%s\"; wanted %d, \"%s\"", (int)st, dvm_error_text(), (int)want,
                 text);
    assert_true(buffers_untouched(a, n, out));
}
#endif
