"""Pickles of arrays, and of what is none."""

import io
import pickle

import numpy as np
import pytest

from ocr_panoptic.checkpoint.reading import ArrayUnpickler, Forbidden

VALUES = {
    "rows": np.arange(6, dtype=np.float32).reshape(2, 3),
    "columns": np.asfortranarray(np.arange(6).reshape(2, 3)),
    "number": np.float32(3.5),
    "big endian": np.arange(3, dtype=">i4"),
    "texts": np.array(["ab", "c"]),
}


def unpickled(data: bytes):
    return ArrayUnpickler(io.BytesIO(data), encoding="latin1").load()


@pytest.mark.parametrize("protocol", range(6))
def test_arrays_are_those_that_were_pickled(protocol):
    data = pickle.dumps({"model": VALUES}, protocol)
    for content in (data, data.replace(b"numpy._core", b"numpy.core")):  # of NumPy 1
        if content is data or protocol == 0:  # later protocols have lengths
            for name, found in unpickled(content)["model"].items():
                expected = pickle.loads(data)["model"][name]
                np.testing.assert_array_equal(found, expected, strict=True)


@pytest.mark.parametrize("value", [np.arange, io.open, pickle.loads, np.load])
def test_other_globals_are_named(value):
    with pytest.raises(Forbidden, match=value.__name__):
        unpickled(pickle.dumps(value, 2))
