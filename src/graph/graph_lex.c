/* Tokens, numbers and names of the text form. See graph_lex.h. */
#include "graph/graph_lex.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/hash.h"

/* ------------------------------------------------------------------ tokens */

static bool is_digit(char c) { return c >= '0' && c <= '9'; }
static bool is_alpha(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}
static bool is_name(char c) { return is_alpha(c) || is_digit(c) || c == '.'; }

static void skip_blank(struct dvm_lex *lx) {
    for (; lx->p < lx->end; lx->p++) {
        char c = *lx->p;
        if (c == '\n') {
            lx->line++;
            lx->bol = lx->p + 1;
        } else if (c == '#') {
            while (lx->p + 1 < lx->end && lx->p[1] != '\n') lx->p++;
        } else if (c != ' ' && c != '\t' && c != '\r') {
            return;
        }
    }
}

/* A sign belongs to a number behind its exponent letter only: 1e-5, 0x1p+3. */
static const char *number_end(const char *p, const char *end) {
    bool hex = end - p > 1 && p[0] == '0' && (p[1] == 'x' || p[1] == 'X');
    for (; p < end; p++) {
        if (is_name(*p)) continue;
        if (*p != '+' && *p != '-') break;
        if ((p[-1] | 0x20) != (hex ? 'p' : 'e')) break;
    }
    return p;
}

static const char *name_end(const char *p, const char *end) {
    while (p < end && is_name(*p)) p++;
    return p;
}

void dvm_lex_next(struct dvm_lex *lx) {
    struct dvm_tok *t = &lx->tok;
    lx->behind.line = lx->line;
    lx->behind.col = (uint32_t)(lx->p - lx->bol) + 1;
    lx->behind.p = t->p ? lx->p - 1 : NULL;
    skip_blank(lx);
    const char *p = lx->p, *end = lx->end;
    *t = (struct dvm_tok){.line = lx->line, .col = (uint32_t)(p - lx->bol) + 1, .p = p, .n = 1};
    if (p == end) {
        t->kind = DVM_TOK_END;
        t->n = 0;
        return;
    }
    if (is_digit(*p)) {
        t->kind = DVM_TOK_NUMBER;
        p = number_end(p, end) - 1;
    } else if (is_alpha(*p)) {
        t->kind = DVM_TOK_WORD;
        p = name_end(p, end) - 1;
    } else if ((*p == '%' || *p == '@') && end - p > 1 && is_name(p[1])) {
        t->kind = *p == '%' ? DVM_TOK_VALUE : DVM_TOK_AT;
        t->p++;
        p = name_end(p + 1, end) - 1;
    } else if (strchr("()[]{},:=+-*?/", *p)) {
        t->kind = *p == '/' ? DVM_TOK_BAD : DVM_TOK_PUNCT;
        if (end - p > 1 && ((p[0] == '-' && p[1] == '>') || (p[0] == '/' && p[1] == '/'))) {
            t->kind = DVM_TOK_PUNCT;
            p++;
        }
    } else {
        t->kind = DVM_TOK_BAD;
    }
    lx->p = p + 1;
    t->n = (uint32_t)(lx->p - t->p);
}

void dvm_lex_start(struct dvm_lex *lx, const char *file, const char *text, size_t n) {
    *lx = (struct dvm_lex){.file = file, .p = text, .end = text + n, .bol = text, .line = 1};
    dvm_lex_next(lx);
}

bool dvm_tok_is(const struct dvm_tok *t, const char *s) {
    return (t->kind == DVM_TOK_WORD || t->kind == DVM_TOK_PUNCT) && strlen(s) == t->n &&
           !memcmp(s, t->p, t->n);
}

bool dvm_lex_take(struct dvm_lex *lx, const char *s) {
    if (!dvm_tok_is(&lx->tok, s)) return false;
    dvm_lex_next(lx);
    return true;
}

/* ------------------------------------------------------------------ errors */

