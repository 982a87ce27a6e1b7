#!/bin/sh
# Names the C files of one target, a line each, relative to the source root.
# usage: tools/sources.sh lib|kern|cli|python|unit|checkkern|oracle|tools|fuzz|all
cd "$(dirname "$0")/.." || exit 1
list() { # FOLDER FIND-ARGUMENTS...
    [ -d "$1" ] || return 0
    folder=$1
    shift
    find "$folder" "$@" -type f ! -name '.*' | LC_ALL=C sort
}
case ${1:-all} in
    lib) list src -name '*.c' ! -path 'src/vm/cpu/k_*_tmpl.c' ;;
    kern) list src/vm/cpu -maxdepth 1 -name 'k_*_tmpl.c' ;;
    cli) list cli -maxdepth 1 -name '*.c' ;;
    python) list python -maxdepth 1 -name '*.c' ;;
    unit) list tests/unit -maxdepth 1 -name 'test_*.c' ;;
    checkkern) list tests/kern -name '*.c' ;;
    oracle) list tests/oracle -name '*.c' ;;
    tools) list tools -maxdepth 1 -name '*.c' ;;
    fuzz) list tests/fuzz -maxdepth 1 -name '*.c' ;;
    # Everything whose coming or going asks for a new configuration.
    all) find src cli python tests tools -type f \
        \( -name '*.c' -o -name '*.py' -path 'python/*' -o -name meson.build \) 2>/dev/null |
        LC_ALL=C sort ;;
    *) echo "sources.sh: no target '$1'" >&2; exit 2 ;;
esac
