"""Registration of prepared data, panoptic and semantic, with Detectron2."""

from collections.abc import Collection
from pathlib import Path

from detectron2.data import DatasetCatalog

from .manifest import datasets_root, manifests, names_in, read_content
from .panoptic.manifest import PANOPTIC_FORMAT
from .panoptic.records import panoptic_data_set
from .register import register
from .semantic.manifest import SEMANTIC_FORMAT
from .semantic.records import semantic_data_set

KINDS = {
    PANOPTIC_FORMAT.name: (PANOPTIC_FORMAT, panoptic_data_set),
    SEMANTIC_FORMAT.name: (SEMANTIC_FORMAT, semantic_data_set),
}


def register_prepared(
    root: Path | str | None = None, wanted: Collection[str] | None = None
) -> list[str]:
    """Register what ``root/*/dataset.json`` name, as ``<name>_<split>``.

    Annotations are read when Detectron2 asks for them; categories are read here. It may be called
    again: the data sets found then replace those registered before under the same names.

    Args:
        root: by default ``$DETECTRON2_DATASETS``, or ``datasets``.
        wanted: names in use, Detectron2's among them; all others are left alone, whatever is wrong
            with them. By default all are registered.

    Returns:
        names of the data sets found, in use or not, sorted.

    Raises:
        ValueError: of the data in use: a broken manifest, one whose preparation has not come to
            its end, two manifests of one name, or a name that Detectron2 or other code has
            registered.
    """
    root = datasets_root() if root is None else Path(root)
    found: dict[str, Path] = {}
    broken: list[str] = []
    for path in manifests(root):
        try:
            content = read_content(path)
            if (kind := content.get("format")) not in list(KINDS):
                continue
            names = names_in(content, path)
        except (OSError, ValueError) as error:
            broken.append(str(error))
            continue
        in_use = [name for name in names if wanted is None or name in wanted]
        for name in in_use:
            if name in found:
                raise ValueError(
                    f"Two data sets are named {name}: {found[name]} and {path}. Move one of them "
                    f"out of {root}."
                )
        found |= dict.fromkeys(names, path)
        if in_use:
            format, data_set = KINDS[kind]
            manifest = format.complete_manifest(content, path)
            for name, paths in zip(names, manifest.splits.values(), strict=True):
                if name in in_use:
                    files = vars(paths).values()
                    load, metadata = data_set(name, manifest.classes, paths)
                    metadata["channels"] = manifest.channels
                    register(name, path, load, metadata, files)
    lost = [name for name in wanted or () if name not in found and name not in DatasetCatalog]
    if broken and (lost or wanted is None):
        problem = f"{', '.join(lost)} not found, and broken: " if lost else ""
        raise ValueError(f"{problem}{' '.join(broken)} Mend it, or move it out of {root}.")
    return sorted(found)
