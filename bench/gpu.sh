#!/usr/bin/env bash
# All that is tried and measured on a GPU, on one machine with at least one, within ten minutes: the tests, the
# tables of docs/performance.md, which it writes, and a round of adapters. PYTHON: the environment's own.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
gpus=$("$python" -c 'import torch; print(torch.cuda.device_count() if torch.cuda.is_available() else 0)')
if [ "$gpus" = 0 ]; then
    echo "bench/gpu.sh: torch finds no GPU on this machine, so nothing was run"
    exit 0
fi
failed=0
timeout 240 "$python" -m pytest -q tests/unit/training/test_gpu.py || failed=1
timeout 240 "$python" -m bench.suite training-gpu --update || failed=1
timeout 60 "$python" -m bench.adapters --steps 4 --device cuda || failed=1
exit "$failed"
