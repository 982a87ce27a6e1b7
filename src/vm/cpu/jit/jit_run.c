/* Running compiled strips: the box is cut to what the code was made for.
 *
 *   short dense rows   become one row of m * n elements
 *   strided operands   are staged: tiles of the box are copied to contiguous memory and back
 *   rows beyond 1024   the code leaves a part record for every block; they are joined here by the row tree: pairs of
 *                      neighbours, an odd last one as it is, and again, which is the binary counter of strip.h; calls
 *                      of 64 blocks are whole subtrees */
#include <string.h>

#include "code/tree.h"
#include "vm/cpu/jit/jit_code.h"

typedef struct dvm_strip_args args;

static const struct dvm_jit_code *code_of(const struct dvm_code *c) {
    return (const struct dvm_jit_code *)c;
}

static int size_of(const struct dvm_jit_code *c, int o) {
    return (int)dvm_dtype_size((dvm_dtype)c->c.strip.opnd[o].dtype);
}

static char *at(const args *a, int32_t offset) { return (char *)a->scratch + offset; }

/* Operands of the box that starts at row i, column j, into the scratch memory. */
static struct dvm_opnd_arg *sub_box(const struct dvm_jit_code *c, const args *a, args *sub,
                                    int64_t i, int64_t j) {
    struct dvm_opnd_arg *to = (struct dvm_opnd_arg *)(void *)at(a, c->opnds);
    bool row = c->c.strip.mode == DVM_MODE_ROW, col = c->c.strip.mode == DVM_MODE_COL;
    *sub = *a;
    sub->opnd = to;
    for (int o = 0; o < c->c.strip.nopnd; o++) {
        bool fold = c->c.strip.opnd[o].role == DVM_ROLE_FOLD;
        to[o] = a->opnd[o];
        uintptr_t move = (uintptr_t)(fold && col ? 0 : i * to[o].rs) +
                         (uintptr_t)(fold && row ? 0 : j * to[o].cs);
        to[o].ptr = (char *)((uintptr_t)to[o].ptr + move);
    }
    return to;
}

static void set(const args *a, int32_t field, int64_t v) { memcpy(at(a, field), &v, sizeof v); }

/* j: column of the row at which the call begins. */
static void call(const struct dvm_jit_code *c, const args *a, int64_t j) {
    uint64_t cont = j > 0;
    if (c->scans) memcpy(at(a, J_F_CONT), &cont, sizeof cont);
    c->fn(a, 0);
}

/* ---- staging */

/* PICK from nothing: every index is a fault, and every element 0. */
static bool staged(const struct dvm_jit_code *c, const args *a, int o) {
    if (!c->staged[o]) return false;
    if (c->c.strip.opnd[o].role == DVM_ROLE_PICK) return a->opnd[o].gn == 0;
    return a->opnd[o].cs != size_of(c, o);
}

static bool any_staged(const struct dvm_jit_code *c, const args *a) {
    for (int o = 0; c->may_stage && o < c->c.strip.nopnd; o++)
        if (staged(c, a, o)) return true;
    return false;
}

size_t dvm_jit_stage_bytes(int mode, int dtype) {
    size_t size = dvm_dtype_size((dvm_dtype)dtype);
    if (mode == DVM_MODE_ROW) return J_STAGE_ROWS * DVM_TREE_BLOCK * size;
    size_t turned = J_STAGE_SIDE * J_STAGE_SIDE / size;
    return mode == DVM_MODE_MAP ? DVM_MAX(J_STAGE_BYTES, turned) : J_STAGE_BYTES;
}

/* Lines of turned operand o of the part that starts at row i, column j: they are far apart, so that nothing else fetches
 * them ahead of time. */
static void fetch_lines(const struct dvm_opnd_arg *p, int64_t rows, int64_t cols) {
    for (int64_t k = 0; k < cols; k++)
        for (int64_t line = 0; line < rows * p->rs; line += 64)
            dvm_jit_prefetch((const char *)((uintptr_t)p->ptr + (uintptr_t)(k * p->cs + line)));
}

