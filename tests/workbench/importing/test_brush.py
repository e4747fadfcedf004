import json

import numpy as np
import pytest

from ocr_panoptic.workbench.importing.brush import decode_brush, encode_brush
from support.tool_exports import EXPORTS


def bits(*fields: tuple[int, int]) -> list[int]:
    """Bytes of numbers, each (value, bits)."""
    text = "".join(f"{value:0{count}b}" for value, count in fields)
    text += "0" * (-len(text) % 8)
    return [int(text[place : place + 8], 2) for place in range(0, len(text), 8)]


# 2 x 1 pixels: 8 values of 8 bits, in pieces of at most 2, 4, 8 and 16 values.
HEADER = [(8, 32), (7, 5), (0, 4), (1, 4), (2, 4), (3, 4)]


def test_decodes_runs_and_single_values():
    # 4 times 0; then 9, 8, 7, 6: the second pixel is opaque by its last channel, 6.
    pieces = [(1, 1), (1, 2), (3, 2), (0, 8), (0, 1), (1, 2), (3, 2)]
    pieces += [(value, 8) for value in (9, 8, 7, 6)]
    assert decode_brush(bits(*HEADER, *pieces), 1, 2).tolist() == [[False, True]]
    # Colours do not count, and neither does how opaque it is.
    pieces = [(0, 1), (2, 2), (7, 3), *[(v, 8) for v in (255, 255, 255, 0, 0, 0, 0, 1)]]
    assert decode_brush(bits(*HEADER, *pieces), 2, 1).tolist() == [[False], [True]]


@pytest.mark.parametrize("shape", [(1, 1), (5, 3), (48, 65), (300, 500)])
def test_decodes_what_it_encodes(shape):
    rng = np.random.default_rng(0)
    stripes = np.add.outer(np.arange(shape[0]), np.arange(shape[1])) % 7 < 3
    for pixels in (np.zeros(shape, bool), np.ones(shape, bool), rng.random(shape) < 0.5, stripes):
        assert np.array_equal(decode_brush(encode_brush(pixels), *shape), pixels)


def test_encodes_as_label_studios_sdk_does():
    count = 0
    for task in json.loads((EXPORTS / "label_studio.json").read_text()):
        for result in task["annotations"][0]["result"]:
            theirs = result["value"]["rle"]
            size = result["original_height"], result["original_width"]
            ours = encode_brush(decode_brush(theirs, *size))
            # The SDK adds a byte where the bits fill theirs.
            assert ours == theirs[: len(ours)] and theirs[len(ours) :] in ([], [0])
            count += 1
    assert count == 14


@pytest.mark.parametrize(
    "code, reason",
    [
        ("0000", "must be a list of bytes, found str"),
        ([0, 256], "found other values"),
        ([0, "a"], "found other values"),
        ([], "ends too early"),
        (bits((8, 32), (7, 5), (0, 4)), "ends too early"),
        (bits((12, 32), *HEADER[1:]), "12 values of 8 bits, expected 8 of 8"),
        (bits((2**32 - 1, 32), *HEADER[1:]), "4294967295 values"),
        (bits(HEADER[0], (15, 5), *HEADER[2:]), "8 values of 16 bits"),
        (bits(*HEADER, (1, 1), (3, 2), (15, 4), (0, 8)), "more than its 8 values"),
        (bits(*HEADER, (1, 1), (1, 2), (3, 2), (0, 8)), "ends too early"),
        (bits(*HEADER, (0, 1), (2, 2), (7, 3), (1, 8), (1, 8)), "ends too early"),
    ],
)
def test_refuses(code, reason):
    with pytest.raises(ValueError, match=reason):
        decode_brush(code, 1, 2)