dvm_status dvm_lex_fail(const struct dvm_lex *lx, const struct dvm_tok *at, const char *fmt, ...) {
    char msg[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    DVM_FAIL(PARSE, "%.200s:%u:%u: %s", lx->file, at->line, at->col, msg);
}

/* The token in quotes, cut and made printable. */
static void tok_text(const struct dvm_tok *t, char *buf, size_t cap) {
    static const char *const sigil[] = {
        [DVM_TOK_VALUE] = "%", [DVM_TOK_AT] = "@", [DVM_TOK_BAD] = ""};
    size_t shown = t->n < 32 ? t->n : 32, n;
    if (t->kind == DVM_TOK_END) {
        snprintf(buf, cap, "the end of the text");
        return;
    }
    n = (size_t)snprintf(buf, cap, "\"%s", sigil[t->kind] ? sigil[t->kind] : "");
    for (size_t i = 0; i < shown && n + 8 < cap; i++) {
        unsigned char c = (unsigned char)t->p[i];
        n += (size_t)snprintf(buf + n, cap - n, c > 31 && c < 127 ? "%c" : "\\x%02x", c);
    }
    snprintf(buf + n, cap - n, "%s\"", shown < t->n ? "..." : "");
}

dvm_status dvm_lex_expected_line(const struct dvm_lex *lx, const char *what) {
    char found[192];
    tok_text(&lx->tok, found, sizeof found);
    return dvm_lex_fail(lx, &lx->tok, "expected %s, found %s", what, found);
}

/* Behind these a line is expected to go on below. */
static bool goes_on(char c) { return strchr(",([{}", c) != NULL; }

dvm_status dvm_lex_expected(const struct dvm_lex *lx, const char *what) {
    const struct dvm_tok *at = &lx->behind;
    if (lx->tok.line == at->line || !at->p || goes_on(*at->p))
        return dvm_lex_expected_line(lx, what);
    return dvm_lex_fail(lx, at, "expected %s, found the end of the line", what);
}

dvm_status dvm_lex_want(struct dvm_lex *lx, const char *s) {
    char quoted[32];
    if (dvm_lex_take(lx, s)) return DVM_OK;
    snprintf(quoted, sizeof quoted, "\"%s\"", s);
    return dvm_lex_expected(lx, quoted);
}

/* ------------------------------------------------------------------ numbers */

static int hex_digit(char c) {
    if (is_digit(c)) return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool read_int(const char *p, const char *end, unsigned base, uint64_t *out) {
    uint64_t v = 0;
    if (p == end) return false;
    for (; p < end; p++) {
        int d = hex_digit(*p);
        if (d < 0 || (unsigned)d >= base) return false;
        if (v > (UINT64_MAX - (unsigned)d) / base) return false;
        v = v * base + (unsigned)d;
    }
    *out = v;
    return true;
}

/* The text without its point, and how many digits stood behind it: strtod reads "DIGITSeEXP" in
 * every locale, while what it takes for a point depends on the locale. */
static bool read_float(const char *p, const char *end, double *out) {
    char buf[128];
    size_t n = 0;
    int shift = 0, digits = 0;
    long exp = 0;
    bool hex = end - p > 2 && p[0] == '0' && (p[1] == 'x' || p[1] == 'X'), point = false;
    if (end - p > 100) return false;
    if (hex) {
        memcpy(buf, "0x", n = 2);
        p += 2;
    }
    for (; p < end; p++) {
        if (*p == '.' && !point)
            point = true;
        else if (hex ? hex_digit(*p) >= 0 : is_digit(*p)) {
            buf[n++] = *p;
            digits++;
            shift += point ? (hex ? 4 : 1) : 0;
        } else
            break;
    }
    if (digits == 0) return false;
    if (p < end) {
        if ((*p | 0x20) != (hex ? 'p' : 'e')) return false;
        bool neg = ++p < end && *p == '-';
        if (p < end && (*p == '-' || *p == '+')) p++;
        uint64_t e;
        if (!read_int(p, end, 10, &e) || e > 99999) return false;
        exp = neg ? -(long)e : (long)e;
    }
    snprintf(buf + n, sizeof buf - n, "%c%ld", hex ? 'p' : 'e', exp - shift);
    *out = strtod(buf, NULL);
    return true;
}

bool dvm_num_read(const struct dvm_tok *t, struct dvm_num *out) {
    const char *p = t->p, *end = t->p + t->n;
    bool hex = t->n > 2 && p[0] == '0' && (p[1] == 'x' || p[1] == 'X');
    if (t->kind != DVM_TOK_NUMBER) return false;
    *out = (struct dvm_num){0};
    if (read_int(hex ? p + 2 : p, end, hex ? 16 : 10, &out->i)) {
        out->is_int = true;
        out->f = (double)out->i;
        return true;
    }
    return read_float(p, end, &out->f);
}

/* ------------------------------------------------------------------ near words */

/* Letters to insert, drop, change or swap with the next one to come from a to b. */
static int distance(const char *a, size_t n, const char *b, size_t m) {
    enum { CAP = 24 };
    int d[3][CAP + 1];
    if (n > CAP || m > CAP) return CAP;
    for (size_t j = 0; j <= m; j++) d[0][j] = (int)j;
    for (size_t i = 1; i <= n; i++) {
        int *cur = d[i % 3], *up = d[(i + 2) % 3], *up2 = d[(i + 1) % 3];
        cur[0] = (int)i;
        for (size_t j = 1; j <= m; j++) {
            int best = up[j - 1] + (a[i - 1] != b[j - 1]);
            best = DVM_MIN(best, DVM_MIN(up[j], cur[j - 1]) + 1);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                best = DVM_MIN(best, up2[j - 2] + 1);
            cur[j] = best;
        }
    }
    return d[n % 3][m];
}

const char *dvm_near(const char *p, size_t n, const char *const *word, int count) {
    const char *best = NULL;
    int limit = n <= 2 ? 1 : n <= 5 ? 2 : 3;
    for (int i = 0; i < count; i++) {
        int d = distance(p, n, word[i], strlen(word[i]));
        if (d >= (int)strlen(word[i]) || d > limit) continue;
        best = word[i];
        limit = d - 1;
    }
    return best;
}

/* ------------------------------------------------------------------ names */

static uint32_t name_slot(const struct dvm_names *t, enum dvm_name_kind kind, const char *p,
                          uint32_t n) {
    uint32_t i = (uint32_t)dvm_hash_bytes((uint64_t)kind, p, n) & (t->cap - 1);
    for (; t->slot[i].n; i = (i + 1) & (t->cap - 1)) {
        const struct dvm_name *e = &t->slot[i];
        if (e->kind == kind && e->n == n && !memcmp(e->p, p, n)) break;
    }
    return i;
}

struct dvm_name *dvm_names_find(const struct dvm_names *t, enum dvm_name_kind kind,
                                const struct dvm_tok *tok) {
    if (!t->cap) return NULL;
    struct dvm_name *e = &t->slot[name_slot(t, kind, tok->p, tok->n)];
    return e->n ? e : NULL;
}

static bool names_grow(struct dvm_names *t) {
    struct dvm_names big = {.mem = t->mem, .n = t->n, .cap = t->cap ? 2 * t->cap : 64};
    big.slot = dvm_mem_new(t->mem, big.cap * sizeof *big.slot);
    if (!big.slot) return false;
    for (uint32_t i = 0; i < t->cap; i++) {
        const struct dvm_name *e = &t->slot[i];
        if (e->n) big.slot[name_slot(&big, e->kind, e->p, e->n)] = *e;
    }
    dvm_names_drop(t);
    *t = big;
    return true;
}

struct dvm_name *dvm_names_add(struct dvm_names *t, enum dvm_name_kind kind,
                               const struct dvm_tok *tok) {
    if (2 * (t->n + 1) > t->cap && !names_grow(t)) return NULL;
    struct dvm_name *e = &t->slot[name_slot(t, kind, tok->p, tok->n)];
    *e = (struct dvm_name){.p = tok->p, .n = tok->n, .line = tok->line, .kind = (uint8_t)kind};
    t->n++;
    return e;
}

void dvm_names_drop(struct dvm_names *t) {
    dvm_mem_free(t->mem, t->slot, t->cap * sizeof *t->slot);
    t->slot = NULL;
    t->n = t->cap = 0;
}
