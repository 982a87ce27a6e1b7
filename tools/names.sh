# Sourced by tools/suites.sh: the names of all tests, from the sources alone, so that a pattern that matches
# nothing is answered before anything is installed or built.

# test_names: SUITE:NAME, a line each. Operations stand for the functions of checkkern that are named after them.
test_names() {
    find tests/unit -name 'test_*.c' | sed 's|.*/test_\(.*\)\.c$|unit:\1|'
    find tests/golden tests/cli \( -name '*.dvt' -o -name '*.sh' \) |
        sed 's|^tests/\([a-z]*\)/\(.*\)\.[a-z]*$|\1:\2|'
    sed -n 's/^X([A-Z0-9_]*, *"\([a-z0-9_]*\)".*/kern:\1/p' include/dvm/ops.def
    find tests/py -name 'test_*.py' | sed 's|.*/test_\(.*\)\.py$|py:\1|'
    grep -h -o -E '^ *(async )?def test_[A-Za-z0-9_]+' tests/py/*.py | sed 's/.* test_/py:/'
}

# known_pattern PATTERN: false when no test can match. What pytest makes of parameters is not known here, so
# each word of a pattern for Python tests only has to stand somewhere in their text.
# No grep -q at the end of a pipe: it leaves at the first match, and pipefail calls the broken pipe before it a failure.
known_pattern() {
    local suite= name=$1 word
    case $1 in
        '' | unit | golden | kern | checkkern | cli | py) return 0 ;;
        unit:* | golden:* | kern:* | cli:* | py:*) suite=${1%%:*} name=${1#*:} ;;
        */*) [[ ! -e $CALLER/$1 && ! -e $1 ]] || return 0 ;;
    esac
    case $suite in
        unit) compgen -G "tests/unit/test_*$name*.c" >/dev/null && return 0 ;;
        kern) kern_name "$name" && return 0 ;;
        golden | cli) find "tests/$suite" -type f | grep -F -e "$name" >/dev/null && return 0 ;;
        '')
            find tests/unit tests/golden tests/cli -type f | grep -F -e "$name" >/dev/null && return 0
            kern_name "$name" && return 0
            ;;
    esac
    [[ $suite == py || -z $suite ]] || return 1
    for word in ${name//[!A-Za-z0-9_]/ }; do
        { find tests/py -name '*.py'; cat tests/py/*.py; } | grep -i -F -e "$word" >/dev/null || return 1
    done
}

# kern_name NAME: checkkern's names are the first strings of ops.def and bc.def and those of its own tables.
kern_name() {
    local word
    for word in ${1//[!A-Za-z0-9_]/ }; do
        cat include/dvm/ops.def src/code/bc.def tests/kern/*.c | grep -F -e "$word" >/dev/null || return 1
    done
}

# near_names PATTERN: up to five names that are near, by the number of letters to change.
near_names() {
    test_names | sort -u | awk -v want="$1" '
        function least(a, b) { return a < b ? a : b }
        function distance(a, b,    i, j, n, m, up, left, last) {
            n = length(a); m = length(b)
            for (j = 0; j <= m; j++) row[j] = j
            for (i = 1; i <= n; i++) {
                last = row[0]; row[0] = i
                for (j = 1; j <= m; j++) {
                    up = row[j]
                    row[j] = least(least(up, row[j - 1]) + 1,
                                   last + (substr(a, i, 1) != substr(b, j, 1)))
                    last = up
                }
            }
            return row[m]
        }
        BEGIN { only = want ~ /:/ ? substr(want, 1, index(want, ":")) : ""; sub(/^[a-z]*:/, "", want) }
        index($0, only) == 1 {
            name = $0; sub(/^[a-z]*:/, "", name); sub(/.*\//, "", name)
            d = distance(tolower(want), tolower(name))
            if (d < length(want)) print d, $0
        }' | sort -n -s | head -n 5 | cut -d' ' -f2
}
