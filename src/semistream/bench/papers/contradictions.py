"""Where the papers contradict themselves or each other, and what is done here."""

from __future__ import annotations

from typing import NamedTuple


class Contradiction(NamedTuple):
    """What the papers say, and what is done here."""

    finding: str
    here: str


CONTRADICTIONS: tuple[Contradiction, ...] = tuple(
    Contradiction(*one)
    for one in (
        (
            "MESHJOIN paper: Table 1 and Eq. 4 give the names IO_t and IO_s to each other's sums",
            "pages per row and pages per second, in words",
        ),
        (
            "MESHJOIN paper, Theorem 3.2: correct if μ_i ≤ λ",
            "the other way round: the join must be at least as fast as the stream",
        ),
        (
            "MESHJOIN paper, Fig. 9: the offline optimum forgets the loss of a full buffer, reads"
            " beyond its table and takes one row more than there is",
            "the recurrence in the text, with times relative to the present; checked by brute"
            " force (M-11)",
        ),
        ("MESHJOIN paper: TOPW keeps the best w rows in a max heap", "a min heap"),
        (
            "MESHJOIN paper: 0.1 % of R is given as 200 KB, and is 420; 1 to 10 % of the weather"
            " data as 4 to 40 MB, and are 3.2 to 32",
            "percentages of the real size (M-10b, M-10d)",
        ),
        (
            "Small buffers are harmless in Fig. 10a of the MESHJOIN paper, bad in its Fig. 5b and"
            " in Fig. 3.3 of the thesis",
            "it depends on whether the disk reads on by itself: without a seek per chunk in M-10a,"
            " with one in M-5b and T3-3",
        ),
        (
            "MESHJOIN: b must divide the pages of R; what happens at a pause and at the end of the"
            " stream is not said",
            "the last chunk is short; batches may be short or empty",
        ),
        (
            "TOPW's experiment names neither w nor how R's keys are drawn. Drawn at random, even a"
            " uniform R keeps 87 % at twice the rate; with equal counts 50 %",
            "M-11 draws at random; `bench run shedding` has both",
        ),
        (
            "Thesis ch. 4: MESHJOIN's best buffer depends on the size of R. In its equation only"
            " the stream buffer can make it so",
            "T4-2 and T4-8b compute it: it does for small R, and R-MESHJOIN's is not smaller",
        ),
        (
            "R-MESHJOIN takes in 68 rows with 100 MB in Tables 4.2 and 4.3 and 75 in Table 4.4,"
            " with the same buffer",
            "the first fits l = 10 and 3.5 M rows, the second k·l = 8576: T4-T2, T4-T3, T4-T4",
        ),
        (
            "Reading 0.31 MB takes 33 µs in Table 4.3 and 60 KB take 9.9 ms in Table 5.2",
            "each chapter has a machine of its own; rates of the two are never compared",
        ),
        (
            "The thesis has no selectivity in its costs from ch. 4 on",
            "results are charged one by one",
        ),
        (
            "The factor of the hash table is 4.8 in ch. 3, 8 in ch. 4 and not stated later; the"
            " queue of Table 5.1 fits 7.5 bytes a node, stated are 12",
            "8 and 12, as stated (T5-T1)",
        ),
        (
            "Eq. 4.1, 5.1, 6.1, 6.4 and 7.1 say that memory is memory: the share of the hash table"
            " in it is never defined",
            "rows and queue entries have their sizes, so that it follows",
        ),
        (
            "HYBRIDJOIN: a stream row without partner stays at the front for ever; slots are lost"
            " after a short read; an empty queue is not thought of",
            "repaired, see the algorithm's page",
        ),
        (
            "HYBRIDJOIN wants R sorted by frequency (§5.2) and does not (§1.7); R is ascending by"
            " frequency in the text of Fig. 5.1 and descending in the figure",
            "any order; descending where R is called sorted (T5-1)",
        ),
        (
            "κ = 1.36 in HYBRIDJOIN's intake; in the steady state it is about 2, at any skew",
            "T5-T2 counts it",
        ),
        (
            "Average waiting time is given as w/λ, which is the longest; MESHJOIN's processing time"
            " as half a cycle, though rows stay for all of it",
            "T5-7a and T5-7b compute what the thesis computes, and say so",
        ),
        (
            "Eq. 6.9 takes the variance of a binomial distribution for its mean",
            "the mean, and a queue's real intake (T6-7, T6-9)",
        ),
        (
            "Eq. 7.4 to 7.9: power laws without their constant; hits that depend on themselves;"
            " misses normalised by the whole stream",
            "shares of Zipf's law and a queue's intake (T7-3, T-C1, T-C4)",
        ),
        (
            "Look-ups that miss the cache cost nothing (Eq. 7.2, 8.1, SSBJ 2); the cache is charged"
            " without its hash table (7.1) and with it (SSBJ)",
            "look-ups are charged; the cache of the thesis is charged as the thesis does",
        ),
        (
            "Optimised X-HYBRIDJOIN: a stream of hits keeps the first phase from ending",
            "it ends after as many rows as can wait",
        ),
        (
            "CACHEJOIN: with which threshold it starts and how it comes down is missing; the text"
            " of its costs says that the cache is loaded once",
            "see the algorithm's page",
        ),
        (
            "The thesis calls both e = 0.8614 and e = 1 the 80/20 rule",
            "0.8614; T5-5 shows what e = 1 has",
        ),
        (
            "The stream generator of Fig. 5.4 cannot run: one switch for all sources, lost sources,"
            " times that are never stored",
            "repaired (T5-6)",
        ),
        (
            "Second lookup: not worse without skew, three times as fast with skew 1. Simulated: 12"
            " % worse, and three times only if R is sorted",
            "L-5a to L-5c; both orders of R",
        ),
        (
            "Lookup-element paper: order of R, how a linked list is asked for its n-th element, and"
            " short queues are not said; Customer has 20 M rows where TPC-H has 15 M",
            "c times the rows that wait, by a marker; TPC-H's sizes",
        ),
        (
            "SSIJ, Alg. 1: a page that is evicted during the online phase gives results twice",
            "the pages of the moment at which the phase began decide",
        ),
        ("SSIJ: nothing joins what waits at the end of the stream", "a join phase does"),
        (
            "SSIJ: 64 rows fill a page of 8 KB, so that pages cannot be filled to 80 % with 64",
            "64 is the capacity, 51 are stored",
        ),
        (
            "SSIJ: sizes of the wrong stream in a formula, chunks for pages in the worst case, a"
            " scan buffer outside of the budget",
            "repaired, see the algorithm's page",
        ),
        (
            "SSIJ, Table III: what bursts bring in beyond the nominal rate does not grow with them",
            "reported as measured (I-T3), without a target",
        ),
        (
            "SSBJ: values are cached with some of their rows only; eviction goes on for a whole"
            " cycle with counters just reset; values without partner never enter",
            "repaired, see the algorithm's page",
        ),
        (
            "SSBJ evicts every tenth outer iteration, or every tenth cycle of R; batches are equal,"
            " or sized when they are made",
            "cycles; sized when they are made",
        ),
        ("SSBJ, Eq. 6 divides bytes by seconds", "left out"),
        (
            "SSBJ: Fig. 5a and 5c have a gain of 8 and Fig. 5b one of 5.7 at the same point",
            "both are marks (B-5a, B-5b, B-5c)",
        ),
        (
            "SSBJ: a cache that answers 39 to 54 % of the stream makes a join at most 2.2 times as"
            " fast, not 7 to 8 times; its own model gives 2 to 5",
            "2 to 5 times is expected: direction only (B-5)",
        ),
        (
            "SSBJ is 7.4 times as fast on TPC-H, whose keys are uniform",
            "both uniform and skewed keys (B-5d)",
        ),
        (
            "SSBJ's cache inequality leaves out what hash tables and pointers take",
            "an option of the join",
        ),
        (
            "SSBJ paper: SSIJ tests for pending rows the wrong way round, and keeps recent pages"
            " even if rarely used. The SSIJ paper says otherwise",
            "as the SSIJ paper says (I-11)",
        ),
        (
            "Partitioned Join, SSCJ and CMESHJOIN are only sketched in others' papers",
            "implemented as described; no experiment claims to reproduce them",
        ),
        (
            "Three ways to measure: the largest rate without overflow (SSIJ), rows per second with"
            " the stream at hand (MESHJOIN), memory at a given rate (SSBJ)",
            "rows per second, unless an experiment says memory",
        ),
        (
            "Lookup-element paper: SSIJ does not refill its buffer between page reads, so that"
            " later ones serve fewer rows. SSIJ does not discuss it",
            "SSIJ as published",
        ),
    )
)
"""In the order of the specification that this project was built from."""
