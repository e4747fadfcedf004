"""Unpickling of NumPy arrays in containers, and of nothing else.

NumPy's own ``__setstate__`` trusts its arguments: a few changed bytes in the state of a dtype end
the process, or worse. So nothing of NumPy is called as the file says; the classes here take what
arrays of numbers and texts consist of, and check it.
"""

import pickle
from collections import OrderedDict
from typing import Any

import numpy as np

from ocr_panoptic.errors import UserError

KINDS = "biufcSU"  # of dtypes: numbers and texts, no objects


class Forbidden(Exception):
    """A pickle names something that is neither an array nor a container."""


class ArrayUnpickler(pickle.Unpickler):
    """Builds arrays and containers, and refuses everything else with :class:`Forbidden`."""

    def find_class(self, module: str, name: str) -> Any:
        # NumPy 1 and 2 name its inner module differently.
        found = f"{module.replace('numpy._core', 'numpy.core')}.{name}"
        if found not in _STAND_INS:
            raise Forbidden(f"{module}.{name}")
        return _STAND_INS[found]


class _DType:
    """A stand-in for ``dtype("f4", False, True)`` and, by ``__setstate__``, its byte order."""

    def __init__(self, text: str, align: bool = False, copy: bool = False):
        if not isinstance(text, str | bytes):
            raise UserError(f"a dtype made from a {type(text).__name__}")
        self.dtype = np.dtype(text)
        if self.dtype.kind not in KINDS:
            raise UserError(f"an array of {self.dtype}")

    def __setstate__(self, state: tuple) -> None:
        _, order, *fields = state[:5]
        if fields != [None, None, None]:
            raise UserError("an array of structures")
        if order in ("<", ">"):
            self.dtype = self.dtype.newbyteorder(order)


class _Array(np.ndarray):
    def __setstate__(self, state: tuple) -> None:
        _, shape, dtype, is_fortran, data = state
        values = _frombuffer(data, dtype, shape, "F" if is_fortran else "C")
        super().__setstate__((1, values.shape, values.dtype, bool(is_fortran), values.tobytes("A")))


def _reconstruct(*_: Any) -> _Array:
    return np.ndarray.__new__(_Array, (0,), np.uint8)


def _frombuffer(data: Any, dtype: _DType, shape: tuple, order: str) -> np.ndarray:
    if isinstance(data, str):  # of Python 2
        data = data.encode("latin1")
    return np.frombuffer(bytes(data), dtype.dtype).reshape(shape, order=order)


def _scalar(dtype: _DType, data: Any) -> np.generic:
    return _frombuffer(data, dtype, (), "C")[()]


def _encode(text: str, encoding: str) -> bytes:
    """Return how pickles of old protocols write bytes."""
    if encoding != "latin1":
        raise UserError(f"bytes in {encoding!r:.50}")
    return text.encode(encoding)


_STAND_INS = {
    "collections.OrderedDict": OrderedDict,
    "_codecs.encode": _encode,
    "numpy.ndarray": _Array,
    "numpy.dtype": _DType,
    "numpy.core.multiarray._reconstruct": _reconstruct,
    "numpy.core.multiarray.scalar": _scalar,
    "numpy.core.numeric._frombuffer": _frombuffer,
}
