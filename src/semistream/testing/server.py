"""A database server of one's own: started from the system's package, ended with its user.

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

USER = "semistream"
START_SECONDS = 60


class ServerMissingError(SemiStreamError):
    """A server is not installed, or not one that can be started from here."""


class PrivateServer(ABC):
    """A server from `start` (or entering the context) to `stop`.

    Its data live in `data`, where they stay, or in a temporary folder, where nothing of it
    survives. A root process runs it as the user that the system's package made for it. Where
    `setpriv` is there (any Linux), it also ends with the thread that started it.
    """

    product: ClassVar[str]
    account: ClassVar[str]
    """The user that a root process runs it as."""

    missing: ClassVar[type[ServerMissingError]] = ServerMissingError

    def __init__(
        self, *, data: Path | None = None, settings: Mapping[str, str] | None = None
    ) -> None:
        self.settings = dict(settings or {})
        self._kept = data
        self._folder: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None

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
        return self.folder / "data" if self._kept is None else self._kept

    def start(self) -> Self:
        """Make the data where there are none, and start; returns when it takes connections."""
        account = self._account()
        # Not below a folder that only its owner may enter, and short: sockets have a longest path.
        self._folder = Path(tempfile.mkdtemp(prefix="semistream-db-", dir="/tmp"))
        try:
            if account is not None:
                shutil.chown(self._folder, account)
            if not self.data.exists():
                self.data.mkdir(mode=0o700)
                if account is not None:
                    shutil.chown(self.data, account)
                if self._spawn(self.making()).wait():
                    raise self._failed("the making of its data")
            self._serve()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop the server and remove everything temporary; also when it is not running."""
        self._end(signal.SIGQUIT if self._kept is None else self.gentle)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def crash(self) -> None:
        """End all server processes at once, as a failure would, and start again."""
        self._end(signal.SIGQUIT)
        self._serve()

    gentle: ClassVar[signal.Signals] = signal.SIGTERM
    """Ends the server with its data in order."""

    @abstractmethod
    def making(self) -> list[str]:
        """The command that makes empty data."""

    @abstractmethod
    def serving(self) -> list[str]:
        """The command that serves them."""

    @abstractmethod
    def is_ready(self) -> bool:
        """Whether it takes connections."""

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _serve(self) -> None:
        tied = ["setpriv", "--pdeathsig", "QUIT"] if shutil.which("setpriv") else []
        self._process = self._spawn([*tied, *self.serving()])
        deadline_ns = time.monotonic_ns() + START_SECONDS * 1_000_000_000
        while not self.is_ready():
            if self._process.poll() is not None or time.monotonic_ns() > deadline_ns:
                raise self._failed("the server")
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(0.05)

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait()
            self._process = None

    def _spawn(self, command: list[str]) -> subprocess.Popen[bytes]:
        account = self._account()
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

    def _failed(self, what: str) -> ServerMissingError:
        told = (self.folder / "log").read_text()[-2000:].strip()
        return self.missing(
            f"{self.product}: {what} failed: {told}", hint=f"see what {self.product} says above"
        )

    def _account(self) -> str | None:
        """The user that the server must run as, if it is another one."""
        if os.geteuid() != 0:
            return None
        try:
            return pwd.getpwnam(self.account).pw_name
        except KeyError:
            raise self.missing(
                f"{self.product} does not run as root, and there is no user {self.account!r} to "
                "run it as",
                hint="install Debian's package, which makes one, or run this as another user",
            ) from None
