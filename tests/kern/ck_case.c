/* One case: memory for the operands of a strip, a run on the reference and one on the device, and the
 * comparison. Every operand lies in its own pages between two that cannot be touched, flush with one
 * end or the other, so that a read or write outside faults; bytes around and between the elements of
 * outputs must stay as they were. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "base/mem.h"
#include "kern/ck.h"

enum { REGION = 8 << 20, PAGE = 4096, MARGIN = 256, CANARY = 0xa5, MAX_REGIONS = 300 };

static const struct dvm_mem mem = {dvm_mem_system, NULL};
static char *regions[MAX_REGIONS];

static char *region(int i) {
    if (regions[i]) return regions[i];
    char *p = mmap(NULL, REGION + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);
    if (p == MAP_FAILED || mprotect(p + PAGE, REGION, PROT_READ | PROT_WRITE)) {
        perror("checkkern: mmap");
        exit(2);
    }
    return regions[i] = p + PAGE;
}

void ck_release(void) {
    for (int i = 0; i < MAX_REGIONS; i++)
        if (regions[i]) munmap(regions[i] - PAGE, REGION + 2 * PAGE);
    memset(regions, 0, sizeof regions);
}

/* ---- values ------------------------------------------------------------------------------------- */

static uint64_t float_bits(struct ck_rng *r, bool small) {
    static const uint32_t special[] = {
        0,          0x80000000, 0x7f800000, 0xff800000, 0x7fc00000, 1,          0x807fffff,
        0x00800000, 0x7f7fffff, 0xff7fffff, 0x3f800000, 0xbf800000, 0x3f000000, 0xbf000000,
        0x3fc00000, 0x40200000, 0x4b000000, 0x4b800001, 0xcb000001, 0x4effffff, 0x4f000000,
        0xcf000000, 0x5f000000, 0xdf000000, 0x477fe000, 0x477ff000, 0x38800000, 0x33800000,
        0x33000001, 0x42b17218, 0xc2aeac50, 0x7f800001, 0x477fefff, 0x387fffff};
    uint64_t x = ck_next(r);
    int what = (int)(x >> 56) % 16;
    float f;
    uint32_t u;
    if (what == 0) return special[(x & 0xffff) % DVM_COUNT(special)];
    if (what == 1 && !small) return (uint32_t)x; /* any bits */
    f = (float)(int32_t)(uint32_t)x * 0x1p-31f;  /* below 1 */
    if (what < 4)
        f = (float)(int)(f * 100); /* integral */
    else if (what < 7 && !small)
        f = ldexpf(f, (int)(x >> 32) % 40 - 20);
    else
        f *= small ? 4 : 8;
    memcpy(&u, &f, sizeof u);
    return u;
}

static uint64_t int_bits(struct ck_rng *r, int width, bool small) {
    uint64_t x = ck_next(r), mask = width == 64 ? UINT64_MAX : (UINT64_C(1) << width) - 1;
    int what = (int)(x >> 60);
    if (small || what < 6) return (uint64_t)((int64_t)(x & 63) - 20) & mask;
    if (what == 6) return UINT64_C(1) << (width - 1);       /* smallest */
    if (what == 7) return (UINT64_C(1) << (width - 1)) - 1; /* largest */
    if (what == 8) return mask;
    if (what == 9) return 0;
    if (what == 10) return (UINT64_C(1) << (x & (uint64_t)(width - 1))) & mask;
    return (x * 0x9e3779b97f4a7c15) & mask;
}

/* Rounds roughly, which is enough to spread values over all bits of a narrow float. */
static uint64_t narrow_bits(struct ck_rng *r, int dtype, bool small) {
    uint32_t u = (uint32_t)float_bits(r, small);
    float f;
    memcpy(&f, &u, sizeof f);
    if (dtype == DVM_BF16) return u >> 16;
    if (!(fabsf(f) < 65504.0f)) return (u >> 16 & 0x8000) | (isnan(f) ? 0x7e01 : 0x7c00);
    if (ck_below(r, 8) == 0) return ck_next(r) & 0xffff;
    f *= 0x1p-112f;
    memcpy(&u, &f, sizeof u);
    return (u >> 16 & 0x8000) | (u >> 13 & 0x7fff);
}

