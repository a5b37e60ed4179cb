"""A PostgreSQL server for tests and benchmarks, from the system's package."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

from semistream.testing.server import USER, PrivateServer, ServerMissingError

_DEBIAN = Path("/usr/lib/postgresql")
_UNSAFE_AND_FAST = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}


class PostgresMissingError(ServerMissingError):
    """No PostgreSQL server is installed, or none that can be started from here."""


def find_postgres() -> Path:
    """The folder of the newest server's programs."""
    versions = [path for path in _DEBIAN.glob("*/bin") if (path / "initdb").exists()]
    if versions:
        return max(versions, key=lambda path: float(path.parent.name))
    on_path = shutil.which("initdb")
    if on_path is None:
        raise PostgresMissingError(
            "no PostgreSQL server is installed",
            hint="on Debian or Ubuntu run: sudo apt-get install postgresql",
        )
    return Path(on_path).resolve().parent


class PostgresServer(PrivateServer):
    """A server with an empty database, or with the one in `data`: see `PrivateServer`.

    By default it does not even wait for the disk (`durable=False`), which is no matter unless the
    machine itself fails.
    """

    product = "PostgreSQL"
    account = "postgres"
    missing = PostgresMissingError
    gentle = signal.SIGINT

    def __init__(
        self,
        *,
        durable: bool = False,
        data: Path | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(data=data, settings=settings)
        self.durable = durable

    @property
    def uri(self) -> str:
        """What clients connect to."""
        return f"postgresql://{USER}@/postgres?host={self.folder}"

    def making(self) -> list[str]:
        initdb = [str(find_postgres() / "initdb"), "--pgdata", str(self.data)]
        initdb += ["--username", USER, "--auth", "trust", "--encoding", "UTF8"]
        return [*initdb, "--locale", "C", "--no-sync"]

    def serving(self) -> list[str]:
        settings = {"listen_addresses": "", "unix_socket_directories": str(self.folder)}
        settings |= {} if self.durable else _UNSAFE_AND_FAST
        command = [str(find_postgres() / "postgres"), "-D", str(self.data)]
        for name, value in (settings | self.settings).items():
            command += ["-c", f"{name}={value}"]
        return command

    def is_ready(self) -> bool:
        ready = [str(find_postgres() / "pg_isready"), "--host", str(self.folder), "--quiet"]
        return subprocess.run(ready, check=False).returncode == 0
