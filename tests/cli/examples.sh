# every example agrees with the oracle, on the reference and on the CPU
for f in "$root"/examples/*.dvm; do
    for d in ref cpu; do
        printf '%s %s' "$(basename "$f")" $d
        dvm run "$f" --device $d --check --no-time >out 2>&1 && echo ": ok" || { echo; cat out; }
    done
    dvm text "$f" >once && dvm text once | cmp - once
done
