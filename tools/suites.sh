# Sourced by ./dev: the suites, their counts, and the tiers that are made of them.
#
# Each suite adds to PASSED, FAILED, SKIPPED and prints one line; what failed is shown above it.
# The last line of a tier is the sum, alone on its line.

. tools/names.sh

PASSED=0 FAILED=0 SKIPPED=0
LOGS=

# begin NAME / end: one suite.
begin() {
    SUITE=$1
    LOGS=$BUILD/test-logs
    # A second run at the same time keeps logs of its own.
    [[ -n ${LOG_LOCK:-} ]] || exec {LOG_LOCK}>"$BUILD.test-lock"
    flock -n "$LOG_LOCK" || LOGS=$LOGS-$$
    LOGS=$LOGS/${1// /-}
    rm -rf "$LOGS"
    mkdir -p "$LOGS"
    START=$EPOCHREALTIME
}

end() { # PASSED FAILED SKIPPED
    local us=$((${EPOCHREALTIME/[.,]/} - ${START/[.,]/}))
    PASSED=$((PASSED + $1)) FAILED=$((FAILED + $2)) SKIPPED=$((SKIPPED + $3))
    printf '%-28s %5d ok  %3d failed  %3d skipped  %6d.%d s\n' \
        "$SUITE" "$1" "$2" "$3" $((us / 1000000)) $((us / 100000 % 10))
    (($3 == 0)) || skip_reasons
}

skip_suite() { # NAME REASON
    begin "$1${NOTE:+ $NOTE}"
    printf '# skip: %s\n' "$2" >"$LOGS/log"
    end 0 0 1
}

# skip_reasons: why tests of the suite were skipped, a line each with the number of tests.
skip_reasons() {
    {
        cat "$LOGS"/* 2>/dev/null | sed -n 's/^# skip: *//p' || true
        [[ ! -f $LOGS/junit.xml ]] || junit_reasons "$LOGS/junit.xml"
    } | sort | uniq -c | sort -rn | sed -E 's/^ *([0-9]+) (.*)/    skipped \1: \2/'
}

total() {
    say_left_out
    printf '%d passed, %d failed, %d skipped\n' "$PASSED" "$FAILED" "$SKIPPED"
    ((FAILED == 0))
}

# counts FILE: the numbers of its last "N passed, N failed[, N skipped]" line; false without one.
counts() {
    sed -n 's/^\([0-9]*\) passed, \([0-9]*\) failed\(, \([0-9]*\) skipped\)\{0,1\}$/\1 \2 \4/p' "$1" |
        awk '{ p = $1; f = $2; s = $3 + 0; any = 1 } END { if (any) print p, f, s; exit !any }'
}

# ------------------------------------------------------------------ suites

# One cmocka program speaks TAP; a crash or a plan that was not kept is one failure more.
suite_unit() { # PATTERN
    local bin name files=()
    begin "unit${NOTE:+ $NOTE}"
    for bin in "$BUILD"/tests/unit/test_*; do
        [[ -f $bin && -x $bin ]] || continue
        name=${bin##*/}
        [[ $name == *"$1"* ]] && files+=("$bin")
    done
    ((${#files[@]})) || return 0
    printf '%s\n' "${files[@]}" | LOGS=$LOGS CMOCKA_MESSAGE_OUTPUT=TAP xargs -r -n 1 -P "$JOBS" sh -c '
        log=$LOGS/${1##*/}
        timeout "${DVM_UNIT_TIMEOUT:-900}" ${DVM_EMU:-} "$1" >"$log" 2>&1
        echo "exit $?" >>"$log"' unit
    # shellcheck disable=SC2046
    end $(for bin in "${files[@]}"; do tap_counts "$LOGS/${bin##*/}"; done |
        awk '{ p += $1; f += $2; s += $3 } END { print p + 0, f + 0, s + 0 }')
    for bin in "${files[@]}"; do
        if [[ $(tap_counts "$LOGS/${bin##*/}") != *" 0 "* ]]; then
            printf -- '--- %s\n' "${bin#"$ROOT"/}"
            grep -v '^ok ' "$LOGS/${bin##*/}" | head -n 40
        fi
    done
}

tap_counts() {
    awk '
        /^1\.\.[0-9]+/ { sub(/^1\.\./, ""); plan += $0 }
        /^ok / { if (/# SKIP/) s++; else p++ }
        /^not ok / { if (/# SKIP/) s++; else f++ }
        /^exit / { code = $2 }
        END {
            if (p + f + s < plan) f++
            else if (code != 0 && f == 0) f++
            print p + 0, f + 0, s + 0
        }' "$1"
}

# A program or script that ends with "N passed, N failed[, N skipped]".
suite_counted() { # NAME COMMAND...
    local code=0 numbers
    begin "$1${NOTE:+ $NOTE}"
    "${@:2}" >"$LOGS/log" 2>&1 || code=$?
    if ! numbers=$(counts "$LOGS/log"); then
        numbers="0 1 0"
        echo "no closing line (exit code $code):" >>"$LOGS/log"
    elif [[ $code != 0 && $numbers == *" 0 "* ]]; then
        numbers="${numbers%% *} 1 ${numbers##* }"
    fi
    # shellcheck disable=SC2086
    [[ $numbers == "0 0 0" ]] || end $numbers
    if [[ $numbers != *" 0 "* ]]; then
        printf -- '--- %s\n' "${*:2}"
        tail -n "${DVM_TEST_LINES:-80}" "$LOGS/log"
    fi
}

suite_golden() { suite_counted golden tests/run.sh golden --match="$1"; }

suite_cli() { suite_counted cli tests/run.sh cli --match="$1"; }

suite_kern() {
    [[ -x $BUILD/tests/checkkern ]] || return 0
    # shellcheck disable=SC2086 # DVM_EMU is a command with arguments
    ${DVM_EMU:-} "$BUILD/tests/checkkern" --list | grep -F -e "$1" >/dev/null || return 0
    # shellcheck disable=SC2086
    suite_counted kern ${DVM_EMU:-} "$BUILD/tests/checkkern" ${1:+"--func=$1"}
}

suite_py() { # PATTERN MARKS
    local code=0 xml numbers files=(tests/py) select=()
    compgen -G 'tests/py/test_*.py' >/dev/null || return 0
    if ! python -c 'import pytest, numpy' 2>/dev/null; then
        skip_suite py "pytest or numpy is not installed"
        return 0
    fi
    if [[ -n $1 ]]; then
        mapfile -t files < <(find tests/py -name "test_*$1*.py" | sort)
        ((${#files[@]})) || { files=(tests/py) select=(-k "$1"); }
    fi
    begin "py${NOTE:+ $NOTE}"
    xml=$LOGS/junit.xml
    python -m pytest "${files[@]}" "${select[@]}" -m "$2" -q --tb=short -p no:cacheprovider \
        --junitxml="$xml" </dev/null >"$LOGS/log" 2>&1 || code=$?
    case $code in
        5) numbers="0 0 0" ;;
        *) numbers=$(junit_counts "$xml") || numbers="0 1 0" ;;
    esac
    [[ $code == 0 || $code == 5 || $numbers != *" 0 "* ]] || numbers="${numbers%% *} 1 ${numbers##* }"
    # shellcheck disable=SC2086
    end $numbers
    if [[ $numbers != *" 0 "* ]]; then
        printf -- '--- pytest %s\n' "${files[*]} ${select[*]}"
        tail -n "${DVM_TEST_LINES:-80}" "$LOGS/log"
    fi
}

junit_counts() {
    python - "$1" <<'PY'
import sys
import xml.etree.ElementTree as tree

suite = next(tree.parse(sys.argv[1]).iter("testsuite"))
n, failed, errors, skipped = (
    int(suite.get(key, 0)) for key in ("tests", "failures", "errors", "skipped")
)
print(n - failed - errors - skipped, failed + errors, skipped)
PY
}

junit_reasons() {
    python - "$1" <<'PY'
import sys
import xml.etree.ElementTree as tree

for case in tree.parse(sys.argv[1]).iter("testcase"):
    for skipped in case.iter("skipped"):
        reason = skipped.get("message") or "no reason given"
        print(reason.splitlines()[0].removeprefix("Skipped: "))
PY
}

# ------------------------------------------------------------------ tier 1

tier1() { # PATTERN: SUITE, SUITE:NAME or NAME
    local pattern=$1 suite suites=(unit golden kern cli py)
    use_tree
    case $pattern in
        unit | golden | kern | cli | py) suites=("$pattern") pattern= ;;
        checkkern) suites=(kern) pattern= ;;
        unit:* | golden:* | kern:* | cli:* | py:*) suites=("${pattern%%:*}") pattern=${pattern#*:} ;;
        tests/golden/*) suites=(golden) ;;
        tests/cli/*) suites=(cli) ;;
        tests/unit/* | tests/py/*)
            suites=("$(cut -d/ -f2 <<<"$pattern")")
            pattern=$(basename "${pattern%.*}")
            [[ ${suites[0]} != py ]] || pattern=${pattern#test_}
            ;;
        */*) suites=(golden cli) ;;
    esac
    for suite in "${suites[@]}"; do
        case $suite in
            py) suite_py "$pattern" "not slow and not gpu" ;;
            *) "suite_$suite" "$pattern" ;;
        esac
    done
    ((PASSED + FAILED + SKIPPED)) || no_such_test "$1"
    total
}

no_such_test() { # PATTERN
    local near
    near=$(near_names "$1" | tr '\n' ' ')
    say "no test matches '$1'; suites: unit golden kern cli py${near:+; near: ${near% }}"
    FAILED=1
    total
    exit 1
}

# ------------------------------------------------------------------ tier 2

# lower_levels: those below the best one of this processor, which is what runs without a cap.
lower_levels() {
    [[ $(uname -m) == x86_64 ]] || return 0
    ! grep -q -w avx2 /proc/cpuinfo || echo base
    ! grep -q -w avx512vl /proc/cpuinfo || echo avx2
}

# built COMMAND...: a tree that does not compile is one failure.
built() {
    if ! "$@"; then
        FAILED=$((FAILED + 1))
        return 1
    fi
    export DVM_BUILD=$BUILD
}

tier2() {
    local isa main=$BUILD
    built build || total
    say "tier 1"
    use_tree
    suite_unit "" && suite_golden "" && suite_kern "" && suite_cli ""
    suite_py "" "not slow and not gpu"
    start_slow

    # Not kern: it goes through all levels by itself.
    for isa in $(lower_levels); do
        say "CPU level capped at $isa"
        NOTE=isa=$isa
        export DVM_ISA=$isa
        suite_unit "" && suite_golden "" && suite_cli ""
        unset DVM_ISA
    done

    sanitized_suites address,undefined ""
    sanitized_suites thread ""
    tier2_aarch64
    NOTE=

    BUILD=$main
    tier2_fuzz
    finish_slow
    total
}

# The slow Python tests are one process that computes on one core most of the time: they run beside all that
# follows tier 1, with a process group and a log of their own.
start_slow() {
    SLOW_LOG=$BUILD/test-slow.log
    set -m
    (
        PASSED=0 FAILED=0 SKIPPED=0 NOTE=slow
        suite_py "" "slow and not gpu"
        echo "$PASSED passed, $FAILED failed, $SKIPPED skipped"
    ) >"$SLOW_LOG" 2>&1 </dev/null &
    SLOW_JOB=$!
    set +m
    trap 'kill -- -"$SLOW_JOB" 2>/dev/null || true' EXIT
}

finish_slow() {
    local numbers
    say "slow Python tests, under way since tier 1"
    wait "$SLOW_JOB" || true
    trap - EXIT
    sed '$d' "$SLOW_LOG"
    numbers=$(counts "$SLOW_LOG") || numbers="0 1 0"
    # shellcheck disable=SC2086
    set -- $numbers
    PASSED=$((PASSED + $1)) FAILED=$((FAILED + $2)) SKIPPED=$((SKIPPED + $3))
}

tier2_fuzz() {
    begin fuzz
    fuzz "${DVM_FUZZ_SECONDS:-60}" "" || true
    # shellcheck disable=SC2086
    [[ $FUZZED == "0 0" ]] || end $FUZZED 0
}

sanitized_suites() { # LIST PATTERN
    local suite pattern=$2 suites=(unit golden kern cli)
    say "sanitizers: $1"
    NOTE=asan
    # kern has one thread, the command passes them through.
    [[ $1 != *thread* ]] || { NOTE=tsan; suites=(unit golden); }
    case $2 in
        unit | golden | kern | cli) suites=("$2") pattern= ;;
        unit:* | golden:* | kern:* | cli:*) suites=("${2%%:*}") pattern=${2#*:} ;;
    esac
    export DVM_UNIT_TIMEOUT=3600 DVM_TEST_TIMEOUT=600 # they are slow, machines may be busy
    export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1:detect_stack_use_after_return=1}
    export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1:halt_on_error=1}
    built sanitized "$1" || return 0
    for suite in "${suites[@]}"; do "suite_$suite" "$pattern"; done
}

tier2_aarch64() {
    say "AArch64 under emulation"
    NOTE=aarch64
    BUILD=$ROOT/build-aarch64
    if ! apt_need aarch64-linux-gnu-gcc gcc-aarch64-linux-gnu qemu-aarch64 qemu-user \
        /usr/aarch64-linux-gnu/include/stdio.h libc6-dev-arm64-cross; then
        skip_suite unit+kern+golden "no cross compiler or no qemu-aarch64 to be had"
        return 0
    fi
    local files=(--cross-file tools/cross/aarch64.ini) root=$ROOT/build-aarch64-root
    export DVM_UNIT_TIMEOUT=3600 # an emulator is slow as well
    export DVM_EMU='qemu-aarch64 -L /usr/aarch64-linux-gnu'
    if foreign_cmocka arm64 "$root"; then
        files+=(--cross-file "$root/cmocka.ini")
        DVM_EMU+=" -E LD_LIBRARY_PATH=$root/usr/lib/aarch64-linux-gnu"
    else
        skip_suite unit "no cmocka for AArch64 to be had"
    fi
    CC='' built build_tree "$BUILD" "${files[@]}" -Dpython=disabled || return 0
    suite_unit ""
    suite_kern ""
    suite_golden ""
    unset DVM_EMU
}

# foreign_cmocka ARCHITECTURE FOLDER: Debian's cmocka of another architecture, unpacked into FOLDER with a
# cross file that finds it. apt gets lists of its own, so that nothing of the system changes.
foreign_cmocka() {
    local arch=$1 root=$2 own deb
    [[ ! -e $root/cmocka.ini ]] || return 0
    command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || return 1
    mkdir -p "$root/apt/lists/partial" "$root/deb"
    own=(-qq -o "APT::Architectures::=$(dpkg --print-architecture)" -o "APT::Architectures::=$arch"
        -o "Dir::State::Lists=$root/apt/lists" -o "Dir::Cache=$root/apt" -o APT::Sandbox::User=root)
    (
        cd "$root/deb" && apt-get "${own[@]}" update &&
            apt-get "${own[@]}" download "libcmocka0:$arch" "libcmocka-dev:$arch"
    ) </dev/null >"$root/apt.log" 2>&1 || return 1
    for deb in "$root"/deb/*.deb; do dpkg-deb -x "$deb" "$root"; done
    printf '[binaries]\npkg-config = %s\n[properties]\nsys_root = %s\npkg_config_libdir = %s\n' \
        "'pkg-config'" "'$root'" "'$(echo "$root"/usr/lib/*/pkgconfig)'" >"$root/cmocka.ini"
}

# ------------------------------------------------------------------ fuzzing

# Leaves in FUZZED how many targets went through and how many failed.
fuzz() { # SECONDS NAME
    local dir=$ROOT/build-fuzz bin name good=0 bad=0
    have clang || apt_need clang clang \
        '/usr/lib/llvm-*/lib/clang/*/lib/linux/libclang_rt.fuzzer-*.a' libclang-rt-14-dev ||
        { FUZZED="0 0"; skip_suite fuzz "no clang to be had"; return 0; }
    if ! compgen -G 'tests/fuzz/*.c' >/dev/null; then
        FUZZED="0 0"
        say "no targets in tests/fuzz"
        return 0
    fi
    local TARGETS=(fuzzers)
    CC=clang build_tree "$dir" -Dbuildtype=debugoptimized -Db_sanitize=address,undefined \
        -Db_lundef=false -Dpython=disabled -Dfuzz=true || { FUZZED="0 1"; return 1; }
    for bin in "$dir"/tests/fuzz_*; do
        [[ -f $bin && -x $bin ]] || continue
        name=${bin##*/fuzz_}
        [[ $name == *"$2"* ]] || continue
        mkdir -p "$dir/corpus/$name" "$dir/found/$name"
        say "fuzzing $name for $1 s"
        # Seeds come from tests/fuzz/seeds/NAME and the golden files; findings stay in the build.
        local seeds=()
        [[ ! -d tests/fuzz/seeds/$name ]] || seeds+=("tests/fuzz/seeds/$name")
        [[ ! -d tests/golden ]] || seeds+=(tests/golden)
        if ! "$bin" -max_total_time="$1" -timeout=20 -rss_limit_mb=4096 -print_final_stats=1 \
            -artifact_prefix="$dir/found/$name/" "$dir/corpus/$name" "${seeds[@]}" \
            >"$dir/$name.log" 2>&1; then
            tail -n 40 "$dir/$name.log"
            say "$name failed; inputs are in ${dir#"$ROOT"/}/found/$name"
            bad=$((bad + 1))
        else
            good=$((good + 1))
            grep -E 'number_of_executed_units|new_units_added' "$dir/$name.log" || true
        fi
    done
    ((good + bad)) || die "no fuzz target matches '$2'"
    FUZZED="$good $bad"
    ((bad == 0))
}

# ------------------------------------------------------------------ GPU

gpu_test() {
    local missing=()
    [[ -e /dev/nvidiactl || -e /dev/dxg ]] || missing+=("a CUDA device")
    command -v nvcc >/dev/null || missing+=("nvcc (the prebuilt VM kernels)")
    if [[ ${missing[0]:-} == "a CUDA device" ]]; then
        say "not here: $(printf '%s; ' "${missing[@]}")nothing of the GPU tier was run"
        echo "0 passed, 0 failed, 1 skipped"
        return 0
    fi
    [[ ${#missing[@]} == 0 ]] || say "not here: ${missing[*]}; the tests that need it are skipped"
    setup_tests
    build
    use_tree
    [[ ! -x $BUILD/tests/checkkern ]] ||
        suite_counted "kern cuda" "$BUILD/tests/checkkern" --device=cuda
    suite_py "" "gpu"
    total
}
