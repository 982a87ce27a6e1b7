#!/usr/bin/env bash
# Checks what the library gives away: the exported symbols are the functions that the public
# headers declare, every other global starts with dvm_, and data that can be written is listed.
# usage: tools/symbols.sh BUILD-FOLDER
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:?usage: tools/symbols.sh BUILD-FOLDER}
export LC_ALL=C

# Process-wide tables, set once, their locks, and thread-local text. A row is a symbol and a reason;
# everything else belongs to a context.
writable='
err_text    text of the newest failed call of this thread
serial      numbers graphs, so that a value of another graph is refused
known       size of the last-level cache, asked once
code_pool   executable memory of the process, with its lock
__jit_debug_descriptor  machine code that gdb was told of, under the name that it looks for
'

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
bad=0

# ------------------------------------------------------------------ exported = declared

awk -f tools/code.awk include/dvm/*.h | sed 's/^[^:]*:[0-9]*://' | grep -v '^[[:space:]]*#' |
    tr '\n' ' ' | grep -o 'DVM_API[^;]*;' | grep -v 'define' |
    sed -n -e 's/(.*//' -e 's/;$//' -e 's/.*[^A-Za-z0-9_]\(dvm_[A-Za-z0-9_]*\)[[:space:]]*\(\[.*\)\{0,1\}$/\1/p' |
    sort -u >"$tmp/declared"
nm -D --defined-only "$build/libdvm.so" | awk '{ print $NF }' | sed 's/@.*//' | sort -u >"$tmp/exported"
if ! diff -u --label 'declared DVM_API in include/dvm' --label 'exported by libdvm.so' \
    "$tmp/declared" "$tmp/exported"; then
    bad=1
fi

# ------------------------------------------------------------------ names of hidden globals

nm -A --defined-only "$build/libdvm.a" 2>/dev/null |
    awk '$(NF-1) ~ /^[A-TX-Z]$/ && $NF !~ /^dvm_/ && $NF !~ /^(__asan|__odr_asan|__tsan|__sancov)/ {
        sub(/.*\.a:/, "", $1); print $1 " " $NF ": a global that does not start with dvm_" }' >"$tmp/names"
if [[ -s $tmp/names ]]; then
    cat "$tmp/names"
    bad=1
fi

# ------------------------------------------------------------------ data that can be written

# .data.rel.ro holds constants with addresses; the loader makes it read-only.
objdump -t "$build/libdvm.a" 2>/dev/null |
    sed -nE 's/^[0-9a-f]{16} .{7} ([^[:space:]]+)[[:space:]][0-9a-f]{16} +(\.hidden )?([^ ]+)$/\1 \3/p' |
    awk '$1 ~ /^(\.data|\.bss|\.tdata|\.tbss|\*COM\*)/ && $1 !~ /^\.data\.rel\.ro/ && $2 !~ /^\./ {
         sub(/\.[0-9]+$/, "", $2); print $2 }' | sort -u >"$tmp/data"
awk 'NF { print $1 }' <<<"$writable" | sort -u >"$tmp/allowed"
comm -23 "$tmp/data" "$tmp/allowed" | sed 's/$/: data that can be written (tools\/symbols.sh lists the allowed)/' >"$tmp/more"
comm -13 "$tmp/data" "$tmp/allowed" | sed 's/$/: listed as writable data in tools\/symbols.sh, but not there/' >>"$tmp/more"
if [[ -s $tmp/more ]]; then
    cat "$tmp/more"
    bad=1
fi
exit $bad
