"""The plain baseline, a head without context."""

from torch import Tensor

from .context_scheme import ContextScheme


class NoContext(ContextScheme):
    """
    Pixel representations as they are.

    Args:
        channels: of input and output.
        dropout: of :class:`.ContextScheme`. The published baselines use 0.1.
    """

    def __init__(self, channels: int = 512, *, dropout: float = 0.1):
        super().__init__(channels, dropout=dropout)

    def forward(self, x: Tensor, m: Tensor) -> Tensor:
        """x, with dropout; see :meth:`.ContextScheme.forward`."""
        return self.dropout(x)