static void stage_in(const struct dvm_jit_code *c, struct dvm_opnd_arg *p, int o, char *to,
                     int64_t pitch, int64_t rows, int64_t cols) {
    int size = size_of(c, o);
    bool wide = pitch > cols * size;
    switch (c->c.strip.opnd[o].role) {
    case DVM_ROLE_LOAD:
        dvm_jit_gather(to, pitch, p->ptr, p->rs, p->cs, rows, cols, size, wide ? J_AHEAD : 0);
        break;
    case DVM_ROLE_PICK:
        memset(to, 0, (size_t)(rows * cols * size));
        p->gs = 0;
        break;
    default: break;
    }
    p->ptr = to;
    p->rs = pitch;
    p->cs = size;
}

static void stage_out(const struct dvm_jit_code *c, const args *a, const struct dvm_opnd_arg *from,
                      int o, int64_t i, int64_t j, int64_t rows, int64_t cols) {
    const struct dvm_opnd_arg *p = &a->opnd[o];
    int role = c->c.strip.opnd[o].role;
    if (role == DVM_ROLE_FOLD) i = 0, rows = 1;
    char *to = (char *)((uintptr_t)p->ptr + (uintptr_t)(i * p->rs) + (uintptr_t)(j * p->cs));
    if (role == DVM_ROLE_STORE || role == DVM_ROLE_FOLD)
        dvm_jit_scatter(to, p->rs, p->cs, from->ptr, from->rs, rows, cols, size_of(c, o));
}

/* Columns to do before the outputs are aligned for non-temporal stores; -1: they cannot all be. */
static int64_t columns_to_aligned(const struct dvm_jit_code *c, const args *a) {
    const struct dvm_strip *s = &c->c.strip;
    int64_t peel = -1;
    for (int o = 0; o < s->nopnd; o++) {
        if (s->opnd[o].role != DVM_ROLE_STORE) continue;
        int size = size_of(c, o), unit = c->width * (c->pairs ? 4 : DVM_MIN(size, 4));
        int64_t off = (int64_t)((uintptr_t)a->opnd[o].ptr & (uintptr_t)(unit - 1));
        if (peel < 0) peel = off % size ? -1 : (unit - off) % unit / size;
        if (peel < 0 || (off + peel * size) % unit || (a->m > 1 && (peel || a->opnd[o].rs % unit)))
            return -1;
    }
    return peel;
}

/* Stores past the caches: of a tile, when none of them goes to a buffer first. */
static bool streams(const struct dvm_jit_code *c, const args *a, const args *tile) {
    for (int o = 0; a->stream && o < c->c.strip.nopnd; o++)
        if (c->c.strip.opnd[o].role == DVM_ROLE_STORE && staged(c, a, o)) return false;
    return a->stream && c->stream && columns_to_aligned(c, tile) == 0;
}

/* Rows that follow one another in every operand are one long row: its rest is done once. */
static bool can_join_rows(const struct dvm_jit_code *c, const args *a) {
    if (a->m <= 1 || c->c.strip.flags & DVM_STRIP_WHOLE_ROWS) return false;
    for (int o = 0; o < c->c.strip.nopnd; o++)
        if (a->opnd[o].rs != a->n * a->opnd[o].cs) return false;
    return true;
}

static void join_rows(args *a) {
    a->n *= a->m;
    a->m = 1;
}

static bool is_read_beside(const struct dvm_jit_code *c, int o) {
    const struct dvm_opnd *d = &c->c.strip.opnd[o];
    return d->role == DVM_ROLE_LOAD && d->kind == DVM_OPND_CONTIG && size_of(c, o) == 2;
}

/* The first half of the next row of the 16-bit operands beside a wide tile; the code itself asks for the second half, its
 * rows being half as far ahead. 64 MiB of bf16 took 17 ms without it, 9.5 with it. Rows of 32 bits gain nothing. */
static void fetch_row(const struct dvm_jit_code *c, const args *a) {
    const int64_t line = 64, most = J_WIDE_SIDE / 2;
    for (int o = 0; o < c->c.strip.nopnd; o++) {
        const struct dvm_opnd_arg *p = &a->opnd[o];
        for (int64_t at = 0; is_read_beside(c, o) && at < DVM_MIN(a->n * p->cs, most); at += line)
            dvm_jit_prefetch((const char *)((uintptr_t)p->ptr + (uintptr_t)(p->rs + at)));
    }
}

static bool fetches_rows(const struct dvm_jit_code *c) {
    for (int o = 0; o < c->c.strip.nopnd; o++)
        if (is_read_beside(c, o)) return true;
    return false;
}

