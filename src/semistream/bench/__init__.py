"""Measuring the joins. Every benchmark verifies its output before it reports a number."""

BENCHMARKS = {
    "core": "every join on a master of products, warm, stream preloaded: rows/s, reads, memory",
    "shedding": "what is left of the join when rows are shed: TOPW beside the offline optimum",
    "spark": "enrich beside Spark's own stream-static joins: rows/s, and where the time goes",
}
"""What `semistream bench run` can run."""
