/* See code_mem.h.
 *
 * A chunk is a memory file of 1 MiB, mapped twice, and a bitmap of its 64-byte units. Chunks belong to a generation;
 * a fork starts the next one. The memory file of an older generation is shared with the other process, so nothing is
 * written there any more: its pieces are only counted down, and the chunk goes when the last one is freed.
 *
 * Instruction caches are coherent on x86-64 by physical address; elsewhere they are told. What a thread runs it got
 * through a lock or an atomic pointer after the bytes were written. */
#include "vm/cpu/jit/code_mem.h"

#include <string.h>

#include "base/err.h"

#if (defined(__x86_64__) || defined(__aarch64__)) && defined(__linux__)
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { UNIT = DVM_CODE_ALIGN, UNITS = 1 << 14, WORDS = UNITS / 64, CHUNK = UNITS * UNIT };
#define LIMIT ((size_t)256 << 20)

struct chunk {
    struct chunk *next;
    char *run, *write;
    uint32_t generation;
    uint32_t used, hint; /* units; word at which the search starts */
    uint64_t busy[WORDS];
};

enum mode { UNKNOWN, TWICE, TOGGLE, REFUSED };

static struct {
    pthread_mutex_t lock;
    enum mode mode;
    uint32_t generation;
    size_t used, mapped;
    struct chunk *first;
} code_pool = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- chunks */

static void *map(size_t n, int prot, int flags, int fd) {
    void *p = mmap(NULL, n, prot, flags, fd, 0);
    return p == MAP_FAILED ? NULL : p;
}

static int memory_file(void) {
#if defined(MFD_EXEC)
    int fd = memfd_create("dvm-code", MFD_CLOEXEC | MFD_EXEC);
    if (fd >= 0) return fd;
#endif
    return memfd_create("dvm-code", MFD_CLOEXEC);
}

static void chunk_unmap(struct chunk *c) {
    if (c->run) munmap(c->run, CHUNK);
    if (c->write) munmap(c->write, CHUNK);
    munmap(c, sizeof *c);
}

static struct chunk *chunk_new(void) {
    struct chunk *c = map(sizeof *c, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    if (!c) return NULL;
    int fd = memory_file();
    if (fd >= 0 && ftruncate(fd, CHUNK) == 0) {
        c->write = map(CHUNK, PROT_READ | PROT_WRITE, MAP_SHARED, fd);
        c->run = map(CHUNK, PROT_READ | PROT_EXEC, MAP_SHARED, fd);
    }
    if (fd >= 0) close(fd);
    c->generation = code_pool.generation;
    if (c->write && c->run) return c;
    chunk_unmap(c);
    return NULL;
}

static bool is_busy(const struct chunk *c, uint32_t u) { return c->busy[u / 64] >> (u % 64) & 1; }

static void mark(struct chunk *c, uint32_t from, uint32_t n, bool busy) {
    for (uint32_t u = from; u < from + n; u++) {
        uint64_t bit = UINT64_C(1) << (u % 64);
        c->busy[u / 64] = busy ? c->busy[u / 64] | bit : c->busy[u / 64] & ~bit;
    }
}

/* First run of n free units from unit `from` on; UNITS when there is none. */
static uint32_t find_run(const struct chunk *c, uint32_t from, uint32_t n) {
    uint32_t run = 0;
    for (uint32_t u = from; u < UNITS; u++) {
        if (u % 64 == 0 && c->busy[u / 64] == UINT64_MAX) {
            run = 0;
            u += 63;
        } else {
            run = is_busy(c, u) ? 0 : run + 1;
            if (run == n) return u + 1 - n;
        }
    }
    return UNITS;
}

static char *chunk_take(struct chunk *c, uint32_t n, const void *bytes, size_t size) {
    if (c->generation != code_pool.generation || UNITS - c->used < n) return NULL;
    uint32_t at = find_run(c, c->hint * 64, n);
    if (at == UNITS && c->hint) at = find_run(c, 0, n);
    if (at == UNITS) return NULL;
    mark(c, at, n, true);
    c->used += n;
    c->hint = at / 64;
    memcpy(c->write + (size_t)at * UNIT, bytes, size);
    __builtin___clear_cache(c->run + (size_t)at * UNIT, c->run + (size_t)at * UNIT + size);
    return c->run + (size_t)at * UNIT;
}

/* ---- fork */

static void before_fork(void) { pthread_mutex_lock(&code_pool.lock); }
static void after_fork(void) {
    code_pool.generation++;
    pthread_mutex_unlock(&code_pool.lock);
}

/* ---- pages of their own */

static size_t page_size(size_t n) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return (n + page - 1) & ~(page - 1);
}

