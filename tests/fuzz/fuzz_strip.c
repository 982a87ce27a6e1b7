/* Strips from hostile bytes: through the readers of text and bytes, and made up from them directly.
 * Whatever the verifier lets pass is printed and read back, encoded and decoded, and run on the
 * reference and on all tiers of the CPU, in memory of the exact size: outputs must agree bit for bit. */
#include <stdlib.h>
#include <string.h>

#include "code/bc_table.h"
#include "code/strip_bytes.h"
#include "code/strip_text.h"
#include "vm/dev.h"

static const struct dvm_mem mem = {dvm_mem_system, NULL};

#define CHECK(x)                    \
    do {                            \
        if (!(x)) __builtin_trap(); \
    } while (0)

struct bytes {
    const uint8_t *p;
    size_t n;
};

static unsigned take(struct bytes *b, unsigned below) {
    if (!b->n || !below) return 0;
    b->n--;
    return *b->p++ % below;
}

/* ---- making up ---------------------------------------------------------------------------------- */

enum { MAX_OPND = 12, MAX_INS = 48, MAX_LIT = 4, MAX_M = 4, MAX_N = 1100 };

struct made {
    struct dvm_strip s;
    struct dvm_opnd opnd[MAX_OPND], final[MAX_OPND];
    uint64_t lit[MAX_LIT];
    struct dvm_ins ins[MAX_INS];
};

/* An earlier value, of the type if there is one. */
static uint16_t value(const struct made *m, struct bytes *b, int type) {
    unsigned at = take(b, m->s.nins);
    for (unsigned k = 0; k < m->s.nins; k++) {
        unsigned v = (at + k) % m->s.nins;
        if (m->ins[v].type == type && dvm_bc_is_value(m->ins[v].op)) return (uint16_t)v;
    }
    return (uint16_t)at;
}

static uint16_t made_field(const struct made *m, struct bytes *b, char kind, int type) {
    switch (kind) {
    case 'v': return value(m, b, type);
    case 'o': return (uint16_t)take(b, m->s.nopnd);
    case 'k': return (uint16_t)take(b, MAX_LIT);
    case 'p': return (uint16_t)take(b, 2);
    case 'r': return (uint16_t)(DVM_OP_SUM + take(b, 8));
    case 't': return (uint16_t)take(b, DVM_NDTYPE);
    default: return 0;
    }
}

static struct dvm_opnd operand(const struct made *m, struct bytes *b) {
    struct dvm_opnd o = {(uint8_t)take(b, DVM_NDTYPE), (uint8_t)take(b, 4), (uint8_t)take(b, 5), 0};
    bool fold = o.role == DVM_ROLE_FOLD, row = m->s.mode != DVM_MODE_COL;
    if (o.role == DVM_ROLE_STORE || (fold && !row)) o.kind |= DVM_OPND_CONTIG;
    if (fold && row) o.kind = DVM_OPND_ROW;
    if (o.role == DVM_ROLE_IOTA) o.kind = o.kind & 1 ? DVM_OPND_STRIDED : DVM_OPND_UNIF;
    if (o.role == DVM_ROLE_IOTA) o.dtype = o.dtype & 1 ? DVM_I32 : DVM_I64;
    return o;
}

/* Outputs that nothing writes become inputs. */
static bool good(struct made *m) {
    struct dvm_opnd now[MAX_OPND];
    uint32_t written = 0;
    for (int k = 0; k < m->s.nins; k++) {
        const struct dvm_ins *i = &m->ins[k];
        if (i->op == DVM_BC_STORE) written |= 1u << i->a;
        if (i->op == DVM_BC_FOLD) written |= (dvm_bc_is_arg(i->b) ? 3u : 1u) << i->c;
    }
    memcpy(now, m->opnd, sizeof now);
    for (int o = 0; o < m->s.nopnd; o++)
        if (now[o].role == DVM_ROLE_STORE || now[o].role == DVM_ROLE_FOLD)
            if (!(written >> o & 1)) now[o].role = DVM_ROLE_LOAD;
    m->s.opnd = now;
    bool ok = dvm_strip_verify(&m->s) == DVM_OK;
    m->s.opnd = m->opnd;
    memcpy(m->final, now, sizeof now);
    return ok;
}

