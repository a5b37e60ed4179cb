"""Checks that results are exact, whatever the keys and the columns are."""

from __future__ import annotations

import pyarrow as pa

from semistream.checks import cases
from semistream.checks.driving import ROOMY, JoinFactory, assert_case, smallest_memory
from semistream.checks.workspace import Workspace, part
from semistream.core.join import HOWS


def check_unique_keys(make: JoinFactory, workspace: Workspace) -> None:
    """Each key once in the master; keys that only one side has."""
    assert_case(make, workspace, cases.numbers())


def check_variable_width_columns(make: JoinFactory, workspace: Workspace) -> None:
    """Strings on both sides, with nulls and empty ones."""
    assert_case(make, workspace, cases.mixed())


def check_duplicates_on_both_sides(make: JoinFactory, workspace: Workspace) -> None:
    """Every pair is a result."""
    assert_case(make, workspace, cases.duplicates())


def check_null_keys(make: JoinFactory, workspace: Workspace) -> None:
    """A null matches nothing, not even another null."""
    assert_case(make, workspace, cases.null_keys())
    assert_case(make, workspace, cases.only_null_keys())


def check_string_keys(make: JoinFactory, workspace: Workspace) -> None:
    """Strings, among them empty, long and nearly equal ones."""
    assert_case(make, workspace, cases.string_keys())


def check_composite_keys(make: JoinFactory, workspace: Workspace) -> None:
    """Several key columns; different keys may have the same bytes when put together."""
    assert_case(make, workspace, cases.composite_keys())
    assert_case(make, workspace, cases.composite_strings())


def check_hash_collisions(make: JoinFactory, workspace: Workspace) -> None:
    """Equal hashes of different keys: matches must be verified, and keys span pages."""
    assert_case(make, workspace, cases.string_collisions())
    assert_case(make, workspace, cases.composite_collisions())
    assert_case(make, workspace, cases.early_partners())


def check_integers_of_other_widths(make: JoinFactory, workspace: Workspace) -> None:
    """Every pair of integer types, with values that do not fit the other."""
    for stored in (pa.int8(), pa.int32(), pa.uint32(), pa.int64(), pa.uint64()):
        for came in cases.INTEGERS:
            case = cases.integer_widths(came, stored)
            assert_case(make, workspace, case, hows=("left",), memories=(ROOMY,))


def check_spread_integers(make: JoinFactory, workspace: Workspace) -> None:
    """Keys whose range takes 32 bits, 33 or 64, up to the smallest and largest integer."""
    for width in (32, 33, 64):
        assert_case(make, workspace, cases.spread_integers(width))


def check_keys_of_other_types(make: JoinFactory, workspace: Workspace) -> None:
    """Dates, times, timestamps, decimals, binary, booleans and forms of strings."""
    for kind in cases.KEY_TYPES:
        assert_case(make, workspace, cases.key_type(kind), hows=("left",), memories=(ROOMY,))


def check_keys_of_two_types(make: JoinFactory, workspace: Workspace) -> None:
    """The stream's key has another type than the master's; what does not fit has no match."""
    for case in cases.crossed_types():
        assert_case(make, workspace, case, hows=("left", "anti"), memories=(ROOMY,))


def check_empty_stream(make: JoinFactory, workspace: Workspace) -> None:
    """No row comes."""
    assert_case(make, workspace, cases.empty_stream())


def check_empty_master(make: JoinFactory, workspace: Workspace) -> None:
    """No row can match."""
    assert_case(make, workspace, cases.empty_master())
    assert_case(make, workspace, cases.empty_string_master())


def check_master_of_one_row(make: JoinFactory, workspace: Workspace) -> None:
    """One page, one row."""
    assert_case(make, workspace, cases.one_row())


def check_one_hot_key(make: JoinFactory, workspace: Workspace) -> None:
    """All rows of the stream ask for the same key."""
    assert_case(make, workspace, cases.hot_key())
    assert_case(make, workspace, cases.hot_string())


def check_keys_over_many_pages(make: JoinFactory, workspace: Workspace) -> None:
    """More rows of a key than fit in many pages, wherever in the master they lie."""
    assert_case(make, workspace, cases.long_runs())
    assert_case(make, workspace, cases.one_long_run())


