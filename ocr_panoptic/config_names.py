"""The configs that come with the package, by name: their path below ``configs/`` without suffix."""

from pathlib import Path

_PACKAGE = Path(__file__).parent
_INSTALLED = _PACKAGE / "configs"  # setup.py builds it from configs/ of the repository
FOLDER = _INSTALLED if _INSTALLED.is_dir() else _PACKAGE.parent / "configs"
SUFFIX = ".yaml"


def config_names() -> list[str]:
    """List all configs that can be trained or evaluated, sorted; ``Base-...`` are parts of
    others."""
    names = (file.relative_to(FOLDER).with_suffix("") for file in FOLDER.rglob(f"*{SUFFIX}"))
    return sorted(name.as_posix() for name in names if not name.name.startswith("Base-"))


def config_path(name: str) -> Path:
    """Return where the config of a name is, with or without suffix, whether there is one or not."""
    return FOLDER / f"{name.removesuffix(SUFFIX)}{SUFFIX}"


def config_purpose(name: str) -> str:
    """Return the first sentence of the comment that a config begins with; "" without a comment."""
    comment = []
    for line in config_path(name).read_text(encoding="utf-8").splitlines():
        if not line.startswith("# "):
            break
        comment.append(line.removeprefix("# "))
    return " ".join(comment).partition(". ")[0].removesuffix(".")
