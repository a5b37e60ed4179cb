"""How a stream and a master fit together: key columns, layouts, and the output's schema."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa

from semistream.core.conditions import Condition
from semistream.core.errors import OptionError, SchemaError, unknown_name
from semistream.core.join import HOWS
from semistream.kernels.jit import read_only
from semistream.kernels.struct import Struct
from semistream.store.file import FileMaster
from semistream.store.keys import Keys, KeySpec, check_key_type
from semistream.store.layout import PackedColumns, RowLayout

On = str | Sequence[str] | Mapping[str, str]

_HIDDEN = "\0key "


NUMBER_BYTES, HASHED_BYTES = 2, 24
"""What a key takes beside its batch: as a number, and as a hash."""


@dataclass(frozen=True)
class Binding:
    """A stream's schema bound to a master, for one kind of join.

    `layout` packs the stream's rows, key columns first in the master's order and types. Where a
    stream's key column has another type whose values might not survive the cast, the cast key
    is an extra, hidden column and the original is carried along. Without `on` the condition alone
    decides; then there is no key, and the master's key is a column like others. `mark` names a
    last column of the results of a left join, which tells whether a row has met a partner.
    """

    stream_schema: pa.Schema
    key_names: tuple[str, ...]
    spec: KeySpec
    how: str
    layout: RowLayout
    master_layout: RowLayout
    columns: tuple[str, ...]
    output_schema: pa.Schema
    exact: tuple[bool, ...]
    condition: Condition | None = None
    mark: str | None = None

    @classmethod
    def of(
        cls,
        schema: pa.Schema,
        master: FileMaster,
        on: On | None,
        how: str,
        columns: Sequence[str] | None,
        condition: Condition | None = None,
        mark: str | None = None,
    ) -> Binding:
        """Check that everything fits; each error names the column and what was wanted."""
        if how not in HOWS:
            raise OptionError(f"how={how!r} is not a kind of join", hint=f"use {', '.join(HOWS)}")
        if len(set(schema.names)) != len(schema.names):
            raise SchemaError("the stream has two columns of one name", hint="rename one of them")
        spec = master.spec
        if condition is not None:
            _check_condition(condition, schema, master.schema)
        elif on is None:
            raise OptionError(
                "the join has neither on= nor condition=",
                hint=f"write on={spec.names[0]!r}, or a condition such as ss.between(...)",
            )
        key_names = () if on is None else _key_names(schema, spec, on)
        exact = []
        fields = []
        for name, wanted in zip(key_names, spec.schema, strict=False):
            came = schema.field(name).type
            check_key_type(name, came, wanted)
            exact.append(_is_exact(came, wanted.type))
            fields.append(pa.field(name if exact[-1] else _HIDDEN + name, wanted.type))
        in_place = {name for name, same in zip(key_names, exact, strict=True) if same}
        fields += [field for field in schema if field.name not in in_place]
        folded = fields[0].name if key_names and spec.folded is not None else None
        left_out = spec.names if key_names else []
        chosen = _chosen(master.schema, left_out, columns) if how in ("inner", "left") else ()
        output = _output_schema(schema, master.schema, chosen, how)
        if mark is not None:
            _check_mark(mark, how, output, chosen)
            output = output.append(pa.field(mark, pa.bool_(), nullable=False))
        return cls(
            stream_schema=schema,
            key_names=key_names,
            spec=spec,
            how=how,
            layout=RowLayout.of(pa.schema(fields), prefix=True, folded=folded),
            master_layout=master.layout if condition is None else _keyed(master),
            columns=chosen,
            output_schema=output,
            exact=tuple(exact),
            condition=condition,
            mark=mark,
        )

    @property
    def key_bytes(self) -> int:
        """What the key of a row takes beside its batch, while it is made ready."""
        return NUMBER_BYTES if self.spec.is_number else HASHED_BYTES

    def keys(self, batch: pa.RecordBatch) -> tuple[Keys, PackedColumns]:
        """key64 of a batch's rows, and its columns for kernels."""
        if not batch.schema.equals(self.stream_schema):
            raise SchemaError(
                f"a batch has the columns {_listed(batch.schema)}, the join was made for "
                f"{_listed(self.stream_schema)}",
                hint="make a new join for the new schema",
            )
        if not self.key_names:
            rows = batch.num_rows
            keys = Keys(read_only(np.zeros(rows, np.int64)), read_only(np.ones(rows, np.uint8)), 0)
            return keys, self.layout.columns(batch.columns)
        columns = batch.columns
        key_columns = self.spec.cast([columns[i] for i in self._key_at], self.key_names)
        others = [columns[i] for i in self._others_at]
        return self.spec.keys(key_columns), self.layout.columns(key_columns + others)

    @cached_property
    def _key_at(self) -> list[int]:
        """Where a batch has the key's columns."""
        return [self.stream_schema.get_field_index(name) for name in self.key_names]

    @cached_property
    def _others_at(self) -> list[int]:
        """Where a batch has the columns that follow the key's in the layout."""
        names = self.layout.schema.names[len(self.key_names) :]
        return [self.stream_schema.get_field_index(name) for name in names]

    @cached_property
    def _given(self) -> list[tuple[int, pa.DataType]]:
        """For each of the stream's columns its place in the layout, and its type."""
        place = self.layout.schema.get_field_index
        return [(place(field.name), field.type) for field in self.stream_schema]

    def stream_columns(self, columns: Sequence[pa.Array]) -> list[pa.Array]:
        """The stream's columns, in its order and types, from columns in the layout's order."""
        return [as_given(columns[place], given) for place, given in self._given]

    def stream_only(self) -> Binding:
        """The same stream with none of the master's columns."""
        return replace(self, columns=(), output_schema=self.stream_schema, mark=None)

    def numbered(self, name: str) -> Binding:
        """The same with a number behind the stream's columns, in rows and in results."""
        number = pa.field(name, pa.int64())
        columns = len(self.stream_schema)
        return replace(
            self,
            stream_schema=self.stream_schema.append(number),
            layout=RowLayout.of(
                self.layout.schema.append(number), prefix=True, folded=self.layout.folded
            ),
            output_schema=self.output_schema.insert(columns, number),
        )

    def key_fields(self, layout: RowLayout) -> Struct:
        """How to read the key from records of a layout whose first columns are the key's."""
        if self.spec.is_number or not self.key_names:
            return no_fields(layout)
        return layout.fields(layout.schema.names[: len(self.spec.names)])


