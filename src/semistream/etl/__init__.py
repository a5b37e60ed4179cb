"""What people build around the join: surrogate keys, stars, duplicates, differences, pipelines."""

from semistream.etl.difference import SnapshotDifference, snapshot_difference
from semistream.etl.duplicates import SeenKeys, duplicates, new_seen, similar
from semistream.etl.pipeline import Pipeline, load_pipeline, read_pipeline
from semistream.etl.surrogate import SurrogateKeys, new_lookup, surrogate_keys
from semistream.etl.unmatched import Counts, Dimension, EnrichedStream, Enricher, enrich, star

__all__ = [
    "Counts",
    "Dimension",
    "EnrichedStream",
    "Enricher",
    "Pipeline",
    "SeenKeys",
    "SnapshotDifference",
    "SurrogateKeys",
    "duplicates",
    "enrich",
    "load_pipeline",
    "new_lookup",
    "new_seen",
    "read_pipeline",
    "similar",
    "snapshot_difference",
    "star",
    "surrogate_keys",
]
