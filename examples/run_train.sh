#!/usr/bin/env bash
# Trains a small model with torch.compile(backend="dvm"):
#
#     NGPU=2 MODULE=flux CONFIG=flux_debug examples/run_train.sh --steps 20 --curve
#     MODULE=qwen3_5 examples/run_train.sh --data my.tar --tokenizer tokenizer.json
#
# NGPU ranks (1), MODULE flux, qwen3_5 or glm, CONFIG of that module; arguments are those of
# train.py (--help). docs/training.md has the rest.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export NGPU=${NGPU:-1} MODULE=${MODULE:-flux}
export CONFIG=${CONFIG:-${MODULE}_debug}
# In a source tree ./dev brings the built library and the packages; elsewhere both are installed.
if [[ -x $here/../dev ]]; then
    exec "$here/../dev" exec --models python "$here/train/launch.py" "$@"
fi
exec python3 "$here/train/launch.py" "$@"
