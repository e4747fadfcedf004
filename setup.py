"""Build the package with the repository's configs/ inside it, as ocr_panoptic/configs."""

import shutil
from pathlib import Path

from setuptools import find_namespace_packages, setup

# `ocr-panoptic train` runs train_net.py through this link. Zip files do not keep links.
link = Path("ocr_panoptic/cli/train_net.py")
if not link.is_symlink():
    shutil.copyfile("train_net.py", link)

setup(
    packages=[*find_namespace_packages(include=["ocr_panoptic*"]), "ocr_panoptic.configs"],
    package_dir={"ocr_panoptic.configs": "configs"},
)
