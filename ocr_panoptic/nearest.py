"""The word that somebody meant."""

import difflib
from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str], cutoff: float = 0.5) -> str:
    """
    Returns:
        " Did you mean ...?" with the known word that is most alike, capitals apart; "" where none
        is alike
    """
    by_lower = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=cutoff)
    return f" Did you mean {by_lower[close[0]]}?" if close else ""
