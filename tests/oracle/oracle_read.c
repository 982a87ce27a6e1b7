/* The oracle's own reader of docs/graph.md: characters to a list of values, each with its dtype. It believes that
 * the text is well-formed where the library's reader would check more, and stops at the first thing it does not
 * know. */
#include "oracle_int.h"

#include <ctype.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct scope {
    char *name;
    int value;
};

struct parse {
    oracle *o;
    const char *p, *end;
    int line, depth;
    struct scope *scope;
    int nscope, capscope;
    struct scope *let;
    struct dimx **let_dim;
    int nlet;
    char *err;
    size_t cap;
    jmp_buf out;
};

static void stop(struct parse *s, const char *fmt, ...) {
    int n = snprintf(s->err, s->cap, "oracle: line %d: ", s->line);
    va_list ap;
    va_start(ap, fmt);
    if (n >= 0 && (size_t)n < s->cap) vsnprintf(s->err + n, s->cap - (size_t)n, fmt, ap);
    va_end(ap);
    longjmp(s->out, 1);
}

struct block {
    struct block *next;
    _Alignas(16) char data[];
};
void *keep_block(oracle *o, size_t n) {
    struct block *b = calloc(1, sizeof *b + n);
    if (!b) return NULL;
    b->next = o->blocks;
    o->blocks = b;
    return b->data;
}
static void *keep(struct parse *s, size_t n) {
    void *p = keep_block(s->o, n);
    if (!p) stop(s, "out of memory");
    return p;
}
static void *keep_copy(struct parse *s, const void *p, size_t n, size_t room) {
    void *q = keep(s, room);
    if (n) memcpy(q, p, n);
    return q;
}

/* ------------------------------------------------------------------ characters */

static void blank(struct parse *s) {
    for (; s->p < s->end; s->p++) {
        if (*s->p == '#')
            while (s->p + 1 < s->end && s->p[1] != '\n') s->p++;
        else if (*s->p == '\n')
            s->line++;
        else if (!isspace((unsigned char)*s->p))
            return;
    }
}

static bool in_name(char c) { return isalnum((unsigned char)c) || c == '_' || c == '.'; }

/* Takes the word or sign when it comes next. */
static bool take(struct parse *s, const char *w) {
    size_t n = strlen(w);
    blank(s);
    if ((size_t)(s->end - s->p) < n || memcmp(s->p, w, n)) return false;
    if (in_name(w[n - 1]) && s->p + n < s->end && in_name(s->p[n])) return false;
    s->p += n;
    return true;
}
static void want(struct parse *s, const char *w) {
    if (!take(s, w)) stop(s, "expected %s", w);
}

static char *name(struct parse *s) {
    blank(s);
    const char *from = s->p;
    while (s->p < s->end && in_name(*s->p)) s->p++;
    if (s->p == from) stop(s, "expected a name");
    return keep_copy(s, from, (size_t)(s->p - from), (size_t)(s->p - from) + 1);
}

static bool ahead(struct parse *s, const char *w) {
    const char *p = s->p;
    int line = s->line;
    bool yes = take(s, w);
    s->p = p;
    s->line = line;
    return yes;
}

/* ------------------------------------------------------------------ numbers and dtypes */

static dvm_dtype dtype(struct parse *s) {
    static const char *const words[] = {"bool", "f16", "bf16", "f32", "i32",
                                        "i64",  "f64", "u8",   "i8"};
    for (int t = 0; t < DVM_NDTYPE; t++)
        if (take(s, words[t])) return (dvm_dtype)t;
    stop(s, "expected a dtype");
    return DVM_F32;
}

/* Letters of a number, for strtod and strtoull; the process runs in the C locale. */
static bool number(struct parse *s, bool *is_int, uint64_t *i, double *f) {
    char buf[128];
    size_t n = 0;
    blank(s);
    if (s->p == s->end || !isdigit((unsigned char)*s->p)) return false;
    bool hex = s->end - s->p > 1 && s->p[0] == '0' && (s->p[1] | 32) == 'x';
    while (s->end - s->p > 1 && s->p[0] == '0' && isdigit((unsigned char)s->p[1])) s->p++;
    while (s->p < s->end && n + 1 < sizeof buf) {
        bool sign = (*s->p == '+' || *s->p == '-') && n && (buf[n - 1] | 32) == (hex ? 'p' : 'e');
        if (!in_name(*s->p) && !sign) break;
        buf[n++] = *s->p++;
    }
    buf[n] = 0;
    *is_int = !strchr(buf, '.') && (hex ? !strpbrk(buf, "pP") : !strpbrk(buf, "eE"));
    errno = 0;
    *i = *is_int ? strtoull(buf, NULL, hex ? 16 : 10) : 0; /* a leading 0 is not octal */
    *is_int = *is_int && errno != ERANGE;
    *f = strtod(buf, NULL);
    return true;
}

