"""A MariaDB server for tests and benchmarks, from the system's package."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from semistream.testing.server import PrivateServer, ServerMissingError


class MariaDbMissingError(ServerMissingError):
    """No MariaDB server is installed, or none that can be started from here."""


def find_mariadb() -> dict[str, str]:
    """The paths of the server's programs, by their names."""
    found = {}
    for name in ("mariadbd", "mariadb-install-db", "mariadb-admin"):
        path = shutil.which(name, path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")
        path = path or shutil.which(name)
        if path is None:
            raise MariaDbMissingError(
                f"no MariaDB server is installed ({name} is not there)",
                hint="on Debian or Ubuntu run: scripts/setup.sh mariadb",
            )
        found[name] = path
    return found


class MariaDbServer(PrivateServer):
    """A server with an empty database `test`, or with the one in `data`: see `PrivateServer`.

    Settings are those of its command line. Whoever reaches the socket is `root` without a password.
    """

    product = "MariaDB"
    account = "mysql"
    missing = MariaDbMissingError

    @property
    def socket(self) -> Path:
        """What clients connect to."""
        return self.folder / "socket"

    def making(self) -> list[str]:
        command = [find_mariadb()["mariadb-install-db"], "--no-defaults"]
        return [
            *command,
            f"--datadir={self.data}",
            "--auth-root-authentication-method=normal",
            "--skip-name-resolve",
        ]

    def serving(self) -> list[str]:
        settings = {
            "datadir": str(self.data),
            "socket": str(self.socket),
            "tmpdir": str(self.folder),
            "skip-networking": "1",
            "secure-file-priv": "",
        }
        options = [f"--{name}={value}" for name, value in (settings | self.settings).items()]
        return [find_mariadb()["mariadbd"], "--no-defaults", *options]

    def is_ready(self) -> bool:
        admin = [find_mariadb()["mariadb-admin"], "--no-defaults", f"--socket={self.socket}"]
        done = subprocess.run([*admin, "--user=root", "ping"], check=False, capture_output=True)
        return done.returncode == 0