uint64_t ck_element(struct ck_rng *r, int dtype, bool small) {
    switch (dtype) {
    case DVM_BOOL: return ck_below(r, 8) ? ck_next(r) & 1 : ck_next(r) & 255;
    case DVM_F16:
    case DVM_BF16: return narrow_bits(r, dtype, small);
    case DVM_F32: return float_bits(r, small);
    case DVM_F64: {
        uint32_t u = (uint32_t)float_bits(r, small);
        float f;
        memcpy(&f, &u, sizeof f);
        double d = (double)f * (ck_flip(r) ? 1 : 1.0000000001);
        uint64_t bits;
        memcpy(&bits, &d, sizeof bits);
        return bits;
    }
    default: return int_bits(r, (int)dvm_dtype_size((dvm_dtype)dtype) * 8, small);
    }
}

static bool is_nan(int dtype, const void *p) {
    uint64_t u = 0;
    memcpy(&u, p, dvm_dtype_size((dvm_dtype)dtype));
    switch (dtype) {
    case DVM_F16: return (u & 0x7fff) > 0x7c00;
    case DVM_BF16: return (u & 0x7fff) > 0x7f80;
    case DVM_F32: return (u & 0x7fffffff) > 0x7f800000;
    case DVM_F64: return u << 1 > UINT64_C(0xffe0000000000000);
    default: return false;
    }
}

void ck_show(int dtype, const void *p, char *buf, size_t cap) {
    uint64_t u = 0;
    float f;
    double d;
    memcpy(&u, p, dvm_dtype_size((dvm_dtype)dtype));
    memcpy(&f, &u, sizeof f);
    memcpy(&d, &u, sizeof d);
    if (dtype == DVM_F32)
        snprintf(buf, cap, "%.9g (0x%08x)", (double)f, (unsigned)u);
    else if (dtype == DVM_F64)
        snprintf(buf, cap, "%.17g (0x%016llx)", d, (unsigned long long)u);
    else
        snprintf(buf, cap, "0x%llx", (unsigned long long)u);
}

/* ---- layout ------------------------------------------------------------------------------------- */

struct place {
    struct dvm_opnd_arg arg;
    char *win; /* bytes that are kept and compared: elements and margins */
    size_t n;
    char *init, *want; /* contents before a run and after the reference's */
    bool out;
};

static struct place places[DVM_STRIP_MAX_OPND];

static void load_strides(struct ck_rng *r, struct dvm_opnd_arg *a, int kind, int64_t e, int64_t m,
                         int64_t n) {
    int64_t pads[] = {0, 3 * e, -n * e, -2 * n * e}, k = 2 + ck_below(r, 2);
    if (kind == DVM_OPND_UNIF) return;
    if (kind == DVM_OPND_ROW) {
        a->rs = e * (ck_below(r, 4) - 1);
        return;
    }
    a->cs = e;
    a->rs = n * e + pads[ck_below(r, 4)];
    if (kind == DVM_OPND_CONTIG) return;
    switch (ck_below(r, 6)) {
    case 0: a->cs = k * e, a->rs = k * n * e; break;
    case 1: a->cs = m * e, a->rs = e; break; /* transposed */
    case 2: a->cs = (m + 2) * e, a->rs = e; break;
    case 3: a->cs = -e; break;
    case 4: a->cs = 0, a->rs = e; break;
    default: a->cs = k * e, a->rs = 0; break;
    }
}

static void store_strides(struct ck_rng *r, struct dvm_opnd_arg *a, int kind, int64_t e, int64_t m,
                          int64_t n) {
    int64_t k = 2 + ck_below(r, 2), pad = ck_below(r, 3) * e;
    a->cs = e;
    a->rs = n * e + pad;
    if (ck_below(r, 4) == 0) a->rs = -a->rs;
    if (kind != DVM_OPND_STRIDED) return;
    switch (ck_below(r, 3)) {
    case 0: a->cs = k * e, a->rs = k * n * e + pad; break;
    case 1: a->cs = m * e + pad, a->rs = e; break;
    default: a->cs = -e; break;
    }
}

static void fold_strides(struct ck_rng *r, struct dvm_opnd_arg *a, int mode, int kind, int64_t e) {
    int64_t step = e * (ck_below(r, 3) ? 1 : ck_flip(r) ? 3 : -1);
    if (mode == DVM_MODE_ROW)
        a->rs = step;
    else
        a->cs = kind == DVM_OPND_CONTIG ? e : step * 2;
}

static void iota(struct ck_rng *r, struct dvm_opnd_arg *a, int kind) {
    a->ptr = (char *)(uintptr_t)(ck_below(r, 2) ? (uint64_t)ck_below(r, 100) : ck_next(r));
    if (kind != DVM_OPND_UNIF) a->rs = ck_below(r, 2001) - 1000;
    if (kind == DVM_OPND_STRIDED) a->cs = ck_below(r, 7) - 3;
}

