# Sourced by ./dev: brings what a fresh Debian machine lacks, once, and remembers it.
#
# Debian packages are asked for only when the thing they bring is missing. Python packages live
# in .venv; a stamp in .venv/dvm-setup holds the list that was installed, so a second call costs
# a few file tests. What could not be had (no network) is remembered there as well: the work goes
# on without it, and the end of each command says what was left out and how to get it.

VENV=${DVM_VENV:-$ROOT/.venv}
STAMPS=$VENV/dvm-setup
TORCH=torch==${DVM_TORCH_VERSION:-2.13.0}
PYTHON=

say() { printf '== %s\n' "$*" >&2; }
die() { printf 'dev: %s\n' "$*" >&2; exit 1; }

# with_lock FILE COMMAND...: several ./dev at a time take turns.
with_lock() {
    local lock=$1
    shift
    mkdir -p "${lock%/*}"
    {
        if ! flock -n 9; then
            say "another ./dev is at work here; waiting for it"
            flock 9
        fi
        "$@" 9>&-
    } 9>"$lock"
}

megabytes() { du -sm "$@" 2>/dev/null | awk '{ n += $1 } END { print n + 0 }'; }

# with_progress FOLDER... -- COMMAND...: says every few seconds how much arrived in the folders; on one
# line when it is a terminal.
with_progress() {
    local folders=() start=$SECONDS before watcher code=0 every=15 format='== %d MB after %d s\n'
    while [[ $1 != -- ]]; do folders+=("$1"); shift; done
    shift
    before=$(megabytes "${folders[@]}")
    if [[ -t 2 ]]; then every=2 format='\r== %d MB after %d s '; fi
    {
        while sleep "$every" >/dev/null 2>&1; do
            # shellcheck disable=SC2059 # one of two formats
            printf "$format" $(($(megabytes "${folders[@]}") - before)) $((SECONDS - start)) >&2
        done
    } &
    watcher=$!
    "$@" || code=$?
    kill "$watcher" 2>/dev/null
    wait "$watcher" 2>/dev/null || true
    [[ ! -t 2 ]] || printf '\r\033[K' >&2
    return $code
}

# ------------------------------------------------------------------ Debian packages

have() {
    case $1 in
        /*) compgen -G "$1" >/dev/null ;;
        *) command -v "$1" >/dev/null 2>&1 ;;
    esac
}

apt_install() { # SUDO PACKAGE...
    # shellcheck disable=SC2086 # empty, or a command with an option
    $1 apt-get update -qq </dev/null >"$STAMPS/apt.log" 2>&1 &&
        $1 env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
            --no-install-recommends "${@:2}" </dev/null >>"$STAMPS/apt.log" 2>&1
}

# apt_need THING PACKAGE [THING PACKAGE]...: THING is a command or a file pattern. False when
# something is still missing afterwards.
apt_need() {
    local missing=() pair=("$@") sudo=
    while (($#)); do
        have "$1" || missing+=("$2")
        shift 2
    done
    ((${#missing[@]})) || return 0
    local stamp="$STAMPS/apt-failed-${missing[*]// /-}"
    [[ ! -e $stamp ]] || return 1
    if ! command -v apt-get >/dev/null; then
        say "missing, and no apt-get here to install it: ${missing[*]}"
    else
        if [[ $(id -u) != 0 ]]; then sudo="sudo -n"; fi
        say "installing Debian packages: ${missing[*]}; a minute or two"
        mkdir -p "$STAMPS"
        if with_progress /usr/lib /usr/share -- apt_install "$sudo" "${missing[@]}"; then
            hash -r
        else
            grep '^E:' "$STAMPS/apt.log" >&2 || tail -n 3 "$STAMPS/apt.log" >&2
            say "apt-get could not install: ${missing[*]}"
        fi
    fi
    set -- "${pair[@]}"
    while (($#)); do
        if ! have "$1"; then
            mkdir -p "$STAMPS" && : >"$stamp"
            return 1
        fi
        shift 2
    done
}

# ------------------------------------------------------------------ Python

find_python() {
    local candidate
    for candidate in ${DVM_PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            "$candidate" -c 'import sys; print(sys.executable)'
            return
        fi
    done
    return 1
}

venv_ready() { [[ -f $STAMPS/base || (-x $VENV/bin/python && -f $STAMPS/tools) ]]; }

make_venv() {
    local base
    ! venv_ready || return 0 # another ./dev made it while this one waited
    if ! base=$(find_python); then
        apt_need /usr/bin/python3 python3 || true
        base=$(find_python) || die "no Python 3.11 or newer on PATH (DVM_PYTHON names one)"
    fi
    case $base in
        /usr/bin/*) # Debian's own Python comes in parts.
            apt_need '/usr/lib/python3.*/ensurepip/__init__.py' python3-venv \
                '/usr/include/python3*/Python.h' python3-dev || true
            ;;
    esac
    say "creating ${VENV#"$ROOT"/} with $("$base" --version)"
    if "$base" -m venv "$VENV" && mkdir -p "$STAMPS" && pip_group tools meson ninja; then
        return
    fi
    # No package index, but perhaps a Python that has everything already, or Debian's Meson, which
    # builds all but the Python package.
    mkdir -p "$STAMPS"
    if "$base" -c 'import mesonbuild' 2>/dev/null; then
        say "using $("$base" --version) and its packages as they are"
    elif apt_need meson meson ninja ninja-build; then
        say "using Debian's Meson: the C library and the command, without the Python package"
    else
        die "Meson could not be had: neither a package index for Python nor Debian's was reached." \
            "'./dev build --setup' tries again"
    fi
    printf '%s\n' "$base" >"$STAMPS/base"
    rm -f "$STAMPS/tools.left-out"
}

