#!/usr/bin/env bash
# Install Detectron2 and what it requires, without a compiler: a wheel of its Python files.
#   tools/install_detectron2.sh PYTHON
set -euo pipefail

python=${1:?usage: tools/install_detectron2.sh PYTHON}
pip() { "$python" -m pip "$@" --quiet --disable-pip-version-check; }
root=$(cd "$(dirname "$0")/.." && pwd)
wheel=$(mktemp -d)
trap 'rm -rf "$wheel"' EXIT

# The published wheel is tagged for Python 3.10, its Python files run on any.
pip download --no-deps --only-binary=:all: --implementation cp --python-version 3.10 \
    --require-hashes --dest "$wheel" -r "$root/requirements/detectron2.txt"
"$python" -m zipfile -e "$wheel"/*.whl "$wheel"
name=$(basename "$wheel"/*.dist-info .dist-info)
# What it should not have carried: a binary for another PyTorch, and a top-level package "tools"
# that would shadow everybody's own.
rm -r "$wheel/tools" "$wheel"/detectron2/_C*.so
sed -i '/^tools\/\|_C\./d' "$wheel/$name.dist-info/RECORD"
# It runs on NumPy 2, needs no black, and imports pkg_resources, which setuptools 82 dropped.
sed -i 's/: numpy<2$/: numpy/; s/: black$/: setuptools<82/' "$wheel/$name.dist-info/METADATA"
"$python" -m zipfile -c "$wheel/$name-py3-none-any.whl" "$wheel/detectron2" "$wheel/$name.dist-info"
pip install "$wheel/$name-py3-none-any.whl"
