"""`semistream master …`: build, info, check, pages, page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from semistream.store.build import build_master
from semistream.store.file import open_master

if TYPE_CHECKING:
    from tests.cli.conftest import Run


def flip_byte(master: Path, page: int, page_bytes: int = 4096) -> None:
    file = next(master.glob("v1/*.pages"))
    content = bytearray(file.read_bytes())
    content[page * page_bytes + 200] ^= 1
    file.write_bytes(content)


def test_build_then_info(run: Run, parquet: Path, tmp_path: Path) -> None:
    target = tmp_path / "built.master"
    options = ["--page-size", "4096", "--shards", 2, "--fill", 0.8, "--memory", "200MB"]
    built = run("master", "build", target, parquet, "--key", "customer_id", *options, "--json")
    assert built.code == 0
    assert built.json["rows"] == 3000
    assert built.json["key"] == ["customer_id"]
    assert built.json["page_bytes"] == 4096
    assert len(built.json["shards"]) == 2
    assert built.json["fill"] == 0.8
    assert [column["name"] for column in built.json["columns"]] == [
        "customer_id",
        "name",
        "balance",
    ]
    info = run("master", "info", target, "--json")
    assert info.json == built.json


def test_info_for_people(run: Run, master: Path) -> None:
    shown = run("master", "info", master)
    assert shown.code == 0
    assert "3,000" in shown.out
    assert "customer_id (ordered by the key itself)" in shown.out
    assert "double" in shown.out
    assert shown.err == ""


def test_build_says_what_it_left_out(run: Run, tmp_path: Path) -> None:
    source = tmp_path / "with nulls.parquet"
    pq.write_table(pa.table({"id": pa.array([1, None, 3, None])}), source)
    built = run("master", "build", tmp_path / "m", source, "--key", "id")
    assert built.code == 0
    assert "2 rows with a null in the key" in built.out


def test_build_from_several_files_with_a_key_of_two_columns(run: Run, tmp_path: Path) -> None:
    for part in range(2):
        rows = {"shop": [f"s{part}"] * 5, "id": list(range(5)), "value": [part] * 5}
        pq.write_table(pa.table(rows), tmp_path / f"part{part}.parquet")
    files = [tmp_path / "part0.parquet", tmp_path / "part1.parquet"]
    built = run("master", "build", tmp_path / "m", *files, "--key", "shop,id", "--json")
    assert built.json["rows"] == built.json["keys"] == 10
    assert built.json["key64"] == "hash of the key"


def test_build_writes_rows_that_do_not_parse_to_the_rejects(run: Run, tmp_path: Path) -> None:
    rows = "\n".join(f"{i},{i}" for i in range(25_000))
    source, rejects = tmp_path / "rows.csv", tmp_path / "bad.csv"
    source.write_text(f"id,value\n{rows}\n77,not a number\n")
    refused = run("master", "build", tmp_path / "m", source, "--key", "id")
    assert refused.code == 2
    assert "error: " in refused.err
    assert "hint: " in refused.err
    built = run("master", "build", tmp_path / "m", source, "--key", "id", "--rejects", rejects)
    assert built.code == 0
    assert "1 rows that did not parse" in built.out
    assert "not a number" in rejects.read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--key", "id"], "column 'id'"),
        (["--key", "customer_id", "--page-size", "5000"], "not a multiple of 4096"),
        (["--key", "customer_id", "--shards", "0"], "shards=0"),
        (["--key", "customer_id", "--memory", "lots"], "not a size"),
        (["--key", "customer_id,"], "empty part"),
        ([], "--key"),
    ],
)
def test_wrong_options_are_usage_errors(
    run: Run, parquet: Path, tmp_path: Path, arguments: list[str], message: str
) -> None:
    failed = run("master", "build", tmp_path / "m", parquet, *arguments)
    assert failed.code == 2
    assert message in failed.err
    assert failed.out == ""
    assert not (tmp_path / "m").exists()


def test_a_path_that_exists_is_not_overwritten(run: Run, parquet: Path, master: Path) -> None:
    failed = run("master", "build", master, parquet, "--key", "customer_id")
    assert failed.code == 2
    assert "exists already" in failed.err


@pytest.mark.parametrize("command", ["info", "check", "pages"])
def test_no_master_there(run: Run, tmp_path: Path, command: str) -> None:
    failed = run("master", command, tmp_path / "none", "--json")
    assert failed.code == 2
    assert failed.err.startswith("error: there is no master at ")
    assert "hint: build one" in failed.err
    assert failed.out == ""


def test_check_of_a_sound_master(run: Run, master: Path) -> None:
    checked = run("master", "check", master)
    assert checked.code == 0
    assert "all as they were written" in checked.out
    with open_master(master) as opened:
        pages = opened.pages
    document = run("master", "check", master, "--json").json
    assert document == {
        "path": str(master),
        "ok": True,
        "pages": pages,
        "bad_pages": [],
        "problem": None,
    }


def test_check_names_the_damaged_pages(run: Run, master: Path) -> None:
    flip_byte(master, 3)
    flip_byte(master, 5)
    checked = run("master", "check", master)
    assert checked.code == 1
    assert "pages are damaged: 3, 5." in checked.out
    machine = run("master", "check", master, "--json")
    assert machine.code == 1
    assert machine.json["bad_pages"] == [3, 5]
    assert machine.json["ok"] is False


def test_check_of_a_file_that_is_cut_short(run: Run, master: Path) -> None:
    file = next(master.glob("v1/*.pages"))
    file.write_bytes(file.read_bytes()[:-5000])
    checked = run("master", "check", master, "--json")
    assert checked.code == 1
    assert "cut short" in checked.json["problem"]
    assert run("master", "check", master).code == 1


def test_pages(run: Run, master: Path) -> None:
    heads = run("master", "pages", master, "--from", 2, "--count", 3, "--json").json
    assert [head["number"] for head in heads] == [2, 3, 4]
    assert all(head["rows"] > 10 for head in heads)
    assert heads[0]["last_key64"] + 1 == heads[1]["first_key64"]
    flip_byte(master, 3)
    shown = run("master", "pages", master, "--from", 2, "--count", 3)
    assert shown.code == 0
    assert "damaged" in shown.out
    assert "pages 2 to 4 of" in shown.out
    assert "no page from 1000 on" in run("master", "pages", master, "--from", 1000).out


def test_page(run: Run, master: Path) -> None:
    document = run("master", "page", master, 0, "--json").json
    assert document["page"] == 0
    assert document["rows"][0] == {"customer_id": 0, "name": None, "balance": 0.0}
    assert document["rows"][1] == {"customer_id": 1, "name": "customer 1", "balance": 0.25}
    shown = run("master", "page", master, 0)
    assert "customer 1" in shown.out
    failed = run("master", "page", master, 100_000)
    assert failed.code == 2
    assert "there is no page 100000" in failed.err


def test_page_of_values_that_json_lacks(run: Run, tmp_path: Path) -> None:
    table = pa.table(
        {
            "id": [1, 2],
            "raw": pa.array([b"\x00\xff", None]),
            "day": pa.array([0, 1], pa.date32()),
            "number": [float("nan"), float("inf")],
            "list": pa.array([[1, 2], []], pa.list_(pa.int32())),
            "odd [bold] name": ["[red]", ":smile:"],
        }
    )
    build_master(tmp_path / "m", table, key="id")
    rows = run("master", "page", tmp_path / "m", 0, "--json").json["rows"]
    assert rows[0]["raw"] == "00ff"
    assert rows[0]["day"] == "1970-01-01"
    assert rows[0]["number"] is None
    assert rows[0]["list"] == [1, 2]
    shown = run("master", "page", tmp_path / "m", 0)
    assert "[red]" in shown.out
    assert ":smile:" in shown.out
    assert "odd [bold] name" in shown.out