/* A wide tile, past the caches. */
static void row_by_row(const struct dvm_jit_code *c, args *a, struct dvm_opnd_arg *opnd) {
    int64_t rows = a->m;
    a->m = 1;
    for (int64_t r = 0; r < rows; r++) {
        if (r + 1 < rows) fetch_row(c, a);
        c->fn(a, 1);
        for (int o = 0; o < c->c.strip.nopnd; o++)
            opnd[o].ptr = (char *)((uintptr_t)opnd[o].ptr + (uintptr_t)opnd[o].rs);
    }
}

/* Runs a tile, already small enough. wide: one operand is staged. */
static void run_tile(const struct dvm_jit_code *c, const args *a, int64_t i, int64_t j,
                     int64_t rows, int64_t cols, bool wide) {
    args tile;
    struct dvm_opnd_arg *opnd = sub_box(c, a, &tile, i, j);
    const struct dvm_strip *s = &c->c.strip;
    char *buffer = at(a, wide ? c->wide : c->stage);
    tile.m = rows;
    tile.n = cols;
    for (int o = 0; o < s->nopnd; o++) {
        if (!c->staged[o]) continue;
        int64_t pitch = cols * size_of(c, o) + (wide ? 64 : 0);
        if (staged(c, a, o)) stage_in(c, &opnd[o], o, buffer, pitch, rows, cols);
        if (!wide) buffer += dvm_jit_stage_bytes(s->mode, s->opnd[o].dtype);
    }
    if (s->mode == DVM_MODE_MAP && can_join_rows(c, &tile)) join_rows(&tile);
    if (!streams(c, a, &tile))
        call(c, &tile, j);
    else if (wide && fetches_rows(c))
        row_by_row(c, &tile, opnd);
    else
        c->fn(&tile, 1);
    for (int o = 0; o < s->nopnd; o++)
        if (staged(c, a, o)) stage_out(c, a, &opnd[o], o, i, j, rows, cols);
}

static void run_staged(const struct dvm_jit_code *c, const args *a, int64_t i, int64_t j,
                       int64_t rows, int64_t cols) {
    run_tile(c, a, i, j, rows, cols, false);
}

/* Some staged operand has its neighbours along the rows. */
static bool turned(const struct dvm_jit_code *c, const args *a) {
    for (int o = 0; o < c->c.strip.nopnd; o++)
        if (staged(c, a, o) && a->opnd[o].rs == size_of(c, o)) return true;
    return false;
}

/* Bytes of the largest staged element: of a tile all operands have room for as many. */
static int staged_size(const struct dvm_jit_code *c, const args *a) {
    int size = 1;
    for (int o = 0; o < c->c.strip.nopnd; o++)
        if (staged(c, a, o)) size = DVM_MAX(size, size_of(c, o));
    return size;
}

static bool is_far(const struct dvm_jit_code *c, const args *a, int o) {
    const struct dvm_opnd_arg *p = &a->opnd[o];
    return p->rs == size_of(c, o) && a->n * p->cs >= J_FETCH_BYTES;
}

/* Of turned operands that are far away, those of the tile that starts at row i, column j. */
static void fetch_ahead(const struct dvm_jit_code *c, const args *a, int64_t i, int64_t j,
                        int64_t rows, int64_t cols) {
    for (int o = 0; o < c->c.strip.nopnd; o++) {
        struct dvm_opnd_arg p = a->opnd[o];
        if (!staged(c, a, o) || !is_far(c, a, o)) continue;
        p.ptr = (char *)((uintptr_t)p.ptr + (uintptr_t)(i * p.rs + j * p.cs));
        fetch_lines(&p, rows, cols);
    }
}

/* One turned operand, far away. Beside it, rows of squares are read and written in pieces that are short for a memory:
 * 64 MiB each in and out took 29 ms in pieces of 256 bytes, 20 of 1 KiB and 14 of 4 KiB. */
static bool is_wide(const struct dvm_jit_code *c, const args *a) {
    int one = -1, n = 0;
    for (int o = 0; o < c->c.strip.nopnd; o++)
        if (staged(c, a, o)) one = o, n++;
    return n == 1 && is_far(c, a, one) && !c->scans;
}