/* Mostly sensible: a few fields are right by construction, the rest is for the verifier. */
static void make(struct made *m, struct bytes *b) {
    memset(m, 0, sizeof *m);
    m->s.mode = (uint8_t)take(b, 3);
    m->s.flags = (uint8_t)take(b, 2);
    m->s.nparam = 2;
    m->s.nlit = MAX_LIT;
    m->s.nopnd = (uint16_t)(1 + take(b, MAX_OPND));
    for (int o = 0; o < m->s.nopnd; o++) m->opnd[o] = operand(m, b);
    for (int k = 0; k < MAX_LIT; k++) m->lit[k] = k < 2 ? take(b, 2) : take(b, 256) * 0x1000193u;
    m->s.opnd = m->opnd;
    m->s.lit = m->lit;
    m->s.ins = m->ins;
    while (b->n > 4 && m->s.nins < MAX_INS) {
        int op = (int)take(b, DVM_NBC), type = (int)take(b, DVM_NVT), in = (int)take(b, DVM_NVT);
        const char *f = dvm_bc_fields(op);
        if (dvm_bc_result(op, DVM_VT_F32) == DVM_VT_B1)
            type = DVM_VT_B1;
        else if (op != DVM_OP_CAST)
            in = type;
        struct dvm_ins *i = &m->ins[m->s.nins];
        i->op = (uint8_t)op;
        i->type = (uint8_t)type;
        i->a = made_field(m, b, f[0], op == DVM_OP_SELECT ? DVM_VT_B1 : in);
        i->b = made_field(m, b, f[1], op == DVM_BC_PICK ? DVM_VT_I32 + (in & 1) : in);
        i->c = made_field(m, b, f[2], in);
        if (op == DVM_BC_LOAD || op == DVM_BC_STORE || op == DVM_BC_PICK)
            i->type = dvm_vt_of(m->opnd[i->a].dtype);
        m->s.nins++;
        if (!good(m)) m->s.nins--; /* dropped, so that the rest can pass */
    }
    good(m);
    m->s.opnd = m->final;
}

/* ---- running ------------------------------------------------------------------------------------ */

struct buffer {
    char *p, *first;
    size_t n;
};

static void place(struct buffer *b, struct dvm_opnd_arg *a, const struct dvm_strip *s, int o,
                  int64_t m, int64_t n, unsigned salt) {
    const struct dvm_opnd *d = &s->opnd[o];
    int64_t e = (int64_t)dvm_dtype_size((dvm_dtype)d->dtype);
    bool out = d->role == DVM_ROLE_STORE || d->role == DVM_ROLE_FOLD;
    if (d->role == DVM_ROLE_FOLD && s->mode == DVM_MODE_ROW) n = 1;
    if (d->role == DVM_ROLE_FOLD && s->mode == DVM_MODE_COL) m = 1;
    *a = (struct dvm_opnd_arg){.rs = n * e, .cs = e, .gn = 1 + salt % 5, .gs = e};
    if (d->kind == DVM_OPND_STRIDED) a->cs = 2 * e, a->rs = 2 * n * e;
    if (d->kind == DVM_OPND_ROW) a->cs = 0, a->rs = e; /* dense folds, rows that repeat a column */
    if (d->kind == DVM_OPND_UNIF) a->cs = a->rs = 0;
    if (d->role == DVM_ROLE_IOTA) {
        a->ptr = (char *)(uintptr_t)salt;
        return;
    }
    if (d->role != DVM_ROLE_PICK) a->gn = a->gs = 0;
    int64_t last = (m - 1) * a->rs + (n - 1) * a->cs + (a->gn ? (a->gn - 1) * a->gs : 0);
    b->n = m > 0 && n > 0 ? (size_t)(last + e) : 0;
    b->p = malloc(b->n + 1);
    b->first = malloc(b->n + 1);
    CHECK(b->p && b->first);
    for (size_t k = 0; k < b->n; k++) b->p[k] = (char)(out ? 0x5a : (k * 31 + salt) >> (k & 3));
    memcpy(b->first, b->p, b->n);
    a->ptr = b->p;
}

/* NaNs of an output become one of them. */
static void one_nan(const struct dvm_strip *s, int o, char *p, size_t n) {
    size_t e = dvm_dtype_size((dvm_dtype)s->opnd[o].dtype);
    for (size_t k = 0; k + e <= n; k += e) {
        uint64_t u = 0, top;
        memcpy(&u, p + k, e);
        switch (s->opnd[o].dtype) {
        case DVM_F16: top = 0x7c00; break;
        case DVM_BF16: top = 0x7f80; break;
        case DVM_F32: top = 0x7f800000; break;
        case DVM_F64: top = UINT64_C(0x7ff0000000000000); break;
        default: return;
        }
        if ((u & (UINT64_MAX >> (65 - 8 * e))) > top) memset(p + k, 0xff, e);
    }
}

/* The reference, the VM at its lowest and its best level, machine code at both of its levels. */
enum { REF, VM_BASE, VM_BEST, JIT_AVX2, JIT_AVX512, TIERS };

static dvm_status device(int tier, struct dvm_dev *d) {
    switch (tier) {
    case REF: return dvm_dev_ref(d);
    case VM_BASE: return dvm_dev_cpu("base", d);
    case VM_BEST: return dvm_dev_cpu(NULL, d);
    default: break;
    }
    const char *isa = tier == JIT_AVX2 ? "avx2" : "avx512";
    dvm_status st = dvm_dev_cpu(isa, d); /* says whether the processor has it */
    return st == DVM_OK ? dvm_dev_jit(isa, d) : st;
}

