"""Registration of prepared data, panoptic and semantic, with Detectron2."""

from pathlib import Path

from .manifest import MANIFEST_NAME, datasets_root
from .panoptic.manifest import PANOPTIC_FORMAT
from .panoptic.records import panoptic_data_set
from .register import register
from .semantic.manifest import SEMANTIC_FORMAT
from .semantic.records import semantic_data_set

KINDS = ((PANOPTIC_FORMAT, panoptic_data_set), (SEMANTIC_FORMAT, semantic_data_set))


def register_prepared(root: Path | str | None = None) -> list[str]:
    """Register every ``root/*/dataset.json`` as ``<name>_<split>``.

    Annotations are read when Detectron2 asks for them; categories are read here. It may be called
    again: the data sets found then replace those registered before under the same names.

    Args:
        root: by default ``$DETECTRON2_DATASETS``, or ``datasets``.

    Returns:
        names of the data sets found, sorted.

    Raises:
        ValueError: a broken manifest, two manifests of one name, or a name that Detectron2 or
            other code has registered.
    """
    root = datasets_root() if root is None else Path(root)
    found: dict[str, Path] = {}
    for path in sorted(root.glob(f"*/{MANIFEST_NAME}")):
        for format, data_set in KINDS:
            manifest = format.read(path)
            for split, paths in manifest.splits.items() if manifest else ():
                name = f"{manifest.name}_{split}"
                if name in found:
                    raise ValueError(f"Two data sets are named {name}: {found[name]} and {path}.")
                found[name] = path
                register(name, path, *data_set(name, manifest.classes, paths))
    return sorted(found)
