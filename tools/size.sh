#!/usr/bin/env bash
# Sizes of C files and functions. Without an argument: complains about files above 1200 lines that
# are not listed here. --table prints the sizes of each room, of files and functions.
#
# Aims: files, median about 300 and none above 1200; functions, median <= 15, 90 % <= 60,
# 99 % <= 150 lines.
set -euo pipefail
cd "$(dirname "$0")/.."
limit=1200

# Files that may be longer, and why.
longer='
'

files() { find src include cli python -type f \( -name '*.c' -o -name '*.h' -o -name '*.cu' \) | LC_ALL=C sort; }

# `./dev fmt` lays functions out so that they start with a name in column one and end with a brace
# in column one.
functions() { # prints LINES FILE:LINE NAME
    files | grep '\.c[u]*$' | xargs -r awk '
        FNR == 1 { head = ""; open = 0 }
        open && /^}/ { print FNR - start + 1, FILENAME ":" start, name; open = 0; head = ""; next }
        open { next }
        /^[A-Za-z_]/ { head = $0; start = FNR }
        head !~ /\(/ || /^#/ { next }
        /\{.*\}$/ && /^[A-Za-z_]/ { named(); print 1, FILENAME ":" start, name; head = ""; next }
        /\{$/ { named(); open = 1; next }
        /;$/ { head = "" }
        function named() {
            name = head
            sub(/\(.*/, "", name)
            sub(/.*[ *]/, "", name)
        }'
}

quantiles() { # LABEL, numbers on the input
    sort -n | awk -v label="$1" '
        { v[NR] = $1 }
        function q(f) { i = int(f * NR + 0.999999); return v[i < 1 ? 1 : i] }
        END { if (NR) printf "%-10s %6d   median %4d   90 %% %4d   99 %% %4d   longest %4d\n",
                              label, NR, q(.5), q(.9), q(.99), v[NR] }'
}

if [[ ${1:-} == --table ]]; then
    echo "lines by room"
    files | xargs -r wc -l | awk '
        $2 != "total" {
            n = split($2, part, "/")
            room = part[1]
            if (part[1] == "src") room = n > 3 ? part[1] "/" part[2] "/" part[3] : part[1] "/" part[2]
            lines[room] += $1; count[room]++; sum += $1; all++
        }
        END {
            for (room in lines) printf "  %-18s %6d lines %4d files\n", room, lines[room], count[room] | "sort"
            close("sort")
            printf "  %-18s %6d lines %4d files\n", "all", sum, all
        }'
    echo
    files | xargs -r wc -l | awk '$2 != "total" { print $1 }' | quantiles files
    functions | quantiles functions
    echo
    echo "longest functions"
    functions | sort -rn | head -n 12 | awk '{ printf "  %4d  %s  %s\n", $1, $3, $2 }'
    echo
    echo "longest files"
    files | xargs -r wc -l | grep -v ' total$' | sort -rn | head -n 8
fi

files | xargs -r wc -l | awk -v limit=$limit -v longer="$longer" '
    BEGIN { n = split(longer, word, /[ \n]+/); for (i = 1; i <= n; i++) ok[word[i]] = 1 }
    $2 != "total" && $1 > limit && !($2 in ok) {
        printf "%s: %d lines, more than %d (split it, or list it in tools/size.sh)\n", $2, $1, limit
        bad = 1
    }
    END { exit bad }'
