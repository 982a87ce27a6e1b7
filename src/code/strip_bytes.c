/* Strips as bytes. See strip_bytes.h. The checksum finds accidents, the verifier everything that
 * matters for safety: a strip made by hand with a right checksum is as harmless as any other. */
#include "code/strip_bytes.h"

#include <string.h>

#include "base/err.h"
#include "base/hash.h"
#include "code/strip_text.h"

enum { HEAD = 32, SUM = 24, MAGIC = 0x534d5644 /* "DVMS" */ };

static void put(unsigned char **p, uint64_t v, int bytes) {
    for (; bytes; bytes--, v >>= 8) *(*p)++ = (unsigned char)v;
}

static uint64_t get(const unsigned char **p, int bytes) {
    uint64_t v = 0;
    for (int i = 0; i < bytes; i++) v |= (uint64_t)*(*p)++ << (8 * i);
    return v;
}

static uint64_t checksum(const unsigned char *bytes, size_t n) {
    return dvm_hash_bytes(dvm_hash_bytes(DVM_FORMAT, bytes, SUM), bytes + HEAD, n - HEAD);
}

size_t dvm_strip_bytes(const struct dvm_strip *s) {
    return HEAD + s->nlit * (size_t)8 + s->nins * (size_t)8 + s->nopnd * (size_t)4;
}

void dvm_strip_encode(const struct dvm_strip *s, unsigned char *out) {
    size_t n = dvm_strip_bytes(s);
    unsigned char *p = out, *sum = out + SUM;
    put(&p, MAGIC, 4);
    put(&p, DVM_FORMAT, 4);
    put(&p, n, 4);
    put(&p, s->nins, 2);
    put(&p, s->nopnd, 2);
    put(&p, s->nlit, 2);
    put(&p, s->nparam, 2);
    put(&p, s->mode, 1);
    put(&p, s->flags, 1);
    put(&p, 0, 2);
    p = out + HEAD;
    for (int i = 0; i < s->nlit; i++) put(&p, s->lit[i], 8);
    for (int i = 0; i < s->nins; i++) {
        const struct dvm_ins *k = &s->ins[i];
        put(&p, k->op, 1);
        put(&p, k->type, 1);
        put(&p, k->a, 2);
        put(&p, k->b, 2);
        put(&p, k->c, 2);
    }
    for (int i = 0; i < s->nopnd; i++) {
        put(&p, s->opnd[i].dtype, 1);
        put(&p, s->opnd[i].kind, 1);
        put(&p, s->opnd[i].role, 1);
        put(&p, s->opnd[i].pad, 1);
    }
    put(&sum, checksum(out, n), 8);
}

/* Counts and mode; the arrays are not there yet. */
static dvm_status read_head(const unsigned char *bytes, size_t n, struct dvm_strip *s) {
    const unsigned char *p = bytes;
    if (n < HEAD || get(&p, 4) != MAGIC) DVM_FAIL(FORMAT, "not a strip: no magic number");
    uint64_t format = get(&p, 4), size = get(&p, 4);
    if (format != DVM_FORMAT)
        DVM_FAIL(FORMAT, "strip of format %llu; this library reads %d", (unsigned long long)format,
                 DVM_FORMAT);
    s->nins = (uint16_t)get(&p, 2);
    s->nopnd = (uint16_t)get(&p, 2);
    s->nlit = (uint16_t)get(&p, 2);
    s->nparam = (uint16_t)get(&p, 2);
    s->mode = (uint8_t)get(&p, 1);
    s->flags = (uint8_t)get(&p, 1);
    if (get(&p, 2) || size != n || dvm_strip_bytes(s) != n)
        DVM_FAIL(FORMAT, "strip of %zu bytes says it has %llu and holds %zu", n,
                 (unsigned long long)size, dvm_strip_bytes(s));
    if (get(&p, 8) != checksum(bytes, n)) DVM_FAIL(FORMAT, "strip is damaged: wrong checksum");
    return DVM_OK;
}

static void read_arrays(const unsigned char *p, const struct dvm_strip *s, uint64_t *lit,
                        struct dvm_ins *ins, struct dvm_opnd *opnd) {
    for (int i = 0; i < s->nlit; i++) lit[i] = get(&p, 8);
    for (int i = 0; i < s->nins; i++) {
        ins[i].op = (uint8_t)get(&p, 1);
        ins[i].type = (uint8_t)get(&p, 1);
        ins[i].a = (uint16_t)get(&p, 2);
        ins[i].b = (uint16_t)get(&p, 2);
        ins[i].c = (uint16_t)get(&p, 2);
    }
    for (int i = 0; i < s->nopnd; i++) {
        opnd[i].dtype = (uint8_t)get(&p, 1);
        opnd[i].kind = (uint8_t)get(&p, 1);
        opnd[i].role = (uint8_t)get(&p, 1);
        opnd[i].pad = (uint8_t)get(&p, 1);
    }
}

dvm_status dvm_strip_decode(const struct dvm_mem *m, const unsigned char *bytes, size_t n,
                            struct dvm_strip **out) {
    struct dvm_strip head = {0}, *s;
    *out = NULL;
    DVM_TRY(read_head(bytes, n, &head));
    DVM_TRY(dvm_strip_copy(m, &head, &s));
    /* The arrays are this copy's own memory, not yet seen by anyone. */
    read_arrays(bytes + HEAD, s, (uint64_t *)(uintptr_t)s->lit, (struct dvm_ins *)(uintptr_t)s->ins,
                (struct dvm_opnd *)(uintptr_t)s->opnd);
    s->hash = dvm_strip_hash(s);
    dvm_status st = dvm_strip_verify(s);
    if (st == DVM_OK)
        *out = s;
    else
        dvm_strip_free(m, &s);
    return st;
}
