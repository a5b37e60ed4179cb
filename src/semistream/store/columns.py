"""Arrow columns as leaves: the fixed-width and byte-string parts that kernels can move.

Kernels know two shapes only: a fixed number of bytes, or a byte string. Every Arrow type is
written as one or more such *leaves*, and read back from them:

| Arrow type | leaves |
|---|---|
| integers, floats, dates, times, timestamps, durations, decimals, fixed-size binary | itself |
| bool | one byte |
| string, binary, their large and view forms | a byte string |
| dictionary | the leaves of its values |
| struct | one byte (is it there?), then the leaves of its fields |
| list, large list, fixed-size list, map | a byte string: the packed rows of its items |
| null | none |
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from semistream.core.errors import SchemaError


@dataclass(frozen=True)
class Leaf:
    """One part of a column as kernels see it; `width_bytes` is 0 for a byte string."""

    type: pa.DataType
    width_bytes: int

    @property
    def is_bytes(self) -> bool:
        """Whether values differ in length."""
        return self.width_bytes == 0


class ColumnCodec(ABC):
    """Writes a column of one Arrow type as leaves and reads it back; see the module's table."""

    def __init__(self, type_: pa.DataType, leaves: tuple[Leaf, ...]) -> None:
        self.type = type_
        self.leaves = leaves

    @abstractmethod
    def encode(self, array: pa.Array) -> list[pa.Array]:
        """The leaves of `array`, each of the same length."""

    @abstractmethod
    def decode(self, leaves: list[pa.Array], length: int) -> pa.Array:
        """The column of which these are the leaves."""


class _Plain(ColumnCodec):
    """A column that is its own leaf."""

    def __init__(self, type_: pa.DataType) -> None:
        width = 0 if _is_bytes(type_) else type_.bit_width // 8
        super().__init__(type_, (Leaf(type_, width),))

    def encode(self, array: pa.Array) -> list[pa.Array]:
        return [array]

    def decode(self, leaves: list[pa.Array], length: int) -> pa.Array:
        return leaves[0]


class _Cast(ColumnCodec):
    """A column that Arrow casts to another type and back without loss."""

    def __init__(self, type_: pa.DataType, via: pa.DataType) -> None:
        self._inner = codec_for(via)
        super().__init__(type_, self._inner.leaves)

    def encode(self, array: pa.Array) -> list[pa.Array]:
        return self._inner.encode(array.cast(self._inner.type))

    def decode(self, leaves: list[pa.Array], length: int) -> pa.Array:
        plain = self._inner.decode(leaves, length)
        if pa.types.is_dictionary(self.type):
            # Arrow has no cast to dictionaries with narrow indices: encode, then narrow.
            encoded = plain.dictionary_encode()
            return pa.DictionaryArray.from_arrays(
                encoded.indices.cast(self.type.index_type),
                encoded.dictionary.cast(self.type.value_type),
                ordered=self.type.ordered,
            )
        return plain.cast(self.type)


class _Struct(ColumnCodec):
    def __init__(self, type_: pa.DataType) -> None:
        self._fields = [codec_for(field.type) for field in type_]
        there = Leaf(pa.uint8(), 1)
        super().__init__(type_, (there, *(leaf for f in self._fields for leaf in f.leaves)))

    def encode(self, array: pa.Array) -> list[pa.Array]:
        there = pc.if_else(array.is_valid(), pa.scalar(1, pa.uint8()), pa.scalar(None, pa.uint8()))
        leaves = [there]
        for codec, child in zip(self._fields, array.flatten(), strict=True):
            leaves += codec.encode(child)
        return leaves

    def decode(self, leaves: list[pa.Array], length: int) -> pa.Array:
        children, at = [], 1
        for codec in self._fields:
            children.append(codec.decode(leaves[at : at + len(codec.leaves)], length))
            at += len(codec.leaves)
        missing = leaves[0].is_null() if leaves[0].null_count else None
        if not children:
            return pa.array([{}] * length, self.type)
        return pa.StructArray.from_arrays(children, fields=list(self.type), mask=missing)


class _Null(ColumnCodec):
    def __init__(self, type_: pa.DataType) -> None:
        super().__init__(type_, ())

    def encode(self, array: pa.Array) -> list[pa.Array]:
        return []

    def decode(self, leaves: list[pa.Array], length: int) -> pa.Array:
        return pa.nulls(length, self.type)


class _Extension(ColumnCodec):
    def __init__(self, type_: pa.BaseExtensionType) -> None:
        self._storage = codec_for(type_.storage_type)
        super().__init__(type_, self._storage.leaves)

    def encode(self, array: pa.Array) -> list[pa.Array]:
        return self._storage.encode(array.storage)

    def decode(self, leaves: list[pa.Array], length: int) -> pa.Array:
        return pa.ExtensionArray.from_storage(self.type, self._storage.decode(leaves, length))


def codec_for(type_: pa.DataType) -> ColumnCodec:
    """The codec of an Arrow type."""
    kinds = pa.types
    if kinds.is_null(type_):
        return _Null(type_)
    if isinstance(type_, pa.BaseExtensionType):
        return _Extension(type_)
    if kinds.is_boolean(type_):
        return _Cast(type_, pa.uint8())
    if kinds.is_dictionary(type_):
        return _Cast(type_, type_.value_type)
    if kinds.is_string_view(type_):
        return _Cast(type_, pa.large_string())
    if kinds.is_binary_view(type_):
        return _Cast(type_, pa.large_binary())
    if _is_bytes(type_):
        return _Plain(type_)
    if kinds.is_struct(type_):
        return _Struct(type_)
    if (
        kinds.is_list(type_)
        or kinds.is_large_list(type_)
        or kinds.is_fixed_size_list(type_)
        or kinds.is_map(type_)
    ):
        from semistream.store.lists import ListCodec  # noqa: PLC0415 - the two need each other

        return ListCodec(type_)
    if kinds.is_primitive(type_) or kinds.is_decimal(type_) or kinds.is_fixed_size_binary(type_):
        if type_.bit_width == 0:
            return _Cast(type_, pa.binary())
        return _Plain(type_)
    raise SchemaError(
        f"columns of type {type_} cannot be stored",
        hint="leave the column out, or cast it to a string, a number or a list of them",
    )


def _is_bytes(type_: pa.DataType) -> bool:
    kinds = pa.types
    return bool(
        kinds.is_string(type_)
        or kinds.is_large_string(type_)
        or kinds.is_binary(type_)
        or kinds.is_large_binary(type_)
    )
