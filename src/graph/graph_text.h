/* The text form inside the library: what the reader and the writer must agree on, and the writer for
 * graphs of later stages. docs/graph.md has the grammar. */
#ifndef DVM_GRAPH_GRAPH_TEXT_H
#define DVM_GRAPH_GRAPH_TEXT_H
#include "base/text.h"
#include "graph/graph.h"

enum { DVM_WRITE_SHAPES = 1 /* "# f32[4, ?]" behind each value */ };

/* Appends the text of g. A graph whose arguments were reordered reads back with the order of its nodes. */
dvm_status dvm_graph_write(const struct dvm_graph *g, unsigned how, struct dvm_text *out);

enum { DVM_NUM_TEXT = 40 };
/* Shortest text that reads back as the same number of dtype t: 0.1, 1e-30, inf, nan(0x7ff8...), true, -3. */
const char *dvm_const_text(dvm_dtype t, int64_t bits, char buf[DVM_NUM_TEXT]);

/* Result dtype of sum and prod when none is given. */
DVM_INLINE dvm_dtype dvm_sum_dtype(dvm_dtype x) { return dvm_is_float(x) ? x : DVM_I64; }

/* The operand whose dtype a bare literal at position k takes: the first that is no literal, and for select only among
 * the values. -1: none; such a literal needs a dtype of its own. */
DVM_INLINE int dvm_literal_peer(dvm_op op, int n, int k, const bool *literal) {
    for (int i = op == DVM_OP_SELECT ? 1 : 0; i < n; i++)
        if (i != k && !literal[i]) return i;
    return -1;
}

/* Words of the header and of gather. Entry i is the word of number i. */
extern const char *const dvm_kind_words[7];
extern const char *const dvm_flag_words[4]; /* of bit i */
extern const char *const dvm_gather_words[2];
extern const char *const dvm_group_words[3]; /* DVM_GROUP_* */
extern const char *const dvm_list_words[2];  /* DVM_LIST_* */
#endif
