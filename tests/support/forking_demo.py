"""`python -m tests.support.forking_demo demo <options>`: the product's demo, whose parties are forks as well.

The demo executes a new interpreter for every command and party. Here it asks a fork server of its own, which
is a copy of this process as it starts, before any thread. It ends with the demo, and with it what it forked.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import IO, Any

from cli.demo import processes
from cli.startup.parent import PARENT
from tests.support.fork_server import Forked, Request, fork_of, run, serve


class _Party(Forked):
    """A fork with what it prints, where the demo captures that."""

    captured: Sequence[IO[bytes]]

    def communicate(self) -> tuple[bytes, ...]:
        self.wait()
        outputs = []
        for file in self.captured:
            file.seek(0)
            outputs.append(file.read())
            file.close()
        return tuple(outputs)


def _server() -> socket.socket:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        ours.close()
        request = serve(theirs)
        if request is not None:
            run(request)
        os._exit(0)
    theirs.close()
    return ours


def _forking(server: socket.socket) -> Any:
    """In place of subprocess.Popen, as cli/demo/processes.py calls it."""

    def popen(
        command: Sequence[str],
        *,
        stdin: int,
        stdout: int | IO[bytes],
        stderr: int | IO[bytes],
        env: Mapping[str, str],
        start_new_session: bool,
    ) -> _Party:
        assert (command[:2], stdin) == ([sys.executable, "-m"], subprocess.DEVNULL)
        assert start_new_session
        given = [
            tempfile.TemporaryFile() if isinstance(each, int) else each  # noqa: SIM115 - communicate does
            for each in (stdout, stderr)
        ]
        request = Request(
            module=command[2],
            arguments=list(command[3:]),
            folder=os.getcwd(),
            environment={name: value for name, value in env.items() if name != PARENT},  # it is the server
        )
        with open(os.devnull, "rb") as nothing:
            party = fork_of(server, request, [each.fileno() for each in (nothing, *given)], kind=_Party)
        party.captured = given
        return party

    return popen


if __name__ == "__main__":
    processes.subprocess = SimpleNamespace(  # type: ignore[assignment]
        Popen=_forking(_server()),
        DEVNULL=subprocess.DEVNULL,
        PIPE=subprocess.PIPE,
        TimeoutExpired=subprocess.TimeoutExpired,
    )
    from cli.main import main

    main()
