/* Executable memory: pieces run, are never writable where they run, are reused after being freed, and survive a fork
 * on both sides. Where the system refuses it, a kernel runs in the tile VM, with the same bits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <dvm/dvm.h>

#include "vm/cpu/jit/code_mem.h"

#include "skip.h"

#if defined(__x86_64__)
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

typedef int answer_fn(void);

/* mov eax, n; ret; then filler */
static void *piece(int n, size_t size) {
    unsigned char bytes[5000] = {0xb8};
    void *code = NULL;
    memcpy(bytes + 1, &n, 4);
    bytes[5] = 0xc3;
    assert_int_equal(dvm_code_mem_new(bytes, size, &code), DVM_OK);
    return code;
}

static int call(void *code) {
    answer_fn *f;
    memcpy(&f, &code, sizeof f);
    return f();
}

static void test_run_and_free(void **state) {
    (void)state;
    enum { N = 3000 };
    static void *code[N];
    size_t before = dvm_code_mem_used();
    for (int round = 0; round < 3; round++) {
        for (int k = 0; k < N; k++) code[k] = piece(k, (size_t)(64 + k % 4096));
        for (int k = 0; k < N; k++) assert_int_equal(call(code[k]), k);
        for (int k = 0; k < N; k += 2) dvm_code_mem_free(code[k], (size_t)(64 + k % 4096));
        for (int k = 0; k < N; k += 2) code[k] = piece(-k, (size_t)(64 + k % 4096));
        for (int k = 0; k < N; k++) assert_int_equal(call(code[k]), k % 2 ? k : -k);
        for (int k = 0; k < N; k++) dvm_code_mem_free(code[k], (size_t)(64 + k % 4096));
    }
    assert_int_equal(dvm_code_mem_used(), before);
}

static void test_no_growth(void **state) {
    (void)state;
    void *keep = piece(7, 100), *first = piece(1, 1000);
    dvm_code_mem_free(first, 1000);
    for (int k = 0; k < 100000; k++) {
        void *code = piece(k, 1000);
        dvm_code_mem_free(code, 1000);
    }
    assert_int_equal(call(keep), 7);
    dvm_code_mem_free(keep, 100);
    assert_int_equal(dvm_code_mem_used(), 0);
}

/* No mapping of the process may be written and run. */
static void test_never_both(void **state) {
    (void)state;
    void *code = piece(1, 64);
    char line[512];
    FILE *f = fopen("/proc/self/maps", "r");
    bool executable = false;
    if (!f) skip_because("no /proc/self/maps");
    while (fgets(line, sizeof line, f)) {
        unsigned long from, to;
        char mode[5];
        if (sscanf(line, "%lx-%lx %4s", &from, &to, mode) != 3) continue;
        assert_false(mode[1] == 'w' && mode[2] == 'x');
        if ((uintptr_t)code >= from && (uintptr_t)code < to) executable = mode[2] == 'x';
    }
    fclose(f);
    assert_true(executable);
    dvm_code_mem_free(code, 64);
}

/* Child and parent go on compiling and freeing; each must keep seeing its own code. */
static void test_fork(void **state) {
    (void)state;
    enum { N = 500 };
    static void *code[N];
    for (int k = 0; k < N; k++) code[k] = piece(k, 200);
    pid_t child = fork();
    for (int k = 0; k < N; k += 3) dvm_code_mem_free(code[k], 200);
    for (int k = 0; k < N; k += 3) code[k] = piece(child ? 1000 + k : 2000 + k, 200);
    usleep(20000);
    int bad = 0;
    for (int k = 0; k < N; k++) bad += call(code[k]) != (k % 3 ? k : (child ? 1000 : 2000) + k);
    if (child == 0) _exit(bad != 0);
    int status = -1;
    waitpid(child, &status, 0);
    assert_int_equal(status, 0);
    assert_int_equal(bad, 0);
    for (int k = 0; k < N; k++) dvm_code_mem_free(code[k], 200);
    assert_int_equal(dvm_code_mem_used(), 0);
}

static void *hammer(void *arg) {
    int base = (int)(intptr_t)arg * 1000, bad = 0;
    void *code[20] = {0};
    for (int k = 0; k < 2000; k++) {
        void **slot = &code[k % 20];
        if (*slot) bad += call(*slot) != base + k - 20;
        dvm_code_mem_free(*slot, 300);
        unsigned char bytes[300] = {0xb8};
        int n = base + k;
        memcpy(bytes + 1, &n, 4);
        bytes[5] = 0xc3;
        if (dvm_code_mem_new(bytes, 300, slot) != DVM_OK) return (void *)1;
    }
    for (int k = 0; k < 20; k++) dvm_code_mem_free(code[k], 300);
    return (void *)(intptr_t)bad;
}

static void test_threads(void **state) {
    (void)state;
    pthread_t t[8];
    for (intptr_t k = 0; k < 8; k++) pthread_create(&t[k], NULL, hammer, (void *)k);
    for (int k = 0; k < 8; k++) {
        void *bad;
        pthread_join(t[k], &bad);
        assert_null(bad);
    }
    assert_int_equal(dvm_code_mem_used(), 0);
}

static void test_refuses_giants(void **state) {
    (void)state;
    static char big[(1 << 20) + 1];
    void *code;
    assert_int_equal(dvm_code_mem_new(big, sizeof big, &code), DVM_ERR_LIMIT);
}

