"""Arrow columns as leaves: the fixed-width and byte-string parts that kernels can move.

Kernels know two shapes only: a fixed number of bytes, or a byte string. Every Arrow type is
written as one or more such *leaves*, and read back from them:

| Arrow type | leaves |
|---|---|
| integers, floats, dates, times, timestamps, durations, decimals, fixed-size binary | itself |
| bool | one byte |
| string, binary, their large and view forms | a byte string |
| dictionary | the leaves of its values (each batch of results gets a dictionary of its own) |
| struct | one byte (is it there?), then the leaves of its fields |
| lists of every kind, maps | a byte string: the packed leaves of its items |
| extension types | the leaves of their storage |
| null | none |

Unions and run-end encoded columns are refused.
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

    @property
    def is_wide(self) -> bool:
        """Whether Arrow counts the bytes of a byte string with 64 bits."""
        return bool(pa.types.is_large_binary(self.type) or pa.types.is_large_string(self.type))


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
        return self._inner.decode(leaves, length).cast(self.type)


class _Dictionary(ColumnCodec):
    """A column stored by its values.

    A dictionary belongs to a batch, not to a type, so the one that came is gone: values stand in
    the order in which the batch of results has them first, also where the type says `ordered`.
    """

    def __init__(self, type_: pa.DataType) -> None:
        self._plain = _PLAIN_OF_VIEW.get(type_.value_type, type_.value_type)
        try:
            pa.nulls(0, self._plain).dictionary_encode()
        except pa.ArrowNotImplementedError:
            raise _not_stored(type_) from None
        self._inner = codec_for(self._plain)
        super().__init__(type_, self._inner.leaves)

    def encode(self, array: pa.Array) -> list[pa.Array]:
        values = array.dictionary.cast(self._plain)
        return self._inner.encode(values.take(array.indices))

    def decode(self, leaves: list[pa.Array], length: int) -> pa.Array:
        encoded = self._inner.decode(leaves, length).dictionary_encode()
        try:
            indices = encoded.indices.cast(self.type.index_type)
        except pa.ArrowInvalid:
            raise SchemaError(
                f"{len(encoded.dictionary)} different values in one batch of results are too many "
                f"for {self.type}",
                hint=f"cast the column to {self.type.value_type}, or widen its indices",
            ) from None
        return pa.DictionaryArray.from_arrays(
            indices, encoded.dictionary.cast(self.type.value_type), ordered=self.type.ordered
        )


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
        there = leaves[0]
        validity = there.buffers()[0] if there.null_count else None
        return pa.Array.from_buffers(
            self.type, length, [validity], there.null_count, children=children
        )


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
        return _Dictionary(type_)
    if type_ in _PLAIN_OF_VIEW:
        return _Cast(type_, _PLAIN_OF_VIEW[type_])
    if _is_bytes(type_):
        return _Plain(type_)
    if kinds.is_struct(type_):
        return _Struct(type_)
    if (
        kinds.is_list(type_)
        or kinds.is_large_list(type_)
        or kinds.is_fixed_size_list(type_)
        or kinds.is_list_view(type_)
        or kinds.is_large_list_view(type_)
        or kinds.is_map(type_)
    ):
        from semistream.store.lists import ListCodec  # the two need each other

        return ListCodec(type_)
    if kinds.is_primitive(type_) or kinds.is_decimal(type_) or kinds.is_fixed_size_binary(type_):
        if type_.bit_width == 0:
            return _Cast(type_, pa.binary())
        return _Plain(type_)
    raise _not_stored(type_)


_PLAIN_OF_VIEW = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}
"""Views have no buffer of their own bytes in a row, and few of Arrow's functions take them."""


def _not_stored(type_: pa.DataType) -> SchemaError:
    return SchemaError(
        f"values of type {type_} cannot be stored",
        hint="leave the column out, or cast it to a string, a number, a struct or a list of them",
    )


def _is_bytes(type_: pa.DataType) -> bool:
    kinds = pa.types
    return bool(
        kinds.is_string(type_)
        or kinds.is_large_string(type_)
        or kinds.is_binary(type_)
        or kinds.is_large_binary(type_)
    )
