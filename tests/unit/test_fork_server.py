"""The fork server of the tests: a fork is what a new interpreter would be, and ends with pytest."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support import fork_server
from tests.support.fork_server import Forked, Process, start
from tests.support.processes import PATIENCE_SECONDS, environment

# a module next to the test, run by its name as `python -m` does
TELLING = """
import json, os, random, signal, sys, threading
import numpy as np

def facts():
    return {
        "name": __name__,
        "spec": sys.modules["__main__"].__spec__.name,
        "arguments": sys.argv[1:],
        "file": sys.argv[0],
        "folder": os.getcwd(),
        "path": sys.path[0],
        "environment": {k: v for k, v in os.environ.items() if k not in ("MKL_CBWR", "LC_CTYPE")},
        "leads": [os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid()],
        "signals": [str(signal.getsignal(number)) for number in signal.valid_signals()],
        "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "threads": threading.active_count(),
        "descriptors": sorted(os.listdir("/proc/self/fd")),
        "bytecode": sys.dont_write_bytecode,
        "input": sys.stdin.read(),
        "random": [random.random(), np.random.random()],
    }

if __name__ == "__main__":
    match sys.argv[1:]:
        case ["tell", *_]:
            print(json.dumps(facts()))
            print("on stderr", file=sys.stderr)
        case ["exit", code]:
            sys.exit(int(code))
        case ["exit in words"]:
            sys.exit("words")
        case ["raise"]:
            raise KeyError("raised")
        case ["thread"]:
            last = lambda: (threading.main_thread().join(), print("from a thread"))
            threading.Thread(target=last).start()
        case ["kill", number]:
            os.kill(os.getpid(), int(number))
        case ["pause"]:
            print("paused", flush=True)
            signal.pause()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "telling.py").write_text(TELLING)
    return tmp_path


def begin(folder: Path, *arguments: str, is_executed: bool = False, **extra: str) -> Process:
    with (folder / "out").open("wb") as out, (folder / "errors").open("wb") as errors:
        return start(
            "telling",
            arguments,
            folder=folder,
            environment=environment(extra),
            stdout=out,
            stderr=errors,
            is_executed=is_executed,
        )


def ended(folder: Path, *arguments: str, is_executed: bool = False, **extra: str) -> tuple[int, str, str]:
    """Exit code, output and errors."""
    process = begin(folder, *arguments, is_executed=is_executed, **extra)
    assert isinstance(process, Forked) is not is_executed
    code = process.wait(PATIENCE_SECONDS)
    return code, (folder / "out").read_text(), (folder / "errors").read_text()


def facts_of(folder: Path, *, is_executed: bool = False, **extra: str) -> dict[str, Any]:
    code, out, errors = ended(folder, "tell", "two words", is_executed=is_executed, **extra)
    assert (code, errors) == (0, "on stderr\n")
    found: dict[str, Any] = json.loads(out)
    return found


@pytest.mark.parametrize("extra", [{}, {"CHORALE_X": "1", "PYTHONDONTWRITEBYTECODE": "1"}], ids=["", "set"])
def test_a_fork_is_what_a_new_interpreter_would_be(folder: Path, extra: Mapping[str, str]) -> None:
    forked, executed = facts_of(folder, **extra), facts_of(folder, is_executed=True, **extra)
    for one in (forked, executed):
        one["random"] = None
        for name in ("GRPC_SSL_CIPHER_SUITES", "GRPC_VERBOSITY", "GRPC_ENABLE_FORK_SUPPORT"):
            one["environment"].pop(name, None)  # the first import of a command sets them
    assert forked == executed


def test_no_two_forks_draw_the_same_numbers(folder: Path) -> None:
    first, second = facts_of(folder)["random"], facts_of(folder)["random"]
    assert first[0] != second[0]
    assert first[1] != second[1]


@pytest.mark.parametrize(
    "arguments, code, output",
    [
        (["exit", "3"], 3, ""),
        (["exit in words"], 1, "words\n"),
        (["raise"], 1, "KeyError: 'raised'\n"),
        (["thread"], 0, "from a thread\n"),
        (["kill", str(int(signal.SIGKILL))], -signal.SIGKILL, ""),
        (["kill", str(int(signal.SIGTERM))], -signal.SIGTERM, ""),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_end_of_a_process_is_told(folder: Path, arguments: list[str], code: int, output: str) -> None:
    for is_executed in (False, True):
        found, out, errors = ended(folder, *arguments, is_executed=is_executed)
        assert found == code
        assert (out + errors).endswith(output)


def test_running_process_is_waited_for_and_signaled(folder: Path) -> None:
    process = begin(folder, "pause")
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    process.terminate()
    assert process.wait(PATIENCE_SECONDS) == -signal.SIGTERM
    process.kill()  # of one that ended: nothing


def test_variable_that_is_read_as_a_library_loads_needs_a_new_interpreter(folder: Path) -> None:
    process = begin(folder, "tell", OMP_NUM_THREADS="2")
    assert not isinstance(process, Forked)
    assert process.wait(PATIENCE_SECONDS) == 0


@pytest.fixture
def paused(folder: Path) -> Iterator[tuple[fork_server.Server, Forked]]:
    """A server of the test's own and a fork of it."""
    server = fork_server.Server()
    request = fork_server.Request(
        module="telling", arguments=["pause"], folder=str(folder), environment=environment({})
    )
    with (folder / "out").open("wb") as out:
        yield server, server.fork(request, [0, out.fileno(), out.fileno()])
    server.close()


def test_forks_end_with_their_server(paused: tuple[fork_server.Server, Forked]) -> None:
    server, process = paused
    server.close()
    assert process.wait(PATIENCE_SECONDS) == -signal.SIGKILL
    _, alive = psutil.wait_procs(_there(process.pid), timeout=PATIENCE_SECONDS)
    assert alive == []


def test_server_ends_when_pytest_is_killed(folder: Path) -> None:
    lines = [
        "import os, signal, sys",
        "from pathlib import Path",
        "from chorale.transport.tls import restrict_to_tls13; restrict_to_tls13()",
        "from tests.support.fork_server import server, start",
        "out = open(os.devnull, 'wb')",
        "process = start('telling', ['pause'], folder=Path(sys.argv[1]), environment=dict(os.environ),",
        "                stdout=out, stderr=out)",
        "print(process.pid, server().pid, flush=True)",
        "os.kill(os.getpid(), signal.SIGKILL)",
    ]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines), str(folder)],
        cwd=fork_server.ROOT,
        env=environment({}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    _, alive = psutil.wait_procs(_there(*map(int, done.stdout.split())), timeout=PATIENCE_SECONDS)
    assert alive == []


def test_server_does_not_fork_with_a_thread_or_a_socket_of_its_own(folder: Path) -> None:
    (folder / "with_thread.py").write_text(
        "import threading\n"
        "from tests.support.fork_server import check_alone\n"
        "threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        "check_alone()\n"
    )
    (folder / "with_socket.py").write_text(
        "import socket\n"
        "from tests.support.fork_server import check_alone\n"
        "pair = socket.socketpair()\n"
        "check_alone()\n"
    )
    for name, message in (("with_thread", "importing started threads"), ("with_socket", "opened sockets")):
        done = subprocess.run(
            [sys.executable, "-m", name],
            cwd=folder,
            env=environment({}),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert message in done.stderr


def _there(*pids: int) -> list[psutil.Process]:
    return [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
