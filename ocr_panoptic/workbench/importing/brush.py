"""
Label Studio's run lengths for brush masks, as @thi.ng/rle-pack writes them.

The code is a stream of bits, with the highest bit of each byte first. Its head is the number of
values (32 bits), the bits per value - 1 (5 bits), and four sizes - 1 (4 bits each). Pieces follow:
a flag (1 for a repeated value, 0 for listed values); the index of a size (2 bits); the number of
values - 1 in a field of this size; and the value or values (8 bits each). The values are an RGBA
image, row by row; the mask is the pixels with alpha above 0.
"""

import numpy as np

from ocr_panoptic.errors import UserError

_CHANNELS = 4
VALUE_BITS = 8


def decode_brush(code: list[int], height: int, width: int) -> np.ndarray:
    """
    Return the mask as bool [height, width].

    Args:
        code: bytes as a list of integers.
    """
    bits = _Bits(bytes(code))
    count, value_bits = bits.take(32), bits.take(5) + 1
    if count != height * width * _CHANNELS or value_bits != VALUE_BITS:
        raise UserError(
            f"rle has {count} values of {value_bits} bits, expected "
            f"{height * width * _CHANNELS} of {VALUE_BITS} for {width}x{height} pixels"
        )
    sizes = [bits.take(4) + 1 for _ in range(4)]
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
        """Return the number in the next ``count`` bits."""
        end = self._place + count
        if end > 8 * len(self._content):
            raise UserError("rle ends too early")
        part = self._content[self._place // 8 : -(-end // 8)]
        self._place = end
        return int.from_bytes(part, "big") >> (-end % 8) & ((1 << count) - 1)

    def bytes(self, count: int) -> np.ndarray:
        """Return the next ``count`` numbers of 8 bits."""
        first, shift = divmod(self._place, 8)
        self._place += 8 * count
        if self._place > 8 * len(self._content):
            raise UserError("rle ends too early")
        part = np.frombuffer(self._content[first : first + count + 1], np.uint8)
        return part[:count] << shift | part[1:] >> (8 - shift) if shift else part[:count]
