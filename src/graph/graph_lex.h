/* Words of the text form: tokens with positions, numbers, names in scope, and the nearest known word
 * for a misspelt one. docs/graph.md has the grammar. Nothing here trusts the text. */
#ifndef DVM_GRAPH_GRAPH_LEX_H
#define DVM_GRAPH_GRAPH_LEX_H
#include "base/mem.h"

enum dvm_tok_kind {
    DVM_TOK_END,
    DVM_TOK_WORD,   /* letters, digits, _ and .; starts with a letter or _ */
    DVM_TOK_VALUE,  /* %name; p and n leave the % out */
    DVM_TOK_AT,     /* @name; the same */
    DVM_TOK_NUMBER, /* starts with a digit; not checked yet */
    DVM_TOK_PUNCT,  /* one character of ()[]{},:=+-*? or "->" or "//" */
    DVM_TOK_BAD
};
struct dvm_tok {
    uint8_t kind;
    uint32_t line, col; /* from 1; col counts bytes */
    const char *p;
    uint32_t n;
};
struct dvm_lex {
    const char *file;
    const char *p, *end, *bol;
    uint32_t line;
    struct dvm_tok tok; /* the next token, not taken yet */
    struct dvm_tok
        behind; /* the place behind the token before it; p: that token's last character */
};

/* Larger texts are refused. */
enum { DVM_TEXT_MAX = 64 << 20 };

void dvm_lex_start(struct dvm_lex *lx, const char *file, const char *text, size_t n);
void dvm_lex_next(struct dvm_lex *lx);
bool dvm_tok_is(const struct dvm_tok *t, const char *s);
/* Takes the token when it is s. */
bool dvm_lex_take(struct dvm_lex *lx, const char *s);

/* "file:line:column: " and the message. */
dvm_status dvm_lex_fail(const struct dvm_lex *lx, const struct dvm_tok *at, const char *fmt, ...)
    DVM_PRINTF(3, 4);
/* "file:line:column: expected WHAT, found TOKEN". What lacks at the end of a line is missed there and not at the first
 * token of the next one; dvm_lex_expected_line is for what may begin a line. */
dvm_status dvm_lex_expected_line(const struct dvm_lex *lx, const char *what);
dvm_status dvm_lex_expected(const struct dvm_lex *lx, const char *what);
dvm_status dvm_lex_want(struct dvm_lex *lx, const char *s);

/* Number token: an integer of at most 64 bits, or a decimal or hexadecimal float, as written. False
 * when the token is neither. */
struct dvm_num {
    bool is_int;
    uint64_t i;
    double f;
};
bool dvm_num_read(const struct dvm_tok *t, struct dvm_num *out);

/* Nearest of count words, or NULL when none is near. */
const char *dvm_near(const char *p, size_t n, const char *const *word, int count);

/* Names in scope. Values and dimensions are separate name spaces. */
enum dvm_name_kind { DVM_NAME_VALUE, DVM_NAME_DIM };
struct dvm_name {
    const char *p; /* in the text */
    uint32_t n;
    uint32_t line;
    uint8_t kind;
    uint8_t axis;
    bool made; /* DIM: dim is set; otherwise it is axis `axis` of val */
    dvm_val val;
    dvm_dim dim;
};
struct dvm_names {
    const struct dvm_mem *mem;
    struct dvm_name *slot; /* open addressing; n == 0 is free */
    uint32_t n, cap;
};
struct dvm_name *dvm_names_find(const struct dvm_names *t, enum dvm_name_kind kind,
                                const struct dvm_tok *tok);
/* The name is not in the table yet. NULL when memory is out. */
struct dvm_name *dvm_names_add(struct dvm_names *t, enum dvm_name_kind kind,
                               const struct dvm_tok *tok);
void dvm_names_drop(struct dvm_names *t);
#endif
