"""A database server of one's own, for tests and benchmarks: from the system's package.

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
from collections.abc import Mapping
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
    to run as root. Nothing of it survives, unless it gets a folder `data`, which is made where
    there is none and stays. By default it does not even wait for the disk (`durable=False`),
    which is no matter unless the machine itself fails. `settings` are those of the server's command
    line. Where `setpriv` is there (any Linux), it also ends with the thread that started it.
    """

    name: ClassVar[str]
    account: ClassVar[str]
    end_signal: ClassVar[signal.Signals]
    """Ends it at once, as a failure would."""

    gentle_signal: ClassVar[signal.Signals]
    """Ends it with its data in order."""

    missing: ClassVar[type[ServerMissingError]]

    def __init__(
        self,
        *,
        durable: bool = False,
        data: Path | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.durable = durable
        self.settings = dict(settings or {})
        self._kept = data
        self._folder: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    @abstractmethod
    def uri(self) -> str:
        """What clients connect to."""

    @property
    def folder(self) -> Path:
        """The temporary folder with its socket and log."""
        if self._folder is None:
            raise self.missing(
                "the server is not running", hint="call start(), or use it in a with statement"
            )
        return self._folder

    @property
    def data(self) -> Path:
        """Where its data lie."""
        return self._kept or self.folder / "data"

    def start(self) -> Self:
        """Make the data where there are none, and start; returns when it takes connections."""
        account = self._user()
        # Not below a folder that only its owner may enter, and short: sockets have a longest path.
        self._folder = Path(tempfile.mkdtemp(prefix="semistream-db-", dir="/tmp"))
        try:
            if account is not None:
                shutil.chown(self._folder, account)
            if not self.data.exists():
                making = self._making()
                self.data.mkdir(mode=0o700)
                if account is not None:
                    shutil.chown(self.data, account)
                if self._spawn(making).wait():
                    raise self._failed(Path(making[0]).name)
            self.go_on()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop the server and remove all but kept data; also when it is not running."""
        self._end(self.end_signal if self._kept is None else self.gentle_signal)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def fail(self) -> None:
        """End all server processes at once, as a failure would; what was committed stays."""
        self._end(self.end_signal)

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
    def _serving(self) -> list[str]:
        """The command that is the server."""

    @abstractmethod
    def _is_ready(self) -> bool:
        """Whether it takes connections."""

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait()
            self._process = None

    def _spawn(self, command: list[str]) -> subprocess.Popen[bytes]:
        account = self._user()
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                command,
                cwd=self.folder,
                user=account,
                group=None if account is None else pwd.getpwnam(account).pw_gid,
                extra_groups=None if account is None else [],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for whoever started it
            )

    def _failed(self, program: str) -> ServerMissingError:
        told = (self.folder / "log").read_text()[-2000:].strip()
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
