/* Strips that own their arrays: one block, laid out as strip, constants, instructions, operands. */
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"
#include "code/strip_text.h"

struct layout {
    size_t lit, ins, opnd, total;
};

static struct layout layout(const struct dvm_strip *s) {
    struct layout l;
    l.lit = (sizeof *s + 7) & ~(size_t)7;
    l.ins = l.lit + s->nlit * sizeof *s->lit;
    l.opnd = l.ins + s->nins * sizeof *s->ins;
    l.total = l.opnd + s->nopnd * sizeof *s->opnd;
    return l;
}

static const void *put(char *to, const void *from, size_t size) {
    if (from && size) memcpy(to, from, size);
    return to;
}

dvm_status dvm_strip_copy(const struct dvm_mem *m, const struct dvm_strip *from,
                          struct dvm_strip **out) {
    struct layout l = layout(from);
    char *block = dvm_mem_new(m, l.total);
    *out = NULL;
    if (!block) return DVM_ERR_NOMEM;
    struct dvm_strip *s = (struct dvm_strip *)block;
    *s = *from;
    s->lit = put(block + l.lit, from->lit, s->nlit * sizeof *s->lit);
    s->ins = put(block + l.ins, from->ins, s->nins * sizeof *s->ins);
    s->opnd = put(block + l.opnd, from->opnd, s->nopnd * sizeof *s->opnd);
    *out = s;
    return DVM_OK;
}

void dvm_strip_free(const struct dvm_mem *m, struct dvm_strip **s) {
    if (*s) dvm_mem_free(m, *s, layout(*s).total);
    *s = NULL;
}

uint64_t dvm_strip_hash(const struct dvm_strip *s) {
    uint64_t head = (uint64_t)s->mode | (uint64_t)s->flags << 8 | (uint64_t)s->nins << 16 |
                    (uint64_t)s->nopnd << 32 | (uint64_t)s->nlit << 48;
    uint64_t h = dvm_hash_mix(s->nparam, head);
    h = dvm_hash_bytes(h, s->opnd, s->nopnd * sizeof *s->opnd);
    h = dvm_hash_bytes(h, s->lit, s->nlit * sizeof *s->lit);
    return dvm_hash_bytes(h, s->ins, s->nins * sizeof *s->ins);
}

bool dvm_strip_same(const struct dvm_strip *a, const struct dvm_strip *b) {
    return a->hash == b->hash && a->mode == b->mode && a->flags == b->flags && a->nins == b->nins &&
           a->nopnd == b->nopnd && a->nlit == b->nlit && a->nparam == b->nparam &&
           !memcmp(a->opnd, b->opnd, a->nopnd * sizeof *a->opnd) &&
           !memcmp(a->lit, b->lit, a->nlit * sizeof *a->lit) &&
           !memcmp(a->ins, b->ins, a->nins * sizeof *a->ins);
}
