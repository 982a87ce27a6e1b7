/* The dvm command: finds the subcommand, reads its options, calls it. Exit codes: 0 all is well, 1 a check failed,
 * 2 wrong usage or input. */
#include "cli.h"

#include <string.h>

#define RUN " shape random fill seed device isa threads "

static const struct command {
    const char *name;
    int (*run)(const struct options *o);
    const char *options, *line, *examples;
} commands[] = {
    {"run", cmd_run, " FILE check print repeat no-time" RUN, "execute a kernel on random arguments",
     "dvm run softmax.dvm --shape m=1000,n=777 --check\n"
     "dvm run softmax.dvm --shape m=2,n=4 --fill 1 --print\n"
     "dvm run softmax.dvm --threads 1 --repeat 100"},
    {"text", cmd_text, " FILE", "read a kernel and write it in its plain form",
     "dvm text softmax.dvm"},
    {"dis", cmd_dis, " FILE native" RUN, "show the plan and the bytecode, or the machine code",
     "dvm dis softmax.dvm --shape m=1000,n=777\n"
     "dvm dis softmax.dvm --shape m=1000,n=777 --native"},
    {"explain", cmd_explain, " FILE" RUN,
     "show the kernels chosen and why, bytes moved, compile time",
     "dvm explain softmax.dvm --shape m=1000,n=777\n"
     "dvm explain rms_norm.dvm softmax.dvm"},
    {"bench", cmd_bench, " FILE" RUN, "time compiling and running beside a copy of as many bytes",
     "dvm bench softmax.dvm --shape m=4096,n=4096 --threads 1"},
    {"doctor", cmd_doctor, " json ", "show what this machine offers and test it",
     "dvm doctor\ndvm doctor --json"},
    {"cache", cmd_cache, " WHAT ",
     "ls, verify or clear what torch.compile keeps on disk (DVM_CACHE=1)",
     "dvm cache ls\ndvm cache verify\ndvm cache clear"},
};
enum { NCOMMANDS = sizeof commands / sizeof *commands };

static const char *const option_order[] = {"shape",   "random", "fill",    "seed",   "check",
                                           "print",   "repeat", "no-time", "device", "isa",
                                           "threads", "native", "json"};

static void usage(FILE *f) {
    fputs("usage: dvm COMMAND [FILE...] [OPTIONS]\n\n", f);
    for (int i = 0; i < NCOMMANDS; i++)
        fprintf(f, "  %-9s %s\n", commands[i].name, commands[i].line);
    fputs("  help      help for a command: dvm help run\n"
          "\nFILE is a kernel in text form (docs/graph.md), - is standard input.\n"
          "Exit codes: 0 all is well, 1 a check failed, 2 wrong usage or input.\n",
          f);
}

static const struct command *find_command(const char *name) {
    const char *list[NCOMMANDS + 1];
    for (int i = 0; i < NCOMMANDS; i++) {
        if (!strcmp(commands[i].name, name)) return &commands[i];
        list[i] = commands[i].name;
    }
    list[NCOMMANDS] = "help";
    const char *near = nearest_word(name, list, NCOMMANDS + 1);
    if (near)
        complain("unknown command \"%s\"; did you mean %s?", name, near);
    else
        complain("unknown command \"%s\"; `dvm help` lists them", name);
    return NULL;
}

static void command_help(const struct command *c) {
    bool file = strstr(c->options, " FILE ") != NULL || !strcmp(c->options, " FILE");
    bool what = !strcmp(c->options, " WHAT ");
    printf("usage: dvm %s%s\n\n%s\n", c->name,
           file   ? " FILE... [OPTIONS]"
           : what ? " ls|verify|clear"
                  : " [OPTIONS]",
           c->line);
    bool any = false;
    for (size_t i = 0; i < sizeof option_order / sizeof *option_order; i++) {
        char word[40];
        snprintf(word, sizeof word, " %s ", option_order[i]);
        if (!strstr(c->options, word)) continue;
        if (!any) printf("\noptions\n");
        any = true;
        print_option(stdout, option_order[i]);
    }
    printf("\nexamples\n");
    for (const char *p = c->examples; *p;) {
        size_t n = strcspn(p, "\n");
        printf("  %.*s\n", (int)n, p);
        p += n + (p[n] == '\n');
    }
}

static int help(int argc, char **argv) {
    if (argc == 0) {
        usage(stdout);
        return EXIT_OK;
    }
    const struct command *c = find_command(argv[0]);
    if (!c) return EXIT_INPUT;
    command_help(c);
    return EXIT_OK;
}

static int dispatch(int argc, char **argv) {
    if (argc < 2) {
        usage(stderr);
        return EXIT_INPUT;
    }
    const char *name = argv[1];
    if (!strcmp(name, "--version")) {
        printf("dvm %s\n", dvm_version());
        return EXIT_OK;
    }
    if (!strcmp(name, "help") || !strcmp(name, "--help") || !strcmp(name, "-h"))
        return help(argc - 2, argv + 2);
    const struct command *c = find_command(name);
    if (!c) return EXIT_INPUT;
    for (int i = 2; i < argc; i++)
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) {
            command_help(c);
            return EXIT_OK;
        }
    struct options o = {.command = name, .seed = 1};
    char allowed[200];
    snprintf(allowed, sizeof allowed, "%s ", c->options);
    if (!read_options(allowed, argc - 2, argv + 2, &o)) return EXIT_INPUT;
    if (!o.nfiles) return c->run(&o);
    int worst = EXIT_OK;
    for (int i = 0; i < o.nfiles; i++) {
        if (o.nfiles > 1) printf("%s# %s\n", i ? "\n" : "", o.files[i]);
        fflush(stdout); /* before what a command says on stderr */
        o.file = o.files[i];
        int code = c->run(&o);
        worst = code > worst ? code : worst;
    }
    return worst;
}

int main(int argc, char **argv) {
    int code = dispatch(argc, argv);
    if (fflush(stdout) == 0 && !ferror(stdout)) return code;
    complain("the output could not be written");
    return code == EXIT_OK ? EXIT_INPUT : code;
}
