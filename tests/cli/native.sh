# machine code beside the bytecode it came from: the code differs from processor to processor, what is listed does not
cat >k.dvm <<'END'
# shape: m=33,n=777
kernel vector (x: f32[m, n], y: bf16[n]) {
  %a = max %x, dims=[1], keep
  %b = sub %x, %a
  %c = exp %b
  %d = sum %c, dims=[1], keep
  %e = div %c, %d
  %f = cast %y, f32
  %g = mul %e, %f
  store %g
}
END
dvm dis k.dvm >plan
dvm dis k.dvm --native >native
sed -n 's/^; strip \([0-9]*\), kernel \([0-9]*\), phase \([0-9]*\): .*/strip \1 of kernel \2, phase \3/p' native
if grep -q 'no machine code' native; then
    echo complete
else
    # Every instruction of every strip that ran as machine code, and bytes below it.
    awk '
        FNR == NR { if (/^strip/) s = nstrip++; else if (s != "" && /(%[0-9]+ = |store\.|fold\.)[a-z]*/) want[$0]; next }
        /^ +[0-9a-f]+  ([0-9a-f][0-9a-f] ?)+$/ { if (last in want) seen[last]; next }
        { last = $0 }
        END { for (w in want) if (!(w in seen)) print "not listed: " w; print length(want) ? "complete" : "nothing to list" }
    ' plan native
fi
DVM_JIT=0 dvm dis k.dvm --native
DVM_JIT=0 dvm explain k.dvm | grep '^tiers'
dvm explain k.dvm --device ref | grep '^tiers'