# pip_install LOG PARTS PACKAGE...: the sizes of downloads are shown, the rest goes to the log.
pip_install() {
    TMPDIR=$2 PIP_DISABLE_PIP_VERSION_CHECK=1 "$VENV/bin/python" -m pip install --no-input \
        --progress-bar off --retries 2 "${@:3}" </dev/null 2>"$1" |
        tee "$1.out" | sed -u -n "s/^ *\(Downloading\|Using cached\) \([^ ]* ([0-9.]* [MG]B)\).*/   \2/p" >&2
}

# pip_group NAME PACKAGE...: installs the group once. False when it could not be had.
pip_group() {
    local stamp=$STAMPS/$1 want="${*:2}" start=$SECONDS parts=$STAMPS/parts size=
    [[ ! -f $stamp || $(<"$stamp") != "$want" ]] || return 0
    [[ ! -f $stamp.left-out || $(<"$stamp.left-out") != "$want" ]] || return 1
    [[ $1 != torch ]] || size="; hundreds of MB, or GB where the index has the build with CUDA: minutes"
    say "installing Python packages: $want$size"
    mkdir -p "$parts"
    if with_progress "$parts" "$VENV/lib" -- pip_install "$STAMPS/$1.log" "$parts" "${@:2}"; then
        say "installed in $((SECONDS - start)) s"
        rm -f "$stamp.left-out"
        printf '%s\n' "$want" >"$stamp"
    else
        grep -v '^WARNING: Location' "$STAMPS/$1.log" | tail -n 3 >&2 || true
        printf '%s\n' "$want" >"$stamp.left-out"
        return 1
    fi
}

# pip_need NAME PACKAGE...: goes on without what cannot be had.
pip_need() {
    [[ ! -f $STAMPS/base ]] || return 0
    [[ ! -f $STAMPS/$1 || $(<"$STAMPS/$1") != "${*:2}" ]] || return 0
    with_lock "$STAMPS/lock" pip_group "$@" || true
}

choose_python() {
    if [[ -f $STAMPS/base ]]; then
        PYTHON=$(<"$STAMPS/base")
    else
        PYTHON=$VENV/bin/python
    fi
    PATH=${PYTHON%/*}:$PATH
    export PATH PYTHON
}

# ------------------------------------------------------------------ what a command needs

# To configure and compile.
setup_build() {
    # Before the first configuration, which decides once whether there are unit tests.
    apt_need g++ g++ /usr/include/cmocka.h libcmocka-dev || true
    apt_need gcc gcc /usr/include/stdio.h libc6-dev pkg-config pkg-config git git nm binutils ||
        die "a C compiler is needed: apt-get install gcc libc6-dev pkg-config git binutils"
    case ${CC:-gcc} in
        clang*) apt_need "${CC%% *}" clang '/usr/lib/llvm-*/lib/clang/*/lib/linux' \
            libclang-rt-14-dev || die "$CC is missing: apt-get install clang" ;;
    esac
    venv_ready || with_lock "$VENV.lock" make_venv
    choose_python
}

# To format and to check form. The versions are fixed: another one has other opinions.
setup_lint() {
    setup_build
    pip_need lint ruff==0.17.6 clang-format==23.1.5
}

# To run Python programs on the built tree.
setup_python() {
    setup_build
    pip_need python numpy pytest hypothesis rich
    [[ ${DVM_TORCH_VERSION:-} == none ]] || pip_need torch "$TORCH"
}

setup_tests() { # TIER
    setup_python
    [[ ${1:-} == 2 ]] || return 0
    pip_need tier2 expecttest
    setup_models
}

# Model classes and what training recipes read and draw with. Nothing is downloaded at run time.
setup_models() {
    setup_python
    [[ ${DVM_TORCH_VERSION:-} == none ]] || pip_need models transformers==5.24.0 \
        diffusers==0.42.1 safetensors==0.8.0 tokenizers pillow matplotlib
}

# Forgets what could not be had, so that it is tried again.
setup_again() { rm -f "$STAMPS"/*.left-out "$STAMPS"/apt-failed-* "$STAMPS/base"; }

# Called at the end of a command.
say_left_out() {
    local file
    shopt -s nullglob
    for file in "$STAMPS"/*.left-out; do
        say "left out, no package index reached: $(<"$file") ('./dev build --setup' tries again)"
    done
    [[ ! -f $STAMPS/base ]] ||
        say "left out, no package index reached: Python packages ('./dev build --setup' tries again)"
    for file in "$STAMPS"/apt-failed-*; do
        say "left out, not installed: ${file##*apt-failed-} ('./dev build --setup' tries again)"
    done
    shopt -u nullglob
}
