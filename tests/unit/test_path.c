/* The path of one call is the list in docs/path.md: at most six functions known across files, two of them called
 * through a pointer. The stack is taken at the first load of a tile kernel, by making that load fault. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <elf.h>
#include <execinfo.h>
#include <libgen.h>
#include <link.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include "graphs.h"
#include "skip.h"

/* ---- the list ------------------------------------------------------------------------------------------------- */

enum { MAX_NAMES = 64 };
struct listed {
    char name[64], file[128];
    bool step, indirect;
};
static struct listed list[MAX_NAMES];
static int nlist;
static char root[4096];

/* The root of the source: from the working folder upward, or from the program. */
static bool find_root(void) {
    char exe[3072] = "";
    if (access("docs/path.md", R_OK) == 0) {
        strcpy(root, ".");
        return true;
    }
    if (readlink("/proc/self/exe", exe, sizeof exe - 1) < 0) return false;
    for (char *dir = dirname(exe); strlen(dir) > 1; dir = dirname(dir)) {
        snprintf(root, sizeof root, "%s/docs/path.md", dir);
        if (access(root, R_OK)) continue;
        snprintf(root, sizeof root, "%s", dir);
        return true;
    }
    return false;
}

static void add_helpers(char *line) {
    for (char *w = strtok(line, " \n"); w && nlist < MAX_NAMES; w = strtok(NULL, " \n"))
        snprintf(list[nlist++].name, sizeof list->name, "%s", w);
}

static bool read_list(void) {
    char path[4200], line[256];
    bool inside = false;
    if (!find_root()) return false;
    snprintf(path, sizeof path, "%s/docs/path.md", root);
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f) && nlist < MAX_NAMES) {
        if (!strncmp(line, "```path", 7))
            inside = true;
        else if (inside && !strncmp(line, "```", 3))
            break;
        else if (inside && line[0] == ' ')
            add_helpers(line);
        else if (inside) {
            struct listed *l = &list[nlist++];
            l->step = true;
            l->indirect = line[1] == '*';
            assert_int_equal(sscanf(line + 2, " %63s %127s", l->name, l->file), 2);
        }
    }
    if (f) fclose(f);
    return nlist > 0;
}

static void test_budget(void **state) {
    (void)state;
    int steps = 0, indirect = 0;
    if (!nlist && !read_list()) skip_because("docs/path.md is not there");
    for (int i = 0; i < nlist; i++) steps += list[i].step, indirect += list[i].indirect;
    assert_true(steps > 0 && steps <= 6);
    assert_true(indirect <= 2);
}

static bool mentions(const char *file, const char *name) {
    char path[4400], line[1024];
    bool found = false;
    snprintf(path, sizeof path, "%s/%s", root, file);
    FILE *f = fopen(path, "r");
    while (f && !found && fgets(line, sizeof line, f)) found = strstr(line, name) != NULL;
    if (f) fclose(f);
    return found;
}

/* Every function stands in the file that is named for it; helpers in that of the step above. */
static void test_files(void **state) {
    (void)state;
    const char *file = "";
    if (!nlist && !read_list()) skip_because("docs/path.md is not there");
    for (int i = 0; i < nlist; i++) {
        if (list[i].step) file = list[i].file;
        if (!mentions(file, list[i].name)) fail_msg("%s is not in %s", list[i].name, file);
    }
}

/* ---- names of addresses, those of static functions too ---------------------------------------------------------- */

static char *image;
static const Elf64_Sym *symbols;
static const char *strings;
static size_t nsymbols;
static uintptr_t loaded_at;

static int first_object(struct dl_phdr_info *info, size_t size, void *arg) {
    (void)size;
    *(uintptr_t *)arg = info->dlpi_addr;
    return 1;
}

static bool read_symbols(void) {
    FILE *f = fopen("/proc/self/exe", "rb");
    if (!f) return false;
    fseek(f, 0, SEEK_END);
    long n = ftell(f);
    rewind(f);
    image = malloc((size_t)n);
    bool ok = fread(image, 1, (size_t)n, f) == (size_t)n;
    fclose(f);
    const Elf64_Ehdr *h = (const Elf64_Ehdr *)(void *)image;
    if (!ok || memcmp(h->e_ident, ELFMAG, SELFMAG) || h->e_ident[EI_CLASS] != ELFCLASS64)
        return false;
    const Elf64_Shdr *s = (const Elf64_Shdr *)(void *)(image + h->e_shoff);
    for (int i = 0; i < h->e_shnum; i++) {
        if (s[i].sh_type != SHT_SYMTAB) continue;
        symbols = (const Elf64_Sym *)(void *)(image + s[i].sh_offset);
        nsymbols = s[i].sh_size / sizeof *symbols;
        strings = image + s[s[i].sh_link].sh_offset;
    }
    dl_iterate_phdr(first_object, &loaded_at);
    return nsymbols > 0;
}

