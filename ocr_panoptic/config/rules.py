"""Rules for the table of config keys: when a key is read, and which values are allowed."""

import math
import re
from collections.abc import Callable, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from detectron2.config import CfgNode


# Name of a context scheme, in MODEL.CONTEXT.NAME -> (class, {argument of its constructor: config
# key}). modeling/context.py fills the table; here it can be read without importing PyTorch.
CONTEXT_SCHEMES: dict[str, tuple[type[Any], dict[str, str]]] = {}


def schemes_reading(key: str) -> tuple[str, ...]:
    """Return the names of the context schemes that depend on a config key."""
    return tuple(n for n, (_, arguments) in CONTEXT_SCHEMES.items() if key in arguments.values())


class Condition(NamedTuple):
    """A condition on the config's other settings that must hold for a key to be read."""

    text: str  # such as "MODEL.EMA.ENABLED True"
    holds: Callable[["CfgNode"], bool]
    refuses: bool = True  # whether an unread key is refused; otherwise a warning names it


class Allowed(NamedTuple):
    """A rule that says which values of a key are allowed."""

    permits: Callable[[Any], bool]
    text: Callable[[], str]  # returns words such as "a number of at least 1"; "" for any value
    asks_registry: bool = False  # whether both functions import Detectron2, which takes seconds


def value_of(cfg: "CfgNode", name: str) -> Any:
    """Return the value of the key with the full name ``name``, such as "MODEL.OCR.CHANNELS"."""
    return reduce(lambda node, part: node[part], name.split("."), cfg)


def when(name: str, *values: object) -> Condition:
    """Return the condition that the key ``name`` has one of the values."""
    *first, last = map(str, values)
    text = f"{name} {', '.join(first)}{' or ' if first else ''}{last}"
    return Condition(text, lambda cfg: value_of(cfg, name) in values)


def one_of(*values: object) -> Allowed:
    """Return a rule that allows only the given values."""
    return _listed(lambda: values)


def registered(registry: str) -> Allowed:
    """Return a rule that allows only the names in a registry of ``detectron2.modeling``."""

    def names() -> list[str]:
        import detectron2.modeling

        return [name for name, _ in getattr(detectron2.modeling, registry)]

    return _listed(names)._replace(asks_registry=True)


def _listed(values: Callable[[], Sequence]) -> Allowed:
    def text() -> str:
        names = [str(value) or '""' for value in values()]
        return f"one of {', '.join(names)}" if len(names) > 1 else f"the value {names[0]}"

    return Allowed(lambda value: value in values(), text)


def of_form(text: str, permits: Callable[[Any], bool]) -> Allowed:
    """Return a rule that allows the values that ``permits`` accepts; ``text`` describes them."""
    return Allowed(permits, lambda: text)


def at_least(least: int, meaning: str = "", most: float = math.inf) -> Allowed:
    """
    Return a rule that allows None and finite numbers from ``least`` to ``most``.

    ``meaning`` explains the value ``least`` in error messages.
    """
    text = f"a number of at least {least}{meaning and f' ({least} {meaning})'}"
    text += f" and at most {most:,.0f}" * (most < math.inf)
    # NaN fails both comparisons. None is Detectron2's default for some keys, which take any type.
    return of_form(
        text,
        lambda v: v is None or (isinstance(v, int | float) and least <= v <= most and v < math.inf),
    )


def numbers(which: str, permits: Callable[[float], bool]) -> Allowed:
    """
    Return a rule that allows lists of finite numbers if ``permits`` accepts each number.

    ``which`` describes the numbers in error messages, such as "not below 0".
    """

    def allowed(value: Any) -> bool:
        return isinstance(value, int | float) and value < math.inf and permits(value)

    return of_form(f"a list of numbers {which}", lambda values: all(map(allowed, values)))


def some_of(*names: str) -> Allowed:
    """Return a rule that allows lists of the given names in which no name occurs twice."""
    text = f"a list of any of {', '.join(names)}, each at most once"
    return of_form(text, lambda values: len({*values} & {*names}) == len(values))


def share(ends: str) -> Allowed:
    """
    Return a rule that allows the numbers in an interval from 0 to 1.

    ``ends`` says which ends belong to the interval: "[0, 1]", "(0, 1]", "[0, 1)" or "(0, 1)".
    """
    inside = {0: "[0" in ends, 1: "1]" in ends}
    return of_form(f"a number in {ends}", lambda value: inside.get(value, 0 < value < 1))


def _are_counts(values: Sequence) -> bool:
    return all(isinstance(value, int) and value >= 0 for value in values)


ANY = of_form("", lambda value: True)
FROM_0 = numbers("not below 0", lambda value: value >= 0)
# NumPy's seeds are below 2**32, and each process adds its rank.
SEED = of_form("a number up to 2147483647, or -1 for a random seed", lambda value: value < 2**31)
ABOVE_0 = of_form("a number above 0", lambda value: 0 < value < math.inf)
NORM = one_of(
    *("", "BN", "SyncBN", "FrozenBN", "GN", "LN", "nnSyncBN", "naiveSyncBN", "naiveSyncBN_N")
)
DEVICE = of_form(
    "auto, cpu, cuda, or a numbered device such as cuda:1",
    lambda name: re.fullmatch(r"auto|(cpu|cuda)(:(0|[1-9]\d?))?", name) is not None,
)
# timm also accepts a URL or a folder, and would trust the files there.
PLAIN_NAME = of_form("a plain name, not an address or a folder", lambda name: ":" not in name)
SIZES = of_form(
    "a tuple of at least one size in pixels; 0 keeps the image's size",
    lambda sizes: len(sizes) > 0 and _are_counts(sizes),
)
STEPS = of_form(
    "a tuple of increasing iterations, or of increasing fractions of SOLVER.MAX_ITER in (0, 1)",
    lambda steps: (
        (_are_counts(steps) or all(isinstance(step, float) and 0 < step < 1 for step in steps))
        and [*steps] == sorted(steps)
    ),
)
