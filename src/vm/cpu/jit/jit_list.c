/* Listings: while code is emitted, notes say what it is of; afterwards the bytes are printed under them. */
#include <string.h>

#include "code/strip_text.h"
#include "vm/cpu/jit/jit_emit.h"

enum { BYTES_A_LINE = 16 };

static void add(struct dvm_je *e, struct dvm_jnote n) {
    if (e->nnote == e->note_cap) {
        uint32_t cap = e->note_cap ? e->note_cap * 2 : 128;
        struct dvm_jnote *p = dvm_arena_raw(e->b->arena, cap * sizeof *p);
        if (!p) {
            e->noting = false;
            return;
        }
        if (e->nnote) memcpy(p, e->note, e->nnote * sizeof *p);
        e->note = p;
        e->note_cap = cap;
    }
    e->note[e->nnote++] = n;
}

void dvm_j_label(struct dvm_je *e, const char *label) {
    if (e->noting) add(e, (struct dvm_jnote){dvm_enc_at(&e->e), -1, label});
}

void dvm_j_note(struct dvm_je *e, int from) {
    const struct dvm_jnote *last = e->nnote ? &e->note[e->nnote - 1] : NULL;
    if (last && !last->label && last->from == from) return;
    add(e, (struct dvm_jnote){dvm_enc_at(&e->e), from, NULL});
}

/* Line number k of the strip's instructions: operands and constants stand before them, one letter and a colon. */
static const char *line_of(const char *text, int k, int *n) {
    const char *end;
    for (; (end = strchr(text, '\n')); text = end + 1) {
        size_t word = strspn(text, " "), colon = strcspn(text + word, ": ");
        *n = (int)(end - text);
        if (word == 0 || text[word + colon] == ':') continue;
        if (k-- == 0) return text;
    }
    *n = 0;
    return "";
}

static void put_bytes(const uint8_t *p, int from, int to, struct dvm_text *out) {
    for (int at = from; at < to; at += BYTES_A_LINE) {
        dvm_text_add(out, "      %05x ", (unsigned)at);
        for (int k = at; k < DVM_MIN(at + BYTES_A_LINE, to); k++) dvm_text_add(out, " %02x", p[k]);
        dvm_text_add(out, "\n");
    }
}

void dvm_j_list(const struct dvm_je *e, int entry, struct dvm_text *out) {
    struct dvm_text strip;
    char *text = NULL;
    int size = dvm_enc_at(&e->e), n;
    dvm_text_init(&strip, out->mem);
    dvm_strip_write(e->b->s, &strip);
    if (dvm_text_take(&strip, &text) != DVM_OK) text = NULL;
    dvm_text_add(out, "; %s, %d bytes of constants, %d of code, frame of %d\n",
                 e->b->z      ? "avx512"
                 : e->b->neon ? "neon"
                              : "avx2",
                 entry, size - entry, e->b->frame);
    for (uint32_t k = 0; k < e->nnote && text; k++) {
        const struct dvm_jnote *note = &e->note[k];
        int end = k + 1 < e->nnote ? e->note[k + 1].at : size;
        if (note->label) {
            dvm_text_add(out, "%s:\n", note->label);
        } else {
            const char *line = line_of(text, note->from, &n);
            dvm_text_add(out, "%.*s\n", n, line);
        }
        put_bytes(e->e.base, note->at, end, out);
    }
    if (text)
        dvm_string_free(&text);
    else
        out->failed = true;
}
