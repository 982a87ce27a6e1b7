/* Strips as text, and back. One line an item, `;` starts a comment, blanks separate:
 *
 *   strip row whole_rows params 2
 *   o0: load f16 contig
 *   o1: fold f32 row
 *   k0: 0x3f800000
 *   %0 = load.f32 o0
 *   %1 = lit.f32 k0            ; 1
 *   %2 = add.f32 %0, %1
 *   fold.f32 %2, sum, o1       (its number, 3, names no value)
 *
 * Operands, constants and values are numbered from 0 in order of appearance. */
#ifndef DVM_CODE_STRIP_TEXT_H
#define DVM_CODE_STRIP_TEXT_H
#include "base/text.h"
#include "code/strip.h"

/* s has passed the verifier. Printing what was read gives the same text again. */
void dvm_strip_write(const struct dvm_strip *s, struct dvm_text *out);
/* Reads one strip and verifies it. file is a name for messages, which say file:line:column. The strip
 * is one block with its arrays. */
dvm_status dvm_strip_read(const struct dvm_mem *m, const char *file, const char *text, size_t n,
                          struct dvm_strip **out);
/* strip_copy.c: a strip and its arrays in one block; the arrays of `from` may be NULL: zeroed. */
dvm_status dvm_strip_copy(const struct dvm_mem *m, const struct dvm_strip *from,
                          struct dvm_strip **out);
void dvm_strip_free(const struct dvm_mem *m, struct dvm_strip **s);
/* Hash of everything but the hash. */
uint64_t dvm_strip_hash(const struct dvm_strip *s);
/* Same hash and same content. */
bool dvm_strip_same(const struct dvm_strip *a, const struct dvm_strip *b);
#endif
