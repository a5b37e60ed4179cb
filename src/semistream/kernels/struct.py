"""Records shared by Python and kernels, laid out like C structs.

Kernels take them by address: no reference is counted and nothing is copied when one kernel calls
another, which costs more than the work itself in loops over rows. Arrays stand in a struct as
addresses; the struct on Python's side keeps them alive.
"""

from __future__ import annotations

from typing import Any

import numpy as np


class Struct:
    """A record of one of the kernels' types. `kernel` is what kernels take.

    Fields are read and written as attributes; an array that is assigned is kept alive and stands
    in the record as its address, another struct is copied into its nested field.
    """

    kernel: Any

    def __init__(self, dtype: np.dtype[Any], **values: Any) -> None:
        box = np.zeros(1, dtype)
        self.__dict__["_box"] = box
        self.__dict__["_alive"] = {}
        self.__dict__["kernel"] = box[0]
        for name, value in values.items():
            setattr(self, name, value)

    def __getattr__(self, name: str) -> Any:
        try:
            value = self.__dict__["_box"][name][0]
        except ValueError:
            raise AttributeError(name) from None
        if isinstance(value, np.void):
            return value
        return value.item()

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, np.ndarray):
            self.__dict__["_alive"][name] = value
            value = value.ctypes.data
        elif isinstance(value, Struct):
            self.__dict__["_alive"][name] = value
            value = value.__dict__["_box"][0]
        self.__dict__["_box"][name][0] = value

    def array(self, name: str) -> Any:
        """The array that stands in a field as its address."""
        return self.__dict__["_alive"][name]


def struct_type(fields: str, **others: Any) -> np.dtype[Any]:
    """A record type: names of 64-bit integer fields, and others with their types."""
    integers = [(name, np.int64) for name in fields.split()]
    return np.dtype(integers + list(others.items()))
