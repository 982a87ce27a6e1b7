# what the command says about itself
dvm --version
dvm help
for c in run text dis explain bench doctor; do
    echo "--- $c"
    dvm help $c
done
