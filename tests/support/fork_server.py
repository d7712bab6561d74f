"""Processes of the product, forked from one that has imported it: for tests alone.

A process of the product needs a second or two of a core for its imports, and the tests start hundreds. The
server imports once for each process of pytest, runs nothing and waits; what is asked for is a fork of it that
becomes `python -m <module> <arguments>`: own session, folder, environment and stdio. It ends when its server
does, and the server when the process of pytest does, which is when their socket closes.

What an interpreter or a library reads of the environment as it loads cannot be changed in a fork: where such
a variable differs from the server's, `start` executes a new interpreter instead. Memory and loaded libraries
are those of all that the server imported: a test of these asks for a new interpreter too.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import json
import os
import runpy
import select
import selectors
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from pkgutil import walk_packages
from typing import IO, NoReturn, TypeVar

ROOT = Path(__file__).parents[2]
MAX_REQUEST_BYTES = 1 << 17
DESCRIPTORS = 4  # of a request: stdin, stdout, stderr and the socket that tells of the process
# read while interpreter or libraries load
READ_AT_LOAD = (
    *("PYTHON", "LD_", "LC_", "TZ", "GRPC_", "OTEL_"),
    *("OMP_", "MKL_", "OPENBLAS_", "NUMBA_", "TORCH"),
)
BEGUN = b"begun"  # the first message of a process, with its id; the second one is its exit code
IN_A_FORK_TOO = "PYTHONDONTWRITEBYTECODE"
PRODUCT = ("chorale", "cli", "client", "coordinator", "crypto", "silo_agent", "simulation", "strategies")
# what it imports as it runs
BESIDE = ("dp_accounting.pld", "dp_accounting.rdp", "sqlite3", "tests.support.one_hot")
# a fork runs one of them as its main module
MAIN = ("cli.main", "tests.support.halting", "tests.support.keeping", "tests.support.forking_demo")
# need seconds, for opacus and torchvision, and few tests use them
LATE = ("silo_agent.training.dp_sgd", "silo_agent.training.machine.torchvision_compat")


class Forked:
    """A forked process with as much of `subprocess.Popen` as tests use."""

    def __init__(self, status: socket.socket, arguments: Sequence[str]) -> None:
        self._status = status
        self.args = arguments
        self.returncode: int | None = None
        begun, _, pid = status.recv(32).partition(b" ")
        assert begun == BEGUN, f"the fork server did not start {arguments}; its own words are on stderr"
        self.pid = int(pid)

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            waiting = select.poll()
            waiting.register(self._status, select.POLLIN)
            if not waiting.poll(None if timeout is None else timeout * 1000):
                assert timeout is not None
                raise subprocess.TimeoutExpired(list(self.args), timeout)
            self.returncode = int(self._status.recv(32) or -signal.SIGKILL)  # b"": it died with its server
            self._status.close()  # the server may reap it now
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Nothing if it has ended. Its process id is kept until `poll` or `wait` has told its end."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


Process = Forked | subprocess.Popen[bytes]


def start(
    module: str,
    arguments: Sequence[str],
    *,
    folder: Path,
    environment: Mapping[str, str],
    stdout: IO[bytes],
    stderr: IO[bytes],
    is_executed: bool = False,
    limits: Sequence[str] = (),
) -> Process:
    """`python -m module arguments` in that folder, without input, in a session of its own.

    is_executed: by a new interpreter, whatever the environment says. limits: a command that sets them and
    executes one.
    """
    with Path(os.devnull).open("rb") as stdin:
        if is_executed or limits or read_at_load(environment) != server().read_at_load:
            return subprocess.Popen(
                [*limits, sys.executable, "-m", module, *arguments],
                cwd=folder,
                env=environment,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )
        request = Request(
            module=module, arguments=list(arguments), folder=str(folder), environment=dict(environment)
        )
        return server().fork(request, [each.fileno() for each in (stdin, stdout, stderr)])


def read_at_load(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(READ_AT_LOAD) and name != IN_A_FORK_TOO
    }


@dataclass(frozen=True, kw_only=True)
class Request:
    module: str
    arguments: list[str]
    folder: str
    environment: dict[str, str] = field(repr=False)


Kind = TypeVar("Kind", bound=Forked)


def fork_of(server: socket.socket, request: Request, stdio: Sequence[int], *, kind: type[Kind]) -> Kind:
    """Ask the server at the other end of a socket for a process with that input, output and errors."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        message = json.dumps(asdict(request)).encode()
        socket.send_fds(server, [message], [*stdio, theirs.fileno()])
    return kind(ours, [request.module, *request.arguments])


class Server:
    """The server, seen from pytest. `close` ends it, and with it what it forked."""

    def __init__(self) -> None:
        from tests.support.processes import environment

        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        started = environment({})
        self.read_at_load = read_at_load(started)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __spec__.name, str(theirs.fileno())],
                cwd=ROOT,
                env=started,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # no terminal, so that its forks write as into a file
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self.pid = self._process.pid
        atexit.register(self.close)

    def fork(self, request: Request, stdio: Sequence[int]) -> Forked:
        return fork_of(self._socket, request, stdio, kind=Forked)

    def close(self) -> None:
        self._socket.close()
        self._process.wait()


