/* Compiled strips as the runner sees them. */
#ifndef DVM_JIT_JIT_CODE_H
#define DVM_JIT_JIT_CODE_H
#include "vm/cpu/jit/jit_ir.h"

typedef void dvm_jit_fn(const struct dvm_strip_args *a, uint64_t stream);

struct dvm_jit_fold {
    uint8_t op, vt, size; /* bytes of a result */
    bool arg;
    uint16_t out;
    int32_t part;
};

/* Scratch of a call: frame of the code | part records | operands of a sub-box | staged operands | trees. */
struct dvm_jit_code {
    struct dvm_code c;
    dvm_jit_fn *fn;
    void *start;      /* of the machine code: constants, then fn */
    size_t size;      /* of this block */
    size_t code_size; /* of the machine code */
    bool fetch;       /* COL: has a loop that asks for memory ahead of time */
    int16_t
        asked;   /* ROW, MAP past the caches: operand of which the next rows are asked for, or -1 */
    bool turns;  /* has a loop that reads rows far apart by turns */
    bool stream; /* has a loop with non-temporal stores */
    bool pairs;  /* stores whole vectors of bf16 */
    bool scans;  /* columns of a row are done in order */
    uint8_t width;  /* 32-bit lanes of a vector */
    uint16_t group; /* columns of an unrolled body */
    uint16_t nfold;
    int32_t parts, part_bytes, part_room;
    int32_t band_cols; /* COL: columns that can be done in bands of rows, or 0 */
    int32_t opnds, stage, wide, trees;
    const struct dvm_jit_fold *fold;
    struct dvm_jit_name *name; /* known to gdb, or NULL */
    const uint8_t
        *staged; /* operand may have to be staged: column stride is not the element's size */
    bool may_stage;
};

enum {
    J_STAGE_BYTES = 16 << 10, /* of one staged operand, at least */
    J_STAGE_SIDE =
        256, /* bytes of a side of a turned tile: four lines of memory in each direction */
    J_WIDE_SIDE =
        4096, /* of a turned tile far away: bytes of a row, which ends with an unused line */
    J_WIDE_ROWS = 128, /* half of it took 1.2 times as long on two threads */
    J_WIDE_BYTES = J_WIDE_ROWS * (J_WIDE_SIDE + 64),
    J_AHEAD = 16,            /* columns that such a tile is asked for ahead of time */
    J_FETCH_BYTES = 8 << 20, /* turned matrices from here on are not in the near caches */
    J_FAR_BYTES = 96 << 10,  /* rows of a reduction that are not all in the first cache */
    J_APART = 8
        << 10, /* elements from one of the boxes that are read by turns to the next, at least */
    J_BAND_BYTES = 8 << 10, /* accumulators of columns between bands */
    J_BAND_ROWS = 8,
    J_STAGE_ROWS = 8, /* ROW: rows staged together */
    J_PARTS = 64      /* part records of a call */
};
/* jit_run.c */
void dvm_jit_run_map(const struct dvm_code *c, const struct dvm_strip_args *a);
void dvm_jit_run_dense(const struct dvm_code *c, const struct dvm_strip_args *a);
void dvm_jit_run_row(const struct dvm_code *c, const struct dvm_strip_args *a);
void dvm_jit_run_col(const struct dvm_code *c, const struct dvm_strip_args *a);
/* Bytes that staging an operand takes. */
size_t dvm_jit_stage_bytes(int mode, int dtype);

/* jit_stage.c: strided memory to rows of contiguous elements, `pitch` bytes apart, a multiple of the size, and back. ahead: of
 * turned memory, the columns so far behind the one that is copied are asked for; 0: none. */
void dvm_jit_gather(char *to, int64_t pitch, const char *from, int64_t rs, int64_t cs, int64_t rows,
                    int64_t cols, int size, int64_t ahead);
void dvm_jit_prefetch(const char *p);
void dvm_jit_scatter(char *to, int64_t rs, int64_t cs, const char *from, int64_t pitch,
                     int64_t rows, int64_t cols, int size);
#endif