/* Bytes that (rows x cols x gn) elements cover, relative to the first element. */
static void extent(const struct dvm_opnd_arg *a, int64_t e, int64_t m, int64_t n, int64_t gn,
                   int64_t *lo, int64_t *hi) {
    *lo = *hi = 0;
    if (m <= 0 || n <= 0) return;
    const int64_t steps[3] = {(m - 1) * a->rs, (n - 1) * a->cs, gn > 0 ? (gn - 1) * a->gs : 0};
    for (int k = 0; k < 3; k++) {
        *lo += DVM_MIN(steps[k], 0);
        *hi += DVM_MAX(steps[k], 0);
    }
    *hi += e;
}

static void *grow(void *p, size_t n) {
    p = realloc(p, n ? n : 1);
    if (!p) exit(2);
    return p;
}

/* Puts [lo, hi) somewhere in region i, at its start, its end or off alignment. */
static void put_in_region(struct ck_rng *r, struct place *p, int i, int64_t e, int64_t lo,
                          int64_t hi) {
    char *base = region(i), *first;
    int64_t len = hi - lo;
    if (len > REGION - 4096) {
        fprintf(stderr, "checkkern: operand of %lld bytes\n", (long long)len);
        exit(2);
    }
    switch (ck_below(r, 3)) {
    case 0: first = base; break;
    case 1: first = base + (1 + ck_below(r, 16)) * e; break;
    default: first = base + REGION - len; break;
    }
    p->arg.ptr = first - lo;
    p->win = DVM_MAX(base, first - MARGIN);
    p->n = (size_t)(DVM_MIN(base + REGION, first + len + MARGIN) - p->win);
    p->init = grow(p->init, p->n);
    p->want = grow(p->want, p->n);
    memset(p->win, CANARY, p->n);
}

static int64_t rows_of(const struct ck_strip *c, int o) {
    return c->opnd[o].role == DVM_ROLE_FOLD && c->s.mode == DVM_MODE_COL ? 1 : c->m;
}
static int64_t cols_of(const struct ck_strip *c, int o) {
    return c->opnd[o].role == DVM_ROLE_FOLD && c->s.mode == DVM_MODE_ROW ? 1 : c->n;
}

static void fill(struct ck_rng *r, const struct ck_strip *c, int o, char *first, int64_t len) {
    int dtype = c->opnd[o].dtype;
    size_t e = dvm_dtype_size((dvm_dtype)dtype);
    int64_t gn = c->pick_index[o] ? places[c->pick_index[o] - 1].arg.gn : 0;
    for (char *p = first; p < first + len; p += e) {
        uint64_t bits = ck_element(r, dtype, c->small[o]);
        if (c->pick_index[o] && !(c->allow_fault && ck_below(r, 16) == 0))
            bits = gn ? (uint64_t)((int64_t)(ck_next(r) % (uint64_t)(2 * gn)) - gn) : 0;
        memcpy(p, &bits, e);
    }
}

static void lay_pick(struct ck_rng *r, const struct ck_strip *c, struct dvm_opnd_arg *a,
                     int64_t e) {
    static const int sizes[] = {3, 5, 100, 0};
    a->gn = sizes[ck_below(r, c->allow_fault ? 4 : 3)];
    a->gs = e * (ck_below(r, 3) == 0 ? 1 : ck_below(r, 3) - 1);
}

static void lay_operand(struct ck_rng *r, const struct ck_strip *c, int o) {
    struct place *p = &places[o];
    const struct dvm_opnd *d = &c->opnd[o];
    int64_t e = (int64_t)dvm_dtype_size((dvm_dtype)d->dtype), lo, hi;
    p->out = d->role == DVM_ROLE_STORE || d->role == DVM_ROLE_FOLD;
    p->win = NULL;
    p->n = 0;
    if (c->alias[o]) { /* shares memory and strides of a load; that one keeps the contents */
        p->arg = places[c->alias[o] - 1].arg;
        places[c->alias[o] - 1].out = true;
        return;
    }
    int64_t gn = p->arg.gn, gs = p->arg.gs;
    p->arg = (struct dvm_opnd_arg){.gn = gn, .gs = gs};
    switch (d->role) {
    case DVM_ROLE_STORE: store_strides(r, &p->arg, d->kind, e, c->m, c->n); break;
    case DVM_ROLE_FOLD: fold_strides(r, &p->arg, c->s.mode, d->kind, e); break;
    case DVM_ROLE_IOTA: iota(r, &p->arg, d->kind); return;
    default: load_strides(r, &p->arg, d->kind, e, c->m, c->n); break;
    }
    for (int k = 0; k < c->s.nopnd; k++) /* written in place: its rows must not overlap */
        if (c->alias[k] == o + 1) {
            p->arg.rs = c->n * e;
            p->arg.cs = e;
        }
    extent(&p->arg, e, rows_of(c, o), cols_of(c, o), p->arg.gn, &lo, &hi);
    put_in_region(r, p, o, e, lo, hi);
    if (!p->out) fill(r, c, o, p->arg.ptr + lo, hi - lo);
    memcpy(p->init, p->win, p->n);
}

