"""
Find models by name: ``ocr://NAME`` is an address of weights, for Detectron2 too.

When a published model is first used, its file is downloaded and converted. The result is a
checkpoint like those of a training: it holds the model's settings and classes.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from detectron2.config import CfgNode
from detectron2.data import MetadataCatalog
from detectron2.utils.file_io import PathManager
from filelock import FileLock
from iopath.common.file_io import PathHandler

from ocr_panoptic import __version__
from ocr_panoptic.checkpoint.addresses import PREFIX, models_folder, own_file
from ocr_panoptic.checkpoint.conversion import convert_file
from ocr_panoptic.checkpoint.published_models import PublishedModel, find_published, published_file
from ocr_panoptic.checkpoint.settings import differing_values
from ocr_panoptic.config.files import load_config, overrides_of, quoted
from ocr_panoptic.data.catalog import register_data_sets
from ocr_panoptic.data.published.tables import voc2012
from ocr_panoptic.errors import UserError, lacks_memory
from ocr_panoptic.formats.files import check_output_folder

from .complete import complete_config
from .identity import identity_of_run


class ModelHandler(PathHandler):
    """An ``ocr://`` handler that downloads and converts published models, or finds them."""

    def _get_supported_prefixes(self) -> list[str]:
        return [PREFIX]

    def _get_local_path(self, path: str, force: bool = False, **kwargs: Any) -> str:
        if (own := own_file(path)).is_file():
            return str(own)
        model, folder = find_published(path), models_folder()
        # A later version may convert in another way.
        file = folder / f"{model.name}-{__version__}.pth"
        if file.is_file():
            return str(file)
        check_output_folder(folder, "The folder of models", "Set FVCORE_CACHE to another folder.")
        with FileLock(folder / f".{model.name}.lock"):
            if not file.is_file():  # another process may have made it
                with published_file(model) as published:
                    _convert(model, published, file)
        return str(file)


def _convert(model: PublishedModel, published: Path, file: Path) -> None:
    make_config = partial(converted_config, model.data.recipe, quoted(model.data.keys))
    try:
        convert_file(model.source, published, file, make_config, identity_of=identity_of_data)
    except (OSError, RuntimeError, UserError) as error:
        if lacks_memory(error):
            raise
        why = str(error).replace(f"{published}", "its file").splitlines()[0].rstrip(".")
        raise UserError(
            f"The model {model.name} of {model.address} cannot be used ({why}). Check that the "
            f"disk of {file.parent} has free space. If you put {model.file} there yourself, it may "
            "be damaged: download it again."
        ) from error


def converted_config(
    recipe: str, opts: Mapping[str, Any] | Sequence[Any], needed: Mapping[str, Any]
) -> CfgNode:
    """
    Return the config of converted weights.

    Args:
        recipe: config for the data of the weights.
        opts: overrides of config keys, which come last.
        needed: values that the weights determine, as in :func:`.described_settings`.
    """
    differing = differing_values(load_config(recipe), needed)
    differing.pop("MODEL.BACKBONE.NAME", None)  # a recipe for another network is refused
    needs = quoted({key: values[0] for key, values in differing.items()})
    cfg = load_config(recipe, {**needs, **overrides_of(opts)})
    if cfg.MODEL.SEM_SEG_HEAD.NUM_CLASSES == 0:  # only then are data needed
        complete_config(cfg)
    return cfg


def identity_of_data(cfg: CfgNode) -> dict[str, Any] | None:
    """Return what :func:`.identity_of_run` does; None if the config's data sets do not suit it."""
    names = cfg.DATASETS.TRAIN[:1]
    if names == ("voc2012_train",):
        return identity_of_run(cfg, voc2012().metadata())
    try:
        register_data_sets(cfg.DATASETS.FILES, names)
    except UserError:  # data sets that are not known here
        return None
    classes = [
        name for data in names for name in MetadataCatalog.get(data).get("stuff_classes", [])
    ]
    return identity_of_run(cfg) if len(classes) == cfg.MODEL.SEM_SEG_HEAD.NUM_CLASSES else None


PathManager.register_handler(ModelHandler(), allow_override=True)
