/* An independent, slow evaluator of the text form: the judge of `dvm run --check` and of the fuzzers. It shares
 * no code with the library (only the tables of <dvm/dvm.h>), reads the text by itself, and computes every value
 * as a double with a bound on what a correct implementation may differ by.
 *
 * The rule behind the bounds (docs/testing.md):
 *   - exact inputs and correctly rounded operations (+ - * / sqrt fma floor ..., class R and E) give the one
 *     right f32 result: bound 0
 *   - a U1 or U2 operation adds 1 or 2 units in the last place of f32
 *   - an operation with a 16-bit result may be rounded to it or not until the value is stored or cast: half a
 *     unit of the 16-bit type is added (with `strict` it is rounded, always)
 *   - a bound goes through an operation by evaluating it at the ends of its operands' intervals
 *   - sum adds h * 2^-24 * sum |x|, h = min(n, 96 + 2 log2 n): what any of the fixed trees may lose; cumsum is
 *     kept in f64 and adds n * 2^-52 * sum |x|
 *   - prod adds n roundings of the product
 *   - a result that the bounds leave open (a comparison of overlapping intervals, floor over a step to an index,
 *     an overflow that may or may not happen) is undecided: anything is accepted, and counted
 *   - an output is right when it lies in its interval, whose ends are rounded to the dtype of the output */
#ifndef DVM_TESTS_ORACLE_H
#define DVM_TESTS_ORACLE_H
#include <stddef.h>
#include <stdint.h>

#include <dvm/dvm.h>

typedef struct oracle oracle;

/* The first kernel of the text. NULL: err says why. */
oracle *oracle_read(const char *text, size_t n, char *err, size_t cap);
void oracle_free(oracle *o);
const char *oracle_name(const oracle *o);
uint32_t oracle_flags(const oracle *o); /* DVM_DYN ... */

/* Sizes and scalar arguments by name, before oracle_bind: a size of the header ("m"), an unnamed one ("x.0"), or a
 * scalar. 0 when there is no such name. */
int oracle_set(oracle *o, const char *name, double v);
/* Shape of an argument of any rank. */
int oracle_set_shape(oracle *o, const char *name, int rank, const int64_t *dims);
/* Name i of what oracle_set knows; NULL behind the last. set: has a value. */
const char *oracle_known(const oracle *o, int i, int *set);
/* Shapes of everything. -1: err says why (a size without a value, shapes that do not fit). */
int oracle_bind(oracle *o, char *err, size_t cap);

/* Arguments, after oracle_bind. strides in elements (dense unless declared). limit: an integer argument that is used
 * as an index stays in [-limit, limit); 0: no index. */
struct oracle_io {
    const char *name;
    dvm_dtype dtype;
    int scalar;
    int rank;
    int64_t dims[DVM_MAX_RANK], strides[DVM_MAX_RANK];
    int64_t limit;
    dvm_number num; /* value of a scalar */
};
int oracle_inputs(const oracle *o);
int oracle_outputs(const oracle *o);
const struct oracle_io *oracle_input(const oracle *o, int i);
const struct oracle_io *oracle_output(const oracle *o, int i);

/* Reads the argument at once; strides NULL: those of oracle_input. */
int oracle_feed(oracle *o, int i, const void *data, const int64_t *strides);
/* 0; 1: an index is out of range; -1: err says why. */
int oracle_run(oracle *o, char *err, size_t cap);

struct oracle_verdict {
    int64_t n, bad, undecided;
    /* Largest distance of the decided elements: in units of the output's dtype, relative, and as a part of what is
     * allowed. */
    double ulp, rel, part;
    int64_t at; /* element of the first bad one, or of the largest distance */
    double got, want, slack;
};
/* Compares output i with data at these strides (NULL: those of oracle_output). */
void oracle_judge(const oracle *o, int i, const void *data, const int64_t *strides,
                  struct oracle_verdict *v);
/* The value of element k of output i. */
double oracle_value(const oracle *o, int i, int64_t k);
#endif
