# the self-test passes at every level there is; the report for programs is JSON
dvm doctor | sed -n -e 's/^dvm .*/version/p' -e '/FAILED/p' -e '$p'
dvm doctor --json | sed -e 's/[0-9][0-9.e+-]*/N/g' | grep -o '"\(version\|format\|used\|threads\|executable_memory\|cache\|environment\|levels\)"'
# why there is no machine code
DVM_JIT=0 dvm doctor | grep 'machine code '
DVM_JIT=0 dvm doctor --json | grep -o '"no_machine_code": "[^"]*"'
