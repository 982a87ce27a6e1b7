/* A strip to machine code: lower, plan, emit, copy to executable memory. See jit.h. */
#include "vm/cpu/jit/jit.h"

#include <stdlib.h>
#include <string.h>

#include "base/cpuflags.h"
#include "base/err.h"
#include "code/bc_table.h"
#include "code/tree.h"
#include "vm/cpu/jit/code_mem.h"
#include "vm/cpu/jit/enc_a64.h"
#include "vm/cpu/jit/jit_code.h"
#include "vm/cpu/jit/jit_emit.h"
#include "vm/cpu/jit/jit_names.h"

enum { FIRST_CODE = 16 << 10, MAX_CODE = 1 << 20 };

const char *dvm_jit_refused(void) {
    const char *env = getenv("DVM_JIT");
    if (env && env[0] == '0' && env[1] == 0) return "DVM_JIT=0";
    return dvm_code_mem_refused();
}

enum dvm_jit_isa dvm_jit_isa_of(uint32_t flags) {
#if defined(__x86_64__)
    if (flags & DVM_CPU_AVX512) return DVM_JIT_AVX512;
    if (flags & DVM_CPU_AVX2) return DVM_JIT_AVX2;
#endif
#if defined(__aarch64__)
    if (flags & DVM_CPU_NEON) return DVM_JIT_NEON;
#endif
    (void)flags;
    return DVM_JIT_NONE;
}

/* ---- the block that is kept */

static bool needs_staging(const struct dvm_strip *s, int o) {
    const struct dvm_opnd *p = &s->opnd[o];
    if (p->role == DVM_ROLE_PICK) return true; /* when there is nothing to pick from */
    if (p->role == DVM_ROLE_LOAD) return p->kind == DVM_OPND_STRIDED;
    if (p->role == DVM_ROLE_STORE) return p->kind != DVM_OPND_CONTIG;
    return p->role == DVM_ROLE_FOLD && s->mode == DVM_MODE_COL && p->kind != DVM_OPND_CONTIG;
}

static size_t round8(size_t n) { return (n + 7) & ~(size_t)7; }

static void *put(char **to, const void *from, size_t size) {
    char *start = *to;
    if (size && from) memcpy(start, from, size);
    *to += round8(size);
    return start;
}

static size_t block_size(const struct dvm_jb *b) {
    const struct dvm_strip *s = b->s;
    return sizeof(struct dvm_jit_code) + round8(s->nins * sizeof *s->ins) +
           round8(s->nlit * sizeof *s->lit) + round8(s->nopnd * sizeof *s->opnd) +
           round8(s->nopnd) + round8((size_t)b->nfold * sizeof(struct dvm_jit_fold));
}

static void copy_folds(struct dvm_jit_code *c, const struct dvm_jb *b, struct dvm_jit_fold *to) {
    c->fold = to;
    c->nfold = (uint16_t)b->nfold;
    for (int k = 0; k < b->nfold; k++) {
        const struct dvm_jfold *f = &b->fold[k];
        to[k] = (struct dvm_jit_fold){
            .op = f->op, .vt = f->vt, .arg = f->arg, .out = f->out, .part = f->part};
        to[k].size = (uint8_t)dvm_dtype_size(dvm_vt_dtype((enum dvm_vt)f->vt));
    }
}

/* Offsets in the scratch memory, behind the frame. */
static void lay_scratch(struct dvm_jit_code *c, const struct dvm_jb *b, uint8_t *flags) {
    const struct dvm_strip *s = b->s;
    size_t end = (size_t)b->frame;
    c->opnds = (int32_t)end;
    end += (s->nopnd * sizeof(struct dvm_opnd_arg) + 63) & ~(size_t)63;
    c->stage = (int32_t)end;
    c->staged = flags;
    for (int o = 0; o < s->nopnd; o++) {
        flags[o] = needs_staging(s, o);
        c->may_stage |= flags[o];
        if (flags[o]) end += dvm_jit_stage_bytes(s->mode, s->opnd[o].dtype);
    }
    c->wide = (int32_t)end;
    if (s->mode == DVM_MODE_MAP && c->may_stage) end += J_WIDE_BYTES;
    c->trees = (int32_t)end;
    if (s->mode == DVM_MODE_ROW)
        end += (size_t)b->nfold * sizeof(struct dvm_tree) * (c->may_stage ? J_STAGE_ROWS : 1);
    c->c.scratch = (end + 63) & ~(size_t)63;
}

