"""Snapshots as bytes, and a core that runs without Spark."""

from __future__ import annotations

import subprocess
import sys

import pyarrow as pa
import pytest

from semistream.core.join import HOWS, Snapshot

ROWS = pa.RecordBatch.from_pydict(
    {
        "k": pa.array([1, None, 3]),
        "text": pa.array(["a", "", None]),
        "colour": pa.array(["red", "red", None]).dictionary_encode(),
        "pair": pa.array([{"a": 1}, None, {"a": None}]),
        "\0met": pa.array([0, 1, 0], pa.uint8()),
    }
)


@pytest.mark.parametrize("pending", [None, ROWS.slice(1, 2), ROWS.slice(0, 0)])
@pytest.mark.parametrize("rows", [ROWS, ROWS.slice(0, 0), ROWS.slice(2)])
def test_a_snapshot_survives_as_bytes(rows: pa.RecordBatch, pending: pa.RecordBatch | None) -> None:
    snapshot = Snapshot("sweepjoin", rows, pending, {"version": 3, "chunk": -(2**40)})
    again = Snapshot.from_bytes(snapshot.to_bytes())
    assert again.algorithm == "sweepjoin"
    assert again.position == {"version": 3, "chunk": -(2**40)}
    assert again.rows.schema.equals(rows.schema)
    assert again.rows.to_pylist() == rows.to_pylist()
    if pending is None:
        assert again.pending is None
    else:
        assert again.pending is not None
        assert again.pending.to_pylist() == pending.to_pylist()
    assert Snapshot.from_bytes(again.to_bytes()).rows.equals(again.rows)


def test_kinds_of_joins() -> None:
    assert HOWS == ("inner", "left", "semi", "anti")


WITHOUT_SPARK = """
import sys

class NoSpark:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("pyspark", "py4j", "pandas"):
            raise ImportError(f"{name} is not there")

sys.meta_path.insert(0, NoSpark())
import semistream
import semistream.checks, semistream.testing, semistream.workloads
assert semistream.list_joins()
import pyarrow as pa, tempfile, pathlib
with tempfile.TemporaryDirectory() as directory:
    path = pathlib.Path(directory) / "m"
    semistream.build_master(path, pa.table({"k": [1, 2], "v": [3, 4]}), "k")
    result = semistream.join(pa.table({"k": [2, 5]}), path, on="k", memory="2MB").read_all()
    assert result.to_pydict() == {"k": [2], "v": [4]}, result
loaded = {name.split(".")[0] for name in sys.modules}
print(sorted(loaded & {"pyspark", "py4j", "pandas"}))
"""


def test_the_library_works_without_spark() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_SPARK],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_importing_the_library_does_not_import_spark() -> None:
    code = "import sys, semistream; print('pyspark' in sys.modules, 'py4j' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=200, check=True
    )
    assert done.stdout.split() == ["False", "False"]
