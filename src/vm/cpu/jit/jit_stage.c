/* Strided operands are copied to contiguous rows before the code runs, and copied out after it. Where the rows are the
 * near direction (a transposed matrix) small squares are moved, so that every cache line that is fetched is used. */
#include <string.h>

#include "vm/cpu/jit/jit_code.h"

#define COPY(T)                                                                                 \
    static void gather_##T(T *to, const char *from, int64_t cs, int64_t n) {                    \
        for (int64_t j = 0; j < n; j++) memcpy(&to[j], from + j * cs, sizeof(T));               \
    }                                                                                           \
    static void scatter_##T(char *to, int64_t cs, const T *from, int64_t n) {                   \
        for (int64_t j = 0; j < n; j++) memcpy(to + j * cs, &from[j], sizeof(T));               \
    }                                                                                           \
    /* rows <= 16 columns of neighbours each */                                                 \
    static void turn_##T(T *to, int64_t pitch, const char *from, int64_t cs, int64_t rows,      \
                         int64_t cols) {                                                        \
        for (int64_t j = 0; j < cols; j++) {                                                    \
            T column[16];                                                                       \
            memcpy(column, from + j * cs, (size_t)rows * sizeof(T));                            \
            for (int64_t i = 0; i < rows; i++) to[i * pitch + j] = column[i];                   \
        }                                                                                       \
    }                                                                                           \
    static void turn_back_##T(char *to, int64_t cs, const T *from, int64_t pitch, int64_t rows, \
                              int64_t cols) {                                                   \
        for (int64_t j = 0; j < cols; j++) {                                                    \
            T column[16];                                                                       \
            for (int64_t i = 0; i < rows; i++) column[i] = from[i * pitch + j];                 \
            memcpy(to + j * cs, column, (size_t)rows * sizeof(T));                              \
        }                                                                                       \
    }
COPY(uint8_t)
COPY(uint16_t)
COPY(uint32_t)
COPY(uint64_t)

static void gather_row(char *to, const char *from, int64_t cs, int64_t n, int size) {
    switch (size) {
    case 1: gather_uint8_t((uint8_t *)to, from, cs, n); break;
    case 2: gather_uint16_t((uint16_t *)(void *)to, from, cs, n); break;
    case 4: gather_uint32_t((uint32_t *)(void *)to, from, cs, n); break;
    default: gather_uint64_t((uint64_t *)(void *)to, from, cs, n); break;
    }
}

static void scatter_row(char *to, int64_t cs, const char *from, int64_t n, int size) {
    switch (size) {
    case 1: scatter_uint8_t(to, cs, (const uint8_t *)from, n); break;
    case 2: scatter_uint16_t(to, cs, (const uint16_t *)(const void *)from, n); break;
    case 4: scatter_uint32_t(to, cs, (const uint32_t *)(const void *)from, n); break;
    default: scatter_uint64_t(to, cs, (const uint64_t *)(const void *)from, n); break;
    }
}

static void turn(char *to, int64_t pitch, const char *from, int64_t cs, int64_t rows, int64_t cols,
                 int size) {
    switch (size) {
    case 1: turn_uint8_t((uint8_t *)to, pitch, from, cs, rows, cols); break;
    case 2: turn_uint16_t((uint16_t *)(void *)to, pitch, from, cs, rows, cols); break;
    case 4: turn_uint32_t((uint32_t *)(void *)to, pitch, from, cs, rows, cols); break;
    default: turn_uint64_t((uint64_t *)(void *)to, pitch, from, cs, rows, cols); break;
    }
}

static void turn_back(char *to, int64_t cs, const char *from, int64_t pitch, int64_t rows,
                      int64_t cols, int size) {
    switch (size) {
    case 1: turn_back_uint8_t(to, cs, (const uint8_t *)from, pitch, rows, cols); break;
    case 2:
        turn_back_uint16_t(to, cs, (const uint16_t *)(const void *)from, pitch, rows, cols);
        break;
    case 4:
        turn_back_uint32_t(to, cs, (const uint32_t *)(const void *)from, pitch, rows, cols);
        break;
    default:
        turn_back_uint64_t(to, cs, (const uint64_t *)(const void *)from, pitch, rows, cols);
        break;
    }
}

void dvm_jit_gather(char *to, const char *from, int64_t rs, int64_t cs, int64_t rows, int64_t cols,
                    int size) {
    if (rs == size) {
        for (int64_t i = 0; i < rows; i += 16)
            turn(to + i * cols * size, cols, from + i * rs, cs, DVM_MIN(rows - i, 16), cols, size);
        return;
    }
    for (int64_t i = 0; i < rows; i++)
        gather_row(to + i * cols * size, from + i * rs, cs, cols, size);
}

void dvm_jit_scatter(char *to, int64_t rs, int64_t cs, const char *from, int64_t rows, int64_t cols,
                     int size) {
    if (rs == size) {
        for (int64_t i = 0; i < rows; i += 16)
            turn_back(to + i * rs, cs, from + i * cols * size, cols, DVM_MIN(rows - i, 16), cols,
                      size);
        return;
    }
    for (int64_t i = 0; i < rows; i++)
        scatter_row(to + i * rs, cs, from + i * cols * size, cols, size);
}