def check_several_shards(make: JoinFactory, workspace: Workspace) -> None:
    """A master in several files, some of them empty."""
    assert_case(make, workspace, cases.sharded())
    assert_case(make, workspace, cases.sharded_strings())


def check_half_filled_pages(make: JoinFactory, workspace: Workspace) -> None:
    """Pages that were not filled."""
    assert_case(make, workspace, cases.half_filled(), hows=("left",))


def check_columns_of_many_types(make: JoinFactory, workspace: Workspace) -> None:
    """Whatever columns hold comes out as it went in; names on both sides get a suffix."""
    assert_case(make, workspace, cases.wide())


def check_key_without_other_columns(make: JoinFactory, workspace: Workspace) -> None:
    """Neither side has anything but its key."""
    assert_case(make, workspace, cases.only_keys())


def check_projection(make: JoinFactory, workspace: Workspace) -> None:
    """`columns=` chooses the master's columns, in the order given, down to none."""
    case = cases.mixed()
    for columns in (["price"], ["label"], ["label", "row"], []):
        for how in ("inner", "left"):
            assert_case(make, workspace, case, hows=(how,), columns=columns)
    wide = cases.wide()
    chosen = ["pair", "view", "flag"]
    assert_case(make, workspace, wide, hows=("left",), memories=(ROOMY,), columns=chosen)


def check_uneven_strings(make: JoinFactory, workspace: Workspace) -> None:
    """Some rows are many times longer than the average that memory was planned for."""
    assert_case(make, workspace, cases.uneven_strings(), memories=(ROOMY,))


def check_skew(make: JoinFactory, workspace: Workspace) -> None:
    """A few keys make up most of the stream: caches fill, change hands and shrink."""
    for strings in (False, True):
        case = cases.skewed(strings)
        # With little memory the first rows are as much work as all of them with more.
        for rows, factor, more in ((6000, 2, 0), (case.stream.num_rows, 1, 600_000)):
            some = part(case, rows)
            memory = factor * smallest_memory(make, workspace, some, "inner") + more
            assert_case(make, workspace, some, hows=("inner",), memories=(memory,), batch_rows=4000)
    some = part(cases.skewed(False), 6000)
    least = smallest_memory(make, workspace, some, "left")
    assert_case(make, workspace, some, hows=("left",), memories=(3 * least,))
    case = cases.skewed_collisions()
    least = smallest_memory(make, workspace, case, "left", 1000)
    memories = (2 * least, 600_000 + least)
    hows = ("left", "anti")
    assert_case(make, workspace, case, hows=hows, memories=memories, batch_rows=1000)


def check_frequency_order(make: JoinFactory, workspace: Workspace) -> None:
    """A master in frequency order gives the same results as one in the order of its keys."""
    assert_case(make, workspace, cases.by_frequency(cases.duplicates()))
    for case in (cases.numbers(), cases.mixed(), cases.null_keys()):
        hows = HOWS if workspace.thorough else ("left",)
        assert_case(make, workspace, cases.by_frequency(case), hows=hows)
    for case in (cases.string_keys(), cases.composite_keys(), cases.string_collisions()):
        assert_case(make, workspace, cases.by_frequency(case), hows=("left", "semi"))
    for case in (cases.long_runs(), cases.one_row(), cases.empty_master(), cases.only_null_keys()):
        assert_case(make, workspace, cases.by_frequency(case, "row"), hows=("left", "anti"))
    sharded = cases.by_frequency(cases.numbers(), "count", shards=3)
    assert_case(make, workspace, sharded, hows=("inner", "anti"))


def check_skew_in_frequency_order(make: JoinFactory, workspace: Workspace) -> None:
    """Few keys make up most of the stream, and what is held from the beginning holds some."""
    for strings in (False, True):
        case = part(cases.by_frequency(cases.skewed(strings), "row", shards=2), 10_000)
        least = smallest_memory(make, workspace, case, "left")
        memories = (2 * least, 600_000 + least)
        assert_case(make, workspace, case, hows=("left",), memories=memories, batch_rows=4000)