static void staged_map(const struct dvm_jit_code *c, const args *a) {
    int size = staged_size(c, a);
    bool square = !c->scans && turned(c, a); /* scans go through a row from its start */
    bool wide = is_wide(c, a);
    int64_t cols = DVM_MIN(a->n, wide ? J_WIDE_SIDE / size : square ? J_STAGE_SIDE / size : 1024);
    int64_t room = square ? J_STAGE_SIDE * J_STAGE_SIDE / size / size : J_STAGE_BYTES / size;
    int64_t rows = c->scans ? 1
                   : wide   ? DVM_MIN(a->m, J_WIDE_ROWS)
                            : DVM_MIN(a->m, DVM_MAX(room / cols, 1));
    for (int64_t i = 0; i < a->m; i += rows)
        for (int64_t j = 0; j < a->n; j += cols) {
            int64_t m = DVM_MIN(rows, a->m - i), next = j + cols;
            if (next < a->n && !wide) fetch_ahead(c, a, i, next, m, DVM_MIN(cols, a->n - next));
            run_tile(c, a, i, j, m, DVM_MIN(cols, a->n - j), wide);
        }
}

/* ---- maps */

/* Distance to what is asked for while stores go past the caches: of the last phase of a block the next block, else some
 * lines. */
static void set_ahead(const struct dvm_jit_code *c, const args *a) {
    enum { AHEAD = 2048 };
    if (c->asked >= 0) set(a, J_F_AHEAD, a->ahead ? a->ahead : AHEAD);
}

static void stream_map(const struct dvm_jit_code *c, const args *a) {
    int64_t peel = columns_to_aligned(c, a);
    if (peel <= 0 || peel >= a->n) {
        c->fn(a, peel == 0);
        return;
    }
    args sub = *a;
    sub.n = peel;
    c->fn(&sub, 0);
    sub_box(c, a, &sub, 0, peel);
    sub.n = a->n - peel;
    c->fn(&sub, 1);
}

void dvm_jit_run_map(const struct dvm_code *code, const args *a) {
    const struct dvm_jit_code *c = code_of(code);
    args flat;
    if (a->m <= 0 || a->n <= 0) return;
    if (a->stream) set_ahead(c, a);
    if (any_staged(c, a)) {
        staged_map(c, a);
        return;
    }
    if (can_join_rows(c, a)) {
        flat = *a;
        join_rows(&flat);
        a = &flat;
    }
    if (a->stream && c->stream)
        stream_map(c, a);
    else
        call(c, a, 0);
}

/* The same where nothing can need staging and rows need not be whole: most maps. */
void dvm_jit_run_dense(const struct dvm_code *code, const args *a) {
    const struct dvm_jit_code *c = code_of(code);
    if (DVM_LIKELY(a->m == 1 && a->n > 0 && !a->stream))
        c->fn(a, 0);
    else
        dvm_jit_run_map(code, a);
}

/* ---- rows */

/* The part of one block. first: index of its first element. */
static struct dvm_part read_part(const struct dvm_jit_fold *f, const char *record, int64_t first) {
    struct dvm_part p = {.idx = 0};
    int32_t idx;
    memcpy(&p.v, record + f->part, 8);
    if (f->vt != DVM_VT_I64) p.v.bits = (uint32_t)p.v.bits;
    if (!f->arg) return p;
    memcpy(&idx, record + f->part + 8, 4); /* below 1024, also where it stands as 64 bits */
    p.idx = first + idx;
    return p;
}

/* Neighbours joined until one is left. */
static struct dvm_part join_parts(const struct dvm_jit_code *c, const struct dvm_jit_fold *f,
                                  const char *record, int64_t n, int64_t first) {
    struct dvm_part p[J_PARTS];
    for (int64_t k = 0; k < n; k++)
        p[k] = read_part(f, record + k * c->part_bytes, first + k * DVM_TREE_BLOCK);
    bool sum = f->op == DVM_OP_SUM && f->vt == DVM_VT_F32;
    for (; n > 1; n = (n + 1) / 2) {
        for (int64_t k = 0; k < n / 2; k++) {
            if (sum)
                p[k].v.f = p[2 * k].v.f + p[2 * k + 1].v.f;
            else
                p[k] = dvm_part_join(f->op, (enum dvm_vt)f->vt, p[2 * k], p[2 * k + 1]);
        }
        if (n % 2) p[n / 2] = p[n - 1];
    }
    return p[0];
}

