"""Cloud reports: the archive's files as they are documented, and a map in their place."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from semistream.core.errors import BadRowError, OptionError, SourceError
from semistream.workloads import cloud_reports, make_workload, stand_in_reports
from semistream.workloads.weather import LONGITUDES, report_schema

REPORTS = [
    # date    sky lat lon station land ww N Nh h CL CM CH  AM  AH UM UH IC   SA   RI
    "85041506" "1" " 5283" " 1345" "10384" "1" "61" "8" " 6" " 4" " 5" " 2" "-1"
    "700" "900" "7" "9" " 0" "3215" "  11",
    "85083118" "0" "-3394" "15118" "94767" "1" " 2" "3" " 3" " 5" " 1" " 0" " 0"
    "  0" "  0" "0" "0" " 0" "-845" " 112",
    "85120100" "1" " -150" "36000" "  926" "2" "-1" "0" " 0" " 9" " 0" " 0" " 0"
    "  0" "  0" "0" "0" " 0" " 100" "-100",
]  # fmt: skip


def write(path: Path, lines: list[str], end: str = "\n") -> Path:
    path.write_bytes("".join(line + end for line in lines).encode())
    return path


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("batch_rows", [1, 2, 3, 100])
def test_fields_are_where_the_archive_has_them(tmp_path: Path, end: str, batch_rows: int) -> None:
    files = [write(tmp_path / "APR85L", REPORTS[:2], end), write(tmp_path / "DEC85O", REPORTS[2:])]
    rows = cloud_reports(files, batch_rows=batch_rows).read_all().to_pylist()
    assert [row["longitude"] for row in rows] == [1345, 15118, 36000]
    assert [row["latitude"] for row in rows] == [5283, -3394, -150]
    assert [row["station"] for row in rows] == [10384, 94767, 926]
    first = rows[0]
    assert first["date"] == 85041506
    assert (first["sky_brightness"], first["land_or_ocean"]) == (1, 1)
    assert (first["present_weather"], first["total_cover"], first["lower_amount"]) == (61, 8, 6)
    assert (first["low_type"], first["middle_type"], first["high_type"]) == (5, 2, -1)
    assert (first["middle_amount"], first["high_amount"]) == (700, 900)
    assert (first["middle_actual"], first["high_actual"]) == (7, 9)
    assert (first["solar_altitude"], first["lunar_illuminance"]) == (3215, 11)
    assert (rows[1]["solar_altitude"], rows[2]["lunar_illuminance"]) == (-845, -100)


def test_gzip_and_a_last_line_without_its_end(tmp_path: Path) -> None:
    packed = tmp_path / "APR85L.gz"
    packed.write_bytes(gzip.compress("\n".join(REPORTS).encode()))
    assert cloud_reports([packed]).read_all().num_rows == 3


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (REPORTS[0][:14] + "36001" + REPORTS[0][19:], "line 2"),
        (REPORTS[0][:9] + " 9001" + REPORTS[0][14:], "line 2"),
        ("85131506" + REPORTS[0][8:], "line 2"),
        (REPORTS[0][:20] + "1 -84" + REPORTS[0][25:], "line 2"),
        (REPORTS[0][:20] + "1a384" + REPORTS[0][25:], "line 2"),
        (REPORTS[0][:20] + "     " + REPORTS[0][25:], "line 2"),
        (REPORTS[0][:40], "report 2 is cut short"),
    ],
)
def test_what_is_no_report_is_named(tmp_path: Path, line: str, shown: str) -> None:
    file = write(tmp_path / "APR85L", [REPORTS[1], line])
    with pytest.raises(BadRowError, match=shown):
        cloud_reports([file]).read_all()


def test_files_of_another_kind_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="80 characters"):
        cloud_reports([write(tmp_path / "C", [REPORTS[0] + "x" * 24])]).read_all()
    with pytest.raises(SourceError, match="uncompress"):
        cloud_reports([write(tmp_path / "APR85L.Z", REPORTS)])
    with pytest.raises(SourceError, match="no file"):
        cloud_reports([tmp_path / "nothing"])


def test_files_are_a_workload(tmp_path: Path) -> None:
    workload = make_workload("weather", reports=[write(tmp_path / "APR85L", REPORTS)])
    assert workload.master().read_all().num_rows == 3
    assert workload.stream(2).read_all().num_rows == 2


@pytest.mark.parametrize("row_bytes", [32, 128])
def test_the_stand_in_has_the_papers_rows(row_bytes: int) -> None:
    assert sum(field.type.byte_width for field in report_schema(row_bytes)) == row_bytes
    with pytest.raises(OptionError, match="too short"):
        report_schema(20)


def test_the_stand_in_is_crowded_like_a_map() -> None:
    longitudes = stand_in_reports(200_000, batch_rows=30_000).read_all()["longitude"].to_numpy()
    counts = np.bincount(longitudes, minlength=LONGITUDES)
    assert longitudes.min() >= 0
    assert len(counts) == LONGITUDES
    busiest = np.sort(counts)[::-1]
    # Many longitudes have no report, and a twentieth of them has nearly half of all reports.
    assert (counts == 0).mean() > 0.5
    assert 0.3 < busiest[: LONGITUDES // 20].sum() / counts.sum() < 0.7
    europe, atlantic = counts[:3000].sum(), counts[31_500:34_500].sum()
    assert europe > 5 * atlantic
    assert "STAND-IN" in make_workload("weather").description
