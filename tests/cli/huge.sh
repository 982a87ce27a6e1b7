# sizes beyond what can be counted or held: refused, with the reason, by library, oracle and command
try() {
    echo "-- $*"
    dvm "$@" --no-time 2>&1
    echo "exit $?"
}
kernel() {
    printf 'kernel split (%s) {\n%s\n}\n' "$1" "$2" >k.dvm
}
kernel 'x: f32[n, m]' '  %a = exp %x
  store %a'
try run k.dvm --shape n=4611686018427387904,m=4
try run k.dvm --shape n=1e300,m=1
try run k.dvm --shape n=nan,m=1
try run k.dvm --shape n=2.5,m=1
try run k.dvm --shape n=-3,m=1
try run k.dvm --shape n=0,m=4611686018427387904
try run k.dvm --shape n=3000000000,m=3000000000
try run k.dvm --shape n=1,m=1 --seed=1e30
try run k.dvm --shape n=1,m=1 --seed=nan
kernel 'x: f32[n]' '  let big = n * 2305843009213693951
  %a = iota i32[big], axis=0
  store %a'
try run k.dvm --shape n=2
try run k.dvm --shape n=9
try run k.dvm --shape n=0
kernel 'x: f32[n]' '  let big = 0 - 2305843009213693951 * 4 - 4 * n
  let one = big // (0 - n)
  %a = iota i32[one], axis=0
  store %a'
try run k.dvm --shape n=1
kernel 'x: f32[n]' '  %a = broadcast %x, [4294967296, 4294967296, n]
  %b = sum %a
  store %b'
try run k.dvm --shape n=1
kernel 'x: f32[n]' '  %a = reshape %x, [4294967296, 4294967296, n]
  store %a'
try run k.dvm --shape n=0
kernel 'x: f32[n]' '  %a = slice %x, start=[0], size=[-1], step=[2305843009213693951]
  %b = slice %x, start=[-1], size=[-1], step=[-2305843009213693951]
  store %a store %b'
try run k.dvm --shape n=5 --fill=3 --check --print
kernel 'x: f32[n] strides=[1099511627776]' '  %a = exp %x
  store %a'
try run k.dvm --shape n=2
try run k.dvm --shape n=1 --fill=0 --print
kernel 'x: f32[n], y: f32[m]' '  %a = concat %x, %y, axis=0
  %b = broadcast %a, [0, -1]
  store %b'
try run k.dvm --shape n=2305843009213693952,m=2305843009213693952
kernel 'x: i32[n], y: i64[n], z: u8[n]' '  store %x store %y store %z'
try run k.dvm --shape n=1 --fill=1e30 --print
kernel 'x: f32[n], s: scalar i64' '  %a = mul %x, 2.0
  %b = cast %s, f32
  %c = mul %a, %b
  store %c'
try run k.dvm --shape n=1,s=1e300 --fill=1 --print
