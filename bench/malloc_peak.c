/* Counts what the heap of a process holds, for LD_PRELOAD: every block through malloc and its kin, whoever asks.
 * Blocks count with the size that the allocator gives them. */
#include <errno.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);
void *__libc_memalign(size_t align, size_t n);
void __libc_free(void *p);

static atomic_llong now, peak;

static void *got(void *p) {
    if (!p) return p;
    const long long n =
        atomic_fetch_add(&now, (long long)malloc_usable_size(p)) + (long long)malloc_usable_size(p);
    long long old = atomic_load(&peak);
    while (old < n && !atomic_compare_exchange_weak(&peak, &old, n)) {}
    return p;
}

static void gone(void *p) {
    if (p) atomic_fetch_sub(&now, (long long)malloc_usable_size(p));
}

void *malloc(size_t n) { return got(__libc_malloc(n)); }
void *calloc(size_t n, size_t size) { return got(__libc_calloc(n, size)); }
void *memalign(size_t align, size_t n) { return got(__libc_memalign(align, n)); }
void *aligned_alloc(size_t align, size_t n) { return got(__libc_memalign(align, n)); }

int posix_memalign(void **out, size_t align, size_t n) {
    void *p = got(__libc_memalign(align, n));
    if (!p) return ENOMEM;
    *out = p;
    return 0;
}

void free(void *p) {
    gone(p);
    __libc_free(p);
}

void *realloc(void *p, size_t n) {
    gone(p);
    void *q = __libc_realloc(p, n);
    got(q ? q : n ? p : NULL); /* refused: the old block lives on */
    return q;
}

/* Bytes held now, and the most since the last call. */
long long heap_now(void) { return atomic_load(&now); }
long long heap_peak(void) { return atomic_exchange(&peak, atomic_load(&now)); }