/* The same once more in a process whose memory is toggled, which is what perf needs. */
static int toggled_status;

static void test_toggled(void **state) {
    (void)state;
    assert_int_equal(toggled_status, 0);
}

/* ---- a system that refuses: mmap and mprotect with PROT_EXEC fail, as on a hardened kernel */

enum { REFUSED_OK, REFUSED_CANNOT = 77 };
static int refused_status;

static bool refuse_executable(void) {
    static const uint16_t calls[] = {SYS_mmap, SYS_mprotect};
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, calls[0], 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, calls[1], 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, PROT_EXEC, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EACCES),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog prog = {sizeof code / sizeof *code, code};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog) == 0;
}

/* exp(x) * x of 1001 numbers; device names the tiers. */
static dvm_status run_kernel(float *y, char device[32]) {
    enum { N = 1001 };
    static float x[N];
    dvm_ctx *ctx = NULL;
    dvm_graph *g = NULL;
    dvm_kernel *k = NULL;
    dvm_val in, e, out;
    dvm_dim size[] = {N};
    dvm_options opt = {.threads = 1};
    for (int i = 0; i < N; i++) x[i] = (float)(i - 500) * 0.01f;
    dvm_status st = dvm_ctx_create(&opt, &ctx);
    if (st == DVM_OK) st = dvm_graph_create(ctx, DVM_VECTOR, 0, &g);
    if (st == DVM_OK) st = dvm_graph_load(g, DVM_F32, 1, size, NULL, &in);
    if (st == DVM_OK) st = dvm_graph_op(g, DVM_OP_EXP, 1, &in, &e);
    if (st == DVM_OK) st = dvm_graph_op(g, DVM_OP_MUL, 2, (dvm_val[]){e, in}, &out);
    if (st == DVM_OK) st = dvm_graph_store(g, out, NULL, NULL);
    if (st == DVM_OK) st = dvm_compile(g, &k);
    dvm_arg ax = {.data = x, .dims = (int64_t[]){N}, .rank = 1, .dtype = DVM_F32};
    dvm_arg ay = {.data = y, .dims = (int64_t[]){N}, .rank = 1, .dtype = DVM_F32};
    if (st == DVM_OK) st = dvm_run(k, 1, &ax, 1, &ay);
    if (st == DVM_OK) snprintf(device, 32, "%s", dvm_ctx_device(ctx));
    dvm_kernel_destroy(&k);
    dvm_graph_destroy(&g);
    dvm_ctx_destroy(&ctx);
    return st;
}

/* In a process of its own: the library asks once and remembers. What it computes goes to the parent. */
static void refused_process(int to) {
    static float y[1001];
    char device[32];
    if (!refuse_executable()) _exit(REFUSED_CANNOT);
    void *code = NULL;
    char byte = 0;
    if (!dvm_code_mem_refused()) _exit(1);
    if (dvm_code_mem_new(&byte, 1, &code) != DVM_ERR_UNSUPPORTED) _exit(2);
    if (run_kernel(y, device) != DVM_OK) _exit(3);
    if (strstr(device, "jit")) _exit(4);
    _exit(write(to, y, sizeof y) == (ssize_t)sizeof y ? REFUSED_OK : 5);
}

static float refused_result[1001];

static void start_refused(void) {
    int pipes[2];
    if (pipe(pipes) != 0) return;
    pid_t child = fork();
    if (child == 0) refused_process(pipes[1]);
    close(pipes[1]);
    size_t n = 0;
    ssize_t got;
    while ((got = read(pipes[0], (char *)refused_result + n, sizeof refused_result - n)) > 0)
        n += (size_t)got;
    close(pipes[0]);
    waitpid(child, &refused_status, 0);
}

static void test_refused(void **state) {
    (void)state;
    float y[1001];
    char device[32];
    if (WIFEXITED(refused_status) && WEXITSTATUS(refused_status) == REFUSED_CANNOT) skip();
    assert_int_equal(refused_status, 0);
    assert_int_equal(run_kernel(y, device), DVM_OK);
    assert_memory_equal(y, refused_result, sizeof y);
}

static int run_all(bool last) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_run_and_free), cmocka_unit_test(test_no_growth),
        cmocka_unit_test(test_never_both),   cmocka_unit_test(test_fork),
        cmocka_unit_test(test_threads),      cmocka_unit_test(test_refuses_giants),
        cmocka_unit_test(test_toggled),      cmocka_unit_test(test_refused),
    };
    const size_t n = DVM_COUNT(tests) - (last ? 0 : 2);
    return _cmocka_run_group_tests("executable memory", tests, n, NULL, NULL);
}

int main(void) {
    pid_t child = fork();
    if (child == 0) {
        setenv("DVM_PERF", "1", 1);
        if (!freopen("/dev/null", "w", stdout)) _exit(1);
        _exit(dvm_code_mem_refused() ? 0 : run_all(false));
    }
    waitpid(child, &toggled_status, 0);
    start_refused();
    if (dvm_code_mem_refused()) {
        print_message("1..0 # SKIP %s\n", dvm_code_mem_refused());
        return 0;
    }
    return run_all(true);
}
#else
int main(void) { return 0; }
#endif
