"""Which image files a command line names, where their results go, and reading them."""

from collections import Counter
from collections.abc import Sequence
from glob import glob
from pathlib import Path

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff")


def find_images(entries: Sequence[str]) -> list[Path]:
    """
    Args:
        entries: image files, folders (their images, not those of folders below) or glob patterns.

    Returns:
        the files in the order of the entries, sorted within a folder or pattern, each once.

    Raises:
        FileNotFoundError: an entry gives no file.
    """
    found: dict[Path, None] = {}
    for entry in entries:
        path = Path(entry).expanduser()
        if path.is_file():  # before globbing: a file may be called "a[1].jpg"
            matches = [path]
        elif path.is_dir():
            matches = sorted(p for p in path.iterdir() if p.suffix.lower() in IMAGE_SUFFIXES)
            if not matches:
                raise FileNotFoundError(
                    f"--input {entry}: the folder holds no image ({', '.join(IMAGE_SUFFIXES)})"
                )
        else:
            matches = sorted(p for p in map(Path, glob(str(path), recursive=True)) if p.is_file())
            if not matches:
                raise FileNotFoundError(
                    f"--input {entry}: no such file, folder or match; "
                    "give images, a folder, or a quoted pattern such as 'images/*.jpg'"
                )
        found.update(dict.fromkeys(matches))
    return list(found)


def output_paths(inputs: Sequence[Path], output: str) -> list[Path]:
    """
    Where the picture of every input goes: into the folder ``output`` under the input's own name,
    or, for one input, to the file ``output`` (a path with an image's suffix). Creates the folder.

    Raises:
        ValueError: one file for several inputs, two inputs of one name, or an output that would
            overwrite an input.
    """
    target = Path(output).expanduser()
    if target.suffix.lower() in IMAGE_SUFFIXES and not target.is_dir():
        if len(inputs) > 1:
            raise ValueError(
                f"--output {output} is one file for {len(inputs)} inputs; give a folder"
            )
        outputs = [target]
    else:
        repeated = [name for name, n in Counter(p.name for p in inputs).items() if n > 1]
        if repeated:
            raise ValueError(
                f"--output {output}: {repeated[0]} occurs more than once among the inputs, and one "
                "picture would overwrite the other; run the folders one by one"
            )
        outputs = [target / p.name for p in inputs]
    for source, result in zip(inputs, outputs, strict=True):
        if source.resolve() == result.resolve():
            raise ValueError(f"--output {output} would overwrite the input {source}")
    outputs[0].parent.mkdir(parents=True, exist_ok=True)
    return outputs
