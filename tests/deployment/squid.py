"""A squid of the test's own: an HTTP proxy that opens tunnels to one port, and a log of who asked."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support import programs
from tests.support.ports import free_ports
from tests.support.processes import PATIENCE_SECONDS, wait_until

USER = "proxy"  # whom Debian's squid becomes where root starts it
CONFIGURATION = """\
http_port 127.0.0.1:{port}
hosts_file {folder}/hosts
{login}
acl tunnel method CONNECT
acl coordinator port {tunnel_port}
http_access allow tunnel coordinator {who}
http_access deny all
cache deny all
logformat answers %rm %ru %>Hs %<st
access_log stdio:{folder}/access.log answers
buffered_logs off
cache_log {folder}/cache.log
pid_filename {folder}/squid.pid
coredump_dir {folder}
netdb_filename none
pinger_enable off
visible_hostname proxy.test
shutdown_lifetime 0 seconds
"""
LOGIN = """\
auth_param basic program /usr/lib/squid/basic_ncsa_auth {folder}/logins
auth_param basic children 1 startup=1
auth_param basic realm institution
auth_param basic utf8 on
acl known proxy_auth REQUIRED"""


@dataclass(frozen=True, slots=True)
class Answer:
    """What squid answered, written when the tunnel had ended. size_bytes: that passed to the client."""

    method: str
    target: str
    status: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Squid:
    """A proxy that runs. It alone knows the names in its hosts file."""

    address: str
    folder: Path
    process: subprocess.Popen[bytes]

    def answers(self) -> list[Answer]:
        lines = [line.split() for line in (self.folder / "access.log").read_text().splitlines()]
        answers = [Answer(method, target, int(status), int(size)) for method, target, status, size in lines]
        return [answer for answer in answers if answer.method == "CONNECT"]

    def has_started(self) -> bool:
        assert self.process.poll() is None, self.log_text()
        return "Accepting HTTP Socket connections" in self.log_text()

    def log_text(self) -> str:
        logs = [self.folder / "stderr.log", self.folder / "cache.log"]
        return "".join(log.read_text(errors="replace") for log in logs if log.exists())

    def stop(self) -> None:
        """Every tunnel ends, and is in the log."""
        self.process.terminate()
        self.process.wait(PATIENCE_SECONDS)


@contextmanager
def running(*, host: str, tunnel_port: int, login: tuple[str, str] | None = None) -> Iterator[Squid]:
    """A proxy that takes `host` for this machine and opens tunnels to that port alone; gone afterwards.

    login: user name and password, without which it opens none.
    """
    program = programs.needed("squid")
    # not in the test's own folder, which its user may not enter
    with tempfile.TemporaryDirectory(prefix="chorale-squid-") as name:
        folder, (port,) = Path(name), free_ports(1)
        (folder / "hosts").write_text(f"127.0.0.1 {host}\n")
        settings = CONFIGURATION.format(
            port=port,
            folder=folder,
            tunnel_port=tunnel_port,
            login="" if login is None else LOGIN.format(folder=folder),
            who="" if login is None else "known",
        )
        if login is not None:
            username, password = login
            hashed = hashlib.md5(password.encode(), usedforsecurity=False).hexdigest()
            (folder / "logins").write_text(f"{username}:{hashed}\n")
        (folder / "squid.conf").write_text(settings)
        if os.geteuid() == 0:
            shutil.chown(folder, USER)
        with (folder / "stderr.log").open("wb") as stderr:
            command = [program, "-N", "-f", folder / "squid.conf"]
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=stderr)
        squid = Squid(address=f"127.0.0.1:{port}", folder=folder, process=process)
        try:
            wait_until(squid.has_started, "squid to accept connections", detail=squid.log_text)
            yield squid
        finally:
            squid.stop()
