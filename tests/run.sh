#!/usr/bin/env bash
# Runs text tests: golden files (tests/golden/**/*.dvt) and command scripts (tests/cli/*.sh).
#
#   tests/run.sh FILE|FOLDER|golden|cli|all... [--update] [--match=TEXT]
#
# A golden file is DVM text. Its comment lines say how it is run and what that prints:
#
#   # run: dvm run -d N %s          %s is this file; several run lines are run in order
#   # exit: 1                       the exit code of the last one, 0 when the line is missing
#   ...the text...
#   # expect:
#   # every line of the output, behind "# " (an empty line is "#")
#
# `# expect:` is the last part of the file. A run line is a shell command: write 2>&1 to expect
# what goes to the error stream. A script NAME.sh is compared with NAME.stdout.exact and, when
# there is one, with the exit code in NAME.exit; it runs in an empty folder of its own.
#
# --update rewrites the expectations from what was printed. The last line counts the outcome.
# DVM_EMU is put before dvm (qemu-aarch64 ...). DVM_BUILD names the build folder.
set -u
here=$PWD
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root" || exit 2
export LC_ALL=C

# ------------------------------------------------------------------ one file

# Each prints a diff when the file fails, and ends with 0 passed, 1 failed, 2 not run.

expected_code() { sed -n 's/^# exit: *\([0-9]*\).*/\1/p' "$1" | head -n 1; }

golden() {
    local file=$1 tmp=$2 line code=0 want
    grep -q '^# run: ' "$file" || { echo "$file: no '# run:' line"; return 1; }
    : >"$tmp/out"
    while IFS= read -r line; do
        timeout "${DVM_TEST_TIMEOUT:-300}" sh -c "${line//%s/$file}" >>"$tmp/out" 2>"$tmp/err" \
            </dev/null
        code=$?
    done < <(sed -n 's/^# run: //p' "$file")
    want=$(expected_code "$file")
    sed -e 's/^/# /' -e 's/ *$//' "$tmp/out" >"$tmp/got"
    if [[ -n $update ]]; then
        update_golden "$file" "$tmp" "$code"
        return 0
    fi
    sed -n '/^# expect:/,$p' "$file" | sed -e 1d -e 's/ *$//' >"$tmp/want"
    judge "$file" "$code" "${want:-0}" "$tmp/want" "$tmp/got" "$tmp/err"
}

# The code lines stay; expectations and the exit line follow what happened.
update_golden() {
    local file=$1 tmp=$2 code=$3
    awk -v code="$code" '
        /^# expect:/ { exit }
        /^# exit:/ { next }
        { line[++n] = $0 }
        /^# run: / { last = n }
        END {
            while (n > 0 && line[n] == "") n--
            for (i = 1; i <= n; i++) {
                print line[i]
                if (i == last && code != 0) print "# exit: " code
            }
            print "# expect:"
        }' "$file" >"$tmp/new"
    cat "$tmp/got" >>"$tmp/new"
    if ! cmp -s "$tmp/new" "$file"; then
        cat "$tmp/new" >"$file"
        echo "updated $file"
    fi
}

script() {
    local file=$1 tmp=$2 base=${1%.sh} code want=0
    mkdir "$tmp/cwd"
    (cd "$tmp/cwd" && timeout "${DVM_TEST_TIMEOUT:-300}" sh "$root/$file") >"$tmp/out" \
        2>"$tmp/err" </dev/null
    code=$?
    if [[ -n $update ]]; then
        cp "$tmp/out" "$base.stdout.exact"
        rm -f "$base.exit"
        [[ $code == 0 ]] || echo "$code" >"$base.exit"
        return 0
    fi
    [[ ! -f $base.exit ]] || want=$(<"$base.exit")
    [[ -f $base.stdout.exact ]] || { echo "$file: no $base.stdout.exact (--update writes it)"; return 1; }
    judge "$file" "$code" "$want" "$base.stdout.exact" "$tmp/out" "$tmp/err"
}

# judge FILE CODE WANTED-CODE WANTED GOT ERRORS
judge() {
    local bad=0
    if ! cmp -s "$4" "$5"; then
        diff -u --label "$1 (expected)" --label "$1 (got)" "$4" "$5"
        bad=1
    fi
    if [[ $2 != "$3" ]]; then
        echo "$1: exit code $2, expected $3"
        bad=1
    fi
    if [[ $bad == 1 && -s $6 ]]; then
        echo "$1: its error stream:"
        head -n 20 "$6"
    fi
    return $bad
}

run_one() {
    local file=$1 tmp status
    tmp=$(mktemp -d) || return 1
    case $file in
        *.dvt) golden "$file" "$tmp" >"$tmp/log" 2>&1 ;;
        *) script "$file" "$tmp" >"$tmp/log" 2>&1 ;;
    esac
    status=$?
    # One write, so that the logs of two files do not mix.
    if [[ -s $tmp/log ]]; then
        printf '%s\n' "$(<"$tmp/log")"
    fi
    [[ $status == 0 ]] && echo "$file" >>"$results/passed" || echo "$file" >>"$results/failed"
    rm -rf "$tmp"
}

if [[ ${1:-} == --one ]]; then
    run_one "$2"
    exit 0
fi

# ------------------------------------------------------------------ all of them

update= match=
wanted=()
for arg; do
    case $arg in
        --update) update=1 ;;
        --match=*) match=${arg#*=} ;;
        -*) sed -n '2,/^set/p' "$0" | sed -e '$d' -e 's/^# \{0,1\}//'; exit 2 ;;
        all) wanted+=(tests/golden tests/cli) ;;
        golden | cli) wanted+=("tests/$arg") ;;
        /*) wanted+=("$(realpath --relative-to="$root" "$arg")") ;;
        *) if [[ -e $here/$arg ]]; then
               wanted+=("$(realpath --relative-to="$root" "$here/$arg")")
           else
               wanted+=("$arg")
           fi ;;
    esac
done
[[ ${#wanted[@]} -gt 0 ]] || wanted=(tests/golden tests/cli)

results=$(mktemp -d) || exit 2
trap 'rm -rf "$results"' EXIT
: >"$results/passed"
: >"$results/failed"

build=${DVM_BUILD:-build}
[[ $build == /* ]] || build=$root/$build
if [[ -n ${DVM_EMU:-} ]]; then
    mkdir "$results/bin"
    printf '#!/bin/sh\nexec %s "%s" "$@"\n' "$DVM_EMU" "$build/cli/dvm" >"$results/bin/dvm"
    chmod +x "$results/bin/dvm"
    PATH=$results/bin:$PATH
else
    PATH=$build/cli:$PATH
fi
export PATH root results update

for one in "${wanted[@]}"; do
    if [[ -d $one ]]; then
        find "$one" -name '*.dvt' -o -path 'tests/cli/*' -name '*.sh'
    elif [[ -e $one ]]; then
        echo "$one"
    else
        echo "$one: no such test" >&2
        echo "$one" >>"$results/failed"
    fi
done | { [[ -n $match ]] && grep -F -- "$match" || cat; } | sort -u >"$results/list"

xargs -d '\n' -r -n 1 -P "${DVM_JOBS:-$(nproc)}" bash "$root/tests/run.sh" --one <"$results/list"

passed=$(wc -l <"$results/passed")
failed=$(wc -l <"$results/failed")
if [[ $failed -gt 0 ]]; then
    echo "failed:"
    sort "$results/failed" | sed 's/^/  /'
fi
echo "$passed passed, $failed failed, 0 skipped"
[[ $failed == 0 ]]
