"""A database server for tests and benchmarks: from the system's package, thrown away after.

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
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from semistream.core.errors import SemiStreamError

START_SECONDS = 60


class ServerMissingError(SemiStreamError):
    """No such server is installed, or none that can be started from here."""


class DatabaseServer(ABC):
    """A server with an empty database, from `start` (or entering the context) to `stop`.

    A root process runs it as the user that the system's package made for it, since servers refuse
    to run as root. Nothing of it survives: by default it does not even wait for the disk
    (`durable=False`), which is no matter unless the machine itself fails. Where `setpriv` is there
    (any Linux), it also ends with the thread that started it.
    """

    name: ClassVar[str]
    account: ClassVar[str]
    end_signal: ClassVar[signal.Signals]
    missing: ClassVar[type[ServerMissingError]]

    def __init__(self, *, durable: bool = False) -> None:
        self.durable = durable
        self._folder: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    @abstractmethod
    def uri(self) -> str:
        """What clients connect to."""

    def start(self) -> Self:
        """Make a fresh cluster and start it; returns when it takes connections."""
        account, making = self._user(), self._making()
        # Not below a folder that only its owner may enter, and short: sockets have a longest path.
        self._folder = Path(tempfile.mkdtemp(prefix="semistream-db-", dir="/tmp"))
        if account is not None:
            shutil.chown(self._folder, account)
        try:
            if self._spawn([*making, *self._made_in(self._folder / "data")]).wait():
                raise self._failed(Path(making[0]).name)
            self.go_on()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop the server and remove everything; also when it is not running."""
        self.fail()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def fail(self) -> None:
        """End all server processes at once, as a failure would; what was committed stays."""
        if self._process is not None:
            self._process.send_signal(self.end_signal)
            self._process.wait()
            self._process = None

    def go_on(self) -> None:
        """Start it again after it failed."""
        tied = ["setpriv", "--pdeathsig", self.end_signal.name[3:]]
        command = self._serving()
        self._process = self._spawn([*(tied if shutil.which("setpriv") else []), *command])
        deadline_ns = time.monotonic_ns() + START_SECONDS * 1_000_000_000
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic_ns() > deadline_ns:
                raise self._failed(Path(command[0]).name)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(0.05)

    def crash(self) -> None:
        """Fail and go on."""
        self.fail()
        self.go_on()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @abstractmethod
    def _making(self) -> list[str]:
        """The command that makes an empty database; raises where nothing is installed."""

    @abstractmethod
    def _made_in(self, data: Path) -> list[str]:
        """What says to that command where to make it."""

    @abstractmethod
    def _serving(self) -> list[str]:
        """The command that is the server."""

    @abstractmethod
    def _is_ready(self) -> bool:
        """Whether it takes connections."""

    def _made(self) -> Path:
        if self._folder is None:
            raise self.missing(
                "the server is not running", hint="call start(), or use it in a with statement"
            )
        return self._folder

    def _spawn(self, command: list[str]) -> subprocess.Popen[bytes]:
        account = self._user()
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

    def _failed(self, program: str) -> ServerMissingError:
        told = (self._made() / "log").read_text()[-2000:].strip()
        return self.missing(
            f"{program} did not do its work: {told}", hint=f"see what {self.name} says above"
        )

    def _user(self) -> str | None:
        """The user that the server must run as, if it is another one."""
        if os.geteuid() != 0:
            return None
        try:
            return pwd.getpwnam(self.account).pw_name
        except KeyError:
            raise self.missing(
                f"{self.name} does not run as root, and there is no user {self.account!r} to run "
                "it as",
                hint="install Debian's package, which makes one, or run this as another user",
            ) from None
