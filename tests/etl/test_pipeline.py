"""Pipeline files: what they may say, and what is wrong with others."""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from semistream.core.errors import OptionError, SemiStreamError, SourceError
from semistream.etl import load_pipeline, read_pipeline
from semistream.etl.schema import pipeline_schema
from semistream.store.sql import Table

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


MASTER_AND_JOIN = """[master]
path = "a.master"
[join]
on = "id"
"""


def test_the_smallest_has_defaults() -> None:
    pipeline = read_pipeline(SMALL, FOLDER)
    assert pipeline.steps[0].master == FOLDER / "a.master"
    assert pipeline.steps[0].on == "id"
    assert pipeline.steps[0].memory == "64MB"
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
    assert pipeline.master is not None
    assert pipeline.join is not None
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
    one_join, steps = read_pipeline(blocks[0], FOLDER), read_pipeline(blocks[1], FOLDER)
    documented = "\n".join(blocks)
    found = {one.name: getattr(one_join, one.name) or getattr(steps, one.name)
             for one in fields(one_join)}  # fmt: skip
    for table, record in found.items():
        for key in fields(record[0] if isinstance(record, tuple) else record):
            assert f"{key.name} = " in documented, f"[{table}] {key.name}"
    (step,) = read_pipeline(SMALL.replace(MASTER_AND_JOIN, blocks[2]), FOLDER).steps
    for key in fields(Table):
        assert f"{key.name} = " in blocks[2]
    assert isinstance(step.master, Table)
    postgres = blocks[3].removeprefix("[sink]\n")
    read_pipeline(SMALL.replace('format = "noop"\n', postgres), FOLDER)
    workload = blocks[4].removeprefix("[source]\n")
    read_pipeline(SMALL.replace('format = "rate"\n', workload), FOLDER)


def test_the_schema_for_editors() -> None:
    """The file in docs is what the command prints, and says what the reader takes."""
    file = Path(__file__).parents[2] / "docs" / "pipeline.schema.json"
    schema = pipeline_schema()
    assert json.loads(file.read_text()) == schema, "run: semistream run --schema"
    step = schema["properties"]["step"]["items"]
    assert step["required"] == ["master", "on"]
    assert step["properties"]["missing"]["enum"] == ["null", "drop", "dead", "retry"]
    for example in (Path(__file__).parents[2] / "examples").glob("*/*.toml"):
        _follows(tomllib.loads(example.read_text()), schema, example.parent.name)


def _follows(value: object, schema: dict[str, Any], where: str) -> None:
    """The part of JSON Schema that ours uses."""
    if "anyOf" in schema:
        fits = []
        for one in schema["anyOf"]:
            try:
                _follows(value, one, where)
                fits.append(one)
            except AssertionError:
                pass
        assert fits, where
        return
    types = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool}
    assert isinstance(value, types.get(schema["type"], (int, float))), where
    assert "enum" not in schema or value in schema["enum"], where
    if isinstance(value, dict):
        known = schema.get("properties", {})
        for key, one in value.items():
            rest = schema["additionalProperties"]
            assert key in known or rest, f"{where}.{key}"
            _follows(one, known.get(key, rest), f"{where}.{key}")
        assert set(schema.get("required", ())) <= value.keys(), where
    if isinstance(value, list):
        for one in value:
            _follows(one, schema["items"], where)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[join]", "[jion]", r"there is no table in the pipeline 'jion'; known: dead_letters"),
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


TABLE = (
    SMALL.split("[master]", maxsplit=1)[0]
    + """
[[step]]
on = "id"
master = { uri = "mariadb://u:secret@h/shop", table = "customers", key = "id" }
[sink]
format = "noop"
"""
)


def test_a_table_in_a_database_as_the_master() -> None:
    (step,) = read_pipeline(TABLE, FOLDER).steps
    assert step.master == Table("mariadb://u:secret@h/shop", "customers", "id")
    assert "secret" not in f"{step.master} {step.master!r}"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (', key = "id"', "", r"\[step 1\.master\] lacks key"),
        ("table =", "tabel =", r"key in \[step 1\.master\] 'tabel'.*did you mean 'table'"),
        ('"mariadb://u', '"oracle://u', r"\[step 1\.master\] .*PostgreSQL or MariaDB"),
        ('key = "id"', 'key = "id", refresh = "soon"', r"refresh='soon' is not a duration"),
        ('on = "id"', 'on = "id"\nkind = "duplicates"', "writes in its master"),
        ('on = "id"', 'on = "id"\nsource = "c.csv"\nkey = "id"', "source is for masters in files"),
        ('on = "id"', 'on = "id"\nmax_wait = "1 s"', "max_wait is for masters in files"),
        ('{ uri = "mariadb://u:secret@h/shop", table = "customers", key = "id" }',
         '"mariadb://h/shop"', "no table is named"),
        ('{ uri = "mariadb://u:secret@h/shop", table = "customers", key = "id" }',
         "3", "a path or a table with uri, table and key is wanted"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_table(old: str, new: str, message: str) -> None:
    assert old in TABLE
    with pytest.raises(SemiStreamError, match=message):
        read_pipeline(TABLE.replace(old, new), FOLDER)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"nothing\.toml' cannot be read"):
        load_pipeline(tmp_path / "nothing.toml")


def test_paths_start_at_the_file(tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text(SMALL)
    assert load_pipeline(tmp_path / "p.toml").steps[0].master == tmp_path / "a.master"


def test_known_tables_are_named_with_the_file(tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text("[sinks]\n")
    with pytest.raises(SemiStreamError, match=r"p\.toml.*did you mean 'sink'"):
        load_pipeline(tmp_path / "p.toml")
    (tmp_path / "p.toml").write_text("")
    with pytest.raises(OptionError, match=r"p\.toml has no \[source\]"):
        load_pipeline(tmp_path / "p.toml")
