"""Records shared by Python and kernels, laid out like C structs.

Kernels take them by address: no reference is counted and nothing is copied when one kernel calls
another, which costs more than the work itself in loops over rows. Arrays stand in a struct as
addresses; the struct on Python's side keeps them alive.
"""

from __future__ import annotations

import hashlib
import warnings
from functools import cache
from typing import Any

import numpy as np
from numba.core import types
from numba.core.datamodel import models
from numba.core.datamodel.registry import register_default
from numba.core.errors import NumbaExperimentalFeatureWarning
from numba.extending import NativeValue, typeof_impl, unbox
from numba.np.numpy_support import from_dtype

# Records in records are a novelty to numba, of which it warns whoever compiles a kernel.
warnings.filterwarnings(
    "ignore", "(?s).*has been considered a subtype of", NumbaExperimentalFeatureWarning
)


class StructType(types.Record):
    """How numba sees a struct: a record that comes to a kernel as a bare address.

    A NumPy record is the same to compiled code, but taking one apart at every call takes numba some
    fifty microseconds, as long as a kernel needs for hundreds of rows.
    """

    def __init__(self, dtype: np.dtype[Any]) -> None:
        record = from_dtype(dtype)
        fields = [
            (name, {"type": field.type, "offset": field.offset})
            for name, field in record.fields.items()
        ]
        super().__init__(fields, record.size, record.aligned)
        # Kept machine code is found by this name: it must change whenever the layout does.
        self.name = f"Struct({hashlib.sha1(self.name.encode()).hexdigest()})"

    @property
    def mangling_args(self) -> tuple[str, tuple[()]]:
        """What names the type in the names of compiled functions."""
        return self.name, ()


class Handle:
    """Where a struct lies, and of which type it is."""

    __slots__ = ("_numba_type_", "address")

    def __init__(self, address: int, kind: StructType) -> None:
        self.address = address
        self._numba_type_ = kind


register_default(StructType)(models.RecordModel)


@typeof_impl.register(Handle)
def _type_of_handle(value: Handle, context: Any) -> StructType:
    return value._numba_type_


@unbox(StructType)
def _take_address(kind: StructType, value: Any, c: Any) -> NativeValue:
    number = c.pyapi.object_getattr_string(value, "address")
    pointer = c.pyapi.long_as_voidptr(number)
    c.pyapi.decref(number)
    return NativeValue(c.builder.bitcast(pointer, c.context.get_value_type(kind)))


_KINDS: dict[np.dtype[Any], StructType] = {}


def _kind_of(dtype: np.dtype[Any]) -> StructType:
    if dtype not in _KINDS:
        _KINDS[dtype] = StructType(dtype)
    return _KINDS[dtype]


class Struct:
    """A record of one of the kernels' types. `kernel` is what kernels take.

    Fields are read and written as attributes; an array that is assigned is kept alive and stands
    in the record as its address, another struct is copied into its nested field.
    """

    kernel: Handle

    def __init__(self, dtype: np.dtype[Any], **values: Any) -> None:
        self._take(np.zeros(1, dtype), {}, _kind_of(dtype), _words_of(dtype))
        for name, value in values.items():
            setattr(self, name, value)

    def copy(self) -> Struct:
        """Another record with the same values."""
        other = Struct.__new__(Struct)
        other._take(self._box.copy(), dict(self._alive), self.kernel._numba_type_, self._word_of)
        return other

    def __reduce__(self) -> tuple[Any, ...]:
        # Addresses mean nothing in another process: arrays go along, and get new ones there.
        return _rebuilt, (self._box.dtype, self._box.tobytes(), self._alive)

    def _take(
        self,
        box: np.ndarray[Any, np.dtype[Any]],
        alive: dict[str, Any],
        kind: StructType,
        word_of: dict[str, int],
    ) -> None:
        # NumPy takes a microsecond to find a field; a word of a memoryview is there at once.
        self.__dict__.update(
            _box=box,
            _alive=alive,
            _words=memoryview(box.view(np.int64)),
            _word_of=word_of,
            kernel=Handle(box.ctypes.data, kind),
        )

    def __getattr__(self, name: str) -> Any:
        word = self._word_of.get(name)
        if word is not None:
            return self._words[word]
        try:
            value = self._box[name][0]
        except ValueError:
            raise AttributeError(name) from None
        return value if isinstance(value, np.void) else value.item()

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, np.ndarray):
            self._alive[name] = value
            value = value.ctypes.data
        elif isinstance(value, Struct):
            self._alive[name] = value
            value = value._box[0]
        word = self._word_of.get(name)
        if word is not None:
            self._words[word] = int(value)
        else:
            self._box[name][0] = value

    def array(self, name: str) -> Any:
        """The array that stands in a field as its address."""
        return self.__dict__["_alive"][name]


def _rebuilt(dtype: np.dtype[Any], data: bytes, alive: dict[str, Any]) -> Struct:
    struct = Struct(dtype)
    struct._box.view(np.uint8)[:] = np.frombuffer(data, np.uint8)
    for name, value in alive.items():
        setattr(struct, name, value)
    return struct


@cache
def _words_of(dtype: np.dtype[Any]) -> dict[str, int]:
    """Where each 64-bit integer of a record type stands, in words."""
    assert dtype.fields is not None
    return {name: field[1] // 8 for name, field in dtype.fields.items() if field[0] == np.int64}


def struct_type(fields: str, **others: Any) -> np.dtype[Any]:
    """A record type: names of 64-bit integer fields, and others with their types."""
    integers = [(name, np.int64) for name in fields.split()]
    return np.dtype(integers + list(others.items()))