static int64_t integer(struct parse *s) {
    bool neg = take(s, "-"), is_int = false;
    uint64_t i = 0;
    double f;
    if (!number(s, &is_int, &i, &f) || !is_int) stop(s, "expected an integer");
    return (int64_t)(neg ? 0 - i : i);
}

/* ------------------------------------------------------------------ values */

static struct value *add(struct parse *s, dvm_op op, dvm_dtype t, int nin, const int *in) {
    oracle *o = s->o;
    if (o->nv == o->capv) {
        o->capv = o->capv ? 2 * o->capv : 64;
        struct value *v = realloc(o->v, (size_t)o->capv * sizeof *v);
        if (!v) stop(s, "out of memory");
        o->v = v;
    }
    int *kept = keep_copy(s, in, (size_t)nin * sizeof *in, (size_t)(nin + 1) * sizeof *in);
    struct value *v = &o->v[o->nv++];
    *v = (struct value){.op = op, .dtype = t, .nin = nin, .in = kept};
    return v;
}
static int last(const struct parse *s) { return s->o->nv - 1; }

static int find(struct parse *s, const char *n) {
    for (int i = s->nscope - 1; i >= 0; i--)
        if (!strcmp(s->scope[i].name, n)) return s->scope[i].value;
    return -1;
}
static int value(struct parse *s) {
    want(s, "%");
    char *n = name(s);
    int v = find(s, n);
    if (v < 0) stop(s, "%%%s is not defined", n);
    return v;
}
static void define(struct parse *s, char *n, int v) {
    if (s->nscope == s->capscope) {
        s->capscope = s->capscope ? 2 * s->capscope : 64;
        s->scope = keep_copy(s, s->scope, (size_t)s->nscope * sizeof *s->scope,
                             (size_t)s->capscope * sizeof *s->scope);
    }
    s->scope[s->nscope++] = (struct scope){n, v};
}

static int size_named(const struct parse *s, const char *n) {
    for (int i = 0; i < s->o->nknown; i++)
        if (s->o->known[i].value < 0 && !strcmp(s->o->known[i].name, n)) return i;
    return -1;
}
/* Something that a caller sets: a size (value -1), a scalar or a shape. */
static int known(struct parse *s, const char *n, int value) {
    oracle *o = s->o;
    if ((o->nknown & (o->nknown - 1)) == 0)
        o->known = keep_copy(s, o->known, (size_t)o->nknown * sizeof *o->known,
                             (size_t)(2 * o->nknown + 1) * sizeof *o->known);
    o->known[o->nknown] = (struct known){
        .name = keep_copy(s, n, strlen(n), strlen(n) + 1), .rank = -1, .value = value};
    return o->nknown++;
}

/* ------------------------------------------------------------------ dimensions */

static struct dimx *dim(struct parse *s);

static struct dimx *leaf(struct parse *s, enum dimx_kind k, int64_t n) {
    struct dimx *d = keep(s, sizeof *d);
    *d = (struct dimx){.kind = k, .n = n};
    return d;
}
static struct dimx *pair(struct parse *s, int op, struct dimx *a, struct dimx *b) {
    struct dimx *d = leaf(s, DX_OP, 0);
    d->op = op;
    d->a = a;
    d->b = b;
    return d;
}

