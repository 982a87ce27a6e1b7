/* Names of machine code for tools that look at the process from outside.
 *
 *   DVM_PERF=1   a line "address size name" for every piece in /tmp/perf-PID.map, which perf reads
 *   DVM_GDB=1    an ELF image with one symbol, entered into the list that gdb watches: it stops at
 *                __jit_debug_register_code whenever the list changes
 *
 * A name is the mode and the hash of the strip: dvm_map_1a2b3c4d. Neither is asked for in normal runs, and then nothing
 * is kept. */
#include "vm/cpu/jit/jit_names.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if (defined(__x86_64__) || defined(__aarch64__)) && defined(__linux__)
#include <elf.h>
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

static bool wanted(const char *variable) {
    const char *env = getenv(variable);
    return env && *env && strcmp(env, "0") != 0;
}

static void name_of(const struct dvm_strip *s, char *out, size_t n) {
    static const char *const modes[] = {"map", "row", "col"};
    snprintf(out, n, "dvm_%s_%08x", modes[s->mode], (unsigned)(s->hash ^ s->hash >> 32));
}

static void tell_perf(const void *code, size_t size, const char *name) {
    char path[64], line[128];
    snprintf(path, sizeof path, "/tmp/perf-%ld.map", (long)getpid());
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) return;
    int n = snprintf(line, sizeof line, "%lx %zx %s\n", (unsigned long)(uintptr_t)code, size, name);
    ssize_t done = write(fd, line, (size_t)n); /* one line at once, or none: perf does without */
    (void)done;
    close(fd);
}

/* ---- gdb: names and layout are its interface */

struct image { /* headers, sections 0 .text .symtab .strtab .shstrtab, symbols, names */
    Elf64_Ehdr head;
    Elf64_Shdr section[5];
    Elf64_Sym symbol[2];
    char names[40], sections[48];
};

struct jit_code_entry {
    struct jit_code_entry *next, *prev;
    const char *symfile_addr;
    uint64_t symfile_size;
};

static struct {
    uint32_t version, action;
    struct jit_code_entry *relevant, *first;
    pthread_mutex_t lock; /* ours, behind what gdb reads */
} __jit_debug_descriptor = {.version = 1, .lock = PTHREAD_MUTEX_INITIALIZER};

/* gdb has a breakpoint here; the write keeps it and its calls from being dropped. */
static DVM_NOINLINE void __jit_debug_register_code(void) {
    *(volatile uint32_t *)&__jit_debug_descriptor.version = 1;
}

struct dvm_jit_name {
    struct jit_code_entry entry;
    struct image image;
};

static Elf64_Shdr section(struct image *m, uint32_t name, uint32_t type, const void *at,
                          size_t size) {
    Elf64_Shdr s = {.sh_name = name, .sh_type = type, .sh_size = size, .sh_addralign = 1};
    s.sh_offset = (uint64_t)((const char *)at - (const char *)m);
    return s;
}

static void fill_image(struct image *m, const void *code, size_t size, const char *name) {
    static const char sections[] = "\0.text\0.symtab\0.strtab\0.shstrtab"; /* at 1, 7, 15, 23 */
    static const unsigned char magic[] = {0x7f, 'E', 'L', 'F', ELFCLASS64, ELFDATA2LSB, EV_CURRENT};
    memcpy(m->head.e_ident, magic, sizeof magic);
    m->head.e_type = ET_REL;
#if defined(__aarch64__)
    m->head.e_machine = EM_AARCH64;
#else
    m->head.e_machine = EM_X86_64;
#endif
    m->head.e_version = EV_CURRENT;
    m->head.e_shoff = offsetof(struct image, section);
    m->head.e_ehsize = sizeof m->head;
    m->head.e_shentsize = sizeof(Elf64_Shdr);
    m->head.e_shnum = DVM_COUNT(m->section);
    m->head.e_shstrndx = 4;
    memcpy(m->sections, sections, sizeof sections);
    snprintf(m->names, sizeof m->names, "%c%s", 0, name);
    m->section[1] = section(m, 1, SHT_NOBITS, m, size);
    m->section[1].sh_addr = (uint64_t)(uintptr_t)code;
    m->section[1].sh_flags = SHF_ALLOC | SHF_EXECINSTR;
    m->section[2] = section(m, 7, SHT_SYMTAB, m->symbol, sizeof m->symbol);
    m->section[2].sh_link = 3;
    m->section[2].sh_info = 1;
    m->section[2].sh_entsize = sizeof(Elf64_Sym);
    m->section[3] = section(m, 15, SHT_STRTAB, m->names, sizeof m->names);
    m->section[4] = section(m, 23, SHT_STRTAB, m->sections, sizeof m->sections);
    m->symbol[1] = (Elf64_Sym){.st_name = 1, .st_shndx = 1, .st_size = size};
    m->symbol[1].st_info = ELF64_ST_INFO(STB_GLOBAL, STT_FUNC);
}

static struct dvm_jit_name *tell_gdb(const struct dvm_mem *m, const void *code, size_t size,
                                     const char *name) {
    struct dvm_jit_name *n = dvm_mem_new(m, sizeof *n);
    if (!n) return NULL;
    fill_image(&n->image, code, size, name);
    n->entry.symfile_addr = (const char *)&n->image;
    n->entry.symfile_size = sizeof n->image;
    pthread_mutex_lock(&__jit_debug_descriptor.lock);
    n->entry.next = __jit_debug_descriptor.first;
    if (n->entry.next) n->entry.next->prev = &n->entry;
    __jit_debug_descriptor.first = __jit_debug_descriptor.relevant = &n->entry;
    __jit_debug_descriptor.action = 1;
    __jit_debug_register_code();
    pthread_mutex_unlock(&__jit_debug_descriptor.lock);
    return n;
}

struct dvm_jit_name *dvm_jit_name_new(const struct dvm_mem *m, const struct dvm_strip *s,
                                      const void *code, size_t size) {
    char name[32];
    bool perf = wanted("DVM_PERF"), gdb = wanted("DVM_GDB");
    if (!perf && !gdb) return NULL;
    name_of(s, name, sizeof name);
    if (perf) tell_perf(code, size, name);
    return gdb ? tell_gdb(m, code, size, name) : NULL;
}

void dvm_jit_name_free(const struct dvm_mem *m, struct dvm_jit_name *n) {
    if (!n) return;
    pthread_mutex_lock(&__jit_debug_descriptor.lock);
    if (n->entry.prev)
        n->entry.prev->next = n->entry.next;
    else
        __jit_debug_descriptor.first = n->entry.next;
    if (n->entry.next) n->entry.next->prev = n->entry.prev;
    __jit_debug_descriptor.relevant = &n->entry;
    __jit_debug_descriptor.action = 2;
    __jit_debug_register_code();
    pthread_mutex_unlock(&__jit_debug_descriptor.lock);
    dvm_mem_free(m, n, sizeof *n);
}
#else
struct dvm_jit_name *dvm_jit_name_new(const struct dvm_mem *m, const struct dvm_strip *s,
                                      const void *code, size_t size) {
    (void)m, (void)s, (void)code, (void)size;
    return NULL;
}
void dvm_jit_name_free(const struct dvm_mem *m, struct dvm_jit_name *n) { (void)m, (void)n; }
#endif
