"""Cloud reports joined by longitude: the real ones where there are files, else a stand-in.

The papers join months of the archive NDP-026B (C. J. Hahn, S. G. Warren and J. London, "Edited
Synoptic Cloud Reports from Ships and Land Stations Over the Globe, 1982-1991", ORNL/CDIAC-77, 1996)
on the longitude, a whole number of hundredths of a degree. `cloud_reports` reads its files.

`stand_in_reports` makes reports that are **not** the archive's: some thousand stations at fixed
places, crowded where people live, report up to eight times a day, and ships report from anywhere
at a tenth of a degree. So some longitudes occur very often and most hardly or never, as on a map.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from semistream.core.errors import BadRowError, OptionError, SourceError
from semistream.workloads.zipf import zipf_ranks

LONGITUDES = 36_001
"""Values of the join attribute: 0 to 36000 hundredths of a degree, east of Greenwich."""

STATIONS = 7_000
REPORTS_PER_DAY = (8, 8, 8, 4, 4, 2)
"""How often stations report; each of these is as frequent as the others."""

SHIP_SHARE = 0.12
"""Of all reports."""

_REGIONS = (
    # longitude and latitude of the middle in degrees, their spread, share of the stations
    (12.0, 49.0, 14.0, 7.0, 0.27),  # Europe
    (45.0, 54.0, 16.0, 7.0, 0.10),  # Russia, west of the Urals
    (85.0, 55.0, 26.0, 8.0, 0.09),  # Siberia and central Asia
    (80.0, 22.0, 8.0, 7.0, 0.06),  # India
    (112.0, 31.0, 11.0, 8.0, 0.12),  # China
    (137.0, 36.0, 5.0, 4.0, 0.05),  # Japan and Korea
    (112.0, 2.0, 15.0, 9.0, 0.04),  # South East Asia
    (22.0, 2.0, 18.0, 17.0, 0.08),  # Africa
    (144.0, -30.0, 12.0, 7.0, 0.04),  # Australia
    (265.0, 40.0, 16.0, 8.0, 0.11),  # North America
    (298.0, -20.0, 11.0, 14.0, 0.04),  # South America
)

_SLOTS = 1 << 16

RECORD_CHARACTERS = 56

_FIELDS = {
    "date": 8,  # year (without the century), month, day, hour
    "sky_brightness": 1,
    "latitude": 5,  # hundredths of a degree
    "longitude": 5,
    "station": 5,  # or the deck of a ship's report
    "land_or_ocean": 1,
    "present_weather": 2,
    "total_cover": 1,  # eighths
    "lower_amount": 2,
    "lower_base_height": 2,
    "low_type": 2,
    "middle_type": 2,
    "high_type": 2,
    "middle_amount": 3,  # hundredths of an eighth, not overlapped
    "high_amount": 3,
    "middle_actual": 1,
    "high_actual": 1,
    "change_code": 2,
    "solar_altitude": 4,
    "lunar_illuminance": 4,
}
"""Fields of a report and their widths."""


def report_schema(row_bytes: int = 128) -> pa.Schema:
    """Columns of the stand-in: `row_bytes` per row."""
    if row_bytes < 24:
        raise OptionError(f"a report of {row_bytes} bytes is too short", hint="24 or more")
    return pa.schema(
        [
            pa.field("longitude", pa.int32(), False),
            pa.field("latitude", pa.int32(), False),
            pa.field("station", pa.int32(), False),
            pa.field("hour", pa.int32(), False),
            pa.field("text", pa.binary(row_bytes - 16), False),
        ]
    )


def stand_in_reports(
    rows: int, *, seed: int = 0, row_bytes: int = 128, batch_rows: int = 65_536
) -> pa.RecordBatchReader:
    """Reports on the stand-in's map. The stations are the same for every seed."""
    schema = report_schema(row_bytes)
    if rows < 0 or batch_rows < 1:
        raise OptionError(f"rows={rows}, batch_rows={batch_rows}: at least 0 and 1 are needed")

    def batches() -> Iterator[pa.RecordBatch]:
        longitude, latitude, station = _map()
        for begin in range(0, rows, batch_rows):
            count = min(batch_rows, rows - begin)
            slot = zipf_ranks(_SLOTS, 0.0, count, seed, start=begin) - 1
            # Its number tells a report from the others of its place.
            number = np.arange(begin, begin + count, dtype="<u8")
            text = np.zeros((count, row_bytes - 16), np.uint8)
            text[:, :8] = number.view(np.uint8).reshape(count, 8)
            columns = [
                pa.array(longitude[slot]),
                pa.array(latitude[slot]),
                pa.array(station[slot]),
                pa.array((number * np.uint64(3) % np.uint64(24 * 31)).astype(np.int32)),
                pa.FixedSizeBinaryArray.from_buffers(
                    pa.binary(row_bytes - 16), count, [None, pa.py_buffer(text)]
                ),
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)

    return pa.RecordBatchReader.from_batches(schema, batches())


