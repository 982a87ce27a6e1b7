/* Strips as bytes, little-endian, for program files:
 *
 *    0  magic "DVMS"        4  DVM_FORMAT         8  number of bytes, all of them
 *   12  nins:16 nopnd:16   16  nlit:16 nparam:16 20  mode:8 flags:8 0:16
 *   24  checksum:64 of the bytes before and after it
 *   32  constants, 8 bytes each; instructions op:8 type:8 a:16 b:16 c:16; operands dtype:8 kind:8
 *       role:8 0:8
 *
 * Equal strips have equal bytes. */
#ifndef DVM_CODE_STRIP_BYTES_H
#define DVM_CODE_STRIP_BYTES_H
#include "base/mem.h"
#include "code/strip.h"

size_t dvm_strip_bytes(const struct dvm_strip *s);
/* Writes dvm_strip_bytes(s) bytes. */
void dvm_strip_encode(const struct dvm_strip *s, unsigned char *out);
/* Any bytes: DVM_ERR_FORMAT unless they are exactly one undamaged, verified strip of this format. To
 * be freed by dvm_strip_free. */
dvm_status dvm_strip_decode(const struct dvm_mem *m, const unsigned char *bytes, size_t n,
                            struct dvm_strip **out);
#endif
