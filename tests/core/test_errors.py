"""Errors carry a hint, and keep it wherever they travel."""

from __future__ import annotations

import copy
import pickle

import pytest

from semistream.core import errors
from semistream.core.errors import SemiStreamError, UnknownNameError, unknown_name

KINDS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, SemiStreamError)
]


def test_there_are_kinds() -> None:
    assert len(KINDS) > 8


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_says_what_and_what_to_do(kind: type[SemiStreamError]) -> None:
    error = kind("the pool is full.", hint="raise memory.")
    assert str(error) == "the pool is full. Hint: raise memory."
    assert error.message == "the pool is full"
    assert error.hint == "raise memory"
    assert str(kind("it broke")) == "it broke."
    assert kind.__doc__


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_an_error_survives_pickling(kind: type[SemiStreamError], protocol: int) -> None:
    error = kind("the pool is full", hint="raise memory")
    for again in (pickle.loads(pickle.dumps(error, protocol)), copy.copy(error)):
        assert type(again) is kind
        assert str(again) == str(error)
        assert (again.message, again.hint) == (error.message, error.hint)


def test_every_error_can_be_caught_by_its_base() -> None:
    assert issubclass(errors.CorruptPageError, errors.StoreError)
    assert issubclass(errors.KeyTypeError, errors.SchemaError)
    assert issubclass(errors.BadRowError, errors.SourceError)


def test_an_unknown_name_is_told_with_the_nearest_one() -> None:
    error = unknown_name("join", "sweepjon", ["meshjoin", "sweepjoin"])
    assert isinstance(error, UnknownNameError)
    assert "'sweepjon'" in str(error)
    assert "meshjoin, sweepjoin" in str(error)
    assert "did you mean 'sweepjoin'?" in error.hint
    assert "none" in str(unknown_name("column", "x", []))
    assert "listed" in unknown_name("column", "x", ["price"]).hint
