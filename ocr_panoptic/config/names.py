"""Find the package's configs. A config's name is its path below ``configs/``, without ".yaml"."""

from itertools import takewhile
from pathlib import Path

_INSTALLED = Path(__file__).parents[1] / "configs"  # setup.py copies it from the repository
FOLDER = _INSTALLED if _INSTALLED.is_dir() else Path(__file__).parents[2] / "configs"
SUFFIX = ".yaml"


def config_names() -> list[str]:
    """Return the sorted names of all configs except the ``Base-...`` files that others include."""
    names = (file.relative_to(FOLDER).with_suffix("") for file in FOLDER.rglob(f"*{SUFFIX}"))
    return sorted(name.as_posix() for name in names if not name.name.startswith("Base-"))


def config_path(name: str) -> Path:
    """Return the path of the config ``name`` (".yaml" is optional); the file need not exist."""
    return FOLDER / f"{name.removesuffix(SUFFIX)}{SUFFIX}"


def config_purpose(name: str) -> str:
    """Return the first sentence of the comment at the top of a config, or "" without a comment."""
    lines = config_path(name).read_text(encoding="utf-8").splitlines()
    comment = takewhile(lambda line: line.startswith("# "), lines)
    return " ".join(line[2:] for line in comment).partition(". ")[0].removesuffix(".")
