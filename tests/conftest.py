"""What all tests share: a watchdog, masters that are built once, one Spark session, a PostgreSQL
server."""

from __future__ import annotations

import faulthandler
import os
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from semistream.checks import Workspace
from semistream.testing.postgres import PostgresMissingError, PostgresServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

THOROUGH = os.environ.get("SEMISTREAM_TESTS") == "thorough"
"""`make soak` sets it: all combinations, and all examples of properties."""

# How long an example takes is the machine's affair, and others use it too.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")

LONGEST_TEST_S = 240
LONGEST_SLOW_TEST_S = 3600


@pytest.fixture(autouse=True)
def watchdog(request: pytest.FixtureRequest) -> Iterator[None]:
    """A kernel that loops for ever holds no lock and cannot be interrupted: end the run, with a
    trace of all threads."""
    slow = request.node.get_closest_marker("slow") is not None
    faulthandler.dump_traceback_later(LONGEST_SLOW_TEST_S if slow else LONGEST_TEST_S, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(scope="session", autouse=True)
def no_sync() -> Iterator[None]:
    """Files of tests need not survive the machine, and syncing them takes minutes in all."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def no_calibration(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What `auto` chooses must not depend on unit costs that somebody measured on this machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    """Masters and expected results of the conformance suite; processes share the masters."""
    base: Path = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    directory = shared / "checks"
    directory.mkdir(exist_ok=True)
    with Workspace(directory, thorough=THOROUGH) as made:
        yield made


@pytest.fixture(scope="module")
def open_folder() -> Iterator[Path]:
    """A folder that servers reach, which run as other users; those of pytest are its own only."""
    with tempfile.TemporaryDirectory(prefix="semistream-tests-", dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL server of this run's own; where none is installed, its tests are skipped."""
    try:
        server = PostgresServer().start()
    except PostgresMissingError as error:
        pytest.skip(str(error))
    yield server
    server.stop()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever uses the session is marked `spark`, to be run in a process of its own."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local session on two cores, without its web page; commands find it and use it too."""
    pytest.importorskip("pyspark")
    from semistream.spark import local_session

    warehouse = tmp_path_factory.mktemp("warehouse")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Spark's own, while it starts
        session = local_session(
            "semistream-tests",
            cores=2,
            spark_sql_warehouse_dir=str(warehouse),
            # Tests are short: compiling Java well would take longer than it saves.
            spark_driver_extraJavaOptions="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