static void put_number(char *to, const struct dvm_part *p, int size) {
    switch (size) {
    case 1: memcpy(to, &p->v, 1); break;
    case 4: memcpy(to, &p->v, 4); break;
    default: memcpy(to, &p->v, 8); break;
    }
}

static void write_result(const args *a, const struct dvm_jit_fold *f, int64_t i,
                         struct dvm_part p) {
    const struct dvm_opnd_arg *out = &a->opnd[f->out];
    if (f->arg) {
        memcpy(out->ptr + i * out->rs, &p.idx, 8);
        out++;
    }
    put_number(out->ptr + i * out->rs, &p, f->size);
}

/* One block a row: its part is the result. */
static void write_results(const struct dvm_jit_code *c, const args *a, const struct dvm_jit_fold *f,
                          int64_t i, int64_t rows) {
    const char *record = at(a, c->parts);
    for (int64_t r = 0; r < rows; r++, record += c->part_bytes)
        write_result(a, f, i + r, read_part(f, record, a->pos));
}

static void write_identities(const struct dvm_jit_code *c, const args *a) {
    for (int k = 0; k < c->nfold; k++) {
        const struct dvm_jit_fold *f = &c->fold[k];
        struct dvm_part p = dvm_part_identity(f->op, (enum dvm_vt)f->vt);
        for (int64_t i = 0; i < a->m; i++) write_result(a, f, i, p);
    }
}

/* Whether blocks of 1024 columns follow one another through all rows. */
static bool rows_are_one(const struct dvm_jit_code *c, const args *a) {
    if (a->n % DVM_TREE_BLOCK) return false;
    for (int o = 0; o < c->c.strip.nopnd; o++) {
        const struct dvm_opnd *d = &c->c.strip.opnd[o];
        if (d->kind == DVM_OPND_CONTIG && d->role != DVM_ROLE_FOLD && a->m > 1 &&
            a->opnd[o].rs != a->n * a->opnd[o].cs)
            return false;
    }
    return true;
}

/* The code's rows by turns; a longer row is as many as it has blocks. */
static void call_by_turns(const struct dvm_jit_code *c, const args *a) {
    int nopnd = c->c.strip.nopnd;
    int64_t step[J_STEPS * (J_TURN_OPNDS + 1) + 1], *s = step;
    args sub;
    struct dvm_opnd_arg *opnd = sub_box(c, a, &sub, 0, 0);
    for (int o = 0; o < nopnd && a->n > DVM_TREE_BLOCK; o++)
        opnd[o].rs = DVM_TREE_BLOCK * opnd[o].cs;
    sub.n = DVM_MIN(a->n, DVM_TREE_BLOCK);
    sub.m = a->m * (a->n / sub.n);
    int64_t turns = sub.m / J_TURNS;
    int64_t times[] = {turns, -J_TURNS * turns, (J_TURNS - 1) * turns};
    for (int k = 0; k < J_STEPS; k++) {
        for (int o = 0; o < nopnd; o++) *s++ = times[k] * opnd[o].rs;
        *s++ = times[k] * c->part_bytes + (k == J_STEP_BACK) * c->part_bytes;
    }
    *s = sub.m - J_TURNS * turns;
    sub.step = step;
    set(a, J_F_TURNS, turns);
    c->fn(&sub, 0);
    set(a, J_F_TURNS, 0);
}

/* Rows whose parts there is room for. */
static void call_rows(const struct dvm_jit_code *c, const args *a, int64_t j) {
    bool whole = a->n % DVM_TREE_LANES == 0 && (a->n <= DVM_TREE_BLOCK || rows_are_one(c, a));
    if (c->turns && a->far && whole && a->m * a->n >= J_TURNS * DVM_MIN(a->n, DVM_TREE_BLOCK))
        call_by_turns(c, a);
    else
        call(c, a, j);
}

/* Whole rows in one call of the code: rows * blocks parts. */
static void short_rows(const struct dvm_jit_code *c, const args *a) {
    int64_t blocks = (a->n + DVM_TREE_BLOCK - 1) / DVM_TREE_BLOCK, step = c->part_room / blocks;
    for (int64_t i = 0; i < a->m; i += step) {
        args sub = *a;
        if (i) sub_box(c, a, &sub, i, 0);
        sub.m = DVM_MIN(step, a->m - i);
        call_rows(c, &sub, 0);
        for (int k = 0; k < c->nfold; k++) {
            if (blocks == 1) write_results(c, a, &c->fold[k], i, sub.m);
            for (int64_t r = 0; blocks > 1 && r < sub.m; r++) {
                const char *record = at(a, c->parts) + r * blocks * c->part_bytes;
                write_result(a, &c->fold[k], i + r,
                             join_parts(c, &c->fold[k], record, blocks, a->pos));
            }
        }
    }
}

