"""A MariaDB server for tests and benchmarks."""

from __future__ import annotations

import shutil
import signal
import subprocess
from pathlib import Path
from socket import AF_UNIX, socket

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
    end_signal, gentle_signal = signal.SIGKILL, signal.SIGTERM
    missing = MariaDBMissingError

    @property
    def uri(self) -> str:
        return f"mariadb://{USER}@localhost/{DATABASE}?socket={self.socket}"

    def execute(self, *statements: str) -> None:
        """Run statements by the command-line client, as the administrator."""
        client = [str(find_mariadb("mariadb")), "--no-defaults", f"--socket={self.socket}"]
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
    def socket(self) -> Path:
        """Where clients reach it; `root` needs no password there."""
        return self.folder / "socket"

    def _making(self) -> list[str]:
        command = [str(find_mariadb("mariadb-install-db")), "--no-defaults", "--skip-test-db"]
        return [*command, "--auth-root-authentication-method=normal", f"--datadir={self.data}"]

    def _serving(self) -> list[str]:
        # Read at every start, before connections are taken; the grants are no news after the first.
        start = self.folder / "start.sql"
        start.write_text(
            f"CREATE DATABASE IF NOT EXISTS {DATABASE};\n"
            f"CREATE USER IF NOT EXISTS {USER}@localhost;\n"
            f"GRANT ALL ON {DATABASE}.* TO {USER}@localhost;\n"
        )
        start.chmod(0o644)
        settings = {
            "datadir": str(self.data),
            "socket": str(self.socket),
            "tmpdir": str(self.folder),
            "init-file": str(start),
            "skip-networking": "1",
            "secure-file-priv": "",
            "innodb-buffer-pool-size": "64M",
            "innodb-flush-log-at-trx-commit": "1" if self.durable else "2",
        }
        options = [f"--{name}={value}" for name, value in (settings | self.settings).items()]
        return [str(find_mariadb()), "--no-defaults", "--skip-log-bin", *options]

    def _is_ready(self) -> bool:
        with socket(AF_UNIX) as one:
            return one.connect_ex(str(self.socket)) == 0
