"""Pickles of arrays: those of NumPy, to the last bit, and states that end NumPy's process."""

import io
import pickle

import numpy as np
import pytest

from ocr_panoptic.checkpoint.array_pickle import ArrayUnpickler, Forbidden

VALUES = {
    "rows": np.arange(6, dtype=np.float32).reshape(2, 3),
    "columns": np.asfortranarray(np.arange(6).reshape(2, 3)),
    "turned": np.arange(12).reshape(3, 4).T,
    "every other": np.arange(10)[::2],
    "number": np.float32(3.5),
    "no axis": np.array(7),
    "big endian": np.arange(3, dtype=">i4"),
    "texts": np.array(["ab", "c"]),
    "truths": np.array([True, False]),
}


def unpickled(data: bytes):
    return ArrayUnpickler(io.BytesIO(data), encoding="latin1").load()


@pytest.mark.parametrize("protocol", range(6))
def test_arrays_are_those_that_were_pickled(protocol):
    data = pickle.dumps({"model": VALUES}, protocol)
    found = unpickled(data)["model"]
    for name, expected in pickle.loads(data)["model"].items():
        np.testing.assert_array_equal(found[name], expected, strict=True)


class Reduced:
    """Pickled as the call of ``function`` and, by BUILD, a state."""

    def __init__(self, function, arguments, state=None):
        self.made = function, arguments, state

    def __reduce__(self):
        return self.made


DTYPE_STATE = (3, "<", None, None, None, -1, -1, 0)


@pytest.mark.parametrize(
    "value",
    [
        np.array([None]),
        np.zeros(2, dtype="i4,f4"),
        Reduced(np.dtype, ("f4", False, True), DTYPE_STATE[:4]),
        Reduced(np.dtype, ("f4", False, True), (3, "<", None, None, 4, -1, -1, 0)),
        Reduced(np.dtype, ("f4", False, True), (3, "<", ("f4", (9,)), None, None, -1, -1, 0)),
        Reduced(np.dtype, (["f4"], False, True)),
        Reduced(np.ndarray, ((10**13,),)),
        Reduced(np.ndarray, ((1,),), (1, (9,), np.dtype("f4"), False, b"1234")),
        Reduced(np.ndarray, ((1,),), (1, (2,), np.dtype("O"), False, b"\xff" * 16)),
    ],
)
def test_what_is_no_array_of_numbers_is_an_error(value):
    with pytest.raises((ValueError, MemoryError, TypeError)):
        unpickled(pickle.dumps(value, 2))


def test_other_globals_are_named():
    with pytest.raises(Forbidden, match=r"numpy\.\S*arange"):
        unpickled(pickle.dumps(Reduced(np.arange, (3,))))
