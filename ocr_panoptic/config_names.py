"""Find the package's configs. A config's name is its path below ``configs/`` without suffix."""

from pathlib import Path

_PACKAGE = Path(__file__).parent
_INSTALLED = _PACKAGE / "configs"  # setup.py builds it from configs/ of the repository
FOLDER = _INSTALLED if _INSTALLED.is_dir() else _PACKAGE.parent / "configs"
SUFFIX = ".yaml"


def config_names() -> list[str]:
    """
    Return the sorted names of all configs that can be trained or evaluated.

    ``Base-...`` files, which other configs include, are left out.
    """
    names = (file.relative_to(FOLDER).with_suffix("") for file in FOLDER.rglob(f"*{SUFFIX}"))
    return sorted(name.as_posix() for name in names if not name.name.startswith("Base-"))


def config_path(name: str) -> Path:
    """Return the path of a config by its name, with or without suffix; the file need not exist."""
    return FOLDER / f"{name.removesuffix(SUFFIX)}{SUFFIX}"


def config_purpose(name: str) -> str:
    """Return the first sentence of the comment at the top of a config, or "" if none exists."""
    comment = []
    for line in config_path(name).read_text(encoding="utf-8").splitlines():
        if not line.startswith("# "):
            break
        comment.append(line.removeprefix("# "))
    return " ".join(comment).partition(". ")[0].removesuffix(".")
