# running: sizes from the file and from the command line, standard input, output forms
printf '# shape: m=2,n=3\nkernel @k split (x: f32[m, n], i: i64[n], s: scalar bf16) {\n  %%a = mul %%x, %%s\n  store %%a\n  %%b = neg %%i\n  store %%b\n}\n' >k.dvm
dvm run k.dvm --shape s=0.3 --fill 2 --print --no-time --check
dvm run k.dvm --shape m=0,s=1 --print --no-time --check
dvm run - --shape n=1,s=-4 --fill=1 --print --no-time --check --device ref <k.dvm
dvm run k.dvm --shape s=1 --seed 7 --no-time --check --repeat 3 --threads 2 --isa base | sed -n '/check/p'
printf 'kernel vector:dyn (x: f32[*]) {\n  %%a = sum %%x, keep\n  store %%a\n}\n' >any.dvm
dvm run any.dvm --shape x=2x3x4 --fill 1 --print --no-time --check
dvm run any.dvm --shape x=5 --fill 1 --print --no-time --check
printf 'kernel split (t: f32[4, 2], i: i32[3]) {\n  %%a = gather %%t, %%i, axis=0, mode=slice\n  store %%a, strides=[1, 3]\n}\n' >g.dvm
dvm run g.dvm --no-time --check | sed -n '/check/p'
# what the first run costs, once, and what every further one does
for n in '--shape s=1' '--shape s=1 --repeat 3'; do
    dvm run k.dvm $n --fill 1 |
        sed -n -e 's/^  plan   [0-9.]* us, .* \(before\|part of\) the first run$/  plan, \1/p' \
            -e 's/^  first  [0-9.]* us, .*/  first/p' \
            -e 's/^  again  [0-9.]* us, fastest of \([0-9]*\) ([0-9.]* GB.s; .*/  again, \1/p'
done
# several files, one behind the other; the worst exit code
dvm run g.dvm any.dvm --shape x=3 --fill 1 --no-time 2>&1
echo "exit $?"
dvm run g.dvm nowhere.dvm g.dvm --no-time 2>&1 | grep -c '^kernel'
dvm explain g.dvm g.dvm | grep '^#'
# leading zeros mean nothing, and an integer beyond 64 bits is a float, to the kernel and to what judges it
for n in 012 09 00x0 0x0C 00000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000012 \
    18446744073709551616 1000000000000000000000000000000; do
    printf 'kernel vector (x: f32[04]) {\n  %%a = mul %%x, %s\n  store %%a\n}\n' $n >n.dvm
    dvm run n.dvm --fill 1 --no-time --print --check 2>&1 | grep -e '^  \[' -e check -e dvm:
done
