/* Executable memory of the process. No page is ever writable and executable: code stands in a memory file mapped
 * twice, readable and executable here, writable there; where that is refused each piece gets pages of its own that
 * change from writable to executable. Bounded; pieces are freed singly; any thread may call; after a fork neither
 * process writes where the other may still run. */
#ifndef DVM_JIT_CODE_MEM_H
#define DVM_JIT_CODE_MEM_H
#include <dvm/dvm.h>

#include "base/cc.h"

enum { DVM_CODE_ALIGN = 64 };

/* Copies n bytes of position-independent code. DVM_ERR_UNSUPPORTED (text says why) when the system refuses executable
 * memory, DVM_ERR_LIMIT when the bound is reached. */
dvm_status dvm_code_mem_new(const void *bytes, size_t n, void **code);
void dvm_code_mem_free(void *code, size_t n);
/* NULL when executable memory can be had, else why not. */
const char *dvm_code_mem_refused(void);
/* Bytes in use, for tests and doctors. */
size_t dvm_code_mem_used(void);
#endif
