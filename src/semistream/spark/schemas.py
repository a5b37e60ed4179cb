"""Spark's schemas and Arrow's: what comes from a DataFrame, and what goes back into one."""

from __future__ import annotations

import pyarrow as pa
from pyspark.errors import PySparkTypeError
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from semistream.core.errors import SchemaError

_WIDER = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.date64(): pa.date32(),
    pa.string_view(): pa.string(),
    pa.binary_view(): pa.binary(),
}
"""Types that Spark lacks, and the next one that holds all their values."""

_ZONE = "UTC"
"""Timestamps with a zone are moments; the zone in which they are shown is the session's affair."""


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema in which a DataFrame's rows reach a Python worker."""
    try:
        return to_arrow_schema(schema, timezone=_ZONE)
    except PySparkTypeError as error:
        raise SchemaError(
            f"the stream has a column that does not go through Arrow: {error}",
            hint="drop or cast it before enrich",
        ) from error


def spark_schema(schema: pa.Schema) -> tuple[StructType, pa.Schema]:
    """The DataFrame schema of Arrow results, and the Arrow schema in which Spark takes them."""
    fields = [field.with_type(_spark_type(field)).remove_metadata() for field in schema]
    try:
        as_spark = from_arrow_schema(pa.schema(fields))
    except PySparkTypeError as error:
        raise SchemaError(
            f"Spark has no type for a column of the master: {error}",
            hint="leave it out by columns=",
        ) from error
    return as_spark, to_arrow_schema(as_spark, timezone=_ZONE)


def _spark_type(field: pa.Field) -> pa.DataType:
    type_ = field.type
    if pa.types.is_dictionary(type_):
        type_ = type_.value_type
    if pa.types.is_timestamp(type_) and type_.unit == "ns":
        raise SchemaError(
            f"column {field.name!r} has timestamps in nanoseconds, and Spark's have microseconds",
            hint="build the master with microseconds, or leave the column out by columns=",
        )
    if pa.types.is_time(type_):
        return pa.time64("ns")
    return _WIDER.get(type_, type_)


def shaped(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """A batch in exactly this schema; columns of other types are cast, without loss."""
    if batch.schema.equals(schema):
        return batch
    if batch.schema.names != schema.names:
        raise SchemaError(
            f"a batch has the columns {', '.join(batch.schema.names)}, where "
            f"{', '.join(schema.names)} were promised",
            hint="restart the query with the new schema",
        )
    columns = [
        column if column.type.equals(field.type) else _cast(column, field)
        for column, field in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _cast(column: pa.Array, field: pa.Field) -> pa.Array:
    try:
        return column.cast(field.type)
    except pa.ArrowException as error:
        raise SchemaError(
            f"column {field.name!r} came as {column.type}, where {field.type} was promised: "
            f"{str(error).splitlines()[0]}",
            hint="restart the query with the new schema",
        ) from error
