"""Warming up compiles what users need later, says what it does, and is quiet when all is there."""

from __future__ import annotations

import datetime as dt
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import semistream as ss
from semistream.joins.registry import JOINS
from semistream.testing import ManualClock
from semistream.warm_up import _Compiling, main, warm_up

KEYS = {
    "int64": pa.array(range(300)),
    "int8": pa.array([i % 100 for i in range(300)], pa.int8()),
    "uint64": pa.array(range(300), pa.uint64()),
    "text": pa.array([str(i) for i in range(300)]),
    "words": pa.array([str(i % 7) for i in range(300)]).dictionary_encode(),
    "date": pa.array([dt.date(2026, 1, 1) + dt.timedelta(i) for i in range(300)]),
    "some null": pa.array([i if i % 3 else None for i in range(300)]),
    "from numpy": pa.array(np.arange(300)),
}


def compiled() -> set[str]:
    """Every kernel with the types of arguments for which it is there, compiled now or loaded."""
    modules = [m for name, m in sys.modules.items() if name.startswith("semistream.kernels.")]
    return {
        f"{name} {signature}"
        for module in modules
        for name, kernel in vars(module).items()
        if hasattr(kernel, "signatures") and not kernel.targetoptions.get("forceinline")
        for signature in kernel.signatures
    }


@pytest.fixture(scope="module")
def warm() -> None:
    warm_up(lambda line: None)


@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize("name", KEYS)
def test_nothing_is_left_to_compile_for_keys_of_any_type(tmp_path: Path, name: str) -> None:
    key = KEYS[name]
    plain = pa.table({"k": key, "number": np.arange(300) / 7})
    rich = plain.append_column("name", pa.array(["a", None, "b"] * 100))
    rich = rich.append_column("tags", pa.array([["x", "y"], None, []] * 100))
    before = compiled()
    assert len(before) > 20
    for source, shards in ((plain, 1), (rich, 3)):
        path = tmp_path / f"{shards} shards"
        ss.build_master(path, source, "k", shards=shards)
        for join in JOINS:
            batches = source.slice(1).to_batches(max_chunksize=77)
            result = ss.join(batches, path, on="k", algorithm=join, memory="8MB")
            assert result.read_all().num_rows > 0
    assert compiled() - before == set()


@pytest.mark.usefixtures("warm")
def test_it_is_quiet_when_everything_is_compiled(capfd: pytest.CaptureFixture[str]) -> None:
    main()
    assert capfd.readouterr() == ("", "")


def test_each_step_that_compiles_is_said_once_after_two_seconds() -> None:
    lines: list[str] = []
    clock = ManualClock()
    heard = _Compiling(lines.append, clock, 3)
    for step, seconds in (("first", 1.5), ("second", 1.0), ("third", 0.5)):
        heard.begin(step)
        clock.advance(seconds)
        if step != "third":
            for _ in range(2):
                heard.on_start(None)
                heard.on_end(None)
    assert lines == ["compiling for second (step 2 of 3)"]
    assert heard.count == 4
