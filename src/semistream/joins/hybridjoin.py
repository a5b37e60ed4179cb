"""HYBRIDJOIN: the oldest waiting row chooses the partition, all rows of that partition profit."""

from __future__ import annotations

from semistream.core.join import Traits
from semistream.joins.probing import ProbingJoin


class HybridJoin(ProbingJoin):
    """HYBRIDJOIN (Naeem, PhD thesis, Auckland 2012, ch. 5, Algorithm 3).

    Waiting rows fill the hash table H, a queue Q keeps their order. One iteration (`step`): take
    the oldest key in Q, load the partition of R that holds it through the index, join all waiting
    rows of that partition, and take in as many new rows as have left.

    Names: h_S is the capacity of `waiting`, d the rows of `span` pages (option `partition_pages`;
    without it the thesis's tuning, see `semistream.joins.sizing`).

    Departures. Rows hang on the page that holds their key, so that a loaded page finds its rows
    without probing H with every record; Q is a queue of partitions, which is the same order (see
    `QueuedJoin`). Partitions go through the disk buffer in pieces, so that the next is read while
    one is joined, and several small ones are loaded per step: one read at a time leaves a modern
    disk idle. Pages at a partition's ends that nobody waits for are not read. A row whose page has
    no record with its key is unmatched and leaves; as printed it would stay in front for ever.
    Slots that a short supply left unused stay free; as printed they are lost. Intake also stops
    after h_S rows since the last load. An empty queue waits for rows instead of being an error.
    Keys that repeat in R are joined completely: their rows lie next to each other, and a key that
    reaches into the next page takes its rows with it.
    """

    name = "hybridjoin"
    traits = Traits(
        paper="Naeem, PhD thesis 2012, ch. 5",
        idea="load the partition of the oldest row by the index, join all rows that wait for it",
        skew="slight",
    )