static struct dimx *factor(struct parse *s) {
    if (++s->depth > 200) stop(s, "nested too deeply");
    struct dimx *d = NULL;
    blank(s);
    const char *before = s->p;
    if (take(s, "(")) {
        d = dim(s);
        want(s, ")");
    } else if (ahead(s, "-") || (s->p < s->end && isdigit((unsigned char)*s->p))) {
        d = leaf(s, DX_NUM, integer(s));
    } else if (ahead(s, "%")) {
        d = leaf(s, DX_SCALAR, value(s));
    } else {
        char *n = name(s);
        if (take(s, "(")) {
            if (!strcmp(n, "dim")) {
                d = leaf(s, DX_OF, value(s));
                want(s, ",");
                d->axis = integer(s);
            } else {
                struct dimx *a = dim(s);
                want(s, ",");
                d = pair(s, !strcmp(n, "max") ? DVM_DIM_MAX : DVM_DIM_MIN, a, dim(s));
            }
            want(s, ")");
        }
        for (int i = 0; !d && i < s->nlet; i++)
            if (!strcmp(s->let[i].name, n)) d = s->let_dim[i];
        if (!d && size_named(s, n) >= 0) d = leaf(s, DX_NAME, size_named(s, n));
        if (!d && find(s, n) >= 0) d = leaf(s, DX_SCALAR, find(s, n));
        if (!d) {
            s->p = before;
            stop(s, "unknown size %s", n);
        }
    }
    s->depth--;
    return d;
}

static struct dimx *term(struct parse *s) {
    struct dimx *d = factor(s);
    for (;;) {
        if (take(s, "*"))
            d = pair(s, DVM_DIM_MUL, d, factor(s));
        else if (take(s, "//"))
            d = pair(s, DVM_DIM_FLOORDIV, d, factor(s));
        else if (take(s, "mod"))
            d = pair(s, DVM_DIM_MOD, d, factor(s));
        else
            return d;
    }
}
static struct dimx *dim(struct parse *s) {
    struct dimx *d = term(s);
    for (;;) {
        if (take(s, "+"))
            d = pair(s, DVM_DIM_ADD, d, term(s));
        else if (!ahead(s, "->") && take(s, "-"))
            d = pair(s, DVM_DIM_SUB, d, term(s));
        else
            return d;
    }
}

static int dims(struct parse *s, struct dimx **d) {
    int n = 0;
    want(s, "[");
    while (!take(s, "]")) {
        if (n) want(s, ",");
        if (n == R10) stop(s, "too many sizes");
        d[n++] = take(s, "?") ? leaf(s, DX_NUM, -1) : dim(s);
    }
    return n;
}
static int ints(struct parse *s, int64_t *v) {
    int n = 0;
    want(s, "[");
    while (!take(s, "]")) {
        if (n) want(s, ",");
        if (n == R10) stop(s, "too many numbers");
        v[n++] = integer(s);
    }
    return n;
}

/* ------------------------------------------------------------------ arguments */

/* A size of an argument: "?", a new or known name alone, or an expression. */
static struct dimx *argument_dim(struct parse *s, const char *arg, int axis) {
    char text[300];
    blank(s);
    const char *before = s->p;
    if (take(s, "?")) {
        snprintf(text, sizeof text, "%.250s.%d", arg, axis);
        return leaf(s, DX_NAME, known(s, text, -1));
    }
    if (s->p < s->end && (isalpha((unsigned char)*s->p) || *s->p == '_')) {
        char *n = name(s);
        bool alone = ahead(s, ",") || ahead(s, "]");
        bool is_let = false;
        for (int i = 0; i < s->nlet; i++) is_let |= !strcmp(s->let[i].name, n);
        if (alone && size_named(s, n) >= 0) return leaf(s, DX_NAME, size_named(s, n));
        if (alone && size_named(s, n) >= 0) return leaf(s, DX_NAME, size_named(s, n));
        if (alone && !is_let && find(s, n) < 0) return leaf(s, DX_NAME, known(s, n, -1));
        s->p = before;
    }
    return dim(s);
}

static void argument(struct parse *s, char *n) {
    oracle *o = s->o;
    struct value *v;
    if (take(s, "scalar")) {
        v = add(s, DVM_OP_SCALAR, dtype(s), 0, NULL);
        v->leaf = true;
        known(s, n, last(s));
    } else {
        struct dimx *d[R10], *st[R10];
        int nd = 0, ns = 0;
        dvm_dtype t = dtype(s);
        want(s, "[");
        bool any_rank = take(s, "*");
        if (any_rank) { want(s, "]"); }
        while (!any_rank && !take(s, "]")) {
            if (nd) want(s, ",");
            if (nd == R10) stop(s, "too many sizes");
            d[nd] = argument_dim(s, n, nd);
            nd++;
        }
        if (take(s, "strides")) {
            want(s, "=");
            ns = dims(s, st);
        }
        v = add(s, DVM_OP_LOAD, t, 0, NULL);
        v->any_rank = any_rank;
        if (any_rank) known(s, n, last(s));
        v->n1 = nd;
        v->n2 = ns;
        memcpy(v->d1, d, (size_t)nd * sizeof *d);
        memcpy(v->d2, st, (size_t)ns * sizeof *st);
    }
    v->arg = o->nin;
    o->in =
        keep_copy(s, o->in, (size_t)o->nin * sizeof *o->in, (size_t)(o->nin + 1) * sizeof *o->in);
    o->in[o->nin++] = last(s);
    v->name = n;
    define(s, n, last(s));
}

