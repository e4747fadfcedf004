"""Build the package with the repository's configs/ inside it, as ocr_panoptic/configs."""

from setuptools import find_namespace_packages, setup

setup(
    packages=[*find_namespace_packages(include=["ocr_panoptic*"]), "ocr_panoptic.configs"],
    package_dir={"ocr_panoptic.configs": "configs"},
)
