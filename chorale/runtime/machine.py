"""Descriptors, threads and memory that this process may have: too little ends a start with a sentence."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from crypto.errors import ChoraleError

MIN_FILES = 256  # some 20 are open in a quiet process; peers, uploads and a job's files come to them
MIN_THREADS = 64  # probes may take 32, the rest gRPC and transfers
STACK_BYTES = 1 << 18  # of a thread that only waits
OWN_CGROUPS = Path("/proc/self/cgroup")
CGROUPS = Path("/sys/fs/cgroup")


class LimitTooLow(ChoraleError):
    """The machine lets this process have too little of something."""


def prepare_service() -> None:
    """First of all: files are for the own user alone, and files and threads enough. Raises LimitTooLow."""
    os.umask(0o077)
    allow_descriptors()
    if (files := max_descriptors()) < MIN_FILES:
        raise LimitTooLow(
            f"open files are limited to {files}, at least {MIN_FILES} are needed: LimitNOFILE= or ulimit -Hn"
        )
    check_threads()


def allow_descriptors() -> None:
    """As many as the system lets this process have: each connection takes one, of peers without a
    certificate, too. Many systems give a process 1,024 of them and allow it many more."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError):  # a system may allow no number as large as it names
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def max_descriptors() -> int:
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 20 if allowed == resource.RLIM_INFINITY else allowed


def check_memory(needed_bytes: int, *, what: str) -> None:
    """Raises LimitTooLow. what: needs so much at least."""
    limit = memory_limit_bytes()
    if limit < needed_bytes:
        raise LimitTooLow(
            f"memory is limited to {limit >> 20} MiB, {what} needs at least {needed_bytes >> 20} MiB: "
            "MemoryMax=, a container's memory limit, or ulimit -v"
        )


def memory_limit_bytes() -> int:
    """What its control groups, `ulimit -v` or the machine allow this process, whatever it has taken."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    allowed, _ = resource.getrlimit(resource.RLIMIT_AS)
    own = machine if allowed == resource.RLIM_INFINITY else allowed
    return min(machine, own, *_cgroup_limits("memory", "memory.max", "memory.limit_in_bytes"))


def check_threads() -> None:
    """Start and end as many as a service may have at once. Raises LimitTooLow."""
    ending, begun = threading.Event(), list[threading.Thread]()
    own_stack = threading.stack_size(STACK_BYTES)  # else `ulimit -v` would be met first
    try:
        for _ in range(MIN_THREADS):
            thread = threading.Thread(target=ending.wait, daemon=True)
            thread.start()
            begun.append(thread)
    except RuntimeError:
        own = ", ".join(str(each) for each in _cgroup_limits("pids", "pids.max")) or "none"
        user, _ = resource.getrlimit(resource.RLIMIT_NPROC)
        raise LimitTooLow(
            f"threads are limited: {len(begun)} more can start, at least {MIN_THREADS} are needed: "
            f"LimitNPROC= or ulimit -u, now {user}; TasksMax= or a container's pids limit, now {own}"
        ) from None
    finally:
        threading.stack_size(own_stack)
        ending.set()
        for thread in begun:
            thread.join()


def _cgroup_limits(controller: str, *names: str) -> Iterator[int]:
    """Of own control groups, by either version, and of those above: a container's own may be the root."""
    with suppress(OSError):  # not on Linux
        for line in OWN_CGROUPS.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers in ("", controller):
                group = CGROUPS / controllers / path.lstrip("/")
                for file in (each / name for each in (group, *group.parents) for name in names):
                    with suppress(OSError, ValueError):  # not there, or the word "max"
                        yield int(file.read_text())
