"""Unpickling of NumPy arrays in containers, as Detectron2's model zoo has them, and no more."""

import pickle
from typing import Any

ALLOWED = {
    "_codecs.encode",  # bytes of old protocols
    "collections.OrderedDict",
    "numpy.dtype",
    "numpy.ndarray",
    "numpy.core.multiarray._reconstruct",
    "numpy.core.multiarray.scalar",
    "numpy.core.numeric._frombuffer",
}


class Forbidden(Exception):
    """A pickle names something that is neither an array nor a container."""


class ArrayUnpickler(pickle.Unpickler):
    """Imports only what arrays consist of."""

    def find_class(self, module: str, name: str) -> Any:
        # NumPy 1 and 2 name its inner module differently.
        if f"{module.replace('numpy._core', 'numpy.core')}.{name}" not in ALLOWED:
            raise Forbidden(f"{module}.{name}")
        return super().find_class(module, name)
