"""A standalone Spark cluster on this machine, from PySpark's own package, thrown away after.

A master and some workers on the loopback address, each a process of its own, with ports that are
free. For tests that need real executors, and one of them to die.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType

from semistream.core.errors import SemiStreamError

START_SECONDS = 120
ADDRESS = "127.0.0.1"


class ClusterError(SemiStreamError):
    """A process of the cluster did not start."""


class SparkCluster:
    """One master and `workers` workers, from `start` (or entering the context) to `stop`.

    Each worker offers `cores` and `memory` to executors, and keeps their working directories below
    `folder`. Where `setpriv` is there (any Linux), all end with the thread that started them.
    """

    def __init__(self, workers: int = 2, *, cores: int = 1, memory: str = "1g") -> None:
        self.workers = workers
        self.cores = cores
        self.memory = memory
        self.port = 0
        self.folder = Path()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def url(self) -> str:
        """What a session takes as its master."""
        return f"spark://{ADDRESS}:{self.port}"

    def start(self) -> SparkCluster:
        """Start all processes; returns when every worker has registered."""
        self.folder = Path(tempfile.mkdtemp(prefix="semistream-cluster-"))
        self.port = _free_port()
        try:
            where = ["--host", ADDRESS, "--webui-port", "0"]
            self._spawn("master", ["master.Master", *where, "--port", str(self.port)])
            self._until("master", "I have been elected leader")
            offer = ["--cores", str(self.cores), "--memory", self.memory]
            for number in range(self.workers):
                work = ["--work-dir", str(self.folder / f"worker-{number}")]
                self._spawn(f"worker-{number}", ["worker.Worker", *where, *offer, *work, self.url])
            for number in range(self.workers):
                self._until(f"worker-{number}", "Successfully registered with master")
        except BaseException:
            self.stop()
            raise
        return self

    def kill_worker(self, number: int) -> None:
        """Kill a worker and its executors, as if its machine had failed."""
        process = self._processes.pop(f"worker-{number}")
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def log(self, name: str) -> str:
        """What `master` or `worker-0` said."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def stop(self) -> None:
        """End all processes and remove what they wrote."""
        for process in self._processes.values():
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._processes.clear()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _spawn(self, name: str, arguments: list[str]) -> None:
        found = find_spec("pyspark")
        if found is None or found.origin is None:
            raise ClusterError("PySpark is missing", hint="pip install 'semistream[spark]'")
        home = Path(found.origin).parent
        guard = shutil.which("setpriv")
        command = [] if guard is None else [guard, "--pdeathsig", "KILL"]
        command += [str(home / "bin" / "spark-class")]
        command += [f"org.apache.spark.deploy.{arguments[0]}", *arguments[1:]]
        # Executors inherit the environment of their worker: nothing of this process's Python.
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("PYTHON")
        }
        environment |= {"SPARK_HOME": str(home), "SPARK_LOCAL_IP": ADDRESS}
        environment |= {"SPARK_DAEMON_MEMORY": "256m"}
        with (self.folder / f"{name}.log").open("wb") as log:
            self._processes[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                cwd=self.folder,
                start_new_session=True,  # so that a worker is killed with its executors
            )

    def _until(self, name: str, said: str) -> None:
        end = time.monotonic() + START_SECONDS
        while said not in self.log(name):
            if self._processes[name].poll() is not None or time.monotonic() > end:
                raise ClusterError(
                    f"{name} of the Spark cluster does not start: {self.log(name)[-2000:]}",
                    hint="Spark needs Java 17 or newer; 'make java' looks for one",
                )
            time.sleep(0.1)  # noqa: TID251  # a process outside of it, on the machine's own time

    def __enter__(self) -> SparkCluster:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((ADDRESS, 0))
        return int(probe.getsockname()[1])
