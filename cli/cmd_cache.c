/* dvm cache: the folder of programs that torch.compile keeps on disk (DVM_CACHE=1). Needs neither Python nor torch: an
 * entry is a line "DVMCACHE version crc length" and that many bytes, of which only the checksum is looked at here. */
#include "cli.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void cache_folder(char *buf, size_t cap) {
    const char *own = getenv("DVM_CACHE_DIR"), *xdg = getenv("XDG_CACHE_HOME"),
               *home = getenv("HOME");
    if (own && *own)
        snprintf(buf, cap, "%s", own);
    else if (xdg && *xdg)
        snprintf(buf, cap, "%s/dvm", xdg);
    else
        snprintf(buf, cap, "%s/.cache/dvm", home && *home ? home : ".");
}

/* CRC-32 of zlib: reflected polynomial 0xedb88320. */
static uint32_t checksum(const unsigned char *p, size_t n) {
    uint32_t c = 0xffffffff;
    for (size_t i = 0; i < n; i++) {
        c ^= p[i];
        for (int bit = 0; bit < 8; bit++) c = c >> 1 ^ (c & 1 ? 0xedb88320 : 0);
    }
    return ~c;
}

/* What is wrong with an entry, or NULL. */
static const char *fault_of(const char *text, size_t n) {
    unsigned version, crc;
    unsigned long long length;
    int head = 0;
    char line[80] = "";
    const char *end = memchr(text, '\n', n);
    if (!end || (size_t)(end - text) >= sizeof line) return "no cache entry";
    memcpy(line, text, (size_t)(end - text));
    if (sscanf(line, "DVMCACHE %u %8x %llu%n", &version, &crc, &length, &head) != 3 || line[head])
        return "no cache entry";
    const size_t rest = n - (size_t)(end + 1 - text);
    if (length != rest) return "cut or grown";
    return checksum((const unsigned char *)end + 1, rest) == crc ? NULL : "damaged";
}

static bool ends_with(const char *name, const char *end) {
    const size_t n = strlen(name), m = strlen(end);
    return n >= m && !strcmp(name + n - m, end);
}

/* Entries, and files that a process was writing when it was killed. */
static int is_entry(const struct dirent *e) {
    return ends_with(e->d_name, ".dvmc") || !strncmp(e->d_name, ".new-", 5);
}

struct tally {
    int entries, bad;
    size_t bytes;
};

/* ls, verify or clear one file. */
static void visit(const char *what, const char *folder, const char *name, struct tally *t) {
    char path[2048];
    struct stat st;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    const bool clear = !strcmp(what, "clear");
    if (lstat(path, &st) || !S_ISREG(st.st_mode) || (name[0] == '.' && !clear)) return;
    t->entries++;
    t->bytes += (size_t)st.st_size;
    if (clear) {
        if (unlink(path) && errno != ENOENT) t->bad += !complain("%s: %s", path, strerror(errno));
        return;
    }
    size_t n = 0;
    char *text = read_file(path, &n);
    const char *fault = text ? fault_of(text, n) : "cannot be read";
    if (fault || !strcmp(what, "ls")) printf("%s  %zu bytes  %s\n", name, n, fault ? fault : "ok");
    t->bad += fault != NULL;
    free(text);
}

int cmd_cache(const struct options *o) {
    char folder[1024];
    struct dirent **entry = NULL;
    const char *what = o->what;
    if (strcmp(what, "ls") && strcmp(what, "verify") && strcmp(what, "clear")) {
        complain("cache takes ls, verify or clear, not \"%s\"", what);
        return EXIT_INPUT;
    }
    cache_folder(folder, sizeof folder);
    int n = scandir(folder, &entry, is_entry, alphasort);
    if (n < 0 && errno != ENOENT) {
        complain("%s: %s", folder, strerror(errno));
        return EXIT_INPUT;
    }
    struct tally t = {0};
    for (int i = 0; i < n; i++) {
        visit(what, folder, entry[i]->d_name, &t);
        free(entry[i]);
    }
    free(entry);
    printf("%s: %d %s of %zu bytes, ", folder, t.entries, t.entries == 1 ? "entry" : "entries",
           t.bytes);
    if (strcmp(what, "clear"))
        printf("%d damaged\n", t.bad);
    else
        printf(t.bad ? "%d not removed\n" : "removed\n", t.bad);
    return t.bad && strcmp(what, "ls") ? EXIT_CHECK : EXIT_OK;
}
