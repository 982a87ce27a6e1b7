/* Random graphs, and their trial: texts made of a string of bytes, run on every tier, judged by the oracle. */
#ifndef DVM_TESTS_GRAPH_GEN_H
#define DVM_TESTS_GRAPH_GEN_H
#include <stddef.h>
#include <stdint.h>

/* The text is zero-terminated and the caller's to free. */
char *graph_gen(const uint8_t *bytes, size_t n);
char *graph_gen_stats(const uint8_t *bytes, size_t n); /* of reductions, masks, broadcasts: legal for any kind */

/* A seed or a count: the variable of the environment, or else the number. */
uint64_t graph_number(const char *variable, uint64_t otherwise);

struct graph_trial {
    int64_t elements, undecided; /* judged */
    char why[600];               /* what went wrong */
};
/* Runs the text on the scalar reference and on the CPU (levels, threads), with data and strides that depend on seed.
 * 0: all agree with each other bit for bit and with the oracle. 1: the library refuses the kernel, as it may.
 * -1: something is wrong, see why. */
int graph_try(const char *text, uint64_t seed, struct graph_trial *r);
#endif
