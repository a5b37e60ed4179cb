"""The papers' workloads by name: a master, and a stream that is joined with it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from semistream.core.errors import OptionError, unknown_name
from semistream.workloads.arrivals import Arrivals
from semistream.workloads.products import (
    Placement,
    products,
    products_of_k,
    repeated_products,
    sales,
)
from semistream.workloads.tpch import SCALE_1_ROWS, scale_of, tpch_table, with_skew
from semistream.workloads.weather import cloud_reports, stand_in_reports

MASTER_ROWS = 1_000_000
"""Rows of a master unless told otherwise."""

PARTNERS = 320
"""Master rows per value in the SSIJ paper: 80 M rows over 250,000 values."""

_STREAM_SEED = 1
"""Added to the seed of a master for that of its stream: draws of both are independent."""


@dataclass(frozen=True)
class Workload:
    """A master and a stream, both made batch by batch and always the same for the same options.

    `master()` reads the master from its beginning, `stream(rows)` the first rows of the stream;
    both can be called as often as wanted. They are joined on `stream_key` = `master_key`. No
    workload adds more than 200 MB to this process while it is read.
    """

    name: str
    description: str
    master_key: str
    stream_key: str
    master_rows: int
    """Rows of the master; for files, unknown and 0."""
    master: Callable[[], pa.RecordBatchReader]
    stream: Callable[[int], pa.RecordBatchReader]


def make_workload(name: str, **options: Any) -> Workload:
    """A workload by its name. `WORKLOADS` has their makers, whose arguments are the options."""
    if name not in WORKLOADS:
        raise unknown_name("workload", name, WORKLOADS)
    known = workload_options(name)
    for option in options:
        if option not in known:
            raise unknown_name(f"option of workload {name}", option, known)
    return WORKLOADS[name](**options)


def workload_options(name: str) -> dict[str, Any]:
    """The options of a workload and their defaults."""
    parameters = inspect.signature(WORKLOADS[name]).parameters
    return {option: parameter.default for option, parameter in parameters.items()}


def workload_idea(name: str) -> str:
    """What a workload is, in one line."""
    return (WORKLOADS[name].__doc__ or "").splitlines()[0]


def _sold(
    name: str,
    description: str,
    master: Callable[[], pa.RecordBatchReader],
    master_rows: int,
    *,
    ids: int,
    skew: float,
    placement: Placement,
    seed: int,
) -> Workload:
    """A master of products and a stream of sales."""

    def stream(rows: int) -> pa.RecordBatchReader:
        return sales(rows, products=ids, skew=skew, placement=placement, seed=seed + _STREAM_SEED)

    stream(0)  # raises for options that make no sense
    return Workload(name, description, "product_id", "product_id", master_rows, master, stream)


def unsorted(*, master_rows: int = MASTER_ROWS, skew: float = 1.0, seed: int = 0) -> Workload:
    """Unique keys, Zipf stream, hot keys scattered over the master (MESHJOIN; thesis; "Random")."""
    return _sold(
        "unsorted",
        f"{master_rows:,} products, each once; sales with Zipf exponent {skew:g}, scattered",
        lambda: products(master_rows, seed=seed),
        master_rows,
        ids=master_rows,
        skew=skew,
        placement="random",
        seed=seed,
    )


def frequency_sorted(
    *, master_rows: int = MASTER_ROWS, skew: float = 1.0, seed: int = 0
) -> Workload:
    """Unique keys, Zipf stream, master sorted by their frequency (thesis; "NoPerm")."""
    return _sold(
        "sorted",
        f"{master_rows:,} products, the most sold ones first; sales with Zipf exponent {skew:g}",
        lambda: products(master_rows, seed=seed, shuffled=False),
        master_rows,
        ids=master_rows,
        skew=skew,
        placement="rank",
        seed=seed,
    )


def many_to_many(
    *,
    master_rows: int = MASTER_ROWS,
    values: int | None = None,
    skew: float = 1.0,
    master_skew: float = 0.0,
    placement: Placement = "random",
    seed: int = 0,
) -> Workload:
    """Master keys drawn with repetition: duplicates, and keys without a partner (SSBJ)."""
    domain = master_rows if values is None else values
    return _sold(
        "many-to-many",
        f"{master_rows:,} rows drawn from {domain:,} keys with exponent {master_skew:g}; "
        f"sales with exponent {skew:g}, placed by {placement}",
        lambda: repeated_products(master_rows, ids=domain, skew=master_skew, seed=seed),
        master_rows,
        ids=domain,
        skew=skew,
        placement=placement,
        seed=seed,
    )


def few_values(
    *,
    master_rows: int = MASTER_ROWS,
    skew: float = 1.0,
    placement: Placement = "rank",
    seed: int = 0,
) -> Workload:
    """Uniform master with about 320 rows per value, Zipf stream (SSIJ's synthetic data)."""
    values = _values(master_rows)
    return _sold(
        "few-values",
        f"{master_rows:,} rows uniform over {values:,} values; sales with exponent {skew:g}, "
        f"placed by {placement}",
        lambda: repeated_products(master_rows, ids=values, seed=seed),
        master_rows,
        ids=values,
        skew=skew,
        placement=placement,
        seed=seed,
    )


def one_to_k(
    *, master_rows: int = MASTER_ROWS, k: int = 1, skew: float = 1.0, seed: int = 0
) -> Workload:
    """Every key exactly k times in the master, hot keys first (SSIJ's 1:K)."""
    ids = master_rows // max(k, 1)
    if k < 1 or ids < 1:
        raise OptionError(f"{master_rows} rows with each key {k} times are not possible")
    return _sold(
        "one-to-k",
        f"{ids:,} keys, each {k} times; sales with exponent {skew:g}, small keys sold most",
        lambda: products_of_k(ids, k, seed=seed),
        ids * k,
        ids=ids,
        skew=skew,
        placement="rank",
        seed=seed,
    )


def locality(*, master_rows: int = MASTER_ROWS, skew: float = 1.0, seed: int = 0) -> Workload:
    """The stream asks for one twentieth of the keys at a time, then for the next (SSIJ)."""
    values = max(master_rows // 16, 1)
    return _sold(
        "locality",
        f"{master_rows:,} rows uniform over {values:,} values; sales with exponent {skew:g} "
        "within a twentieth of the values, which moves on",
        lambda: repeated_products(master_rows, ids=values, seed=seed),
        master_rows,
        ids=values,
        skew=skew,
        placement="moving",
        seed=seed,
    )


def uniform(*, master_rows: int = MASTER_ROWS, seed: int = 0) -> Workload:
    """Both sides uniform over few values: the comparison with database systems (SSIJ)."""
    values = _values(master_rows)
    return _sold(
        "uniform",
        f"{master_rows:,} rows and a stream, both uniform over {values:,} values",
        lambda: repeated_products(master_rows, ids=values, seed=seed),
        master_rows,
        ids=values,
        skew=0.0,
        placement="rank",
        seed=seed,
    )


def bursty(
    *,
    master_rows: int = MASTER_ROWS,
    skew: float = 1.0,
    rate: float = 1000.0,
    pareto: float | None = None,
    seed: int = 0,
) -> Workload:
    """As unsorted, with the moments at which rows arrive, in self-similar bursts (thesis).

    The stream has a column `arrival_ns` more: nanoseconds from the beginning. `pareto` below 2
    makes bursts of every length.
    """
    plain = unsorted(master_rows=master_rows, skew=skew, seed=seed)
    arrivals = Arrivals(rate, bursty=True, pareto=pareto, seed=seed + _STREAM_SEED)
    moment = pa.field("arrival_ns", pa.int64(), False)

    def stream(rows: int) -> pa.RecordBatchReader:
        reader = plain.stream(rows)

        def batches() -> Iterator[pa.RecordBatch]:
            for batch in reader:
                # A row has arrived when there is one row more than those before it.
                moments = arrivals.moments_of(batch.column("sale_id").to_numpy() + 1)
                yield batch.append_column(moment, pa.array(moments))

        return pa.RecordBatchReader.from_batches(reader.schema.append(moment), batches())

    tail = "" if pareto is None else f", Pareto exponent {pareto:g}"
    return Workload(
        "bursty",
        f"{plain.description}; {rate:g} a second on average, in bursts{tail}",
        plain.master_key,
        plain.stream_key,
        plain.master_rows,
        plain.master,
        stream,
    )


def _tpch(
    name: str, master: tuple[str, str], stream: tuple[str, str], rows: int, skew: float, seed: int
) -> Workload:
    scale = scale_of(master[0], rows)

    def streamed(wanted: int) -> pa.RecordBatchReader:
        reader = tpch_table(stream[0], scale, rows=wanted)
        if skew:
            reader = with_skew(reader, stream[1], keys=rows, skew=skew, seed=seed)
        return reader

    most = round(SCALE_1_ROWS[stream[0]] * scale)
    keys = f"Zipf exponent {skew:g} put into {stream[1]}" if skew else "keys as in the standard"
    return Workload(
        name,
        f"TPC-H at scale factor {scale:g}: {master[0]}, and up to about {most:,} rows of "
        f"{stream[0]}, {keys}",
        master[1],
        stream[1],
        rows,
        lambda: tpch_table(master[0], scale),
        streamed,
    )


def tpch_part(*, master_rows: int = 200_000, skew: float = 0.0, seed: int = 0) -> Workload:
    """TPC-H: LineItem with Part (SSIJ); with a skew, Zipf keys instead of uniform."""
    ends = ("part", "p_partkey"), ("lineitem", "l_partkey")
    return _tpch("tpch-part", *ends, master_rows, skew, seed)


def tpch_customer(*, master_rows: int = 150_000, skew: float = 0.0, seed: int = 0) -> Workload:
    """TPC-H: Orders with Customer (lookup element, SSBJ); with a skew, Zipf keys instead."""
    ends = ("customer", "c_custkey"), ("orders", "o_custkey")
    return _tpch("tpch-customer", *ends, master_rows, skew, seed)


def weather(
    *,
    master_rows: int = MASTER_ROWS,
    row_bytes: int = 128,
    reports: Sequence[str | Path] = (),
    seed: int = 0,
) -> Workload:
    """Cloud reports by longitude: a stand-in for NDP-026B, or its files if they are given.

    The MESHJOIN paper has `row_bytes=32`. With files in `reports`, both sides read them.
    """
    if reports:
        return Workload(
            "weather",
            f"cloud reports of NDP-026B from {len(reports)} files",
            "longitude",
            "longitude",
            0,
            lambda: cloud_reports(reports),
            lambda rows: _first(cloud_reports(reports), rows),
        )

    def made(rows: int, its_seed: int) -> pa.RecordBatchReader:
        return stand_in_reports(rows, seed=its_seed, row_bytes=row_bytes)

    made(0, seed)  # raises for options that make no sense
    return Workload(
        "weather",
        f"STAND-IN for the cloud reports of NDP-026B: {master_rows:,} made-up reports of "
        f"{row_bytes} bytes, stations crowded as on a map",
        "longitude",
        "longitude",
        master_rows,
        lambda: made(master_rows, seed),
        lambda rows: made(rows, seed + _STREAM_SEED),
    )


def _first(reader: pa.RecordBatchReader, rows: int) -> pa.RecordBatchReader:
    def batches() -> Iterator[pa.RecordBatch]:
        left = rows
        for batch in reader:
            if left <= 0:
                return
            yield batch.slice(0, left)
            left -= batch.num_rows

    return pa.RecordBatchReader.from_batches(reader.schema, batches())


def _values(master_rows: int) -> int:
    return max(master_rows // PARTNERS, 1)


WORKLOADS: dict[str, Callable[..., Workload]] = {
    "unsorted": unsorted,
    "sorted": frequency_sorted,
    "many-to-many": many_to_many,
    "few-values": few_values,
    "one-to-k": one_to_k,
    "locality": locality,
    "uniform": uniform,
    "bursty": bursty,
    "tpch-part": tpch_part,
    "tpch-customer": tpch_customer,
    "weather": weather,
}
"""Makers of workloads by name."""
