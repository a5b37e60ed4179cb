"""One Spark session for the whole run."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import SparkSession

from semistream.spark import local_session


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever uses the session is marked `spark`."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local session on two cores, without its web page."""
    warehouse = tmp_path_factory.mktemp("warehouse")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Spark's own, while it starts
        session = local_session("semistream-tests", cores=2, spark_sql_warehouse_dir=str(warehouse))
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
