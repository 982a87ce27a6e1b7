# what ./dev and checkkern do not understand is refused, before anything is built or run
try() {
    "$root/dev" "$@" >out 2>&1
    code=$?
    grep -c '^usage: ./dev COMMAND' out
    tail -n 1 out
    echo "exit $code"
}
try tset
try test --al
try test unit golden
try build --sanitise=thread
try lint --sizes
try fuzz softmax
build=${DVM_BUILD:-build}
case $build in /*) ;; *) build=$root/$build ;; esac
"$build/tests/checkkern" --func=nosuch >out 2>&1
echo "exit $?"
sed -n -e '1p' -e '$p' out
tr ' ' '\n' <out | grep -x 'exp.f32\|libm.exp'
"$build/tests/checkkern" --fun=exp 2>&1
echo "exit $?"