static void lay_out(struct ck_rng *r, const struct ck_strip *c) {
    for (int o = 0; o < c->s.nopnd; o++) {
        places[o].arg.gn = places[o].arg.gs = 0;
        if (c->opnd[o].role == DVM_ROLE_PICK)
            lay_pick(r, c, &places[o].arg, (int64_t)dvm_dtype_size((dvm_dtype)c->opnd[o].dtype));
    }
    for (int o = 0; o < c->s.nopnd; o++) lay_operand(r, c, o);
}

/* ---- running ------------------------------------------------------------------------------------ */

/* Scratch is not zero, and ends at a page that cannot be touched. */
static char *scratch_of(const struct dvm_code *code) {
    size_t size = (code->scratch + 63) & ~(size_t)63;
    char *scratch = region(MAX_REGIONS - 1) + REGION - size;
    memset(scratch, 0xcd, size);
    return scratch;
}

static void arguments(const struct ck_strip *c, struct dvm_opnd_arg *opnd,
                      struct dvm_strip_args *a) {
    *a = (struct dvm_strip_args){
        .opnd = opnd, .param = c->param, .m = c->m, .n = c->n, .pos = c->m * 1000};
    for (int o = 0; o < c->s.nopnd; o++) {
        opnd[o] = places[o].arg;
        a->alias |= c->alias[o] != 0;
    }
}

static struct dvm_fault run(const struct ck_strip *c, const struct dvm_code *code, bool stream) {
    struct dvm_opnd_arg opnd[DVM_STRIP_MAX_OPND];
    struct dvm_strip_args a;
    struct dvm_fault fault = {0};
    for (int o = 0; o < c->s.nopnd; o++)
        if (places[o].out && places[o].n) memcpy(places[o].win, places[o].init, places[o].n);
    arguments(c, opnd, &a);
    a.scratch = scratch_of(code);
    a.fault = &fault;
    a.stream = a.far = stream;
    code->run(code, &a);
    return fault;
}

/* Replaces NaNs in the image of an output by one of them. */
static void one_nan(const struct ck_strip *c, int o, char *image) {
    const struct place *p = &places[o];
    int dtype = c->opnd[o].dtype;
    for (int64_t i = 0; i < rows_of(c, o); i++)
        for (int64_t j = 0; j < cols_of(c, o); j++) {
            char *at = image + (p->arg.ptr - p->win) + i * p->arg.rs + j * p->arg.cs;
            if (is_nan(dtype, at)) memset(at, 0xff, dvm_dtype_size((dvm_dtype)dtype));
        }
}

static void keep_wanted(const struct ck_strip *c) {
    for (int o = 0; o < c->s.nopnd; o++) {
        if (!places[o].out || !places[o].n) continue;
        memcpy(places[o].want, places[o].win, places[o].n);
        one_nan(c, o, places[o].want);
    }
}

static void print_difference(const struct ck_strip *c, int o) {
    const struct place *p = &places[o];
    int dtype = c->opnd[o].dtype;
    size_t e = dvm_dtype_size((dvm_dtype)dtype);
    char want[64], got[64];
    for (int64_t i = 0; i < rows_of(c, o); i++)
        for (int64_t j = 0; j < cols_of(c, o); j++) {
            const char *at = p->arg.ptr + i * p->arg.rs + j * p->arg.cs;
            if (memcmp(at, p->want + (at - p->win), e) == 0) continue;
            ck_show(dtype, p->want + (at - p->win), want, sizeof want);
            ck_show(dtype, at, got, sizeof got);
            printf("    operand o%d, row %lld, column %lld: reference %s, device %s\n", o,
                   (long long)i, (long long)j, want, got);
            return;
        }
    for (size_t k = 0; k < p->n; k++)
        if (p->win[k] != p->want[k]) {
            printf("    operand o%d: byte %lld from its first element was overwritten\n", o,
                   (long long)(p->win + k - p->arg.ptr));
            return;
        }
}