/* A tree for each row and fold; calls of `cols` columns, a power of two blocks. */
static void long_rows(const struct dvm_jit_code *c, const args *a, int64_t rows, int64_t cols,
                      bool stage) {
    struct dvm_tree *tree = (struct dvm_tree *)(void *)at(a, c->trees);
    for (int64_t i = 0; i < a->m; i += rows) {
        int64_t m = DVM_MIN(rows, a->m - i);
        for (int64_t k = 0; k < m * c->nfold; k++) tree[k].count = 0;
        for (int64_t j = 0; j < a->n; j += cols) {
            int64_t n = DVM_MIN(cols, a->n - j), blocks = (n + DVM_TREE_BLOCK - 1) / DVM_TREE_BLOCK;
            if (stage) {
                run_staged(c, a, i, j, m, n);
            } else {
                args sub;
                sub_box(c, a, &sub, i, j);
                sub.m = m;
                sub.n = n;
                call_rows(c, &sub, j);
            }
            for (int64_t r = 0; r < m; r++)
                for (int k = 0; k < c->nfold; k++) {
                    const struct dvm_jit_fold *f = &c->fold[k];
                    const char *record = at(a, c->parts) + r * blocks * c->part_bytes;
                    dvm_tree_push(&tree[r * c->nfold + k], f->op, (enum dvm_vt)f->vt,
                                  join_parts(c, f, record, blocks, a->pos + j));
                }
        }
        for (int64_t r = 0; r < m; r++)
            for (int k = 0; k < c->nfold; k++) {
                const struct dvm_jit_fold *f = &c->fold[k];
                write_result(a, f, i + r,
                             dvm_tree_end(&tree[r * c->nfold + k], f->op, (enum dvm_vt)f->vt));
            }
    }
}

/* Whether asking for memory ahead of time asks for what will be read. */
static bool one_behind_the_other(const struct dvm_jit_code *c, const args *a) {
    for (int o = 0; o < c->c.strip.nopnd; o++) {
        const struct dvm_opnd *p = &c->c.strip.opnd[o];
        if (p->role == DVM_ROLE_LOAD && p->kind == DVM_OPND_CONTIG && a->m > 1 &&
            a->opnd[o].rs != a->n * a->opnd[o].cs)
            return false;
    }
    return true;
}

/* Distance to what will be read next. Without one, what is asked for is what is read. */
static int64_t next_rows(const struct dvm_jit_code *c, const args *a) {
    enum { AHEAD = 2048 };
    if (!a->far) return 0;
    return a->m > 1 ? a->m * a->opnd[c->asked].rs : AHEAD;
}

void dvm_jit_run_row(const struct dvm_code *code, const args *a) {
    const struct dvm_jit_code *c = code_of(code);
    if (a->m <= 0) return;
    if (c->turns) set(a, J_F_TURNS, 0);
    if (c->asked >= 0) set(a, J_F_AHEAD, next_rows(c, a));
    if (a->n <= 0)
        write_identities(c, a);
    else if (any_staged(c, a))
        long_rows(c, a, c->scans ? 1 : J_STAGE_ROWS, DVM_TREE_BLOCK, true);
    else if (a->n <= (int64_t)c->part_room * DVM_TREE_BLOCK)
        short_rows(c, a);
    else
        long_rows(c, a, 1, (int64_t)c->part_room * DVM_TREE_BLOCK, false);
}

/* ---- columns */

static void empty_columns(const struct dvm_jit_code *c, const args *a) {
    for (int k = 0; k < c->nfold; k++) {
        const struct dvm_jit_fold *f = &c->fold[k];
        struct dvm_part p = dvm_part_identity(f->op, (enum dvm_vt)f->vt);
        for (int64_t j = 0; j < a->n; j++) {
            const struct dvm_opnd_arg *out = &a->opnd[f->out];
            if (f->arg) memcpy(out[0].ptr + j * out[0].cs, &p.idx, 8);
            memcpy(out[f->arg].ptr + j * out[f->arg].cs, &p.v, (size_t)size_of(c, f->out + f->arg));
        }
    }
}