def _map() -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Longitude, latitude and station of each of the slots from which reports are drawn."""
    random = np.random.default_rng(26)
    parts: list[npt.NDArray[np.float64]] = []
    for middle, middle_latitude, spread, spread_latitude, share in _REGIONS:
        count = round(STATIONS * share)
        east = random.normal(middle, spread, count)
        parts.append(np.stack([east, random.normal(middle_latitude, spread_latitude, count)]))
    stations = np.concatenate(parts, axis=1)
    # Stations know their place to the minute of arc.
    places = np.round(np.round(stations * 60) / 60 * 100).astype(np.int64)
    weights = random.choice(REPORTS_PER_DAY, places.shape[1]).astype(np.float64)
    land = round(_SLOTS * (1 - SHIP_SHARE))
    edges = np.round(np.cumsum(weights) / weights.sum() * land).astype(np.int64)
    of_slot = np.searchsorted(edges, np.arange(land), side="right")
    ships = _SLOTS - land
    sea = np.stack([random.integers(0, 3600, ships) * 10, random.integers(-700, 700, ships) * 10])
    longitude = np.concatenate([places[0, of_slot] % 36_000, sea[0]])
    latitude = np.clip(np.concatenate([places[1, of_slot], sea[1]]), -9000, 9000)
    station = np.concatenate([of_slot + 1, np.zeros(ships, np.int64)])
    return longitude.astype(np.int32), latitude.astype(np.int32), station.astype(np.int32)


def cloud_report_schema() -> pa.Schema:
    """Columns of the archive's reports: whole numbers, codes and units as documented there."""
    return pa.schema([pa.field(name, pa.int32(), False) for name in _FIELDS])


def cloud_reports(files: Sequence[str | Path], *, batch_rows: int = 65_536) -> pa.RecordBatchReader:
    """The reports of files of NDP-026B: 56 characters and an end of line each.

    Files may be compressed by gzip; those ending in `.Z` must be unpacked before. A report whose
    place or date cannot be is an error that names it, so that files of another format are not
    taken for reports. Written after the archive's documentation; no file of it was at hand.
    """
    schema = cloud_report_schema()
    paths = [Path(file) for file in files]
    for path in paths:
        if path.suffix == ".Z":
            raise SourceError(
                f"{str(path)!r} is packed by compress", hint=f"run: uncompress {path.name}"
            )
        if not path.is_file():
            raise SourceError(f"there is no file {str(path)!r}")

    def batches() -> Iterator[pa.RecordBatch]:
        for path in paths:
            yield from _reports_of(path, schema, batch_rows)

    return pa.RecordBatchReader.from_batches(schema, batches())


def _reports_of(path: Path, schema: pa.Schema, batch_rows: int) -> Iterator[pa.RecordBatch]:
    with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
        first = file.readline()
        line = len(first)
        if len(first.rstrip(b"\r\n")) != RECORD_CHARACTERS:
            raise SourceError(
                f"the first line of {str(path)!r} has {len(first.rstrip())} characters, and "
                f"a cloud report of NDP-026B has {RECORD_CHARACTERS}",
                hint="NDP-026C has 80; cut them to 56",
            )
        rest, begin = first, 1
        while rest:
            block = rest + file.read(line * batch_rows - len(rest))
            rest = file.read(1) if len(block) == line * batch_rows else b""
            if not rest and not block.endswith(b"\n"):
                block += first[RECORD_CHARACTERS:]  # the last line may lack its end
            count, odd = divmod(len(block), line)
            if odd:
                raise BadRowError(f"{str(path)!r}: report {begin + count} is cut short")
            text = np.frombuffer(block, np.uint8).reshape(count, line)
            yield _parsed(text, schema, path, begin)
            begin += count


def _parsed(
    text: npt.NDArray[np.uint8], schema: pa.Schema, path: Path, begin: int
) -> pa.RecordBatch:
    columns: dict[str, npt.NDArray[np.int32]] = {}
    bad = text[:, -1] != ord("\n")
    at = 0
    for name, width in _FIELDS.items():
        value, wrong = _numbers(text[:, at : at + width])
        columns[name] = value
        bad |= wrong
        at += width
    bad |= (columns["longitude"] < 0) | (columns["longitude"] >= LONGITUDES)
    bad |= np.abs(columns["latitude"]) > 9000
    month = columns["date"] // 10_000 % 100
    bad |= (month < 1) | (month > 12)
    if bad.any():
        number = int(np.argmax(bad))
        found = bytes(text[number, :RECORD_CHARACTERS]).decode("ascii", errors="replace")
        raise BadRowError(
            f"{str(path)!r}: line {begin + number} is no cloud report: {found!r}",
            hint="56 characters: date, sky, latitude, longitude from 0 to 36000, ...",
        )
    return pa.RecordBatch.from_arrays(
        [pa.array(columns[name]) for name in schema.names], schema=schema
    )


def _numbers(
    characters: npt.NDArray[np.uint8],
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_]]:
    """The number in each row of characters, right-aligned and signed; and which are none."""
    digit = (characters >= ord("0")) & (characters <= ord("9"))
    minus = characters == ord("-")
    # Spaces, then perhaps a sign, then digits to the end: no character is of a lower class than
    # the one before it, and there is one sign at most.
    class_ = np.where(digit, 2, np.where(minus, 1, 0))
    wrong = ((class_ == 0) & (characters != ord(" "))).any(axis=1)
    wrong |= (np.diff(class_, axis=1) < 0).any(axis=1) | (minus.sum(axis=1) > 1) | ~digit[:, -1]
    powers = 10 ** np.arange(characters.shape[1] - 1, -1, -1)
    value = np.where(digit, characters - ord("0"), 0).astype(np.int64) @ powers
    return np.where(minus.any(axis=1), -value, value).astype(np.int32), wrong
