/* Random instructions through the encoder and a disassembler: rows, registers, lengths, masks, memory operands and
 * immediates are drawn from the input, whatever the row allows. */
#include <signal.h>

#include "../unit/test_enc_text.h"

enum { CODE = 16 << 10, TEXT = 128 << 10, MAX_CASES = 400 };

struct bytes {
    const uint8_t *p;
    size_t n;
};

static unsigned take(struct bytes *b, unsigned below) {
    if (!b->n) return 0;
    b->n--;
    return *b->p++ % below;
}

static int32_t take_disp(struct bytes *b) {
    int32_t d = 0;
    for (unsigned k = take(b, 5); k; k--) d = (int32_t)((uint32_t)d << 8 | take(b, 256));
    return take(b, 2) ? d : (int32_t)(0 - (uint32_t)d);
}

static struct dvm_x_rm take_memory(struct bytes *b) {
    unsigned kind = take(b, 8), index = take(b, 16);
    if (kind == 0) return dvm_x_pool((int)take(b, 256) * 4);
    if (kind < 4 || index == X_RSP) return dvm_x_mem((int)take(b, 16), take_disp(b));
    return dvm_x_idx((int)take(b, 16), (int)index, (int)take(b, 4), take_disp(b));
}

static unsigned take_len(struct bytes *b, const struct dvm_x_row *r) {
    unsigned len = take(b, 3);
    while (!(r->lens >> len & 1)) len = (len + 1) % 3;
    return len;
}

/* Masks and broadcast where the row has them; the others are told by the types of their operands. */
static unsigned take_attr(struct bytes *b, const struct dvm_x_row *r, bool memory) {
    unsigned attr = take_len(b, r), k = take(b, 8);
    bool vectors =
        (r->types[0] == 'v' || r->types[0] == '-') && (r->types[2] == 'v' || r->types[2] == 'h');
    bool store = r->form == X_MR || r->form == X_MRI;
    if (!(r->enc & X_ENC_E) || !vectors) return attr;
    if (k) attr |= X_K(k) | (take(b, 2) && !(memory && store) ? X_Z : 0);
    if (memory && (r->tuple == X_FV || r->tuple == X_HV) && take(b, 2)) attr |= X_BCST;
    return attr;
}

static void vector(struct bytes *b) {
    enum dvm_x_op op = (enum dvm_x_op)((take(b, 256) << 8 | take(b, 256)) % X_NVEC);
    const struct dvm_x_row *r = &dvm_x_rows[op];
    bool memory = r->tuple != X_NO && (r->types[2] == '-' || take(b, 2));
    struct dvm_x_rm rm =
        memory ? take_memory(b) : dvm_x_reg((int)take(b, (unsigned)regs_of(r, r->types[2])));
    unsigned attr = take_attr(b, r, memory);
    int reg = (int)take(b, (unsigned)regs_of(r, r->types[0])),
        vvvv = (int)take(b, (unsigned)regs_of(r, r->types[1]));
    int imm = r->form == X_RVMR ? (int)take(b, 16) : r->form > X_RVMR ? (int)take(b, 256) : 0;
    vec_case(op, attr, reg, vvvv, rm, imm);
}

static void general(struct bytes *b) {
    enum dvm_x_gop op = (enum dvm_x_gop)take(b, G_NGPR);
    const struct dvm_x_grow *r = &dvm_x_grows[op];
    bool memory = op == G_LEA || op == G_PREFETCHT0 || take(b, 2);
    struct dvm_x_rm rm = memory ? take_memory(b) : dvm_x_reg((int)take(b, 16));
    bool shift = r->form == 'D' && r->opcode == 0xc1; /* by one has another name for its form */
    int imm = r->imm == 4 ? take_disp(b) : (int8_t)take(b, 256);
    gpr_case(op, r->size == 'q' || (r->size == 'v' && take(b, 2)), (int)take(b, 16), rm,
             shift ? 2 + (imm & 63) : imm);
}

/* The clock of libFuzzer is a signal every few seconds, which ends a read from the disassembler early. */
static int compare_undisturbed(void) {
    sigset_t clock, before;
    sigemptyset(&clock);
    sigaddset(&clock, SIGALRM);
    sigprocmask(SIG_BLOCK, &clock, &before);
    int bad = disassemble_and_compare();
    sigprocmask(SIG_SETMASK, &before, NULL);
    return bad;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static uint8_t code[CODE];
    static char lines[TEXT];
    static int missing = -1;
    struct bytes b = {data, size};
    if (missing < 0) missing = system("objdump --version >/dev/null 2>&1");
    if (missing) return 0;
    dvm_enc_init(&enc, code, sizeof code);
    text = lines;
    text_cap = sizeof lines;
    text_n = 0;
    cases = 0;
    while (b.n && cases < MAX_CASES) {
        if (take(&b, 4))
            vector(&b);
        else
            general(&b);
    }
    for (int k = 0; k < 16; k++) dvm_x_ret(&enc); /* an instruction cut short would eat these */
    if (enc.full || compare_undisturbed() > 0) __builtin_trap();
    return 0;
}
