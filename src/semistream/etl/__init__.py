"""Pipelines described in files."""

from semistream.etl.pipeline import Pipeline, load_pipeline, read_pipeline

__all__ = ["Pipeline", "load_pipeline", "read_pipeline"]
