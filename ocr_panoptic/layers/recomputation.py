"""Parts of a network that are computed again in the backward pass, to save memory."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.checkpoint import checkpoint


def run_part(module: nn.Module, function: Callable[..., Any], *inputs: Any) -> Any:
    """
    Return ``function(*inputs)``, a part of the module with large intermediate results.

    If ``module.recompute`` is set, training keeps only the inputs. The backward pass computes the
    rest again, with the same random numbers (dropout). Norms update their running statistics once.

    Args:
        module: module that holds every layer of the function.
        function: the part; it may itself contain parts, which then do not exist all at once.
        inputs: tensors, or dicts of tensors.
    """
    if not (module.recompute and module.training):
        return function(*inputs)
    flat, tree = tree_flatten(inputs)  # checkpoint() does not keep a tensor inside a dict
    return checkpoint(
        lambda *flat: function(*tree_unflatten(flat, tree)),
        *flat,
        use_reentrant=False,
        context_fn=lambda: (contextlib.nullcontext(), _running_statistics_kept(module)),
    )


@contextlib.contextmanager
def _running_statistics_kept(module: nn.Module) -> Iterator[None]:
    """Keep the running statistics of batch norms, by a momentum of 0 and a temporary counter."""
    # A counter of None is not enough: PyTorch's SyncBatchNorm does not train without a counter.
    norms = [m for m in module.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    settings = [(norm.momentum, norm.num_batches_tracked) for norm in norms]
    for norm, (_, count) in zip(norms, settings):
        norm.momentum, norm.num_batches_tracked = 0.0, None if count is None else count.clone()
    try:
        yield
    finally:
        for norm, (momentum, count) in zip(norms, settings):
            norm.momentum, norm.num_batches_tracked = momentum, count
