"""A PostgreSQL server for tests and benchmarks."""

from __future__ import annotations

import shutil
import signal
import subprocess
from pathlib import Path

from semistream.testing.server import DatabaseServer, ServerMissingError

USER = "semistream"

_DEBIAN = Path("/usr/lib/postgresql")
_UNSAFE_AND_FAST = {"fsync": "off", "full_page_writes": "off"}
"""What was committed survives the end of the server, as `fail` needs it, but not of the machine."""


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


class PostgresServer(DatabaseServer):
    """PostgreSQL with an empty database; see `DatabaseServer`."""

    name, account = "PostgreSQL", "postgres"
    end_signal, gentle_signal = signal.SIGQUIT, signal.SIGINT
    missing = PostgresMissingError

    @property
    def uri(self) -> str:
        return f"postgresql://{USER}@/postgres?host={self.folder}"

    def _making(self) -> list[str]:
        options = ["--username", USER, "--auth", "trust", "--encoding", "UTF8"]
        options += ["--locale", "C", "--no-sync", "--pgdata", str(self.data)]
        return [str(find_postgres() / "initdb"), *options]

    def _serving(self) -> list[str]:
        settings = {"listen_addresses": "", "unix_socket_directories": str(self.folder)}
        settings |= {} if self.durable else _UNSAFE_AND_FAST
        command = [str(find_postgres() / "postgres"), "-D", str(self.data)]
        for name, value in (settings | self.settings).items():
            command += ["-c", f"{name}={value}"]
        return command

    def _is_ready(self) -> bool:
        ready = [str(find_postgres() / "pg_isready"), "--host", str(self.folder), "--quiet"]
        return subprocess.run(ready, check=False).returncode == 0