def no_fields(layout: RowLayout) -> Struct:
    """Fields that read nothing from a record."""
    fields = layout.fields(())
    fields.strings = 0
    return fields


def as_given(column: pa.Array, type_: pa.DataType) -> pa.Array:
    """A column of the stream in the type in which the stream has it."""
    if column.type == type_:
        return column
    if pa.types.is_dictionary(type_):
        encoded = column.cast(type_.value_type).dictionary_encode()
        return pa.DictionaryArray.from_arrays(
            encoded.indices.cast(type_.index_type), encoded.dictionary, ordered=type_.ordered
        )
    return column.cast(type_)


def _is_exact(came: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether every value of the stream's type survives the way to the master's and back."""
    if came == wanted:
        return True
    kinds = pa.types
    if kinds.is_integer(came) and kinds.is_integer(wanted):
        if kinds.is_signed_integer(came) == kinds.is_signed_integer(wanted):
            return bool(came.bit_width <= wanted.bit_width)
        return bool(kinds.is_signed_integer(wanted) and came.bit_width < wanted.bit_width)
    texts = (pa.string(), pa.large_string(), pa.string_view())
    blobs = (pa.binary(), pa.large_binary(), pa.binary_view())
    return (came in texts and wanted in texts) or (came in blobs and wanted in blobs)


def _key_names(schema: pa.Schema, spec: KeySpec, on: On) -> tuple[str, ...]:
    """The stream's key columns in the order of the master's key."""
    if isinstance(on, Mapping):
        pairs = {master: stream for stream, master in on.items()}
        if len(pairs) < len(on):
            raise OptionError(
                f"on={dict(on)!r} compares a column of the master with two of the stream",
                hint="name each of the master's key columns once",
            )
    elif not isinstance(on, Iterable):
        raise OptionError(
            f"on={on!r} names no columns",
            hint='write on="customer_id", a list of names, or {stream column: master column}',
        )
    else:
        names = [on] if isinstance(on, str) else list(on)
        pairs = {name: name for name in names}
    for name in pairs:
        if name not in spec.names:
            raise unknown_name(
                f"key column of the master (its key is {', '.join(spec.names)})", name, spec.names
            )
    missing = [name for name in spec.names if name not in pairs]
    if missing:
        raise OptionError(
            f"the join names no stream column for the master's key column {missing[0]!r}",
            hint=f"the key is ({', '.join(spec.names)}): name all of it in on=",
        )
    for stream in pairs.values():
        if stream not in schema.names:
            raise unknown_name("column in the stream", stream, schema.names)
    return tuple(pairs[name] for name in spec.names)


def _chosen(
    schema: pa.Schema, left_out: Sequence[str], columns: Sequence[str] | None
) -> tuple[str, ...]:
    payload = [name for name in schema.names if name not in left_out]
    if columns is None:
        return tuple(payload)
    for name in columns:
        if name not in schema.names:
            raise unknown_name("column in the master", name, payload)
    # Asking for the key is fine: the stream brings it.
    return tuple(name for name in columns if name not in left_out)


def _check_mark(mark: str, how: str, output: pa.Schema, chosen: Sequence[str]) -> None:
    if how != "left":
        raise OptionError(
            f"mark={mark!r} is for left joins, and how={how!r}",
            hint='use how="left": only there rows without a partner come out beside others',
        )
    if mark in output.names:
        raise OptionError(f"mark={mark!r} is a column of the results already", hint="rename it")
    if not chosen:
        raise OptionError(
            "mark= needs a column of the master among the results", hint="choose one in columns="
        )


def _check_condition(condition: Condition, schema: pa.Schema, master: pa.Schema) -> None:
    if not isinstance(condition, Condition):
        raise OptionError(
            f"the condition is a {type(condition).__name__}",
            hint="write ss.between, ss.compare, ss.band or ss.predicate, joined with &",
        )
    condition.check(schema, master)


def _keyed(master: FileMaster) -> RowLayout:
    """How a master's records lie in the blocks that conditions look at: with their key64."""
    folded = master.spec.folded
    return master.layout.prefixed(None if folded is None else master.spec.schema.field(folded))


def _output_schema(
    schema: pa.Schema, master: pa.Schema, chosen: Sequence[str], how: str
) -> pa.Schema:
    fields = list(schema)
    taken = set(schema.names)
    for name in chosen:
        out = name
        while out in taken:
            out += "_master"
        taken.add(out)
        field = master.field(name).with_name(out)
        fields.append(field.with_nullable(True) if how == "left" else field)
    return pa.schema(fields)


def _listed(schema: pa.Schema) -> str:
    # Names that begin with a zero byte are our own.
    return ", ".join(f"{field.name} {field.type}" for field in schema if field.name[:1] != "\0")
