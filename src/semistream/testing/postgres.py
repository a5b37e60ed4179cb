"""A PostgreSQL server for tests and benchmarks: from the system's package, thrown away after.

It listens on a Unix socket in a temporary folder only, so that it needs neither a port nor a
password, and disturbs no server that runs already.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType

from semistream.core.errors import SemiStreamError

USER = "semistream"
START_SECONDS = 60

_DEBIAN = Path("/usr/lib/postgresql")
_UNSAFE_AND_FAST = ("fsync=off", "synchronous_commit=off", "full_page_writes=off")


class PostgresMissingError(SemiStreamError):
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


class PostgresServer:
    """A server with an empty database, from `start` (or entering the context) to `stop`.

    A root process runs it as the user `postgres`, since the server refuses to run as root. Nothing
    of it survives: by default it does not even wait for the disk (`durable=False`), which is no
    matter unless the machine itself fails.
    """

    def __init__(self, *, durable: bool = False) -> None:
        self.durable = durable
        self._folder: Path | None = None
        self._programs: Path | None = None

    @property
    def uri(self) -> str:
        """What clients connect to."""
        return f"postgresql://{USER}@/postgres?host={self._running()}"

    def start(self) -> PostgresServer:
        """Make a fresh cluster and start it; returns when it takes connections."""
        self._programs = find_postgres()
        # Not below a folder that only its owner may enter, and short: sockets have a longest path.
        self._folder = Path(tempfile.mkdtemp(prefix="semistream-pg-", dir="/tmp"))
        if self._account() is not None:
            shutil.chown(self._folder, self._account())
        data = self._folder / "data"
        try:
            self._call(
                "initdb",
                *("--pgdata", str(data), "--username", USER, "--auth", "trust"),
                *("--encoding", "UTF8", "--locale", "C", "--no-sync"),
            )
            settings = ["listen_addresses=", f"unix_socket_directories={self._folder}"]
            settings += () if self.durable else _UNSAFE_AND_FAST
            with (data / "postgresql.conf").open("a") as file:
                file.writelines(f"{name} = '{value}'\n" for name, value in map(_pair, settings))
            self._control("start", "--wait", "--log", str(self._folder / "log"))
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop the server and remove everything; also when it is not running."""
        if self._folder is None:
            return
        if (self._folder / "data" / "postmaster.pid").exists():
            self._control("stop", "--mode", "immediate")
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder = None

    def crash(self) -> None:
        """End all server processes at once, as a failure would, and start again."""
        self._running()
        self._control("stop", "--mode", "immediate")
        self._control("start", "--wait", "--log", str(self._running() / "log"))

    def __enter__(self) -> PostgresServer:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _running(self) -> Path:
        if self._folder is None:
            raise PostgresMissingError(
                "the server is not running", hint="call start(), or use it in a with statement"
            )
        return self._folder

    def _account(self) -> str | None:
        """The user that the server must run as, if it is another one."""
        if os.geteuid() != 0:
            return None
        try:
            return pwd.getpwnam("postgres").pw_name
        except KeyError:
            raise PostgresMissingError(
                "PostgreSQL does not run as root, and there is no user 'postgres' to run it as",
                hint="install Debian's package, which makes one, or run this as another user",
            ) from None

    def _control(self, command: str, *more: str) -> None:
        data = str(self._running() / "data")
        self._call("pg_ctl", command, "--pgdata", data, "--timeout", str(START_SECONDS), *more)

    def _call(self, program: str, *arguments: str) -> None:
        assert self._programs is not None
        account = self._account()
        # A file and not a pipe: the server would hold a pipe open, and its end would never come.
        said = self._running() / f"{program}.out"
        with said.open("w") as output:
            done = subprocess.run(
                [str(self._programs / program), *arguments],
                check=False,
                cwd=self._running(),
                user=account,
                group=None if account is None else pwd.getpwnam(account).pw_gid,
                extra_groups=None if account is None else [],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        if done.returncode:
            log = self._running() / "log"
            told = said.read_text() + (log.read_text()[-2000:] if log.exists() else "")
            raise PostgresMissingError(
                f"{program} failed: {told.strip()}", hint="see what PostgreSQL says above"
            )


def _pair(setting: str) -> tuple[str, str]:
    name, _, value = setting.partition("=")
    return name, value
