"""Commands run in-process; their standard output and error are kept apart."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from semistream.cli import main
from semistream.store.build import build_master


@dataclass(frozen=True)
class Ran:
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output, which must be one JSON document and nothing else."""
        return json.loads(self.out)


Run = Callable[..., Ran]


@pytest.fixture
def run() -> Run:
    def call(*arguments: object) -> Ran:
        result = CliRunner().invoke(main, [str(argument) for argument in arguments])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Ran(result.exit_code, result.stdout, result.stderr)

    return call


def customers(rows: int = 3000) -> pa.Table:
    """A table whose rows are told apart by every column."""
    return pa.table(
        {
            "customer_id": pa.array(range(rows), pa.int64()),
            "name": pa.array([None if i % 10 == 0 else f"customer {i}" for i in range(rows)]),
            "balance": pa.array([i / 4 for i in range(rows)]),
        }
    )


@pytest.fixture
def parquet(tmp_path: Path) -> Path:
    file = tmp_path / "customers.parquet"
    pq.write_table(customers(), file)
    return file


@pytest.fixture
def master(tmp_path: Path) -> Path:
    path = tmp_path / "customers.master"
    build_master(path, customers(), key="customer_id", page_size=4096)
    return path
