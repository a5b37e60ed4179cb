"""MESHJOIN: the stream meshed with a circular scan of the master."""

from __future__ import annotations

from semistream.core.join import Traits
from semistream.joins.scanning import ScanJoin


class MeshJoin(ScanJoin):
    """MESHJOIN (Polyzotis, Skiadopoulos, Vassiliadis, Simitsis, Frantzell, TKDE 2008, §3).

    R is read in a circle, chunk by chunk (b pages each, k chunks); with each chunk w stream rows
    enter the hash table H and the queue Q, and those that entered k iterations ago leave: they have
    met all of R. Needs no index, no order and no unique key, and cares little about skew.

    One iteration (`step`): read a chunk, let the rows that were pushed join H and Q, probe H with
    every row of the chunk, then expire the oldest batch.

    Names: b is `chunk_pages`, k is `most_packets(b)`, w is `rows_to_enter()`; Q is `Packets`, with
    the rows themselves in the order of their slots.

    Departures: the last chunk may be short (the paper assumes k·b = N_R); w differs by a row from
    chunk to chunk, so that all of the memory is used; batches may be short or empty, so that a
    pause cannot hold back rows already accepted; a batch expires right after its last chunk, which
    frees its memory one iteration earlier than Fig. 4; pages are probed as they come and others are
    read ahead meanwhile, so that the buffer is smaller than a chunk where that would take much of
    the memory; exactly the batch's rows expire, and a row that has met nobody by then is unmatched.
    Extensions of §3.4: `ordered` output and `condition`.
    """

    name = "meshjoin"
    traits = Traits(
        paper="Polyzotis et al., TKDE 2008",
        idea="scan the master in a circle; each row stays until it has met all of it",
        needs_index=False,
    )
    takes_conditions = True