static struct dvm_fault run(const struct dvm_code *code, const struct dvm_strip *s,
                            const struct dvm_opnd_arg *opnd, int64_t m, int64_t n) {
    static const uint64_t param[2] = {1, 0};
    uint64_t params[2] = {param[0], param[1]};
    struct dvm_fault fault = {0};
    size_t size = (code->scratch + 63) & ~(size_t)63;
    void *scratch = aligned_alloc(64, size + 64);
    struct dvm_strip_args a = {.opnd = opnd,
                               .param = s->nparam <= 2 ? params : NULL,
                               .m = m,
                               .n = n,
                               .pos = 3,
                               .scratch = scratch,
                               .fault = &fault};
    code->run(code, &a);
    free(scratch);
    return fault;
}

static void run_all(const struct dvm_strip *s, int64_t m, int64_t n) {
    struct buffer buf[MAX_OPND] = {{0}};
    struct dvm_opnd_arg arg[MAX_OPND];
    char *want[MAX_OPND] = {0};
    struct dvm_fault fault = {0};
    for (int o = 0; o < s->nopnd; o++) place(&buf[o], &arg[o], s, o, m, n, (unsigned)o * 7 + 1);
    for (int tier = REF; tier < TIERS; tier++) {
        struct dvm_code *code = NULL;
        struct dvm_dev dev;
        if (device(tier, &dev) != DVM_OK) continue; /* not on this processor */
        dvm_status st = dev.compile(&dev, &mem, s, &code);
        CHECK(st == DVM_OK || (st == DVM_ERR_UNSUPPORTED && tier >= JIT_AVX2));
        if (st != DVM_OK) continue;
        for (int o = 0; o < s->nopnd; o++)
            if (buf[o].p) memcpy(buf[o].p, buf[o].first, buf[o].n);
        struct dvm_fault got = run(code, s, arg, m, n);
        if (tier == REF) fault = got;
        CHECK(got.any == fault.any && got.opnd == fault.opnd);
        CHECK(got.index == fault.index && got.gn == fault.gn);
        for (int o = 0; o < s->nopnd; o++) {
            if (!buf[o].p) continue;
            one_nan(s, o, buf[o].p, buf[o].n);
            if (tier == REF) {
                want[o] = malloc(buf[o].n + 1);
                CHECK(want[o]);
                memcpy(want[o], buf[o].p, buf[o].n);
            }
            CHECK(memcmp(buf[o].p, want[o], buf[o].n) == 0);
        }
        dev.destroy(&dev, &mem, code);
    }
    for (int o = 0; o < s->nopnd; o++) {
        free(buf[o].p);
        free(buf[o].first);
        free(want[o]);
    }
}

/* ---- round trips -------------------------------------------------------------------------------- */

static char *print(const struct dvm_strip *s) {
    struct dvm_text t;
    char *text;
    dvm_text_init(&t, &mem);
    dvm_strip_write(s, &t);
    CHECK(dvm_text_take(&t, &text) == DVM_OK);
    return text;
}

static void round_trips(const struct dvm_strip *s) {
    struct dvm_strip *again;
    char *text = print(s);
    CHECK(dvm_strip_read(&mem, "again", text, strlen(text), &again) == DVM_OK);
    char *second = print(again);
    CHECK(strcmp(text, second) == 0);
    dvm_string_free(&text);
    dvm_string_free(&second);
    dvm_strip_free(&mem, &again);

    size_t n = dvm_strip_bytes(s);
    unsigned char *bytes = malloc(n);
    dvm_strip_encode(s, bytes);
    CHECK(dvm_strip_decode(&mem, bytes, n, &again) == DVM_OK);
    CHECK(dvm_strip_hash(again) == dvm_strip_hash(s));
    free(bytes);
    dvm_strip_free(&mem, &again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct bytes b = {data, size};
    struct dvm_strip *s;
    unsigned how = take(&b, 4);
    if (how == 0) {
        if (dvm_strip_read(&mem, "fuzz", (const char *)b.p, b.n, &s) != DVM_OK) return 0;
        round_trips(s);
        dvm_strip_free(&mem, &s);
    } else if (how == 1) {
        if (dvm_strip_decode(&mem, b.p, b.n, &s) != DVM_OK) return 0;
        round_trips(s);
        dvm_strip_free(&mem, &s);
    } else {
        static const int64_t widths[] = {1, 5, 17, 64, 130, MAX_N};
        struct made m;
        int64_t rows = 1 + take(&b, MAX_M), cols = widths[take(&b, DVM_COUNT(widths))];
        make(&m, &b);
        CHECK(dvm_strip_verify(&m.s) == DVM_OK);
        round_trips(&m.s);
        run_all(&m.s, rows, cols);
    }
    return 0;
}
