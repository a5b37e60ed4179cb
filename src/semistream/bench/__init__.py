"""Measuring the joins. Every benchmark verifies its output before it reports a number."""

BENCHMARKS = {
    "core": "every join on a master of products, warm, stream preloaded: rows/s, reads, memory",
    "cost-models": "the cost models' rates and c_loop beside the measured ones, for every join",
    "buffer-size": "sizes of reads: the predicted best beside the measured best",
    "least-memory": "whether the least memory for a rate holds that rate, and 70 % of it does not",
    "auto": 'algorithm="auto" beside single joins, with unique and with duplicated keys',
    "shedding": "what is left of the join when rows are shed: TOPW beside the offline optimum",
    "spark": "enrich beside Spark's own stream-static joins: rows/s, and where the time goes",
}
"""What `semistream bench run` can run."""
