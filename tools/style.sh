#!/usr/bin/env bash
# Checks words that have no place: in the library, memory outside the context's allocator and
# everything that ends or prints to the process; anywhere, dates, machine paths and host names.
# Greps that find nothing are the good case, so their status is not looked at.
set -u
cd "$(dirname "$0")/.."
complaints=$(mktemp)
trap 'rm -f "$complaints"' EXIT

# complain REASON: keeps the offending lines of its input.
complain() { sed "s|\$|    [$1]|" >>"$complaints"; }

tracked() { # PATTERN...: files that are in the repository or would be added
    { git ls-files -co --exclude-standard -- "$@" 2>/dev/null || find . -type f; } |
        while IFS= read -r file; do [[ -f $file && ! -L $file ]] && printf '%s\n' "$file"; done
}

# ------------------------------------------------------------------ words of the library

code=$(find src -type f \( -name '*.c' -o -name '*.h' -o -name '*.def' \) -print0 |
    xargs -0 -r awk -f tools/code.awk)

call() { grep -E "[^A-Za-z0-9_.>]($1)[[:space:]]*\(" <<<"$code"; }

call 'malloc|calloc|realloc|free|aligned_alloc|posix_memalign|strdup|strndup|asprintf' |
    grep -v '^src/base/mem\.c:' | complain "memory comes from base/mem.h"
call 'abort|exit|_exit|quick_exit|longjmp|setjmp|raise' | complain "the library never ends the process"
call 'printf|vprintf|puts|putchar|fputs|perror' | complain "the library never prints"
call 'gets|strcpy|strcat|sprintf|vsprintf|strtok|alloca' | complain "no unbounded or hidden-state call"
grep -E '[^A-Za-z0-9_](stdout|stderr)[^A-Za-z0-9_]' <<<"$code" | complain "the library never prints"
grep -E '[^A-Za-z0-9_]assert[[:space:]]*\(' <<<"$code" |
    complain "assert aborts: return a status, or check in DVM_DEBUG"
grep -E '[^A-Za-z0-9_](_Complex|register)[^A-Za-z0-9_]' <<<"$code" | complain "not in this C"

# ------------------------------------------------------------------ text of the repository

text() { # EXPRESSION TITLE
    tracked | grep -v -E '^(LICENSE|tools/style\.sh)$|\.(png|bin|cubin|dvmc)$' | tr '\n' '\0' |
        xargs -0 -r grep -n -I -E -- "$1" | complain "$2"
}

text '(^|[^0-9.-])20[0-9][0-9]-[01][0-9]-[0-3][0-9]([^0-9]|$)' "no dates"
text '[Cc]opyright.*(19|20)[0-9][0-9]' "no dates, no names"
text '(^|[^A-Za-z0-9_./$}])/(home|root|work|Users|mnt)/[A-Za-z0-9_.-]+' "no paths of one machine"
text '[A-Za-z0-9-]+\.(internal|localdomain|lan|corp)([^A-Za-z0-9_(]|$)' "no host names"
text '(pypi|pythonhosted|debian|npmjs|download\.pytorch)\.org' "no registry addresses"
text '^(<<<<<<<|>>>>>>>) ' "merges are resolved"
# ------------------------------------------------------------------ files

tracked 'src/*' 'cli/*' 'include/*' |
    sed -n 's|.*/||p' | grep -E '\.[ch]$' | sort | uniq -d |
    sed 's/$/: two files of this name/' | complain "file names are unique"
tracked 'src/*' 'cli/*' 'include/*' | grep -E '/[^/]*[A-Z-][^/]*\.[ch]$' | complain "snake_case.c"
tracked | grep -E '\.(c|h|def|py|sh|md|dvt|build)$' | grep -v '\.exact$' | tr '\n' '\0' |
    xargs -0 -r grep -n -I -E "$(printf '\r')\$" | complain "no carriage returns"

cat "$complaints"
[[ ! -s $complaints ]]
