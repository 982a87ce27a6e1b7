/* Inside of the dvm command: options, one session (text, kernel, arguments, oracle), commands. */
#ifndef DVM_CLI_CLI_H
#define DVM_CLI_CLI_H
#include <stdbool.h>
#include <stdio.h>

#include <dvm/dvm.h>
#include <oracle.h>
#include <oracle_memory.h>

/* Exit codes. */
enum { EXIT_OK = 0, EXIT_CHECK = 1, EXIT_INPUT = 2 };

struct options {
    const char *file; /* the one that the command is at */
    const char *files[64];
    int nfiles;
    const char *command, *what; /* what: of `dvm cache` */
    const char *sizes[32];      /* --shape arguments in order */
    int nsizes;
    double fill;
    unsigned long long seed;
    int threads, repeat;
    const char *device, *isa;
    bool has_fill, check, print, no_time, json, native;
};

/* cli_args.c: false with a message when the command line is wrong. */
bool read_options(const char *allowed, int argc, char **argv, struct options *o);
const char *nearest_word(const char *word, const char *const *list, int n);
/* One line about option `name` ("check"), for help. */
void print_option(FILE *f, const char *name);

/* session.c */
struct session {
    const struct options *opt;
    char *text;
    size_t text_n;
    dvm_ctx *ctx;
    dvm_graph *graph;
    dvm_kernel *kernel;
    oracle *oracle;
    int nin, nout;
    dvm_arg *in, *out;
    struct oracle_memory *in_mem, *out_mem;
    uint64_t in_hash;
};
/* Each complains on stderr and returns false. open: text, context, graph. bind: sizes and arguments, filled, and the
 * kernel. */
bool session_open(struct session *s, const struct options *o);
bool session_parse(struct session *s, const char *file, const char *text, size_t n);
bool session_bind(struct session *s);
bool session_run(struct session *s);
/* Compares with the oracle; prints a line for each output. False: they differ. quiet: no lines. worst: largest ulp. */
bool session_check(struct session *s, bool quiet, double *worst, int64_t *undecided);
void session_close(struct session *s);
bool complain(const char *fmt, ...);
bool complain_dvm(const char *what);

/* The bytes of a file, or of standard input for "-"; NULL with a message. */
char *read_file(const char *name, size_t *n);

/* values.c */
void print_number(FILE *f, dvm_dtype t, double v);
void print_values(FILE *f, const dvm_arg *a);
void print_type(FILE *f, dvm_dtype t, int rank, const int64_t *dims);
double now_seconds(void);

/* The commands. */
int cmd_run(const struct options *o);
int cmd_text(const struct options *o);
int cmd_dis(const struct options *o);
int cmd_explain(const struct options *o);
int cmd_bench(const struct options *o);
int cmd_doctor(const struct options *o);
int cmd_cache(const struct options *o);
/* The folder that DVM_CACHE_DIR, XDG_CACHE_HOME or HOME name. */
void cache_folder(char *buf, size_t cap);
#endif
