/* Random graphs, compiled and run on every tier, against each other and the oracle; a refusal is a finding too. The first eight
 * bytes choose the numbers, the lowest bit of them the kind of graph, the rest the graph. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <graph_gen.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    uint64_t seed = 0;
    struct graph_trial r;
    if (size < sizeof seed) return 0;
    memcpy(&seed, data, sizeof seed);
    char *text = (seed & 1 ? graph_gen_stats : graph_gen)(data + sizeof seed, size - sizeof seed);
    const int result = graph_try(text, seed, &r);
    if (result < 0 || (result > 0 && seed & 1)) {
        fprintf(stderr, "%s\n%s", r.why, text);
        abort();
    }
    free(text);
    return 0;
}
