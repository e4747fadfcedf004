"""Images of several sizes in one tensor."""

from collections.abc import Sequence

from torch import Tensor


def padded_batch(maps: Sequence[Tensor], divisor: int, value: float = 0) -> Tensor:
    """
    Detectron2's ``ImageList.from_tensors``, with sizes that are numbers instead of tensors.

    Args:
        maps: N of [..., H, W], each of its own size.
        divisor: sides become multiples of it.
        value: what is put at the right and at the bottom.

    Returns:
        [N, ..., H', W'], H' and W' the first multiples that hold all
    """
    height, width = (
        -(-max(map_.shape[side] for map_ in maps) // divisor) * divisor for side in (-2, -1)
    )
    batch = maps[0].new_full((len(maps), *maps[0].shape[:-2], height, width), value)
    for padded, map_ in zip(batch, maps):
        padded[..., : map_.shape[-2], : map_.shape[-1]] = map_
    return batch
