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
has detectron2 || "$root/tools/install_detectron2.sh" "$python"
rm -rf "$root/build/lib"  # of an earlier version, whose files setuptools would install as well
"$python" -m pip install --disable-pip-version-check 'setuptools<82' "$root[export,finetune]"
"$python" -c 'import detectron2, ocr_panoptic, torch
print(f"installed: torch {torch.__version__}, detectron2 {detectron2.__version__}")'
