/* Memory for the arguments of a kernel under judgement: every element that the strides reach, poison around and
 * between them, and numbers that depend on a seed and the element's number only. */
#ifndef DVM_TESTS_ORACLE_MEMORY_H
#define DVM_TESTS_ORACLE_MEMORY_H
#include <dvm/dvm.h>

struct oracle_memory {
    char *block; /* with a guard before and behind */
    size_t total;
    size_t bytes; /* without */
    char *data;   /* element [0, 0, ...] */
    size_t elem;
};
/* 0, or -1 without memory. */
int oracle_alloc(struct oracle_memory *m, dvm_dtype t, int rank, const int64_t *dims,
                 const int64_t *strides);
void oracle_release(struct oracle_memory *m);
uint64_t oracle_hash(const struct oracle_memory *m);
/* False when anything but the elements was written, or a bool is neither 0 nor 1. */
int oracle_inside(const struct oracle_memory *m, dvm_dtype t, int rank, const int64_t *dims,
                  const int64_t *strides);

enum oracle_style {
    ORACLE_PLAIN,   /* floats in [-2, 2), integers in [-8, 8] */
    ORACLE_SMALL,   /* whole numbers in [-3, 3] */
    ORACLE_WIDE,    /* every exponent of the dtype, every bit pattern of an integer */
    ORACLE_SPECIAL, /* one in four is NaN, infinite, zero, subnormal or extreme */
    ORACLE_CONSTANT /* value */
};
/* limit: an index in [-limit, limit); 0: none. */
struct oracle_fill {
    enum oracle_style style;
    double value;
    uint64_t seed;
    int64_t limit;
};
void oracle_fill(const struct oracle_memory *m, dvm_dtype t, int rank, const int64_t *dims,
                 const int64_t *strides, const struct oracle_fill *f);

double oracle_get(dvm_dtype t, const void *p);
void oracle_put(dvm_dtype t, void *p, double v);
void oracle_each(int rank, const int64_t *dims, const int64_t *strides,
                 void (*visit)(void *arg, int64_t k, int64_t offset), void *arg);
#endif
