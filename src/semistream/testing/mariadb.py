"""A MariaDB server for tests and benchmarks."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
from pathlib import Path

from semistream.testing.server import DatabaseServer, ServerMissingError

DATABASE = "shop"
USER = "semistream"

_FOLDERS = "/usr/sbin:/usr/bin:/usr/local/bin:/usr/local/sbin:/usr/libexec"


class MariaDBMissingError(ServerMissingError):
    """No MariaDB server is installed, or none that can be started from here."""


def find_mariadb(program: str = "mariadbd") -> Path:
    """A program of the server."""
    found = shutil.which(program) or shutil.which(program, path=_FOLDERS)
    if found is None:
        raise MariaDBMissingError(
            f"no MariaDB server is installed: there is no {program}",
            hint="on Debian or Ubuntu run: sudo apt-get install mariadb-server",
        )
    return Path(found)


class MariaDBServer(DatabaseServer):
    """MariaDB with an empty database; see `DatabaseServer`."""

    name, account = "MariaDB", "mysql"
    end_signal = signal.SIGKILL
    missing = MariaDBMissingError

    @property
    def uri(self) -> str:
        return f"mariadb://{USER}@localhost/{DATABASE}?socket={self._socket}"

    def execute(self, *statements: str) -> None:
        """Run statements by the command-line client, as the administrator."""
        client = [str(find_mariadb("mariadb")), "--no-defaults", f"--socket={self._socket}"]
        done = subprocess.run(
            [*client, "--user=root"],
            input=";\n".join([f"USE {DATABASE}", *statements]),
            check=False,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise self.missing(f"mariadb: {done.stderr.strip()}", hint="check the statements")

    @property
    def _socket(self) -> Path:
        return self._made() / "socket"

    def _making(self) -> list[str]:
        command = [str(find_mariadb("mariadb-install-db")), "--no-defaults", "--skip-test-db"]
        return [*command, "--auth-root-authentication-method=normal"]

    def _made_in(self, data: Path) -> list[str]:
        # Read at every start, before connections are taken; the grants are no news after the first.
        start = self._made() / "start.sql"
        start.write_text(
            f"CREATE DATABASE IF NOT EXISTS {DATABASE};\n"
            f"CREATE USER IF NOT EXISTS {USER}@localhost;\n"
            f"GRANT ALL ON {DATABASE}.* TO {USER}@localhost;\n"
        )
        start.chmod(0o644)
        return [f"--datadir={data}"]

    def _serving(self) -> list[str]:
        folder = self._made()
        command = [str(find_mariadb()), "--no-defaults", f"--datadir={folder / 'data'}"]
        command += [f"--socket={self._socket}", "--skip-networking", "--skip-log-bin"]
        command += [f"--init-file={folder / 'start.sql'}", "--innodb-buffer-pool-size=64M"]
        return [*command, *(() if self.durable else ("--innodb-flush-log-at-trx-commit=2",))]

    def _is_ready(self) -> bool:
        with socket.socket(socket.AF_UNIX) as one:
            return one.connect_ex(str(self._socket)) == 0
