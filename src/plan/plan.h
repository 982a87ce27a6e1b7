/* The plan of one graph at one set of concrete shapes: kernels in order, each a loop nest around strips, over
 * planned buffers. Made by plan/ (which kernels, which phases, which operands) with the bytecode emitted by code/;
 * executed by vm/drive.c for CPU tiers. One block of memory, immutable, shared by threads.
 *
 * Axes of a kernel, outermost first:  kept axes | reduced axes (COL kernels only) | strip axis.
 *   MAP  every axis kept; a box is (axis naxes-2) x (axis naxes-1)
 *   ROW  the strip axis is reduced; a block is up to `block` rows of axis naxes-2, phases run one after the other
 *        over the block
 *   COL  nm reduced axes, flattened row-major, stand before the strip axis, which is kept; a block is up to `block`
 *        columns
 * There are at least two axes in MAP and ROW kernels and one reduced axis in COL kernels (size 1 where needed).
 *
 * A kernel of kind DVM_KIND_GEMM is a matrix product with what comes before and after it. Where it has ROW or VEC phases or scratch
 * (forms without groups only), a finished tile is up to `block` whole rows, and its phases run over it as over a block of a ROW
 * kernel. Its axes are
 *   batch axes | M | N      steps of what comes after, a map over finished tiles
 *   batch axes | M | K      steps of the first factor, or of the map that makes it (PACK_A)
 *   batch axes | K | N      steps of the second factor, or of the map that makes it (PACK_B)
 * Groups of rows have no batch axis: the second factor moves by b.gs from group to group. Groups of K have one. */
#ifndef DVM_PLAN_PLAN_H
#define DVM_PLAN_PLAN_H
#include "base/mem.h"
#include "code/strip.h"

enum { DVM_MAX_AXES = 14 };
enum { DVM_PANEL_MOST = 144 }; /* rows of a product that its phases run over at once */

enum dvm_src {
    DVM_SRC_INPUT,  /* argument `index` */
    DVM_SRC_OUTPUT, /* output `index` */
    DVM_SRC_WS,     /* workspace of the run */
    DVM_SRC_SCRATCH, /* block-local; stride counts from the start of the block (block axis, strip axis) */
    DVM_SRC_NONE, /* IOTA: offset is the number at the origin */
    DVM_SRC_TILE /* GEMM: the tile at hand, f32, rows as far apart as its maker wants: only the last stride is set */
};

struct dvm_bind {
    uint8_t src;
    uint16_t index;
    uint32_t node;                /* PICK: graph node, for messages; not part of the text */
    int64_t offset;               /* bytes */
    int64_t stride[DVM_MAX_AXES]; /* bytes per step of each kernel axis */
    int64_t gs, gn;               /* PICK */
};

/* A phase: a strip over the kernel's space, or (VEC) over the block axis only: rows of a ROW block, columns of a COL
 * block. */
enum dvm_phase_kind {
    DVM_PHASE_FULL,
    DVM_PHASE_VEC,
    DVM_PHASE_PACK_A, /* GEMM: makes values of a factor */
    DVM_PHASE_PACK_B
};
struct dvm_phase {
    uint8_t kind;
    uint8_t pass; /* MAP, ROW or COL: mode of the strip */
    uint16_t nbind, nparam;
    uint32_t strip;              /* in dvm_plan.strip */
    const struct dvm_bind *bind; /* one per strip operand */
    const uint16_t *param;       /* strip parameter -> plan parameter */
};

enum { DVM_KIND_GEMM = DVM_MODE_COL + 1 };
enum dvm_product_form { DVM_PRODUCT_BATCH, DVM_PRODUCT_ROWS, DVM_PRODUCT_DEPTH, DVM_NPRODUCT };
struct dvm_gplan {
    uint8_t form, sizes; /* sizes: the list of groups holds sizes, not ends */
    uint8_t lanes;       /* adds in lanes (ops/gemm/gemm.h): one row or one column */
    uint8_t a_dtype, b_dtype, list_dtype;
    int64_t k;
    struct dvm_bind a, b; /* SRC_NONE: made by a phase, or k is 0 */
    struct dvm_bind list; /* gn groups, gs bytes apart */
};

struct dvm_kplan {
    uint8_t kind; /* enum dvm_strip_mode or DVM_KIND_GEMM */
    uint8_t naxes, nm;
    uint8_t whole_rows; /* has a SCAN, or keeps rows in scratch: a row is never cut */
    uint16_t nphase;
    uint16_t cores; /* threads it may have; 0: all */
    int64_t size[DVM_MAX_AXES];
    int64_t block;  /* rows (ROW) or columns (COL) in a block, >= 1 */
    size_t scratch; /* bytes of block-local buffers for `block` rows or columns */
    int64_t bytes;  /* operand bytes moved */
    const struct dvm_phase *phase;
    const struct dvm_gplan *gemm; /* GEMM */
    const char *why;              /* one line: what bounds this kernel */
};

/* Parameters: numbers fixed by the shapes, or scalar arguments read at each run. */
struct dvm_pparam {
    uint8_t vt;    /* value type of the strip parameter */
    uint8_t dtype; /* f16, bf16, u8, i8: rounded to it first */
    int16_t input; /* argument, or -1: bits */
    uint64_t bits;
};

/* A tensor argument as this plan takes it. */
struct dvm_plan_arg {
    int32_t rank; /* -1: a scalar, or not used */
    int32_t dtype;
    int64_t d[DVM_MAX_RANK];
    int64_t stride[DVM_MAX_RANK]; /* elements */
    int64_t lo, hi;               /* bytes touched are [lo, hi) from the first element */
};

struct dvm_plan {
    uint32_t nkernel, nstrip, nparam, nin, nout;
    const struct dvm_kplan *kernel;
    const struct dvm_strip *strip;
    struct dvm_code **code; /* nstrip, filled by rt from the strip cache */
    const struct dvm_pparam *param;
    const struct dvm_plan_arg *in, *out;
    size_t workspace;
    int64_t bytes_moved, bytes_unfused, bytes_minimum;
    int64_t ninstructions;
    uint64_t work; /* nodes visited and values emitted to make it; not part of the text */
    struct dvm_mem mem;
    size_t total;
};
#endif
