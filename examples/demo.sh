#!/bin/sh
# The tour without Python packages: ./dev demo runs it when torch cannot be had, and names in
# DVM_DEMO_LACKS what Python lacks.
# Every program of examples/ is run on random arguments and checked; one is explained and
# disassembled. Exit code 1 when a check fails.
set -u
cd "$(dirname "$0")" || exit 2

command -v dvm >/dev/null || {
    echo "demo: the command dvm is not on PATH; ./dev demo builds it" >&2
    exit 2
}

title() { printf '\n== %s\n\n' "$*"; }

title "A program: relu(x * y + x)"
cat add_mul_relu.dvm

title "What became of it"
dvm explain add_mul_relu.dvm || exit 1

title "Its instructions"
dvm dis add_mul_relu.dvm || exit 1

failed=
count=0
for file in *.dvm; do
    title "$file"
    sed -n 's/^# //p' "$file"
    count=$((count + 1))
    dvm run "$file" --random --check || failed="$failed $file"
done

title "One dynamic program, four sizes"
for rows in 32 48 7 1024; do
    dvm run dynamic.dvm --shape m=$rows,n=128 --random --check || failed="$failed dynamic.dvm($rows)"
done

title "Verdict"
if [ -n "$failed" ]; then
    echo "FAILED:$failed"
else
    echo "PASSED: $count programs agree with an independent evaluation in fp64"
fi
echo
if [ -z "${DVM_DEMO_LACKS:-}" ]; then
    echo "The tour of the torch backend, with pictures: ./dev demo"
else
    echo "Left out: torch.compile(f, backend=\"dvm\"), its generated kernels and the page with pictures."
    echo "Python lacks for them: $DVM_DEMO_LACKS"
    if [ "${DVM_TORCH_VERSION:-}" = none ]; then
        echo "DVM_TORCH_VERSION=none leaves torch out; without it ./dev demo shows the whole tour"
    else
        echo "    ./dev build --setup     tries to install it into .venv"
        echo "    ./dev demo              then shows the whole tour"
    fi
fi
[ -z "$failed" ]
