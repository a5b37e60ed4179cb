"""The function from keys to classes: right for every key, whatever the keys are."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semistream.kernels.classes import solve_part
from semistream.kernels.jit import kernel
from semistream.kernels.pages import CLASSES, INDEX, class_of_key
from semistream.kernels.struct import Struct
from semistream.store import classes as module
from semistream.store.classes import CELLS_PER_KEY, ClassWriter
from tests.examples import examples


@kernel
def classes_of(index: object, keys: npt.NDArray[np.int64], out: npt.NDArray[np.int64]) -> None:
    for i in range(keys.size):
        out[i] = class_of_key(index, keys[i])


def function_of(of: dict[int, int], folder: Path) -> Struct:
    writer = ClassWriter(folder, 100_000_000)
    for class_ in range(CLASSES):
        keys = np.array([key for key, c in of.items() if c == class_], np.int64)
        if len(keys):
            writer.add(keys, class_)
    data, parts = writer.finish()
    return Struct(INDEX, class_of=data, class_parts=parts)


def looked_up(index: Struct, keys: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    out = np.empty(len(keys), np.int64)
    classes_of(index.kernel, keys, out)
    return out


@given(
    of=st.dictionaries(st.integers(-(2**63), 2**63 - 1), st.integers(0, CLASSES - 1), max_size=400),
    parts=st.sampled_from([1, 7, 100]),
)
@settings(deadline=None, max_examples=examples(40))
def test_every_key_has_its_class(of: dict[int, int], parts: int) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "KEYS_PER_PART", max(len(of) // parts, 1))
        index = function_of(of, Path(folder))
    keys = np.array(list(of), np.int64)
    assert looked_up(index, keys).tolist() == list(of.values())


def test_many_keys_take_five_bits_each_and_absent_ones_get_some_class(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    keys = rng.permutation(200_000)[:100_000] * 3
    of = dict(zip(keys.tolist(), rng.integers(0, CLASSES, len(keys)).tolist(), strict=True))
    index = function_of(of, tmp_path)
    assert looked_up(index, keys).tolist() == list(of.values())
    size = index.array("class_of").nbytes
    assert size < len(keys) * (CELLS_PER_KEY / 2 + 0.01)
    absent = looked_up(index, keys + 1)
    assert set(absent.tolist()) == set(range(CLASSES))


def test_equal_keys_have_no_solution() -> None:
    """What cannot be peeled is told, not written."""
    keys, classes = np.array([5, 5], np.int64), np.array([1, 2], np.int64)
    room = [np.empty(size, np.int64) for size in (36, 72, 72)]
    assert not any(solve_part(keys, classes, seed, *room) for seed in range(20))
