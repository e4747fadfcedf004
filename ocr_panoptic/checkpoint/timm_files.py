"""Weights that timm publishes: ``timm://convnext_tiny.fb_in1k``, and what they expect of images."""

import difflib
from collections.abc import Mapping
from typing import Any

import timm
from huggingface_hub.errors import EntryNotFoundError
from iopath.common.file_io import PathHandler
from timm.models import PretrainedCfg
from timm.models._hub import download_cached_file, download_from_hf

from ocr_panoptic.errors import MissingFileError

PREFIX = "timm://"
FILES = ("model.safetensors", "pytorch_model.bin")


class TimmHandler(PathHandler):
    """Finds the file of a pre-trained network of timm: in the cache of the Hugging Face hub or of
    torch.hub, else by a download into it. timm's name alone means its default weights."""

    def _get_supported_prefixes(self) -> list[str]:
        return [PREFIX]

    def _get_local_path(self, path: str, force: bool = False, **kwargs: Any) -> str:
        """
        Raises:
            FileNotFoundError: timm has no such weights, or they cannot be downloaded.
        """
        published = _published(path.removeprefix(PREFIX).strip("/"))
        if published.hf_hub_id:
            first = published.hf_hub_filename or FILES[0]
            source = f"https://huggingface.co/{published.hf_hub_id}/resolve/main/{first}"
        else:
            source = published.url
        try:
            if published.hf_hub_id:
                return _from_hub(published.hf_hub_id, published.hf_hub_filename)
            return download_cached_file(source)
        except Exception as e:  # of huggingface_hub, httpx, urllib ...
            raise MissingFileError(
                f"The weights {path} could not be downloaded ({type(e).__name__}). Check the "
                f"network, or download {source} elsewhere and set MODEL.WEIGHTS to that file, in "
                "whose name or folder the name of the weights should stay."
            ) from e


def _published(name: str) -> PretrainedCfg:
    """
    Raises:
        FileNotFoundError: timm has no weights of the name.
    """
    try:
        found = timm.get_pretrained_cfg(name) if name else None
    except RuntimeError:  # the network has others
        found = None
    if found is None or not found.has_weights:
        known = timm.list_pretrained()
        close = difflib.get_close_matches(name, known, n=5, cutoff=0.5)
        raise MissingFileError(
            f"timm has no weights {PREFIX}{name}. Names are like {PREFIX}convnext_tiny.fb_in1k"
            + (f"; similar ones: {', '.join(close)}." if close else ".")
        )
    return found


def _from_hub(model_id: str, file: str | None) -> str:
    """The file of a model of the Hugging Face hub; timm's own loading gives its tensors alone."""
    for name in [file] if file else FILES:
        try:
            return download_from_hf(model_id, name)
        except EntryNotFoundError:
            missing = name
    raise MissingFileError(f"{model_id} has no {missing}")


def conversion_record(network: str, file: str) -> Mapping[str, Any] | None:
    """
    Return what :func:`.settings.check_settings` compares the config with: RGB images with the mean
    and deviation of the training.

    Args:
        network: timm's name of the network, MODEL.TIMM.NAME.
        file: path or address of its weights. Which of timm's weights they are, the name says
            (convnext_tiny.fb_in1k.safetensors, timm://..., a folder of the hub's cache); where it
            does not, any mean and deviation of timm's weights of this network will do.

    Returns:
        None where timm has no weights of this network
    """
    architecture = network.partition(".")[0]
    names = timm.list_pretrained(f"{architecture}.*")
    # "x.in22k_ft_in1k" holds "x.in22k".
    named = max((name for name in names if name in file), key=len, default="")
    if not named and network in names:
        named = network
    if not named and file == f"{PREFIX}{architecture}":
        named = architecture  # timm's choice
    found = [timm.get_pretrained_cfg(name) for name in ([named] if named else names)]
    if not found:
        return None
    return {
        "source": f"timm's {named or architecture}",
        "file": file,
        "settings": {
            "INPUT.FORMAT": "RGB",
            "MODEL.PIXEL_MEAN": frozenset(_of_bytes(cfg.mean) for cfg in found),
            "MODEL.PIXEL_STD": frozenset(_of_bytes(cfg.std) for cfg in found),
        },
    }


def _of_bytes(values: tuple[float, ...]) -> tuple[float, ...]:
    """Adapt weights for images of values to 1 to images of values to 255."""
    return tuple(round(255 * value, 3) for value in values)
