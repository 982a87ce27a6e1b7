/* The thread pool: every index once, from many callers, nested, resized, after fork. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "vm/pool.h"

#include "skip.h"

static const struct dvm_mem mem = {dvm_mem_system, NULL};

enum { N = 1000 };

struct work {
    atomic_int count[N];
    struct dvm_pool *pool;
};

static void body(void *arg, int i) {
    struct work *w = arg;
    atomic_fetch_add(&w->count[i], 1);
}

static bool each_is(const struct work *w, int n, int want) {
    for (int i = 0; i < n; i++)
        if (atomic_load(&w->count[i]) != want) return false;
    return true;
}

static struct dvm_pool *pool_of(int threads) {
    struct dvm_pool *p;
    assert_int_equal(dvm_pool_create(&mem, threads, NULL, NULL, &p), DVM_OK);
    return p;
}

static void every_index_once(void **state) {
    static const int threads[] = {1, 2, 3, 16};
    (void)state;
    for (int k = 0; k < 4; k++) {
        struct dvm_pool *p = pool_of(threads[k]);
        assert_int_equal(dvm_pool_size(p), threads[k]);
        for (int n = 0; n < 40; n++)
            for (int again = 0; again < 5; again++) {
                struct work w = {.pool = NULL};
                dvm_pool_run(p, n, body, &w);
                assert_true(each_is(&w, n, 1));
            }
        for (int again = 0; again < 200; again++) {
            struct work w = {.pool = NULL};
            dvm_pool_run(p, N, body, &w);
            assert_true(each_is(&w, N, 1));
        }
        dvm_pool_destroy(&p);
        assert_null(p);
        dvm_pool_destroy(&p);
    }
}

static void without_a_pool(void **state) {
    (void)state;
    struct work w = {.pool = NULL};
    dvm_pool_run(NULL, 10, body, &w);
    assert_true(each_is(&w, 10, 1));
}

static void wakes_after_sleep(void **state) {
    (void)state;
    struct dvm_pool *p = pool_of(3);
    for (int again = 0; again < 20; again++) {
        struct work w = {.pool = NULL};
        dvm_pool_run(p, 30, body, &w);
        assert_true(each_is(&w, 30, 1));
        usleep(1000);
    }
    dvm_pool_destroy(&p);
}

static void inner(void *arg, int i) {
    struct work *w = arg;
    struct work own = {.pool = NULL};
    dvm_pool_run(w->pool, 8, body, &own);
    if (each_is(&own, 8, 1)) atomic_fetch_add(&w->count[i], 1);
}

static void loops_in_loops(void **state) {
    (void)state;
    struct work w = {.pool = pool_of(4)};
    dvm_pool_run(w.pool, 20, inner, &w);
    assert_true(each_is(&w, 20, 1));
    dvm_pool_destroy(&w.pool);
}

static void *caller(void *arg) {
    struct dvm_pool *p = arg;
    for (int k = 0; k < 300; k++) {
        struct work w = {.pool = NULL};
        dvm_pool_run(p, 50, body, &w);
        if (!each_is(&w, 50, 1)) return (void *)1;
    }
    return NULL;
}

static void many_callers(void **state) {
    (void)state;
    pthread_t t[6];
    struct dvm_pool *p = pool_of(3);
    for (int i = 0; i < 6; i++) assert_int_equal(pthread_create(&t[i], NULL, caller, p), 0);
    for (int i = 0; i < 6; i++) {
        void *bad;
        pthread_join(t[i], &bad);
        assert_null(bad);
    }
    dvm_pool_destroy(&p);
}

static void resizes(void **state) {
    static const int sizes[] = {1, 5, 2, 8, 1, 3};
    (void)state;
    struct dvm_pool *p = pool_of(4);
    pthread_t t;
    assert_int_equal(pthread_create(&t, NULL, caller, p), 0); /* loops meanwhile */
    for (int k = 0; k < 6; k++) {
        struct work w = {.pool = NULL};
        assert_int_equal(dvm_pool_resize(p, sizes[k]), DVM_OK);
        assert_int_equal(dvm_pool_size(p), sizes[k]);
        dvm_pool_run(p, 100, body, &w);
        assert_true(each_is(&w, 100, 1));
    }
    void *bad;
    pthread_join(t, &bad);
    assert_null(bad);
    assert_int_equal(dvm_pool_resize(p, 0), DVM_ERR_ARG);
    assert_int_equal(dvm_pool_size(p), 3);
    dvm_pool_destroy(&p);
}

static int foreign_calls;
static void foreign(void *user, int n, void (*f)(void *arg, int i), void *arg) {
    (void)user;
    foreign_calls++;
    for (int i = n - 1; i >= 0; i--) f(arg, i);
}

static void foreign_pool(void **state) {
    (void)state;
    struct dvm_pool *p;
    struct work w = {.pool = NULL};
    assert_int_equal(dvm_pool_create(&mem, 7, foreign, NULL, &p), DVM_OK);
    assert_int_equal(dvm_pool_size(p), 7);
    dvm_pool_run(p, 20, body, &w);
    assert_true(each_is(&w, 20, 1));
    assert_int_equal(foreign_calls, 1);
    dvm_pool_destroy(&p);
}

/* The child has none of the workers and must neither wait for them nor for their locks. */
static void after_fork(void **state) {
    (void)state;
#if defined(__SANITIZE_THREAD__)
    skip_because("the thread sanitizer allows no threads in a forked child");
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
    skip_because("the thread sanitizer allows no threads in a forked child");
#endif
#endif
    if (getenv("DVM_EMU"))
        skip_because("qemu's user mode asserts where a process with threads forks");
    struct dvm_pool *p = pool_of(4);
    struct work w = {.pool = NULL};
    dvm_pool_run(p, 100, body, &w);
    pthread_t t;
    assert_int_equal(pthread_create(&t, NULL, caller, p), 0); /* busy at the time of the fork */
    for (int k = 0; k < 5; k++) {
        pid_t child = fork();
        if (child == 0) {
            alarm(20);
            struct work own = {.pool = NULL};
            for (int i = 0; i < 50; i++) dvm_pool_run(p, 100, body, &own);
            bool ok = each_is(&own, 100, 50);
            dvm_pool_destroy(&p);
            _exit(ok ? 0 : 1);
        }
        int status = -1;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(status, 0);
    }
    pthread_join(t, NULL);
    dvm_pool_destroy(&p);
}

static void keeps_scratch(void **state) {
    (void)state;
    struct dvm_pool *p = pool_of(1);
    size_t got, again, larger;
    void *a = dvm_pool_take(p, &mem, 1000, &got);
    assert_non_null(a);
    assert_true(got >= 1000);
    memset(a, 1, got);
    dvm_pool_give(p, &mem, a, got);
    void *b = dvm_pool_take(p, &mem, 500, &again);
    assert_ptr_equal(a, b);
    assert_int_equal(got, again);
    void *c = dvm_pool_take(p, &mem, 100000, &larger);
    assert_true(larger >= 100000);
    dvm_pool_give(p, &mem, b, again);
    dvm_pool_give(p, &mem, c, larger);
    dvm_pool_destroy(&p); /* nothing leaks: the sanitizer looks */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_index_once),  cmocka_unit_test(without_a_pool),
        cmocka_unit_test(wakes_after_sleep), cmocka_unit_test(loops_in_loops),
        cmocka_unit_test(many_callers),      cmocka_unit_test(resizes),
        cmocka_unit_test(foreign_pool),      cmocka_unit_test(after_fork),
        cmocka_unit_test(keeps_scratch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
