# wrong command lines: what they say, and that they end with 2
try() {
    dvm "$@" 2>&1
    echo "exit $?"
}
printf 'kernel @k vector (x: f32[rows, cols], s: scalar f32) {\n  %%a = mul %%x, %%s\n  store %%a\n}\n' >k.dvm
try
try rnu k.dvm
try frobnicate
try run
try run k.dvm k.dvm
try cache
try cache ls k.dvm
try cache lst
try run k.dvm --chek
try run k.dvm --fill
try run k.dvm --fill=much
try run k.dvm --repeat 0
try run k.dvm --check=yes
try run k.dvm -x
try run nowhere.dvm
try run k.dvm
try run k.dvm --shape rows=3
try run k.dvm --shape rows=3,cols=4,scale=1
try run k.dvm --shape rows=3,col=4,s=1
try run k.dvm --shape rows
try run k.dvm --shape rows=3x4,cols=2,s=1
try run k.dvm --device gpu
try doctor k.dvm
try help rum