/* ------------------------------------------------------------------ operands */

struct opnd {
    int v; /* -1: a literal */
    bool typed;
    dvm_dtype t;
    bool is_int;
    int64_t i;
    double f;
};

static struct opnd operand(struct parse *s) {
    struct opnd x = {.v = -1};
    if (ahead(s, "%")) {
        x.v = value(s);
        return x;
    }
    bool neg = take(s, "-");
    uint64_t bits = 0;
    if (take(s, "true"))
        x.is_int = true, x.i = 1;
    else if (take(s, "false"))
        x.is_int = true;
    else if (take(s, "inf"))
        x.f = neg ? -INFINITY : INFINITY;
    else if (take(s, "nan")) {
        x.f = NAN;
        if (take(s, "(")) {
            integer(s);
            want(s, ")");
        }
    } else {
        if (!number(s, &x.is_int, &bits, &x.f)) stop(s, "expected an operand");
        x.i = (int64_t)(neg ? 0 - bits : bits);
        x.f = neg ? -x.f : x.f;
    }
    x.typed = take(s, ":");
    if (x.typed) x.t = dtype(s);
    return x;
}

static int literal(struct parse *s, const struct opnd *x, dvm_dtype t) {
    if (x->v >= 0) return x->v;
    t = x->typed ? x->t : t;
    struct value *v = add(s, DVM_OP_CONST, t, 0, NULL);
    v->leaf = true;
    v->constant = is_f(t) ? of_float(round_to(t, x->f), 0) : of_int(wrap_to(t, x->i));
    return last(s);
}

static int cast(struct parse *s, int v, dvm_dtype t) {
    if (s->o->v[v].dtype == t) return v;
    bool constant = s->o->v[v].op == DVM_OP_CONST;
    elem c = cast_elem(s->o->v[v].dtype, t, s->o->v[v].constant);
    struct value *x = add(s, constant ? DVM_OP_CONST : DVM_OP_CAST, t, constant ? 0 : 1, &v);
    x->constant = c;
    x->leaf = constant;
    return last(s);
}

static int one(struct parse *s) {
    struct opnd x = operand(s);
    if (x.v < 0 && !x.typed) stop(s, "literal without a dtype");
    return literal(s, &x, DVM_F32);
}

/* ------------------------------------------------------------------ operations */

static int elementwise(struct parse *s, dvm_op op, int n, bool is_test) {
    struct opnd x[3];
    int in[3], first = op == DVM_OP_SELECT ? 1 : 0, lead = -1;
    for (int i = 0; i < n; i++) {
        if (i) want(s, ",");
        x[i] = operand(s);
    }
    for (int i = 0; i < n; i++) {
        dvm_dtype t = op == DVM_OP_SELECT && i == 0 ? DVM_BOOL : DVM_NDTYPE;
        for (int k = first; k < n && t == DVM_NDTYPE; k++)
            if (k != i && x[k].v >= 0) t = s->o->v[x[k].v].dtype;
        if (x[i].v < 0 && !x[i].typed && t == DVM_NDTYPE) stop(s, "literal without a dtype");
        in[i] = literal(s, &x[i], t);
    }
    for (int i = first; i < n && lead < 0; i++)
        if (!s->o->v[in[i]].leaf) lead = in[i];
    dvm_dtype t = s->o->v[lead < 0 ? in[first] : lead].dtype;
    for (int i = first; i < n; i++) in[i] = cast(s, in[i], t);
    if (first) in[0] = cast(s, in[0], DVM_BOOL);
    add(s, op, is_test ? DVM_BOOL : t, n, in);
    return last(s);
}

