"""Tables of TPC-H, made by `tpchgen-cli` and read from its output while it writes.

The papers join LineItem with Part (SSIJ) and Orders with Customer (lookup element, SSBJ). The
standard draws both foreign keys uniformly (and no order is of a customer whose number divides by
three), so that skew, where it is wanted, is put in their place.

The program holds the text of which the standard cuts its comments: 340 MB, at every scale, in a
process of its own. This process stays below 200 MB as with all other workloads.
"""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
from collections.abc import Iterator
from typing import IO

import pyarrow as pa
import pyarrow.csv as pa_csv

from semistream.core.errors import OptionError, SourceError, unknown_name
from semistream.workloads.permutation import permute
from semistream.workloads.zipf import zipf_ranks

PROGRAM = "tpchgen-cli"
BLOCK_BYTES = 1 << 20

_KEY, _WHOLE, _MONEY = pa.int64(), pa.int32(), pa.decimal128(15, 2)
_TEXT, _DATE = pa.string(), pa.date32()

TABLES = {
    "part": {
        "p_partkey": _KEY,
        "p_name": _TEXT,
        "p_mfgr": _TEXT,
        "p_brand": _TEXT,
        "p_type": _TEXT,
        "p_size": _WHOLE,
        "p_container": _TEXT,
        "p_retailprice": _MONEY,
        "p_comment": _TEXT,
    },
    "customer": {
        "c_custkey": _KEY,
        "c_name": _TEXT,
        "c_address": _TEXT,
        "c_nationkey": _WHOLE,
        "c_phone": _TEXT,
        "c_acctbal": _MONEY,
        "c_mktsegment": _TEXT,
        "c_comment": _TEXT,
    },
    "orders": {
        "o_orderkey": _KEY,
        "o_custkey": _KEY,
        "o_orderstatus": _TEXT,
        "o_totalprice": _MONEY,
        "o_orderdate": _DATE,
        "o_orderpriority": _TEXT,
        "o_clerk": _TEXT,
        "o_shippriority": _WHOLE,
        "o_comment": _TEXT,
    },
    "lineitem": {
        "l_orderkey": _KEY,
        "l_partkey": _KEY,
        "l_suppkey": _KEY,
        "l_linenumber": _WHOLE,
        "l_quantity": _MONEY,
        "l_extendedprice": _MONEY,
        "l_discount": _MONEY,
        "l_tax": _MONEY,
        "l_returnflag": _TEXT,
        "l_linestatus": _TEXT,
        "l_shipdate": _DATE,
        "l_commitdate": _DATE,
        "l_receiptdate": _DATE,
        "l_shipinstruct": _TEXT,
        "l_shipmode": _TEXT,
        "l_comment": _TEXT,
    },
}
"""Columns of the tables that the papers use; none has nulls."""

SCALE_1_ROWS = {"part": 200_000, "customer": 150_000, "orders": 1_500_000, "lineitem": 6_001_215}
"""Rows at scale factor 1; those of LineItem vary a little with the scale."""


def tpch_schema(table: str) -> pa.Schema:
    """The columns of a table."""
    if table not in TABLES:
        raise unknown_name("TPC-H table", table, TABLES)
    return pa.schema([pa.field(name, type_, False) for name, type_ in TABLES[table].items()])


def tpch_table(table: str, scale: float, *, rows: int | None = None) -> pa.RecordBatchReader:
    """A table at a scale factor, which may be a fraction, or its first `rows` rows."""
    schema = tpch_schema(table)
    if not 0 < scale < float("inf"):
        raise OptionError(f"the scale factor is {scale}", hint="give a number above 0")
    return pa.RecordBatchReader.from_batches(schema, _made(table, schema, scale, rows))


def with_skew(
    reader: pa.RecordBatchReader, column: str, *, keys: int, skew: float, seed: int
) -> pa.RecordBatchReader:
    """The same rows with Zipf-distributed keys of 1..keys in `column`, scattered over them."""
    index = reader.schema.get_field_index(column)

    def batches() -> Iterator[pa.RecordBatch]:
        begin = 0
        for batch in reader:
            ranks = zipf_ranks(keys, skew, batch.num_rows, seed, start=begin) - 1
            drawn = pa.array(permute(ranks, keys, seed) + 1)
            yield batch.set_column(index, reader.schema.field(index), drawn)
            begin += batch.num_rows

    return pa.RecordBatchReader.from_batches(reader.schema, batches())


def _program() -> str:
    # Beside this interpreter first: a program in an environment that is not activated.
    found = shutil.which(PROGRAM, path=sysconfig.get_path("scripts")) or shutil.which(PROGRAM)
    if found is None:
        raise SourceError(
            f"TPC-H's tables are made by {PROGRAM}, which is not installed",
            hint="pip install 'semistream[workloads]'",
        )
    return found


def _made(
    table: str, schema: pa.Schema, scale: float, rows: int | None
) -> Iterator[pa.RecordBatch]:
    if rows == 0:
        return
    # One thread: rows come in the order of the table, and little is held back.
    command = [_program(), "csv", "--stdout", "--tables", table, "--scale-factor", f"{scale:.9f}"]
    command += ["--num-threads", "1", "--quiet"]
    left = rows
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            for batch in _parsed(process.stdout, schema):
                part = batch if left is None else batch.slice(0, left)
                yield part
                if left is not None:
                    left -= part.num_rows
                    if left == 0:
                        return
        except pa.ArrowInvalid as error:
            said = process.stderr.read().decode(errors="replace").strip()
            raise SourceError(f"{PROGRAM} failed for {table}: {said or error}") from error
        finally:
            process.kill()  # whoever reads the table may not want the rest of it
    if left is not None:
        raise OptionError(
            f"{table} at scale factor {scale:g} has {(rows or 0) - left} rows, and {rows} "
            "are wanted",
            hint="raise the rows of the master, by which the scale factor is chosen",
        )


def _parsed(pipe: IO[bytes], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of a pipe, block by block.

    Arrow's own reader of a stream reads ahead in a thread, which calls back into Python; where
    the program ends before the table does, that thread meets an interpreter that is gone, and
    the process aborts.
    """
    convert = pa_csv.ConvertOptions(column_types=schema, strings_can_be_null=False, null_values=[])
    names: list[str] | None = None  # the first block begins with them
    rest = b""
    while block := pipe.read(BLOCK_BYTES):
        text = rest + block
        end = text.rfind(b"\n") + 1  # no text of the standard has a line break
        rest = text[end:]
        read = pa_csv.ReadOptions(use_threads=False, column_names=names)
        table = pa_csv.read_csv(pa.py_buffer(text[:end]), read, convert_options=convert)
        yield from table.cast(schema).combine_chunks().to_batches()
        names = schema.names
    if names is None:
        raise pa.ArrowInvalid("it wrote nothing")


def scale_of(table: str, rows: int) -> float:
    """The scale factor at which a table has so many rows."""
    if rows < 1:
        raise OptionError(f"a master of {rows} rows has no keys", hint="give at least 1")
    # The generator cuts fractions of rows off, also those that come from the scale's own digits.
    return (rows + 0.25) / SCALE_1_ROWS[table]