@functools.cache
def server() -> Server:
    return Server()


# what follows runs in the server


@dataclass(frozen=True, kw_only=True)
class _Child:
    pid: int
    pidfd: int
    status: socket.socket

    def tell_end(self) -> None:
        ended = os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        is_exit = ended.si_code == os.CLD_EXITED
        with suppress(OSError):  # it is not waited for
            self.status.send(b"%d" % (ended.si_status if is_exit else -ended.si_status))

    def reap(self) -> None:
        os.waitpid(self.pid, 0)
        self.close()

    def close(self) -> None:
        os.close(self.pidfd)
        self.status.close()


def serve(control: socket.socket, set_by_imports: Mapping[str, str] | None = None) -> Request | None:
    """Fork until the control socket closes. Returns in each fork, with what it is to become.

    set_by_imports: variables that a new interpreter would set in its environment, too.
    """
    parent = os.getpid()
    watched = selectors.DefaultSelector()
    watched.register(control, selectors.EVENT_READ)
    while True:
        for key, _ in watched.select():
            child: _Child | None = key.data
            if child is None:
                message, descriptors, _, _ = socket.recv_fds(control, MAX_REQUEST_BYTES, DESCRIPTORS)
                if not message:
                    return None
                status = socket.socket(fileno=descriptors.pop())
                pid = os.fork()
                if pid == 0:
                    for other in watched.get_map().values():
                        if other.data is not None:
                            other.data.close()
                    for each in (watched, control):
                        each.close()
                    with status:
                        request = _become(Request(**json.loads(message)), descriptors, parent)
                        for name, value in (set_by_imports or {}).items():
                            os.environ.setdefault(name, value)
                        status.send(b"%s %d" % (BEGUN, os.getpid()))
                    return request
                for descriptor in descriptors:
                    os.close(descriptor)
                child = _Child(pid=pid, pidfd=os.pidfd_open(pid), status=status)
                watched.register(child.pidfd, selectors.EVENT_READ, child)
            elif key.fileobj == child.pidfd:
                watched.unregister(child.pidfd)
                child.tell_end()
                # it stays a zombie, so that no other gets its process id, until the other end has closed
                watched.register(child.status, selectors.EVENT_READ, child)
            else:
                watched.unregister(child.status)
                child.reap()


def _become(request: Request, stdio: list[int], parent: int) -> Request:
    """Everything of a new process but its imports."""
    from cli.startup.parent import PARENT, die_with_parent

    os.environ[PARENT] = str(parent)
    die_with_parent()
    os.setsid()
    os.chdir(request.folder)
    for number, descriptor in enumerate(stdio):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(request.environment)
    sys.dont_write_bytecode = bool(request.environment.get(IN_A_FORK_TOO))
    sys.argv[1:] = request.arguments
    sys.path[0] = request.folder
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()  # the library's own generator is copied by a fork; Python's is not
    return request


def run(request: Request) -> NoReturn:
    """The module as the main one, and then the end of the process.

    What an interpreter does last is done: threads are waited for, `atexit` is heeded, output is written. But
    what was imported is not taken apart, which would need half a second of a core.
    """
    code = 1
    try:
        runpy.run_module(request.module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as ending:
        if isinstance(ending.code, str):
            sys.stderr.write(f"{ending.code}\n")
        code = ending.code if isinstance(ending.code, int) else int(ending.code is not None)
    except BaseException:
        traceback.print_exc()
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


def import_product() -> None:
    from chorale.transport.tls import restrict_to_tls13

    restrict_to_tls13()  # before what follows imports grpc
    found = [each.name for name in PRODUCT for each in walk_packages([str(ROOT / name)], f"{name}.")]
    for name in [*found, *BESIDE]:
        if name not in MAIN and not name.startswith(LATE):
            importlib.import_module(name)
    gc.freeze()  # no fork goes through all that was imported


def check_alone() -> None:
    """A fork has neither the threads nor the channels of gRPC that its server had, but what they hold."""
    threads = os.listdir("/proc/self/task")
    assert threading.active_count() == len(threads) == 1, f"importing started threads: {threads}"
    opened = [each for each in Path("/proc/self/fd").iterdir() if int(each.name) > 2 and each.is_socket()]
    assert len(opened) <= 1, f"importing opened sockets: {opened}"  # one is that of `serve`


if __name__ == "__main__":
    _before = dict(os.environ)
    import_product()
    check_alone()
    _set = {name: value for name, value in os.environ.items() if name not in _before}
    if (_request := serve(socket.socket(fileno=int(sys.argv[1])), _set)) is not None:
        run(_request)
    os._exit(0)
