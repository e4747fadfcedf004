"""Label Studio's run lengths of brush masks, those of @thi.ng/rle-pack.

A stream of bits, the highest of a byte first: the number of values (32 bits), bits of a value less
1 (5), and four sizes less 1 (4 each). Then pieces: 1 where one value follows that is repeated, 0
where each value follows; which of the four sizes (2); the number of values less 1, in as many bits;
the value or values, of 8 bits. The values are an image in RGBA, row after row, and its mask is
where the last channel is not 0.

Shape letters: H, W size of the image.
"""

import numpy as np

from ocr_panoptic.errors import UserError

_CHANNELS = 4
VALUE_BITS = 8
_SIZES = 3, 4, 8, 16  # bits; Label Studio's own
OPAQUE = 255


def decode_brush(code: object, height: int, width: int) -> np.ndarray:
    """
    Args:
        code: bytes, as the list of integers that a JSON has.

    Returns:
        bool [height, width].

    Raises:
        ValueError: they are no mask of that size.
    """
    if not isinstance(code, list):
        raise UserError(f"rle must be a list of bytes, found {type(code).__name__}")
    try:
        bits = _Bits(bytes(code))
    except (TypeError, ValueError):
        raise UserError("rle must be a list of bytes, found other values") from None
    count, value_bits = bits.take(32), bits.take(5) + 1
    expected = height * width * _CHANNELS
    if count != expected or value_bits != VALUE_BITS:
        raise UserError(
            f"rle has {count} values of {value_bits} bits, expected {expected} of "
            f"{VALUE_BITS} for {width}x{height} pixels"
        )
    sizes = [bits.take(4) + 1 for _ in _SIZES]
    values = np.empty(count, np.uint8)
    place = 0
    while place < count:
        repeated = bits.take(1)
        length = bits.take(sizes[bits.take(2)]) + 1
        if length > count - place:
            raise UserError(f"rle has more than its {count} values")
        values[place : place + length] = bits.take(VALUE_BITS) if repeated else bits.bytes(length)
        place += length
    return values.reshape(height, width, _CHANNELS)[..., -1] > 0


class _Bits:
    """Reads numbers from bytes, bit by bit."""

    def __init__(self, content: bytes):
        self._content, self._place = content, 0

    def take(self, count: int) -> int:
        """The number in the next bits."""
        end = self._place + count
        part = self._content[self._place // 8 : -(-end // 8)]
        if end > 8 * len(self._content):
            raise UserError("rle ends too early")
        self._place = end
        return int.from_bytes(part, "big") >> (-end % 8) & ((1 << count) - 1)

    def bytes(self, count: int) -> np.ndarray:
        """The numbers in the next ``count`` times 8 bits."""
        first, shift = divmod(self._place, 8)
        part = np.frombuffer(self._content[first : first + count + 1], np.uint8)
        if self._place + 8 * count > 8 * len(self._content):
            raise UserError("rle ends too early")
        self._place += 8 * count
        if shift == 0:
            return part[:count]
        return part[:count] << shift | part[1:] >> (8 - shift)


def encode_brush(pixels: np.ndarray) -> list[int]:
    """
    Args:
        pixels: bool [H, W], of at most 2^30 pixels.
    """
    flat = pixels.ravel()
    starts = np.flatnonzero(np.diff(flat, prepend=~flat[:1]))
    lengths = _CHANNELS * np.diff(starts, append=flat.size)
    pieces = [f"{_CHANNELS * flat.size:032b}{VALUE_BITS - 1:05b}"]
    pieces += [f"{size - 1:04b}" for size in _SIZES]
    for length, inside in zip(lengths.tolist(), flat[starts].tolist(), strict=True):
        while length > 0:
            part = min(length, 1 << _SIZES[-1])
            which = next(i for i, size in enumerate(_SIZES) if part <= 1 << size)
            pieces.append(f"1{which:02b}{part - 1:0{_SIZES[which]}b}{OPAQUE * inside:08b}")
            length -= part
    bits = np.frombuffer("".join(pieces).encode(), np.uint8) - ord("0")
    return np.packbits(bits).tolist()