static void attributes(struct parse *s, struct value *a) {
    while (take(s, ",")) {
        char *n = name(s);
        if (!strcmp(n, "keep")) {
            a->keep = true;
            continue;
        }
        if (!strcmp(n, "trans_a") || !strcmp(n, "trans_b")) {
            *(n[6] == 'a' ? &a->trans_a : &a->trans_b) = true;
            continue;
        }
        want(s, "=");
        if (!strcmp(n, "dims"))
            a->naxes = ints(s, a->axes);
        else if (!strcmp(n, "dtype"))
            a->dtype = dtype(s);
        else if (!strcmp(n, "axis"))
            a->axis = integer(s);
        else if (!strcmp(n, "groups"))
            a->by_rows = !strcmp(name(s), "m");
        else if (!strcmp(n, "list"))
            a->sizes = !strcmp(name(s), "sizes");
        else if (!strcmp(n, "mode"))
            a->mode = !strcmp(name(s), "slice");
        else if (!strcmp(n, "start"))
            a->n1 = dims(s, a->d1);
        else if (!strcmp(n, "size") || !strcmp(n, "strides"))
            a->n2 = dims(s, a->d2);
        else if (!strcmp(n, "step"))
            a->n3 = dims(s, a->d3);
        else
            stop(s, "unknown attribute %s", n);
    }
}

/* Puts what was read of the attributes behind the operands into a new value. */
static int with(struct parse *s, dvm_op op, dvm_dtype t, int nin, const int *in,
                const struct value *a) {
    struct value *v = add(s, op, t, nin, in);
    int *kept = v->in;
    *v = *a;
    v->op = op;
    v->dtype = t;
    v->nin = nin;
    v->in = kept;
    return last(s);
}

static int reduction(struct parse *s, dvm_op op) {
    int x = one(s);
    dvm_dtype t = s->o->v[x].dtype;
    struct value a = {.dtype = DVM_NDTYPE};
    attributes(s, &a);
    if (op == DVM_OP_ARGMAX || op == DVM_OP_ARGMIN) return with(s, op, DVM_I64, 1, &x, &a);
    if (op != DVM_OP_SUM && op != DVM_OP_PROD) return with(s, op, t, 1, &x, &a);
    dvm_dtype to = a.dtype != DVM_NDTYPE ? a.dtype : is_f(t) ? t : DVM_I64;
    if (is_f(to) && !is_f(t)) x = cast(s, x, DVM_F32);
    if (!is_f(to)) x = cast(s, x, DVM_I64);
    with(s, op, is_f(to) ? to : DVM_I64, 1, &x, &a);
    return cast(s, last(s), to);
}

static int concat(struct parse *s) {
    int *in = NULL, n = 0;
    struct value a = {0};
    do {
        in = keep_copy(s, in, (size_t)n * sizeof *in, (size_t)(n + 1) * sizeof *in);
        in[n++] = one(s);
        const char *p = s->p;
        bool more = take(s, ",");
        if (more && !ahead(s, "axis")) continue;
        s->p = p;
        break;
    } while (true);
    attributes(s, &a);
    return with(s, DVM_OP_CONCAT, s->o->v[in[0]].dtype, n, in, &a);
}

static int store(struct parse *s) {
    oracle *o = s->o;
    int x = one(s);
    struct value a = {0};
    attributes(s, &a);
    with(s, DVM_OP_STORE, o->v[x].dtype, 1, &x, &a);
    o->v[last(s)].arg = o->nout;
    o->out = keep_copy(s, o->out, (size_t)o->nout * sizeof *o->out,
                       (size_t)(o->nout + 1) * sizeof *o->out);
    o->out[o->nout++] = last(s);
    return last(s);
}

static int operation(struct parse *s, dvm_op op, int arity, bool ew, bool red, bool is_test) {
    struct value a = {0};
    int in[3];
    dvm_dtype t;
    if (red) return reduction(s, op);
    if (ew && op != DVM_OP_CAST) return elementwise(s, op, arity, is_test);
    switch (op) {
    case DVM_OP_CONST: return one(s);
    case DVM_OP_IOTA:
        t = dtype(s);
        a.n1 = dims(s, a.d1);
        attributes(s, &a);
        return with(s, op, t, 0, NULL, &a);
    case DVM_OP_CONCAT: return concat(s);
    case DVM_OP_STORE: return store(s);
    default: break;
    }
    in[0] = one(s);
    t = s->o->v[in[0]].dtype;
    switch (op) {
    case DVM_OP_CAST: want(s, ","); return cast(s, in[0], dtype(s));
    case DVM_OP_BROADCAST:
    case DVM_OP_RESHAPE:
        want(s, ",");
        a.n1 = dims(s, a.d1);
        return with(s, op, t, 1, in, &a);
    case DVM_OP_PERMUTE:
        want(s, ",");
        a.naxes = ints(s, a.axes);
        return with(s, op, t, 1, in, &a);
    case DVM_OP_GATHER:
        want(s, ",");
        in[1] = one(s);
        attributes(s, &a);
        return with(s, op, t, 2, in, &a);
    case DVM_OP_MATMUL:
    case DVM_OP_GROUPED:
        a.dtype = DVM_NDTYPE;
        for (int i = 1; i < arity; i++) {
            want(s, ",");
            in[i] = one(s);
        }
        attributes(s, &a);
        return with(s, op, a.dtype == DVM_NDTYPE ? t : a.dtype, arity, in, &a);
    case DVM_OP_SIZE:
        attributes(s, &a);
        a.leaf = true;
        return with(s, op, DVM_I64, 1, in, &a);
    case DVM_OP_SLICE:
    case DVM_OP_CUMSUM: attributes(s, &a); return with(s, op, t, 1, in, &a);
    default: stop(s, "unknown operation");
    }
    return -1;
}

