/* Tile kernels: the tables that every ISA level fills. One body per op family stands in a k_*_tmpl.c, which the build
 * compiles once per level; cpu_isa.c picks the level.
 *
 * A tile kernel works on n consecutive elements. Tiles hold values in the type they are computed in: b1 and i32 as
 * int32_t, i64 as int64_t, f32 as float, f64 as double. d never overlaps a, b, c. Nothing is read or written beyond
 * element n - 1. */
#ifndef DVM_VM_CPU_K_H
#define DVM_VM_CPU_K_H
#include "code/strip.h"

/* One macro for the type of most kernels; operands that an operation lacks are not read. */
#define DVM_K_ARGS                                                                   \
    void *DVM_RESTRICT d_, const void *DVM_RESTRICT a_, const void *DVM_RESTRICT b_, \
        const void *DVM_RESTRICT c_, int64_t n
typedef void dvm_k_fn(DVM_K_ARGS);

/* Which operands point at one number instead of n: index of the variant. An absent variant is NULL. */
enum { DVM_K_SA = 1, DVM_K_SB = 2, DVM_K_SC = 4, DVM_K_NVAR = 8 };

struct dvm_k_f32 {
    dvm_k_fn *op[DVM_NOP][DVM_K_NVAR];
};
/* Two operations at once: first add, sub or mul, then one of these on its result t. */
enum dvm_k_post {
    DVM_K_POST_ADD,
    DVM_K_POST_SUB,  /* t - c */
    DVM_K_POST_RSUB, /* c - t */
    DVM_K_POST_MUL,
    DVM_K_POST_ADD_RELU, /* three at once */
    DVM_K_POST_RELU,
    DVM_K_POST_SQUARE,
    DVM_K_NPOST
};
enum { DVM_K_NFIRST = 3 };
struct dvm_k_pair {
    dvm_k_fn *op[DVM_K_NFIRST][DVM_K_NPOST][DVM_K_NVAR];
};
struct dvm_k_math { /* what is expanded, f32 */
    dvm_k_fn *op[DVM_NOP];
    dvm_k_fn *fma[DVM_K_NVAR];
};
struct dvm_k_int {
    dvm_k_fn *i32[DVM_NOP][DVM_K_NVAR];
    dvm_k_fn *i64[DVM_NOP][DVM_K_NVAR];
    dvm_k_fn *b1[DVM_NOP][DVM_K_NVAR];
};
struct dvm_k_cast {
    dvm_k_fn *cast[DVM_NVT][DVM_NVT]; /* [from][to] */

    dvm_k_fn *splat4, *splat8; /* d = n copies of a[0] */
    /* d = n copies of a[0], n copies of a[1], ... a[k - 1] */
    void (*spread4)(void *DVM_RESTRICT d, const void *a, int64_t n, int64_t k);
    void (*spread8)(void *DVM_RESTRICT d, const void *a, int64_t n, int64_t k);
};

/* Memory. Strides in bytes. */
struct dvm_k_mem {
    dvm_k_fn *load[DVM_NDTYPE];  /* a is contiguous memory, d a tile */
    dvm_k_fn *store[DVM_NDTYPE]; /* a is a tile, d contiguous memory */
    dvm_k_fn
        *rnd[DVM_NDTYPE]; /* tile to tile, as the dtype would hold it; NULL: it holds every value */
    void (*load_str[DVM_NDTYPE])(void *d, const char *s, int64_t cs, int64_t n);
    void (*store_str[DVM_NDTYPE])(char *d, int64_t cs, const void *a, int64_t n);
    /* cols columns of rows rows; row r of the result starts at d + r * pitch elements. For rs smaller than cs. */
    void (*load_block[DVM_NDTYPE])(void *d, int64_t pitch, const char *s, int64_t rs, int64_t cs,
                                   int64_t rows, int64_t cols);
    /* Element at base + j * cs + index[j] * gs. False: some index was outside [-gn, gn). */
    bool (*pick[DVM_NDTYPE][2])(void *d, const char *base, int64_t cs, const void *index,
                                int64_t gs, int64_t gn, int64_t n);
    dvm_k_fn *stream[DVM_NDTYPE]; /* store past the caches; NULL: does not pay */
    void (*fence)(void);
    void (*prefetch)(const void *a, int64_t bytes);
    void (*iota32)(int32_t *d, int64_t base, int64_t step, int64_t n);
    void (*iota64)(int64_t *d, int64_t base, int64_t step, int64_t n);
};

/* Reductions, in the type of the value. any and all are max and min. */
enum dvm_k_red {
    DVM_K_SUM,
    DVM_K_PROD,
    DVM_K_MAX,
    DVM_K_MIN,
    DVM_K_ARGMAX,
    DVM_K_ARGMIN,
    DVM_K_NRED
};
enum dvm_k_redtype { DVM_K_RF32, DVM_K_RI32, DVM_K_RI64, DVM_K_NREDT };
struct dvm_k_fold {
    /* k rows of n <= 1024 elements, row tree without the blocks. id: identity. */
    void (*rows)(void *DVM_RESTRICT out, const void *x, const void *y, int64_t n, int64_t k,
                 const void *id);
    /* 64 lanes: lane l folds x[l], x[l + 64], ... */
    void (*lanes)(void *DVM_RESTRICT acc, const void *x, const void *y, int64_t n);
    void (*halves)(void *acc); /* 64 lanes to acc[0] */
    /* acc[j] folds x[j] of `rows` rows in order; rows are xs, ys bytes apart. */
    void (*cols)(void *DVM_RESTRICT acc, const void *x, int64_t xs, const void *y, int64_t ys,
                 int64_t rows, int64_t n);
    /* argmax, argmin: rows gives the value, index the place of the first best of k rows; cols folds row number r. */
    void (*arg_rows)(void *out, int64_t *index, const void *x, int64_t n, int64_t k);
    void (*arg_col)(void *DVM_RESTRICT acc, int64_t *DVM_RESTRICT index, const void *DVM_RESTRICT x,
                    int64_t r, int64_t n);
};
struct dvm_k_red_table {
    struct dvm_k_fold fold[DVM_K_NRED][DVM_K_NREDT];
    struct dvm_k_fold dot; /* sum of x * y, f32; the others do not read y */
    /* sum: of what came before in the row, all bits 0 at its start; a double for floats. */
    void (*scan[DVM_K_NREDT])(void *DVM_RESTRICT d, const void *DVM_RESTRICT x, int64_t n,
                              void *sum);
};

struct dvm_k {
    const char *isa;
    const struct dvm_k_f32 *f32;
    const struct dvm_k_pair *pair;
    const struct dvm_k_math *math;
    const struct dvm_k_int *ints;
    const struct dvm_k_cast *cast;
    const struct dvm_k_mem *mem;
    const struct dvm_k_red_table *red;
};

#define DVM_K_LEVEL(isa)                                 \
    extern const struct dvm_k_f32 dvm_k_f32_##isa;       \
    extern const struct dvm_k_pair dvm_k_pair_##isa;     \
    extern const struct dvm_k_math dvm_k_math_##isa;     \
    extern const struct dvm_k_int dvm_k_int_##isa;       \
    extern const struct dvm_k_cast dvm_k_cast_##isa;     \
    extern const struct dvm_k_mem dvm_k_mem_##isa;       \
    extern const struct dvm_k_red_table dvm_k_red_##isa;
DVM_K_LEVEL(base)
DVM_K_LEVEL(avx2)
DVM_K_LEVEL(avx512)
#endif
