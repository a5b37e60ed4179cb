"""Pipeline files: what they may say, and what is wrong with others."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from semistream.core.errors import OptionError, SemiStreamError, SourceError
from semistream.etl import load_pipeline, read_pipeline

FOLDER = Path("/data")

SMALL = """
[source]
format = "rate"
[master]
path = "a.master"
[join]
on = "id"
[sink]
format = "noop"
"""


def test_the_smallest_has_defaults() -> None:
    pipeline = read_pipeline(SMALL, FOLDER)
    assert pipeline.master.path == FOLDER / "a.master"
    assert pipeline.join.on == "id"
    assert pipeline.join.memory == "64MB"
    assert pipeline.trigger.every is None
    assert pipeline.spark.master == "local[*]"
    assert pipeline.sink.checkpoint_path is None


def test_all_that_can_be_said() -> None:
    pipeline = read_pipeline(
        """
        [source]
        format = "csv"
        path = "in"
        schema = "a long, b string"
        options = { header = true, maxFilesPerTrigger = 2, sep = ";" }
        [master]
        path = "/elsewhere/b.master"
        source = "b/*.parquet"
        key = ["a", "b"]
        shards = 4
        page_size = "16KiB"
        [join]
        on = { a = "x", b = "y" }
        how = "left"
        algorithm = "hybridjoin"
        memory = 8_000_000
        columns = ["price"]
        max_wait = "500 ms"
        dead_letters = "problem"
        tasks = 2
        by_shard = false
        io = "direct"
        options = { pages_per_read = 4, ratio = 0.5 }
        [sink]
        format = "postgres"
        uri = "postgresql://u@h/d"
        table = "enriched"
        key = "a"
        schema = "sales"
        checkpoint = "checkpoints/b"
        [trigger]
        every = "5 seconds"
        [spark]
        master = "spark://host:7077"
        name = "b"
        settings = { "spark.executor.memory" = "2g" }
        """,
        FOLDER,
    )
    assert pipeline.source.path == FOLDER / "in"
    assert pipeline.source.options == {"header": True, "maxFilesPerTrigger": 2, "sep": ";"}
    assert pipeline.master.path == Path("/elsewhere/b.master")
    assert pipeline.master.key == ("a", "b")
    assert pipeline.join.on == {"a": "x", "b": "y"}
    assert pipeline.join.memory == 8_000_000
    assert pipeline.join.options == {"pages_per_read": 4, "ratio": 0.5}
    assert pipeline.sink.key == ("a",)
    assert pipeline.sink.checkpoint_path == FOLDER / "checkpoints" / "b"
    assert pipeline.spark.settings == {"spark.executor.memory": "2g"}


def test_the_checkpoint_of_files_lies_beside_them() -> None:
    text = SMALL.replace('"noop"', '"parquet"\npath = "out"')
    assert read_pipeline(text, FOLDER).sink.checkpoint_path == FOLDER / "out.checkpoint"


def test_the_documented_file_names_every_key() -> None:
    text = (Path(__file__).parents[2] / "docs" / "pipelines.md").read_text()
    blocks = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    pipeline = read_pipeline(blocks[0], FOLDER)
    documented = "\n".join(blocks)
    for table in fields(pipeline):
        for key in fields(getattr(pipeline, table.name)):
            assert f"{key.name} = " in documented, f"[{table.name}] {key.name}"
    postgres = blocks[1].removeprefix("[sink]\n")
    read_pipeline(SMALL.replace('format = "noop"\n', postgres), FOLDER)
    workload = blocks[2].removeprefix("[source]\n")
    read_pipeline(SMALL.replace('format = "rate"\n', workload), FOLDER)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[join]", "[jion]", r"there is no table in the pipeline 'jion'; known: join, master"),
        ('on = "id"', 'on = "id"\nmemroy = "1MB"', r"no key in \[join\] 'memroy'.*did you mean"),
        ('on = "id"', "", r"\[join\] lacks on"),
        ('[sink]\nformat = "noop"', "", r"has no \[sink\]"),
        ('on = "id"', "on = 3", r"\[join\] on = 3: text or a list of names or a table is wanted"),
        ('on = "id"', "on = []", r"\[join\] on = \[\]"),
        ('on = "id"', 'on = "id"\ntasks = "2"', r"\[join\] tasks = '2': a whole number is wanted"),
        ('on = "id"', 'on = "id"\ntasks = true', r"\[join\] tasks = True: a whole number"),
        ('on = "id"', 'on = "id"\nby_shard = 1', r"\[join\] by_shard = 1: true or false"),
        ('on = "id"', 'on = "id"\nmemory = "much"', r"\[join\] memory='much' is not a size"),
        ('on = "id"', 'on = "id"\nmax_wait = "soon"', r"\[join\] max_wait='soon' is not a dur"),
        ('on = "id"', 'on = "id"\noptions = { a = [1] }', r"\[join\] options.a = \[1\]"),
        ('"rate"', '"parquet"', r"\[source\] format = 'parquet' needs path"),
        ('"rate"', '"rate"\npath = "in"', r"\[source\] format = 'rate' has no path"),
        ('"a.master"', '""', r"\[master\] path = '': a path is wanted"),
        ('"a.master"', '"a.master"\nkey = "id"', r"\[master\] source and key go together"),
        ('"a.master"', '"a.master"\nshards = 2', r"\[master\] shards and page_size are for build"),
        ('"noop"', '"noop"\ntable = "t"', r"\[sink\] table: only for format = 'postgres'"),
        ('"noop"', '"postgres"', r"\[sink\] format = 'postgres' needs uri"),
        ('"noop"', '"noop"\n[trigger]\nevery = "1"', r"\[trigger\] every='1' is not a duration"),
        (
            '"noop"',
            '"noop"\n[trigger]\nevery = "1 s"\navailable_now = true',
            r"\[trigger\] every and available_now exclude each other",
        ),
        ("[join]", "[[join]]", r"join in the pipeline is not a table"),
        ("[join]", "[join", r"is not TOML.*line"),
    ],
)
def test_what_is_wrong_is_said(old: str, new: str, message: str) -> None:
    assert old in SMALL
    with pytest.raises(SemiStreamError, match=message):
        read_pipeline(SMALL.replace(old, new), FOLDER)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"nothing\.toml' cannot be read"):
        load_pipeline(tmp_path / "nothing.toml")


def test_paths_start_at_the_file(tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text(SMALL)
    assert load_pipeline(tmp_path / "p.toml").master.path == tmp_path / "a.master"


def test_known_tables_are_named_with_the_file(tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text("[sinks]\n")
    with pytest.raises(SemiStreamError, match=r"p\.toml.*did you mean 'sink'"):
        load_pipeline(tmp_path / "p.toml")
    (tmp_path / "p.toml").write_text("")
    with pytest.raises(OptionError, match=r"p\.toml has no \[source\]"):
        load_pipeline(tmp_path / "p.toml")
