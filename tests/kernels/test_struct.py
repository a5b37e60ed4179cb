"""Records shared with kernels: they see what Python writes, and arrays stay alive."""

from __future__ import annotations

import gc
import pickle

import numba
import numpy as np
import pytest

from semistream.kernels.memory import load_i64
from semistream.kernels.struct import Struct, struct_type

INNER = struct_type("a b")
OUTER = struct_type("count address", inner=INNER, share=np.float64)


@numba.njit
def change(record):
    record.count += 1
    record.inner.b = record.count * 10
    record.share = 0.5
    return load_i64(record.address + 8)


def test_kernels_change_the_record_in_place() -> None:
    outer = Struct(OUTER, count=4, address=np.array([7, 8, 9]), inner=Struct(INNER, a=1, b=2))
    gc.collect()
    assert change(outer.kernel) == 8
    assert (outer.count, outer.inner["a"], outer.inner["b"], outer.share) == (5, 1, 50, 0.5)
    assert outer.array("address").tolist() == [7, 8, 9]


def test_an_array_that_is_assigned_replaces_the_one_before() -> None:
    outer = Struct(OUTER, address=np.array([1, 2]))
    outer.address = np.array([3, 4])
    assert change(outer.kernel) == 4


def test_other_names_do_not_exist() -> None:
    outer = Struct(OUTER)
    with pytest.raises(AttributeError):
        _ = outer.nothing
    with pytest.raises(ValueError, match="nothing"):
        outer.nothing = 3


def test_a_struct_in_another_process() -> None:
    """Arrays go along: an address means nothing there."""
    inner = Struct(struct_type("a b"), a=np.arange(3), b=7)
    struct = Struct(
        struct_type("x y", nested=struct_type("a b")), x=5, y=np.arange(4), nested=inner
    )
    again = pickle.loads(pickle.dumps(struct))
    assert again.x == 5
    assert again.y == again.array("y").ctypes.data != struct.y
    assert again.array("y").tolist() == [0, 1, 2, 3]
    assert again.nested["b"] == 7
    assert again.nested["a"] == again.array("nested").array("a").ctypes.data