static void band(const struct dvm_jit_code *c, const args *a, int64_t first, bool more) {
    set(a, J_F_CONT, first > 0);
    set(a, J_F_MORE, more);
    set(a, J_F_ROW0, first);
    c->fn(a, 0);
}

/* Lines of a band of 16-bit rows, which are short for what fetches memory by itself. A sum over the first axis of 16 or
 * 64 MiB takes 0.8 to 0.9 of the time; of 1 MiB, near the core, 1.9. Rows of 32 bits gain nothing. */
static void fetch_band(const struct dvm_jit_code *c, const args *a, int64_t i, int64_t j,
                       int64_t rows, int64_t cols) {
    for (int o = 0; o < c->c.strip.nopnd; o++) {
        const struct dvm_opnd *d = &c->c.strip.opnd[o];
        const struct dvm_opnd_arg *p = &a->opnd[o];
        if (d->role != DVM_ROLE_LOAD || d->kind != DVM_OPND_CONTIG || size_of(c, o) != 2) continue;
        for (int64_t r = i; r < i + rows; r++)
            for (int64_t at = 0; at < cols * p->cs; at += 64)
                dvm_jit_prefetch(
                    (const char *)((uintptr_t)p->ptr + (uintptr_t)(r * p->rs + j * p->cs + at)));
    }
}

/* A few rows at a time over many columns: memory is read along the rows. */
static void in_bands(const struct dvm_jit_code *c, const args *a) {
    for (int64_t j = 0; j < a->n; j += c->band_cols)
        for (int64_t i = 0; i < a->m; i += J_BAND_ROWS) {
            args sub;
            sub_box(c, a, &sub, i, j);
            sub.n = DVM_MIN(c->band_cols, a->n - j);
            sub.m = DVM_MIN(J_BAND_ROWS, a->m - i);
            int64_t next = i + J_BAND_ROWS;
            if (a->far && next < a->m)
                fetch_band(c, a, next, j, DVM_MIN(J_BAND_ROWS, a->m - next), sub.n);
            band(c, &sub, i, next < a->m);
        }
}

/* A few rows of contiguous columns, which come by the thousand: nothing to decide. */
static bool is_small(const struct dvm_jit_code *c, const args *a) {
    enum { ELEMENTS = 2048 };
    return !c->may_stage && (uint64_t)a->m - 1 < ELEMENTS && (uint64_t)a->n - 1 < ELEMENTS &&
           a->m * a->n <= ELEMENTS;
}

static void one_box(const struct dvm_jit_code *c, const args *a) {
    bool bands = c->band_cols && a->m > J_BAND_ROWS && a->n > 64; /* fill the first cache */
    if (a->n <= 0) return;
    if (c->fetch) set(a, J_F_FETCH, !bands && one_behind_the_other(c, a));
    if (a->m <= 0) {
        empty_columns(c, a);
    } else if (any_staged(c, a)) {
        int64_t cols = J_STAGE_BYTES / 8 / DVM_TREE_ROWS;
        set(a, J_F_CONT, 0);
        set(a, J_F_MORE, 0);
        set(a, J_F_ROW0, 0);
        for (int64_t j = 0; j < a->n; j += cols)
            run_staged(c, a, 0, j, a->m, DVM_MIN(cols, a->n - j));
    } else if (bands) {
        in_bands(c, a);
    } else {
        band(c, a, 0, false);
    }
}

/* Columns that the loop over boxes by turns takes. */
static bool box_turns(const struct dvm_jit_code *c, const args *a) {
    return c->turns && a->far && a->together == J_TURNS && a->m > 0 && a->n > 0 &&
           a->n % c->group == 0 && !any_staged(c, a);
}

