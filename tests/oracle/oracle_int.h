/* Inside of the oracle. */
#ifndef DVM_TESTS_ORACLE_INT_H
#define DVM_TESTS_ORACLE_INT_H
#include <math.h>
#include <stdbool.h>

#include "oracle.h"

enum { R10 = DVM_MAX_RANK };

/* One element. Floats: v, right within e. Bool and integers: i, and e is 0 or infinity. Infinity: anything. */
typedef struct elem {
    union {
        double v;
        int64_t i;
    };
    float e;
} elem;

static inline bool any(elem x) { return isinf(x.e); }
static inline bool is_f(dvm_dtype t) {
    return t == DVM_F16 || t == DVM_BF16 || t == DVM_F32 || t == DVM_F64;
}
static inline bool is_16(dvm_dtype t) { return t == DVM_F16 || t == DVM_BF16; }

/* ---- oracle_num.c */
size_t size_of(dvm_dtype t);
elem undecided(void);
elem of_float(double v, double e);
elem of_int(int64_t i);
double ulp_of(dvm_dtype t, double v);
double round_to(dvm_dtype t, double v);
int64_t wrap_to(dvm_dtype t, int64_t v);
int64_t to_int(double v, dvm_dtype t); /* as a cast */
elem load_elem(dvm_dtype t, const void *p);
/* v rounded to a float dtype, with its bound. */
elem rounded(dvm_dtype t, double v, double e);
/* Result of an operation with exact value y, operand error e and tolerance class "E", "R", "U1", "U2". */
elem finish(dvm_dtype t, double y, double e, const char *tol, bool strict);
elem cast_elem(dvm_dtype from, dvm_dtype to, elem x);

/* ---- oracle_ops.c: t is the dtype of the value operands */
elem apply(dvm_op op, dvm_dtype t, const elem x[3], bool strict);
elem reduce(dvm_op op, dvm_dtype from, dvm_dtype to, const elem *x, int64_t n, bool strict);
/* Sum of a[k * sa] b[k * sb] as a matrix product adds it. */
elem dot(dvm_dtype t, const elem *a, int64_t sa, const elem *b, int64_t sb, int64_t n, bool strict);
void running_sum(dvm_dtype t, elem *x, int64_t n, bool strict);

/* ---- the program */
enum dimx_kind { DX_NUM, DX_NAME, DX_SCALAR, DX_OF, DX_OP };
struct dimx {
    enum dimx_kind kind;
    int op;    /* DX_OP: DVM_DIM_* */
    int64_t n; /* DX_NUM; DX_NAME: index of the name; DX_SCALAR, DX_OF: value */
    int64_t axis;
    struct dimx *a, *b;
};

struct value {
    dvm_op op;
    dvm_dtype dtype;
    int nin;
    int *in;
    struct dimx *d1[R10], *d2[R10], *d3[R10]; /* dims or start; strides or size; step */
    int n1, n2, n3;
    int64_t axes[R10], axis;
    int naxes, mode;
    bool trans_a, trans_b, by_rows, sizes; /* matrix products */
    bool keep, any_rank, leaf;             /* leaf: scalar, constant or size */
    elem constant;
    int arg;          /* number of the argument or output */
    const char *name; /* of an argument */
    /* of one run */
    int rank;
    int64_t dims[R10], n;
    int64_t ia[R10], ib[R10], ic[R10]; /* d1, d2, d3 evaluated */
    elem *x;
    int uses, left;
};

struct known {
    char *name;
    int value; /* the scalar or the argument of any rank; -1: a size */
    bool set;
    double v;
    int rank; /* of an argument of any rank; -1 */
    int64_t dims[R10];
};

struct oracle {
    char *name;
    uint32_t flags;
    struct value *v;
    int nv, capv;
    struct known *known;
    int nknown;
    int *in, *out; /* values */
    int nin, nout;
    struct oracle_io *io_in, *io_out;
    void *blocks; /* everything else, freed at the end */
};

void *keep_block(oracle *o, size_t n);
#endif