static dvm_status keep(const struct dvm_mem *m, const struct dvm_je *e, const struct dvm_jplan *p,
                       int32_t parts, int room, int entry, struct dvm_code **out) {
    static void (*const runs[])(const struct dvm_code *,
                                const struct dvm_strip_args *) = {[DVM_MODE_MAP] = dvm_jit_run_map,
                                                                  [DVM_MODE_ROW] = dvm_jit_run_row,
                                                                  [DVM_MODE_COL] = dvm_jit_run_col};
    const struct dvm_jb *b = e->b;
    const struct dvm_strip *s = b->s;
    size_t size = block_size(b), code_size = (size_t)dvm_enc_at(&e->e);
    void *code;
    struct dvm_jit_code *c = dvm_mem_new(m, size);
    if (!c) return DVM_ERR_NOMEM;
    dvm_status st = dvm_code_mem_new(e->e.base, code_size, &code);
    if (st != DVM_OK) {
        dvm_mem_free(m, c, size);
        return st == DVM_ERR_LIMIT ? DVM_ERR_UNSUPPORTED : st;
    }
    char *to = (char *)(c + 1), *start = (char *)code + entry;
    memcpy(&c->fn, &start, sizeof c->fn);
    c->start = code;
    c->size = size;
    c->code_size = code_size;
    c->stream = p->stream;
    c->pairs = b->pairs;
    c->fetch = p->fetch;
    c->turns = p->turns;
    c->asked = (int16_t)(e->ahead >= 0 ? e->asked : -1);
    c->width = (uint8_t)b->width;
    c->parts = parts;
    c->part_bytes = b->part_bytes;
    c->part_room = room;
    c->band_cols = p->acc_regs ? b->band_cols : 0;
    c->c = (struct dvm_code){.run = runs[s->mode], .tier = "jit", .strip = *s};
    c->c.asked = c->asked;
    c->c.boxes = s->mode == DVM_MODE_COL;
    c->c.together = c->c.boxes && c->turns;
    c->group = (uint16_t)(p->unroll * b->width);
    c->c.strip.lit = put(&to, s->lit, s->nlit * sizeof *s->lit);
    c->c.strip.ins = put(&to, s->ins, s->nins * sizeof *s->ins);
    c->c.strip.opnd = put(&to, s->opnd, s->nopnd * sizeof *s->opnd);
    copy_folds(c, b, put(&to, NULL, (size_t)b->nfold * sizeof *c->fold));
    lay_scratch(c, b, put(&to, NULL, s->nopnd));
    c->scans = b->nscan > 0;
    if (s->mode == DVM_MODE_MAP && !c->may_stage && !c->scans) c->c.run = dvm_jit_run_dense;
    c->name = dvm_jit_name_new(m, s, start, code_size - (size_t)entry);
    *out = &c->c;
    return DVM_OK;
}

/* ---- compiling */

/* Constants first, then the function at a cache line. */
static dvm_status emit(struct dvm_je *e, const struct dvm_jplan *p, int32_t parts, int *entry) {
    struct dvm_jb *b = e->b;
    for (size_t room = FIRST_CODE; room <= MAX_CODE; room *= 4) {
        int32_t frame = b->frame;
        void *buffer = dvm_arena_raw(b->arena, room);
        if (!buffer) return DVM_ERR_NOMEM;
        dvm_enc_init(&e->e, buffer, room);
        e->e.a64 = b->neon;
        if (b->npool + 64 > room) continue;
        if (b->npool) memcpy(e->e.base, b->pool, b->npool);
        e->e.p += b->npool;
        while (dvm_enc_at(&e->e) & 63) *e->e.p++ = 0xcc;
        *entry = dvm_enc_at(&e->e);
        e->nspare = 0;
        e->nnote = 0;
        dvm_j_function(e, p, parts);
        if (b->failed || e->e.unknown)
            DVM_FAIL(UNSUPPORTED, "machine code: out of registers or instructions");
        if (!e->e.full) return DVM_OK;
        b->frame = frame;
    }
    DVM_FAIL(UNSUPPORTED, "machine code: the strip is too long");
}

/* A strip on its way; what it holds is gone with the arena. */
struct job {
    struct dvm_arena arena;
    struct dvm_jb b;
    struct dvm_je e;
    struct dvm_jplan p;
    int32_t parts;
    int entry;
};

/* COL: memory for the accumulators of as many columns as have room. The halves of a 64-bit one stand side by side. */
static int32_t band_bytes(struct dvm_jb *b) {
    int32_t column = 0, at = 0;
    for (int k = 0; k < b->nacc; k++) column += b->acc[k].wide ? b->acc[k].high ? 0 : 8 : 4;
    b->band_cols = DVM_MAX(DVM_MIN(J_BAND_BYTES / DVM_MAX(column, 1), 1024) & ~63, 64);
    for (int k = 0; k < b->nacc; k++) {
        bool high = b->acc[k].wide && b->acc[k].high;
        b->band_at[k] = high ? b->band_at[k - 1] : at;
        if (!high) at += b->band_cols * (b->acc[k].wide ? 8 : 4);
    }
    return at;
}

