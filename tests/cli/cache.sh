# what torch.compile keeps on disk, looked after without Python: good, damaged and half-written entries
DVM_CACHE_DIR=$PWD/none dvm cache ls | sed "s|$PWD|.|"
mkdir c
export DVM_CACHE_DIR=$PWD/c
try() {
    dvm "$@" 2>&1 | sed "s|$PWD|.|g"
}
printf 'DVMCACHE 2 cbf43926 9\n123456789' >c/a.dvmc
printf 'DVMCACHE 2 00000000 0\n' >c/b.dvmc
try cache ls
try cache verify
printf 'DVMCACHE 2 cbf43926 9\n123456780' >c/c.dvmc
printf 'DVMCACHE 2 cbf43926 9\n1234567890' >c/d.dvmc
printf 'DVMCACHE 2 cbf43926 9 1\n123456789' >c/e.dvmc
printf 'nothing' >c/f.dvmc
: >c/g.dvmc
printf 'DVMCACHE 2' >c/.new-1
printf 'kept' >c/other
mkdir c/h.dvmc
try cache ls
dvm cache verify >out
echo "exit $?"
dvm cache ls >out
echo "exit $?"
try cache clear
try cache clear
ls c