/* Without what the compiler appends to clones (".isra.0"). */
static void name_of(const void *address, char name[64]) {
    uintptr_t a = (uintptr_t)address - loaded_at;
    snprintf(name, 64, "?");
    for (size_t i = 0; i < nsymbols; i++) {
        const Elf64_Sym *s = &symbols[i];
        if (ELF64_ST_TYPE(s->st_info) != STT_FUNC || a < s->st_value ||
            a >= s->st_value + s->st_size)
            continue;
        snprintf(name, 64, "%.63s", strings + s->st_name);
        name[strcspn(name, ".")] = 0;
        return;
    }
}

/* ---- the stack ------------------------------------------------------------------------------------------------------ */

enum { PAGES = 4 * 4096, DEPTH = 64 };
static char *page;
static void *stack[DEPTH];
static volatile int depth;

/* Opens the page, so that the load is done again when this returns. */
static void on_fault(int sig) {
    (void)sig;
    depth = backtrace(stack, DEPTH);
    mprotect(page, PAGES, PROT_READ | PROT_WRITE);
}

static void take_stack(dvm_ctx *ctx) {
    struct prog p;
    struct sigaction old, a = {.sa_handler = on_fault};
    void *warm[4];
    assert_int_equal(
        prog_open(&p, ctx, "kernel vector (x: f32[32, 64]) { %a = exp %x store %a }", NULL),
        DVM_OK);
    assert_int_equal(prog_run(&p), DVM_OK); /* everything is compiled */
    uint64_t want = prog_hash(&p);
    page = mmap(NULL, PAGES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(page != MAP_FAILED);
    memcpy(page, p.in[0].data, 32 * 64 * 4);
    p.in[0].data = page;
    backtrace(warm, 4); /* its first call loads a library */
    sigaction(SIGSEGV, &a, &old);
    mprotect(page, PAGES, PROT_NONE);
    dvm_status st = prog_run(&p);
    sigaction(SIGSEGV, &old, NULL);
    assert_int_equal(st, DVM_OK);
    assert_true(prog_hash(&p) == want);
    munmap(page, PAGES);
    prog_close(&p);
}

/* From dvm_run inward, every function is in the list, in its order, and every step that other files call is there. */
static void compare(void) {
    char name[64];
    int at = 0, from = depth, last = 0;
    while (--from >= 0) {
        name_of(stack[from], name);
        if (!strcmp(name, "dvm_run")) break;
    }
    if (from < 0) skip_because("the stack cannot be unwound here");
    while (last < nlist - 1 && !(list[last].step && list[last].indirect)) last++;
    for (; from >= 0 && at < nlist; from--) {
        int found = at;
        name_of(stack[from], name);
        while (found < nlist && strcmp(list[found].name, name)) found++;
        if (found == nlist)
            fail_msg("%s is called on the way and is not in docs/path.md, or out of order", name);
        for (int i = at; i < found; i++)
            if (list[i].step)
                fail_msg("%s of docs/path.md is not on the stack before %s", list[i].name, name);
        at = found;
        bool helper = !list[at].step; /* helpers may call each other in any order */
        if (!helper)
            at++;
        else
            while (at > 0 && !list[at - 1].step) at--;
        if (!strcmp(name, list[nlist - 1].name)) return;
    }
    fail_msg("the kernel %s is not on the stack", list[nlist - 1].name);
}

static void test_stack(void **state) {
    (void)state;
    dvm_ctx *ctx;
#if !defined(__x86_64__)
    skip_because("the kernel that docs/path.md lists is one of x86-64");
#endif
    if (!nlist && !read_list()) skip_because("docs/path.md is not there");
    if (!read_symbols()) skip_because("the program has no symbols");
    setenv("DVM_JIT", "0", 1); /* nothing can unwind through emitted code */
    assert_int_equal(dvm_ctx_create(&(dvm_options){.threads = 1}, &ctx), DVM_OK);
    take_stack(ctx);
    dvm_ctx_destroy(&ctx);
    unsetenv("DVM_JIT");
    compare();
    free(image);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_budget),
        cmocka_unit_test(test_files),
        cmocka_unit_test(test_stack),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