static dvm_status make(const struct dvm_mem *m, const struct dvm_strip *s, int isa, struct job *j) {
    static const struct {
        uint8_t len, width, vectors, tail;
    } levels[] = {[DVM_JIT_AVX2] = {X_256, 8, 15, 15},
                  [DVM_JIT_AVX512] = {X_512, 16, 32, 0},
                  [DVM_JIT_NEON] = {X_128, 4, A_VECTORS, A_TAIL}};
    struct dvm_jb *b = &j->b;
    struct dvm_je *e = &j->e;
    dvm_arena_init(&j->arena, m);
    if (isa <= DVM_JIT_NONE || isa > DVM_JIT_NEON)
        DVM_FAIL(UNSUPPORTED, "machine code: no level for this processor");
    b->arena = &j->arena;
    b->s = s;
    b->z = isa == DVM_JIT_AVX512;
    b->neon = isa == DVM_JIT_NEON;
    b->len = levels[isa].len;
    b->width = levels[isa].width;
    e->b = b;
    e->full = b->len;
    e->nreg = levels[isa].vectors;
    e->tail = levels[isa].tail;
    if (!dvm_j_begin(b)) return DVM_ERR_NOMEM;
    DVM_TRY(dvm_j_lower(b));
    if (!dvm_j_finish(b)) return DVM_ERR_NOMEM;
    dvm_j_plan(e, &j->p);
    size_t keys = (size_t)b->nval * J_MAX_UNITS;
    e->reg = dvm_arena_raw(b->arena, keys);
    e->slot = dvm_arena_raw(b->arena, keys * sizeof *e->slot);
    if (!e->reg || !e->slot) return DVM_ERR_NOMEM;
    for (int u = 0; u < J_MAX_UNITS; u++) e->unit[u] = (uint32_t)u * b->nval;
    if (s->mode == DVM_MODE_COL) {
        e->turns = band_bytes(b);
        j->parts = dvm_j_frame(b, j->p.turns ? J_TURNS * e->turns : e->turns);
    } else {
        j->parts = dvm_j_frame(b, b->part_bytes * J_PARTS);
        if (j->p.turns) e->turns = dvm_j_frame(b, dvm_j_turn_bytes(b));
    }
    return emit(e, &j->p, j->parts, &j->entry);
}

dvm_status dvm_jit_compile(const struct dvm_mem *m, const struct dvm_strip *s, int isa,
                           struct dvm_code **out) {
    const char *why = dvm_jit_refused();
    if (why) DVM_FAIL(UNSUPPORTED, "machine code: %s", why);
    if ((isa == DVM_JIT_NEON) != (dvm_jit_isa_of(UINT32_MAX) == DVM_JIT_NEON))
        DVM_FAIL(UNSUPPORTED, "machine code: the level is one of another processor");
    struct job j = {0};
    dvm_status st = make(m, s, isa, &j);
    if (st == DVM_OK) st = keep(m, &j.e, &j.p, j.parts, J_PARTS, j.entry, out);
    dvm_arena_drop(&j.arena);
    return st;
}

dvm_status dvm_jit_list(const struct dvm_mem *m, const struct dvm_strip *s, int isa,
                        struct dvm_text *out) {
    struct job j = {.e.noting = true};
    dvm_status st = make(m, s, isa, &j);
    if (st == DVM_OK) dvm_j_list(&j.e, j.entry, out);
    dvm_arena_drop(&j.arena);
    return st;
}

bool dvm_jit_is(const struct dvm_code *c) {
    return c->run == dvm_jit_run_map || c->run == dvm_jit_run_dense || c->run == dvm_jit_run_row ||
           c->run == dvm_jit_run_col;
}

size_t dvm_jit_code(const struct dvm_code *c, const void **bytes) {
    const struct dvm_jit_code *j = (const struct dvm_jit_code *)c;
    *bytes = j->start;
    return j->code_size;
}

size_t dvm_jit_entry(const struct dvm_code *c) {
    const struct dvm_jit_code *j = (const struct dvm_jit_code *)c;
    char *entry;
    memcpy(&entry, &j->fn, sizeof entry);
    return (size_t)(entry - (char *)j->start);
}

void dvm_jit_destroy(const struct dvm_mem *m, struct dvm_code *c) {
    struct dvm_jit_code *j = (struct dvm_jit_code *)c;
    if (!c) return;
    dvm_jit_name_free(m, j->name);
    dvm_code_mem_free(j->start, j->code_size);
    dvm_mem_free(m, j, j->size);
}