static int named_operation(struct parse *s) {
    enum { LEAF, EW, VIEW, RED, SPEC };
    enum { SAME, BOOL, ARG, I64 };
    static const struct {
        const char *text;
        int arity, cls, result;
    } rows[] = {
#define X(name, text, arity, cls, types, result, tol, meaning) {text, arity, cls, result},
#include <dvm/ops.def>
#undef X
    };
    char *n = name(s);
    for (int op = 0; op < DVM_NOP; op++)
        if (!strcmp(rows[op].text, n))
            return operation(s, (dvm_op)op, rows[op].arity, rows[op].cls == EW, rows[op].cls == RED,
                             rows[op].result == BOOL);
    stop(s, "unknown operation %s", n);
    return -1;
}

/* ------------------------------------------------------------------ the kernel */

static void statement(struct parse *s) {
    if (take(s, "next")) {
        name(s);
        if (take(s, ":")) do
                name(s);
            while (take(s, ","));
        if (take(s, "cores")) {
            want(s, "=");
            integer(s);
        }
    } else if (take(s, "let")) {
        char *n = name(s);
        want(s, "=");
        struct dimx *d = dim(s);
        s->let = keep_copy(s, s->let, (size_t)s->nlet * sizeof *s->let,
                           (size_t)(s->nlet + 1) * sizeof *s->let);
        s->let_dim = keep_copy(s, s->let_dim, (size_t)s->nlet * sizeof *s->let_dim,
                               (size_t)(s->nlet + 1) * sizeof *s->let_dim);
        s->let[s->nlet].name = n;
        s->let_dim[s->nlet++] = d;
    } else if (take(s, "store")) {
        store(s);
    } else {
        want(s, "%");
        char *n = name(s);
        want(s, "=");
        if (take(s, "load") || ahead(s, "scalar"))
            argument(s, n);
        else
            define(s, n, named_operation(s));
    }
}

static void kernel(struct parse *s) {
    static const char *const flags[] = {"dyn", "unify_ws", "spec", "strict"};
    want(s, "kernel");
    s->o->name = take(s, "@") ? name(s) : keep(s, 1);
    name(s);
    if (take(s, ":")) {
        do {
            char *f = name(s);
            for (unsigned i = 0; i < 4; i++) s->o->flags |= !strcmp(f, flags[i]) ? 1u << i : 0;
        } while (take(s, ","));
    }
    want(s, "(");
    while (!take(s, ")")) {
        if (s->o->nin) want(s, ",");
        take(s, "%");
        char *n = name(s);
        want(s, ":");
        argument(s, n);
    }
    if (take(s, "->"))
        while (s->p < s->end && *s->p != '{') s->p++;
    want(s, "{");
    while (!take(s, "}")) statement(s);
}

oracle *oracle_read(const char *text, size_t n, char *err, size_t cap) {
    struct parse s = {.p = text, .end = text + n, .line = 1, .err = err, .cap = cap};
    s.o = calloc(1, sizeof *s.o);
    if (!s.o) return NULL;
    if (setjmp(s.out)) {
        oracle_free(s.o);
        return NULL;
    }
    kernel(&s);
    return s.o;
}

void oracle_free(oracle *o) {
    if (!o) return;
    for (int i = 0; i < o->nv; i++) free(o->v[i].x);
    free(o->v);
    for (struct block *b = o->blocks, *next; b; b = next) {
        next = b->next;
        free(b);
    }
    free(o);
}
