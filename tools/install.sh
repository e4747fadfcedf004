#!/usr/bin/env bash
# Install this package and Detectron2 into an environment that has PyTorch, without a compiler.
#   tools/install.sh [PYTHON]
# A Detectron2 that is there already stays. The dependencies keep their versions where they fit.
set -euo pipefail

python=${1:-python3}
root=$(cd "$(dirname "$0")/.." && pwd)

has() { "$python" -c 'import sys, importlib.util as u; sys.exit(None in map(u.find_spec, sys.argv[1:]))' "$@"; }

has torch torchvision || {
    echo "$python has no PyTorch. First: $python -m pip install torch torchvision (without a GPU add" \
         "--index-url https://download.pytorch.org/whl/cpu)" >&2
    exit 1
}
if ! has detectron2; then
    # The wheel is tagged for Python 3.10, its Python files run on any: --python-version takes it.
    # pip verifies its sha256. What it should not have carried is left out: a binary for another
    # PyTorch, and a top-level package "tools" that would shadow everybody's own.
    wheel=$(mktemp -d)
    trap 'rm -rf "$wheel"' EXIT
    "$python" -m pip install --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
        --implementation cp --python-version 3.10 --require-hashes --target "$wheel" \
        -r <(grep ^sal-detectron2 "$root/requirements/detectron2.txt")
    rm "$wheel"/detectron2/_C*.so
    sed -i '/^tools\/\|_C\./d' "$wheel"/sal_detectron2-*.dist-info/RECORD
    # It wants NumPy < 2 and black, and needs neither; pip would report an error.
    sed -i '/^Requires-Dist/d' "$wheel"/sal_detectron2-*.dist-info/METADATA
    cp -r "$wheel"/detectron2 "$wheel"/sal_detectron2-*.dist-info \
        "$("$python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')"
fi
"$python" -m pip install --disable-pip-version-check 'setuptools<82' cloudpickle hydra-core iopath \
    matplotlib omegaconf packaging tensorboard termcolor yacs "$root[export,finetune]"
"$python" -c 'import detectron2, ocr_panoptic, torch
print(f"installed: torch {torch.__version__}, detectron2 {detectron2.__version__}")'