static void four_boxes(const struct dvm_jit_code *c, const args *a) {
    int nopnd = c->c.strip.nopnd;
    int64_t table[J_STEP_REST * (J_TURN_OPNDS + 1) + J_TURNS * J_TURN_OPNDS], *at = table;
    for (int k = J_STEP_ON; k <= J_STEP_BACK; k++, *at++ = 0)
        for (int o = 0; o < nopnd; o++) {
            bool fold = c->c.strip.opnd[o].role == DVM_ROLE_FOLD;
            int64_t on = fold ? 0 : a->opnd[nopnd + o].ptr - a->opnd[o].ptr;
            *at++ = k == J_STEP_ON ? on : -J_TURNS * on;
        }
    set(a, J_F_TURNS, 1);
    for (int64_t j = 0; j < a->n; j += c->band_cols) {
        args sub;
        for (int k = 0; k < J_TURNS * nopnd; k++)
            at[k] = (int64_t)((uintptr_t)a->opnd[k].ptr + (uintptr_t)(j * a->opnd[k % nopnd].cs));
        sub_box(c, a, &sub, 0, j);
        sub.n = DVM_MIN(c->band_cols, a->n - j);
        sub.step = table;
        c->fn(&sub, 0);
    }
    set(a, J_F_TURNS, 0);
}

/* Boxes whose operands stand one after the other. */
static void run_together(const struct dvm_jit_code *c, const args *a) {
    args one = *a;
    if (box_turns(c, a)) {
        four_boxes(c, a);
        return;
    }
    for (int k = 0; k < a->together; k++, one.opnd += c->c.strip.nopnd) one_box(c, &one);
}

/* Boxes one behind the other, far away, of 16-bit elements: a quarter of them apart, as many as can be are read by turns.
 * Returns how many. Sums over 16 rows of 64 columns of bf16, 64 MiB on a busy machine: 7.5 ms in order, 6.8 by turns; of
 * f32 there was no difference. */
static int64_t boxes_by_turns(const struct dvm_jit_code *c, const args *a) {
    struct dvm_opnd_arg opnd[J_TURNS * J_TURN_OPNDS];
    const int nopnd = c->c.strip.nopnd;
    const int64_t apart = a->boxes / J_TURNS;
    args four = *a;
    four.boxes = 1;
    four.together = J_TURNS;
    four.opnd = opnd;
    if (!c->fetch || apart * a->m * a->n < J_APART || !box_turns(c, &four)) return 0;
    for (int k = 0; k < J_TURNS * nopnd; k++) {
        int64_t move = k / nopnd * apart * a->step[k % nopnd];
        opnd[k] = a->opnd[k % nopnd];
        opnd[k].ptr = (char *)((uintptr_t)opnd[k].ptr + (uintptr_t)move);
    }
    for (int64_t i = 0; i < apart; i++) {
        four_boxes(c, &four);
        for (int k = 0; k < J_TURNS * nopnd; k++)
            opnd[k].ptr = (char *)((uintptr_t)opnd[k].ptr + (uintptr_t)a->step[k % nopnd]);
    }
    return J_TURNS * apart;
}

static void skip_boxes(const struct dvm_jit_code *c, const args *a, int64_t n) {
    struct dvm_opnd_arg *opnd = (struct dvm_opnd_arg *)(uintptr_t)a->opnd; /* ours to change */
    for (int o = 0; o < c->c.strip.nopnd; o++)
        opnd[o].ptr = (char *)((uintptr_t)opnd[o].ptr + (uintptr_t)(n * a->step[o]));
}

/* Boxes one after the other. */
static void run_in_order(const struct dvm_jit_code *c, const args *a) {
    if (DVM_LIKELY(is_small(c, a))) {
        bool far = a->m * a->n * DVM_MAX(a->boxes, 1) > J_FAR_BYTES / 4;
        if (c->fetch) set(a, J_F_FETCH, far && one_behind_the_other(c, a));
        band(c, a, 0, false);
        return;
    }
    args one = *a;
    one.boxes = 1;
    for (int64_t left = a->boxes;; left--) {
        one_box(c, &one);
        if (left <= 1) return;
        skip_boxes(c, a, 1);
    }
}

void dvm_jit_run_col(const struct dvm_code *code, const args *a) {
    const struct dvm_jit_code *c = code_of(code);
    if (c->turns) set(a, J_F_TURNS, 0);
    if (a->together) {
        run_together(c, a);
        return;
    }
    const int64_t done = a->far && a->boxes >= J_TURNS ? boxes_by_turns(c, a) : 0;
    if (done) {
        args rest = *a;
        rest.boxes -= done;
        skip_boxes(c, a, done);
        if (rest.boxes) run_in_order(c, &rest);
    } else {
        run_in_order(c, a);
    }
}
