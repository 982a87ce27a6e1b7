/* Plans as text, and back. Blanks separate, `;` starts a comment:
 *
 *   plan workspace 0 unfused 917504 minimum 262144
 *     in0: f32[64, 512] strides [512, 1]    in elements
 *     in1: none                         a scalar, or not used
 *     out0: f32[64, 512] strides [512, 1]
 *     p0: f32 input 1                   a scalar argument, read at every run
 *     p1: i64 bits 0x200                a number fixed by the shapes
 *
 *   kernel 0 row
 *     axes kept 64, strip 512           sizes, outermost first
 *     block 16 scratch 64 bytes 262144  then whole_rows where rows are never cut, cores 2 where threads are limited
 *     why "rows stay in cache between passes"
 *     phase full strip 0                then params 0, 1: parameters of the plan
 *       o0: input 0 [2048, 4]           step in bytes along each axis
 *       o1: scratch [4, 0]
 *
 *   strip row
 *     ...                               strip_text.h; strip 0 and so on, the last part of the text
 *
 * A product has, between `why` and its phases,
 *
 *     product batch depth 256           or rows, inner (groups), then `sizes` for a list of sizes
 *     a: f32 input 0 [0, 1024, 4]       steps along batch axes, M, K; `none` where a phase pack_a makes it
 *     b: bf16 input 1 [0, 2, 512]       batch axes, K, N; groups of rows: `pick STEP x COUNT` from group to group
 *     list: i64 input 2 [] pick 8 x 4   groups only
 *
 * An operand is input N, output N, ws, scratch, iota or tile, then `+ N` or `- N` (bytes; iota: the number at the origin),
 * the steps, and for a gather `pick STEP x COUNT`. */
#ifndef DVM_PLAN_PLAN_TEXT_H
#define DVM_PLAN_PLAN_TEXT_H
#include "base/text.h"
#include "plan/plan.h"

void dvm_plan_write(const struct dvm_plan *p, struct dvm_text *out);
/* "kept 64, strip 512" */
void dvm_plan_write_axes(const struct dvm_kplan *k, struct dvm_text *out);
/* "input 0 + 64 [2048, 4]" */
void dvm_plan_write_bind(const struct dvm_bind *b, int naxes, struct dvm_text *out);
/* The lines of a product. */
void dvm_plan_write_product(const struct dvm_kplan *k, struct dvm_text *out);
/* "load f32 contig", as strip_text.c has it. */
void dvm_plan_write_role(const struct dvm_opnd *o, struct dvm_text *out);

/* Reads one plan and verifies it. file is a name for messages, which say file:line:column. Printing what was read
 * gives the same text again. Freed by dvm_plan_destroy. */
dvm_status dvm_plan_read(const struct dvm_mem *m, const char *file, const char *text, size_t n,
                         struct dvm_plan **out);

/* plan_verify.c: every index in range, roles and places of operands agree, and no operand leaves the workspace, the
 * scratch of its block or its argument. where: NULL, or the place of what is
 * wrong, -1 beyond its depth. */
struct dvm_plan_spot {
    int64_t kernel, phase, opnd;
};
dvm_status dvm_plan_verify(const struct dvm_plan *p, struct dvm_plan_spot *where);
#endif