static char *toggle_new(const void *bytes, size_t n) {
    size_t size = page_size(n);
    char *p = map(size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    if (!p) return NULL;
    memcpy(p, bytes, n);
    __builtin___clear_cache(p, p + n);
    if (mprotect(p, size, PROT_READ | PROT_EXEC) == 0) return p;
    munmap(p, size);
    return NULL;
}

/* ---- the pool; called with the lock */

/* perf looks up names in anonymous memory only; and emulators of AArch64 before QEMU 8.1 keep running what stood at an
 * address before it was written through another mapping. */
static bool may_map_twice(void) {
#if defined(__aarch64__)
    return false;
#else
    return !getenv("DVM_PERF");
#endif
}

static void decide_mode(void) {
    static const uint8_t ret = 0xc3;
    if (code_pool.mode != UNKNOWN) return;
    code_pool.mode = REFUSED;
    if (may_map_twice() && pthread_atfork(before_fork, after_fork, after_fork) == 0) {
        struct chunk *c = chunk_new();
        if (c) {
            code_pool.first = c;
            code_pool.mapped = CHUNK;
            code_pool.mode = TWICE;
            return;
        }
    }
    char *p = toggle_new(&ret, 1);
    if (!p) return;
    munmap(p, page_size(1));
    code_pool.mode = TOGGLE;
}

static char *take_twice(const void *bytes, size_t n) {
    uint32_t units = (uint32_t)((n + UNIT - 1) / UNIT);
    for (struct chunk *c = code_pool.first; c; c = c->next) {
        char *p = chunk_take(c, units, bytes, n);
        if (p) return p;
    }
    if (code_pool.mapped + CHUNK > LIMIT) return NULL;
    struct chunk *c = chunk_new();
    if (!c) return NULL;
    code_pool.mapped += CHUNK;
    c->next = code_pool.first;
    code_pool.first = c;
    return chunk_take(c, units, bytes, n);
}

static char *take_toggle(const void *bytes, size_t n) {
    size_t size = page_size(n);
    if (code_pool.mapped + size > LIMIT) return NULL;
    char *p = toggle_new(bytes, n);
    if (p) code_pool.mapped += size;
    return p;
}

/* A chunk without pieces goes, but for one of this generation that is kept for the next piece. */
static void drop_if_empty(struct chunk **link) {
    struct chunk *c = *link;
    bool only = c == code_pool.first && !c->next;
    if (c->used || (only && c->generation == code_pool.generation)) return;
    *link = c->next;
    code_pool.mapped -= CHUNK;
    chunk_unmap(c);
}

static void give_twice(char *p, size_t n) {
    uint32_t units = (uint32_t)((n + UNIT - 1) / UNIT);
    for (struct chunk **link = &code_pool.first; *link; link = &(*link)->next) {
        struct chunk *c = *link;
        if (p < c->run || p >= c->run + CHUNK) continue;
        mark(c, (uint32_t)((size_t)(p - c->run) / UNIT), units, false);
        c->used -= units;
        drop_if_empty(link);
        return;
    }
}

dvm_status dvm_code_mem_new(const void *bytes, size_t n, void **code) {
    if (n == 0 || n > CHUNK) DVM_FAIL(LIMIT, "machine code of %zu bytes; at most %d", n, CHUNK);
    pthread_mutex_lock(&code_pool.lock);
    decide_mode();
    enum mode mode = code_pool.mode;
    char *p = mode == TWICE ? take_twice(bytes, n) : mode == TOGGLE ? take_toggle(bytes, n) : NULL;
    if (p) code_pool.used += n;
    pthread_mutex_unlock(&code_pool.lock);
    *code = p;
    if (p) return DVM_OK;
    if (mode == REFUSED) DVM_FAIL(UNSUPPORTED, "machine code: %s", dvm_code_mem_refused());
    DVM_FAIL(LIMIT, "machine code of all programs exceeds %zu MiB", LIMIT >> 20);
}

void dvm_code_mem_free(void *code, size_t n) {
    if (!code) return;
    pthread_mutex_lock(&code_pool.lock);
    code_pool.used -= n;
    if (code_pool.mode == TWICE) {
        give_twice(code, n);
    } else {
        code_pool.mapped -= page_size(n);
        munmap(code, page_size(n));
    }
    pthread_mutex_unlock(&code_pool.lock);
}

const char *dvm_code_mem_refused(void) {
    pthread_mutex_lock(&code_pool.lock);
    decide_mode();
    bool refused = code_pool.mode == REFUSED;
    pthread_mutex_unlock(&code_pool.lock);
    return refused ? "the system refuses executable memory" : NULL;
}

size_t dvm_code_mem_used(void) {
    pthread_mutex_lock(&code_pool.lock);
    size_t n = code_pool.used;
    pthread_mutex_unlock(&code_pool.lock);
    return n;
}

#else
dvm_status dvm_code_mem_new(const void *bytes, size_t n, void **code) {
    (void)bytes, (void)n, (void)code;
    DVM_FAIL(UNSUPPORTED, "machine code: %s", dvm_code_mem_refused());
}
void dvm_code_mem_free(void *code, size_t n) { (void)code, (void)n; }
const char *dvm_code_mem_refused(void) { return "no code generator for this processor and system"; }
size_t dvm_code_mem_used(void) { return 0; }
#endif
