"""Build the package with the repository's configs/ inside it, as ocr_panoptic/configs."""

import shutil
from pathlib import Path

from setuptools import find_namespace_packages, setup

# `ocr-panoptic train` runs train_net.py through a link, which a zip file turns into text.
link, target = Path("ocr_panoptic/cli/train_net.py"), "../../train_net.py"
if link.read_text() == target:
    shutil.copyfile(link.parent / target, link)

setup(
    packages=[*find_namespace_packages(include=["ocr_panoptic*"]), "ocr_panoptic.configs"],
    package_dir={"ocr_panoptic.configs": "configs"},
)
