"""A PostgreSQL server for tests and benchmarks: from the system's package, thrown away after.

It listens on a Unix socket in a temporary folder only, so that it needs neither a port nor a
password, and disturbs no server that runs already.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
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
    matter unless the machine itself fails. Where `setpriv` is there (any Linux), it also ends with
    the thread that started it.
    """

    def __init__(self, *, durable: bool = False) -> None:
        self.durable = durable
        self._folder: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def uri(self) -> str:
        """What clients connect to."""
        return f"postgresql://{USER}@/postgres?host={self._made()}"

    def start(self) -> PostgresServer:
        """Make a fresh cluster and start it; returns when it takes connections."""
        programs, account = find_postgres(), _account()
        # Not below a folder that only its owner may enter, and short: sockets have a longest path.
        self._folder = Path(tempfile.mkdtemp(prefix="semistream-pg-", dir="/tmp"))
        if account is not None:
            shutil.chown(self._folder, account)
        try:
            initdb = [str(programs / "initdb"), "--pgdata", str(self._folder / "data")]
            initdb += ["--username", USER, "--auth", "trust", "--encoding", "UTF8"]
            if self._spawn([*initdb, "--locale", "C", "--no-sync"]).wait():
                raise self._failed("initdb")
            self._serve(programs)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop the server and remove everything; also when it is not running."""
        self._end()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def crash(self) -> None:
        """End all server processes at once, as a failure would, and start again."""
        self._end()
        self._serve(find_postgres())

    def __enter__(self) -> PostgresServer:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _serve(self, programs: Path) -> None:
        settings = ["listen_addresses=", f"unix_socket_directories={self._made()}"]
        settings += () if self.durable else _UNSAFE_AND_FAST
        command = [str(programs / "postgres"), "-D", str(self._made() / "data")]
        for setting in settings:
            command += ["-c", setting]
        tied = ["setpriv", "--pdeathsig", "QUIT"] if shutil.which("setpriv") else []
        self._process = self._spawn([*tied, *command])
        ready = [str(programs / "pg_isready"), "--host", str(self._made()), "--quiet"]
        deadline_ns = time.monotonic_ns() + START_SECONDS * 1_000_000_000
        while subprocess.run(ready, check=False).returncode:
            if self._process.poll() is not None or time.monotonic_ns() > deadline_ns:
                raise self._failed("postgres")
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(0.05)

    def _end(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait()
            self._process = None

    def _made(self) -> Path:
        if self._folder is None:
            raise PostgresMissingError(
                "the server is not running", hint="call start(), or use it in a with statement"
            )
        return self._folder

    def _spawn(self, command: list[str]) -> subprocess.Popen[bytes]:
        account = _account()
        with (self._made() / "log").open("ab") as log:
            return subprocess.Popen(
                command,
                cwd=self._made(),
                user=account,
                group=None if account is None else pwd.getpwnam(account).pw_gid,
                extra_groups=None if account is None else [],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for whoever started it
            )

    def _failed(self, program: str) -> PostgresMissingError:
        told = (self._made() / "log").read_text()[-2000:].strip()
        return PostgresMissingError(
            f"{program} did not do its work: {told}", hint="see what PostgreSQL says above"
        )


def _account() -> str | None:
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
