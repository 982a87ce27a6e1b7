/* A skipped test says why: cmocka has no place for a reason, tools/suites.sh reads this line. */
#ifndef DVM_TESTS_UNIT_SKIP_H
#define DVM_TESTS_UNIT_SKIP_H
#include <stdio.h>

#define skip_because(reason)              \
    do {                                  \
        printf("# skip: %s\n", (reason)); \
        skip();                           \
    } while (0)
#endif
