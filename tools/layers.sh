#!/usr/bin/env bash
# Checks the include ladder: a room includes only the rooms of its row below.
#
# base <- graph <- opt, code <- plan <- vm <- {ops, coll} <- rt <- {cli, python}, and:
#   prof sees base only and anyone may use it; cache sees base and code;
#   vm/ref, vm/cpu and vm/cuda never see each other; opt and plan never see vm;
#   cli and python see <dvm/...> only, and so does the oracle of the tests;
#   everyone may include <dvm/...>, and files of their own room.
set -euo pipefail
cd "$(dirname "$0")/.."

table='
base
prof      base
graph     base prof
opt       base prof graph
code      base prof graph
plan      base prof graph code
cache     base prof code
vm        base prof graph opt plan code
vm/ref    base prof graph opt plan code vm
vm/cpu    base prof graph opt plan code vm
vm/cuda   base prof graph opt plan code vm
ops       base prof graph opt plan code vm
coll      base prof graph opt plan code vm
rt        base prof graph opt plan code vm cache ops coll vm/ref vm/cpu vm/cuda
cli
python
tests/oracle
'

folders=()
for folder in src cli python tests/oracle; do
    [[ -d $folder ]] && folders+=("$folder")
done
find "${folders[@]}" -type f \( -name '*.[ch]' -o -name '*.cu' -o -name '*.def' \) -print0 |
    xargs -0 -r awk -v table="$table" '
    # The room of a file, by its path below src/ (or the root for cli, python, tests/oracle).
    function room(path,    part, n) {
        n = split(path, part, "/")
        if (n < 2) return "?"
        if (part[1] == "vm" && n > 2) return "vm/" part[2]
        if (part[1] == "tests") return part[1] "/" part[2]
        return part[1]
    }
    function exists(path,    line, ok) {
        ok = (getline line < path) >= 0
        close(path)
        return ok
    }
    BEGIN {
        rows = split(table, row, "\n")
        for (i = 1; i <= rows; i++) {
            n = split(row[i], word, " ")
            if (n == 0) continue
            known[word[1]] = 1
            for (j = 2; j <= n; j++) may[word[1], word[j]] = 1
        }
    }
    /^[ \t]*#[ \t]*include[ \t]*"/ {
        line = $0
        sub(/^[^"]*"/, "", line)
        sub(/".*/, "", line)
        folder = FILENAME
        sub(/\/[^\/]*$/, "", folder)
        mine = FILENAME
        sub(/^src\//, "", mine)
        from = room(mine)
        if (line ~ /(^|\/)\.\.\//) why = "climbs with ../"
        else {
            if (exists(folder "/" line)) { path = folder "/" line; sub(/^src\//, "", path) }
            else path = line
            to = room(path)
            if (!(from in known)) why = "is in a room that the table does not know: " from
            else if (from == to || (from, to) in may) next
            else why = "is outside what " from " may include (tools/layers.sh)"
        }
        printf "%s:%d: \"%s\" %s\n", FILENAME, FNR, line, why
        bad = 1
    }
    END { exit bad }'
