"""Lists and maps as byte strings; the bytes are described in `semistream.kernels.lists`."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.core.errors import SchemaError
from semistream.kernels.jit import read_only
from semistream.kernels.lists import measure_packed, measure_unpacked, pack_lists, unpack_lists
from semistream.kernels.rows import COLUMNS
from semistream.kernels.struct import Struct
from semistream.store.columns import ColumnCodec, Leaf, codec_for
from semistream.store.layout import MOST_NARROW, leaf_columns, leaf_widths

_I64 = npt.NDArray[np.int64]


class ListCodec(ColumnCodec):
    """Writes lists of any kind, and maps, as one byte string per row and reads them back.

    The items are written with the leaves of their own codecs, so lists may hold what columns may:
    structs, other lists, maps. A map is a list of keys and values.
    """

    def __init__(self, type_: pa.DataType) -> None:
        kinds = pa.types
        self._is_map = kinds.is_map(type_)
        self._is_view = kinds.is_list_view(type_) or kinds.is_large_list_view(type_)
        self._is_wide = kinds.is_large_list(type_) or kinds.is_large_list_view(type_)
        self._fixed = type_.list_size if kinds.is_fixed_size_list(type_) else None
        fields = [type_.key_field, type_.item_field] if self._is_map else [type_.value_field]
        self._items = [codec_for(field.type) for field in fields]
        self._leaves = [leaf for codec in self._items for leaf in codec.leaves]
        self._record = Struct(COLUMNS, width=leaf_widths(self._leaves))
        super().__init__(type_, (Leaf(pa.large_binary(), 0),))

    def encode(self, array: pa.Array) -> list[pa.Array]:
        rows = len(array)
        firsts, counts = self._ranges(array)
        used = counts > 0
        begin = int(firsts[used].min()) if used.any() else 0
        end = int((firsts + counts)[used].max()) if used.any() else 0
        # Only the items that these rows use: a slice of a long column must not cost all of it.
        items = array.values.slice(begin, end - begin)
        children = items.flatten() if self._is_map else [items]
        leaves = [
            leaf
            for codec, child in zip(self._items, children, strict=True)
            for leaf in codec.encode(child)
        ]
        columns = leaf_columns(self._leaves, leaves, self._record)
        valid = array.is_valid()
        present = valid.cast(pa.uint8()).to_numpy()
        offsets = np.empty(rows + 1, np.int64)
        firsts -= begin
        kernel = columns.columns.kernel
        data = np.empty(measure_packed(kernel, present, firsts, counts, offsets), np.uint8)
        pack_lists(kernel, present, firsts, counts, offsets, data)
        validity = valid.buffers()[1] if array.null_count else None
        buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(data)]
        return [pa.Array.from_buffers(pa.large_binary(), rows, buffers, array.null_count)]

    def _ranges(self, array: pa.Array) -> tuple[_I64, _I64]:
        """Each row's first item in `array.values`, and how many it has; none where it is null."""
        rows = len(array)
        if self._fixed is not None:
            firsts = (array.offset + np.arange(rows, dtype=np.int64)) * self._fixed
            counts = np.full(rows, self._fixed, np.int64)
        elif self._is_view:
            firsts = array.offsets.to_numpy().astype(np.int64)
            counts = array.sizes.to_numpy().astype(np.int64)
        else:
            offsets = array.offsets.to_numpy().astype(np.int64)
            firsts, counts = offsets[:-1], np.diff(offsets)
        if array.null_count:
            counts[array.is_null().to_numpy(zero_copy_only=False)] = 0
        return firsts, counts

    def decode(self, leaves: list[pa.Array], length: int) -> pa.Array:
        (packed,) = leaves
        validity, places, data = packed.buffers()
        starts = np.frombuffer(places, np.int64, length + 1, 8 * packed.offset)
        raw = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
        starts, raw = read_only(starts), read_only(raw)
        widths = np.array([leaf.width_bytes for leaf in self._leaves], np.int64)
        offsets = np.empty(length + 1, np.int64)
        any_null, totals = np.zeros(len(widths), np.uint8), np.zeros(len(widths), np.int64)
        count = int(
            measure_unpacked(raw, starts, widths, self._fixed or 0, offsets, any_null, totals)
        )
        self._check_offsets(count, totals)
        values = [
            np.empty(count * leaf.width_bytes if leaf.width_bytes else 8 * (count + 1), np.uint8)
            for leaf in self._leaves
        ]
        texts = [np.empty(total, np.uint8) for total in totals.tolist()]
        valid = [np.full((count + 7) // 8 if some else 0, 255, np.uint8) for some in any_null]
        unpack_lists(
            raw,
            starts,
            widths,
            offsets,
            _addresses(values),
            _addresses(texts),
            _addresses(valid) * (any_null != 0),
        )
        arrays = [
            _leaf_array(*parts, count)
            for parts in zip(self._leaves, values, texts, valid, strict=True)
        ]
        children, at = [], 0
        for codec in self._items:
            children.append(codec.decode(arrays[at : at + len(codec.leaves)], count))
            at += len(codec.leaves)
        return self._assemble(validity, packed.null_count, offsets, children, length)

    def _assemble(
        self,
        validity: pa.Buffer | None,
        null_count: int,
        offsets: _I64,
        children: list[pa.Array],
        length: int,
    ) -> pa.Array:
        items = children[0]
        if self._is_map:
            entries = self.type.field(0).type
            items = pa.Array.from_buffers(entries, len(items), [None], 0, children=children)
        places = offsets if self._is_wide else offsets.astype(np.int32)
        buffers = [validity if null_count else None]
        if self._is_view:
            buffers += [pa.py_buffer(places[:-1].copy()), pa.py_buffer(np.diff(places))]
        elif self._fixed is None:
            buffers.append(pa.py_buffer(places))
        return pa.Array.from_buffers(self.type, length, buffers, null_count, children=[items])

    def _check_offsets(self, count: int, totals: _I64) -> None:
        """Arrow's plain lists and strings count up to 2^31 in one batch."""
        narrow = [
            int(total)
            for leaf, total in zip(self._leaves, totals, strict=True)
            if leaf.is_bytes and not leaf.is_wide
        ]
        most = max([0 if self._is_wide or self._fixed is not None else count, *narrow])
        if most > MOST_NARROW:
            raise SchemaError(
                f"the lists of one batch of results hold {most} items or bytes; {self.type} takes "
                f"{MOST_NARROW}",
                hint="give the join less memory, which makes its batches smaller, or use "
                "large_list and large_string",
            )


def _addresses(arrays: list[npt.NDArray[np.uint8]]) -> _I64:
    return np.array([array.ctypes.data for array in arrays], np.int64)


def _leaf_array(
    leaf: Leaf,
    values: npt.NDArray[np.uint8],
    text: npt.NDArray[np.uint8],
    valid: npt.NDArray[np.uint8],
    count: int,
) -> pa.Array:
    validity = pa.py_buffer(valid) if len(valid) else None
    if not leaf.is_bytes:
        return pa.Array.from_buffers(leaf.type, count, [validity, pa.py_buffer(values)])
    places = values.view(np.int64)
    offsets = places if leaf.is_wide else places.astype(np.int32)
    buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(text)]
    return pa.Array.from_buffers(leaf.type, count, buffers)
