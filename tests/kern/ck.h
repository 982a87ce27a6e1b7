/* checkkern: every opcode, value type, operand kind and mode on a device against the scalar
 * reference, bit for bit (NaNs count as one value). checkkern.c runs the functions that ck_gen.c lists
 * from the opcode tables; ck_case.c lays out memory and compares; ck_math.c measures the reference
 * itself against libm. */
#ifndef CK_H
#define CK_H
#include "code/bc_table.h"
#include "code/strip_text.h"
#include "vm/dev.h"

enum { CK_MAX_M = 64, CK_MAX_N = 70000, CK_PARAMS = 8 };

/* ---- random numbers: small, seeded, the same everywhere */
struct ck_rng {
    uint64_t s;
};
uint64_t ck_next(struct ck_rng *r);
static inline int ck_below(struct ck_rng *r, int n) { return (int)(ck_next(r) >> 33) % n; }
static inline bool ck_flip(struct ck_rng *r) { return ck_next(r) >> 63; }

/* ---- a strip being built */
struct ck_strip {
    struct dvm_strip s;
    struct dvm_opnd opnd[DVM_STRIP_MAX_OPND];
    uint64_t lit[DVM_STRIP_MAX_OPND];
    struct dvm_ins ins[256];
    uint64_t param[CK_PARAMS];
    bool small[DVM_STRIP_MAX_OPND];     /* data: small numbers only (exponents, counts) */
    int pick_index[DVM_STRIP_MAX_OPND]; /* index operand + 1: its data goes around [-gn, gn) */
    int alias[DVM_STRIP_MAX_OPND];      /* stores: operand + 1 that is written in place */
    bool allow_fault;
    int64_t m, n;
};
void ck_begin(struct ck_strip *c, int mode);
int ck_opnd(struct ck_strip *c, int dtype, int kind, int role);
int ck_ins(struct ck_strip *c, int op, int type, int a, int b, int d);
int ck_lit(struct ck_strip *c, struct ck_rng *r, int vt, bool small);
int ck_param(struct ck_strip *c, struct ck_rng *r, int vt, bool small);

/* ---- what is checked */
struct ck_func;
typedef void ck_gen(const struct ck_func *f, int variant, struct ck_rng *r, struct ck_strip *out);
struct ck_func {
    char name[48];
    ck_gen *gen;
    int a, b, c;  /* of gen */
    int variants; /* cases */
};
/* Measuring: operands as wide as their values, outputs contiguous. */
extern bool ck_plain;
/* All functions; *n of them. */
const struct ck_func *ck_functions(int *n);

/* ---- values */
/* Random bits of an element of a dtype, extreme ones included. */
uint64_t ck_element(struct ck_rng *r, int dtype, bool small);
void ck_show(int dtype, const void *p, char *buf, size_t cap);

/* ---- running */
struct ck_device {
    struct dvm_dev dev;
    char label[32];
    int ran; /* cases that the device took */
};
/* Runs the strip on the reference and on each device whose ok is true and that takes it; prints what
 * differs and clears ok. */
void ck_case(int variant, uint64_t seed, struct ck_strip *c, const struct ck_device *ref,
             struct ck_device *dev, int ndev, bool *ok);
/* Nanoseconds per element over a box of this strip; dev's tier in *tier. < 0: cannot. */
double ck_bench(uint64_t seed, struct ck_strip *c, const struct ck_device *dev, const char **tier);
void ck_release(void); /* memory of the cases */

/* ---- ck_math.c: name of a check, or NULL after the last */
const char *ck_math_name(int i);
bool ck_math(int i, uint64_t seed);
#endif