static bool compare(const struct ck_strip *c) {
    bool same = true;
    for (int o = 0; o < c->s.nopnd; o++) {
        struct place *p = &places[o];
        if (!p->out || !p->n) continue;
        one_nan(c, o, p->win);
        if (memcmp(p->win, p->want, p->n) == 0) continue;
        if (same) print_difference(c, o);
        same = false;
    }
    return same;
}

static void print_case(const struct ck_strip *c) {
    struct dvm_text t;
    char *text;
    dvm_text_init(&t, &mem);
    dvm_strip_write(&c->s, &t);
    if (dvm_text_take(&t, &text) == DVM_OK) {
        printf("    %lld x %lld\n%s", (long long)c->m, (long long)c->n, text);
        dvm_string_free(&text);
    }
    for (int o = 0; o < c->s.nopnd; o++) {
        const struct dvm_opnd_arg *a = &places[o].arg;
        printf("  o%d: strides %lld, %lld; gather %lld of %lld%s\n", o, (long long)a->rs,
               (long long)a->cs, (long long)a->gs, (long long)a->gn,
               c->alias[o] ? "; in place" : "");
    }
}

static bool same_fault(const struct dvm_fault *a, const struct dvm_fault *b) {
    return a->any == b->any && a->opnd == b->opnd && a->index == b->index && a->gn == b->gn;
}

static void print_fault(const char *who, const struct dvm_fault *f) {
    printf("    %s: ", who);
    if (f->any)
        printf("index %lld of %lld in o%u\n", (long long)f->index, (long long)f->gn, f->opnd);
    else
        printf("no fault\n");
}

static bool check_on(struct ck_strip *c, struct ck_device *dev, const struct dvm_fault *want,
                     bool stream) {
    struct dvm_code *code = NULL;
    dvm_status st = dev->dev.compile(&dev->dev, &mem, &c->s, &code);
    if (st == DVM_ERR_UNSUPPORTED) return true;
    dev->ran++;
    if (st != DVM_OK) {
        printf("    does not compile: %s\n", dvm_error_text());
        print_case(c);
        return false;
    }
    struct dvm_fault got = run(c, code, stream);
    bool ok = compare(c), same = same_fault(&got, want);
    if (!same) {
        print_fault("reference", want);
        print_fault("device", &got);
    }
    if (!ok || !same) {
        printf("    tier %s\n", code->tier);
        print_case(c);
    }
    dev->dev.destroy(&dev->dev, &mem, code);
    return ok && same;
}

void ck_case(int variant, uint64_t seed, struct ck_strip *c, const struct ck_device *ref,
             struct ck_device *dev, int ndev, bool *ok) {
    struct ck_rng r = {seed};
    struct dvm_code *code = NULL;
    c->s.hash = dvm_strip_hash(&c->s);
    if (dvm_strip_verify(&c->s) != DVM_OK ||
        ref->dev.compile(&ref->dev, &mem, &c->s, &code) != DVM_OK) {
        printf("    the generator made a bad strip: %s\n", dvm_error_text());
        print_case(c);
        memset(ok, 0, (size_t)ndev * sizeof *ok);
        return;
    }
    lay_out(&r, c);
    struct dvm_fault fault = run(c, code, false);
    keep_wanted(c);
    ref->dev.destroy(&ref->dev, &mem, code);
    for (int d = 0; d < ndev; d++)
        if (ok[d]) ok[d] = check_on(c, &dev[d], &fault, variant % 3 == 2);
}

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

double ck_bench(uint64_t seed, struct ck_strip *c, const struct ck_device *dev, const char **tier) {
    struct ck_rng r = {seed};
    struct dvm_code *code = NULL;
    struct dvm_opnd_arg opnd[DVM_STRIP_MAX_OPND];
    struct dvm_strip_args a;
    struct dvm_fault fault = {0};
    c->s.hash = dvm_strip_hash(&c->s);
    lay_out(&r, c);
    if (dev->dev.compile(&dev->dev, &mem, &c->s, &code) != DVM_OK) return -1;
    arguments(c, opnd, &a);
    a.scratch = scratch_of(code);
    a.fault = &fault;
    double best = 1e9, start = seconds();
    for (int k = 0; k < 1000 && (k < 3 || seconds() - start < 0.01); k++) {
        double t = seconds();
        code->run(code, &a);
        best = DVM_MIN(best, seconds() - t);
    }
    *tier = code->tier;
    dev->dev.destroy(&dev->dev, &mem, code);
    return best * 1e9 / (double)(c->m * c->n);
}
