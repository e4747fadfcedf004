#!/usr/bin/env bash
# Create a virtual environment with everything that this project needs, from package registries alone.
#   [TORCH_INDEX=https://download.pytorch.org/whl/cpu] \
#       tools/create_env.sh VENV_DIR [BASE_PYTHON [pinned|newest|oldest]]
# The packages are pinned (requirements/), the newest, or the oldest that pyproject.toml allows.
# TORCH_INDEX adds an index of packages; PyTorch's own for the CPU saves the CUDA libraries.
# An existing VENV_DIR is rebuilt from nothing, so an interrupted run is repaired by the next one.
set -euo pipefail

venv=${1:?usage: tools/create_env.sh VENV_DIR [BASE_PYTHON [pinned|newest|oldest]]}
base_python=${2:-python3}
root=$(cd "$(dirname "$0")/.." && pwd)
bounds=$(mktemp)
trap 'rm -f "$bounds"' EXIT
everything="$root[dev,export,finetune]"
case ${3:-pinned} in
    pinned) packages=(-r "$root/requirements/dev.txt") ;;
    newest) packages=(-e "$everything" 'setuptools>=77,<82') ;;
    oldest)
        sed -nE '/^dependencies/,$ s/"([a-z0-9-]+)>=([a-z0-9.]+)"/\n\1==\2\n/gp' \
            "$root/pyproject.toml" | grep == > "$bounds"
        packages=(-e "$everything" 'setuptools>=77,<82' -c "$bounds") ;;
    *) echo "$3: expected pinned, newest or oldest" >&2; exit 1 ;;
esac

"$base_python" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' || {
    echo "$base_python is $("$base_python" --version 2>&1), but the packages are for Python 3.10" \
         "to 3.13: choose one with make env BASE_PYTHON=/path/to/python3.11" >&2
    exit 1
}

# venv --clear would empty the environment that a link leads to, and then fail.
if [ -L "$venv" ]; then
    echo "$venv is a link to $(readlink -f "$venv"), which others may use. Remove the link to get an" \
         "environment here, or run make PYTHON=$venv/bin/python to use that one as it is." >&2
    exit 1
fi

echo "1/4 Creating $venv (at most 7 GB, of which CUDA takes 5; 1 to 2 minutes with a fast connection)"
"$base_python" -m venv --clear "$venv"
python="$venv/bin/python"
echo "2/4 Installing PyTorch and the other packages"
"$python" -m pip install --disable-pip-version-check \
    ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} "${packages[@]}"
"$python" -m pip install --quiet --disable-pip-version-check --no-deps \
    -r "$root/requirements/references.txt"

echo "3/4 Installing Detectron2"
"$root/tools/install_detectron2.sh" "$python"

echo "4/4 Installing this package"
"$python" -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e "$root"
"$python" -c 'import detectron2, ocr_panoptic, platform, timm, torch
print(f"environment ready: Python {platform.python_version()}, torch {torch.__version__}, "
      f"timm {timm.__version__}, detectron2 {detectron2.__version__}")'
