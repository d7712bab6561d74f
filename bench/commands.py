"""CPU of each command of a person's day: `python -m bench.commands --json`.

Every command is a process of its own at a desk of its own: a federation with keys, a coordinator that
listens, and a silo's ledger in which two jobs wait, one of them private. Counted is user and system time of
the command's process, the least of a few runs. The figures of an earlier commit on the same machine go
beside them: `--before FILE`, with the output of this program there.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import yaml

from bench.options import Parser, end_with_sigterm, whole
from bench.parties.files import COORDINATOR, FEDERATION, HOST, OPERATOR, FederationFiles
from bench.parties.processes import REPOSITORY, Processes, environment
from bench.rows import Row, table
from chorale.job import Job, SignedJob
from chorale.spec.job_spec import JobSpec
from silo_agent.disclosure.ledger.ledger import Ledger
from silo_agent.settings import LEDGER

TARGET_SECONDS = 1.0
PATIENCE_SECONDS = 120.0
POLL_SECONDS = 0.01
EXAMPLES = REPOSITORY / "docs" / "examples"
PLAIN, PRIVATE = "job", "job-private"
CACHE = "cache"
AS_OPERATOR = ("--config", "operator.yaml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """arguments: of `chorale`. is_first: as if nothing had been computed here before. visit: of a command
    that serves pages, what a browser does there, given its output's file; then it is stopped."""

    arguments: Sequence[str]
    is_first: bool = False
    visit: Callable[[Path], None] | None = None


def main(arguments: Sequence[str] | None = None) -> int:
    """A row for each command, or with --json also what it was before."""
    parser = Parser("commands", __doc__)
    parser.add_argument("--runs", type=whole(1, 100), default=3, help="of each command; the least counts")
    parser.add_argument("--before", type=Path, help="output of this program with --json at an earlier commit")
    parser.add_argument("--only", help="commands whose name begins so")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    end_with_sigterm()
    before = {} if options.before is None else json.loads(options.before.read_text())["commands"]
    with tempfile.TemporaryDirectory(prefix="chorale-commands-") as name, Desk(Path(name)) as desk:
        seconds = {
            named: min(desk.cpu_seconds(command) for _ in range(options.runs))
            for named, command in desk.commands().items()
            if named.startswith(options.only or "")
        }
    rows = [
        Row(name=f"chorale {named}", target=TARGET_SECONDS, value=each, unit="s")
        for named, each in seconds.items()
    ]
    commands = {
        named: {"before": before.get(named, {}).get("after"), "after": each}
        for named, each in seconds.items()
    }
    print(
        json.dumps({"commands": commands, "rows": [row.to_json() for row in rows]})
        if options.json
        else table(rows)
    )
    return 0


class Desk:
    """Entering starts a federation's coordinator and lets two jobs wait at a silo."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files = FederationFiles(folder, silos=3)
        self._processes = Processes(folder)
        self._console = f"{HOST}:{_free_port()}"
        self._jobs: dict[str, Path] = {}
        self._waiting: dict[str, str] = {}  # ids, by the same words

    def __enter__(self) -> Self:
        self._processes.__enter__()
        hub = ["cli.main", "coordinator", "run", "--config", str(self._files.coordinator())]
        self._processes.start(COORDINATOR, *hub).wait_for(
            lambda record: record["event"] == "listening", what="an address"
        )
        address = json.loads(self._files.endpoint.read_text())["grpc"]
        self._files.operator(coordinator=address)
        member = {"federation": FEDERATION, "coordinator": address}
        silo = {"name": self._files.silos[0], "policy": "policy.yaml", "directory": "silo"}
        own = self._own(self._files.silos[0]) | {"data": {"format": "digits"}}
        self._write("policy", {"federation": FEDERATION})
        self._write("silo", {**member, **silo, **own})
        page = self._own(COORDINATOR)["identity"]
        console = {
            "listen": self._console,
            "url": f"https://{self._console}",
            "tls": page,
            "roster": "roster.json",
        }
        self._write("console", {**member, **self._own(OPERATOR), **console})
        (self.folder / "silo").mkdir(mode=0o700)
        for word, file in ((PLAIN, "job.yaml"), (PRIVATE, "job-private.yaml")):
            values = yaml.safe_load((EXAMPLES / file).read_text())
            values |= {"federation": FEDERATION, "silos": self._files.silos}
            self._jobs[word] = self._write(word, values)
            self._offer(word)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._processes.__exit__(kind, error, trace)

    def commands(self) -> Mapping[str, Command]:
        """By name, in the order of a job's life."""
        plain, private = (str(self._jobs[word]) for word in (PLAIN, PRIVATE))
        silo = ("--config", "silo.yaml")
        waiting, hidden = self._waiting[PLAIN], self._waiting[PRIVATE]

        def job(*arguments: str, is_first: bool = False) -> Command:
            return Command(arguments=("job", *arguments, *AS_OPERATOR), is_first=is_first)

        def at_silo(*arguments: str, is_first: bool = False) -> Command:
            return Command(arguments=("silo", *arguments, *silo), is_first=is_first)

        return {
            "--help": Command(arguments=("--help",)),
            "job --help": Command(arguments=("job", "--help")),
            "job plan": Command(arguments=("job", "plan", plain), is_first=True),
            "job plan, private, first": Command(arguments=("job", "plan", private), is_first=True),
            "job plan, private, again": Command(arguments=("job", "plan", private)),
            "job submit": job("submit", plain),
            "job submit, private, again": job("submit", private),
            "job list": job("list"),
            "job silos": job("silos"),
            "job report": job("report", waiting, "--out", "report"),
            "job report, private, again": job("report", hidden, "--out", "report"),
            "silo show": at_silo("show"),
            "silo show JOB": at_silo("show", waiting, is_first=True),
            "silo show JOB, private, first": at_silo("show", hidden, is_first=True),
            "silo show JOB, private, again": at_silo("show", hidden),
            "silo approve JOB": at_silo("approve", waiting, "--yes"),
            "silo approve JOB, private, again": at_silo("approve", hidden, "--yes"),
            "silo reject JOB": at_silo("reject", waiting, "--reason", "not now"),
            "silo check": at_silo("check"),
            "silo ledger": at_silo("ledger"),
            "silo policy": at_silo("policy"),
            "silo page": Command(arguments=("silo", "page", *silo), visit=self._visit_silo_page),
            "console": Command(arguments=("console", "--config", "console.yaml"), visit=self._visit_console),
        }

    def cpu_seconds(self, command: Command) -> float:
        """User and system time of one run; what it decides at the silo does not stay. Raises RuntimeError
        where it fails."""
        ledger, kept = self.folder / "silo", self.folder / "kept"
        shutil.copytree(ledger, kept)
        if command.is_first:
            shutil.rmtree(self.folder / CACHE, ignore_errors=True)
        log = self.folder / "command.log"
        with log.open("wb") as output:
            process = self._started(command.arguments, output)
        if command.visit is not None:
            try:
                command.visit(log)
            finally:
                process.send_signal(signal.SIGTERM)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        shutil.rmtree(ledger)
        kept.rename(ledger)
        if process.returncode != 0 and command.visit is None:
            raise RuntimeError(f"chorale {' '.join(command.arguments)}:\n{log.read_text()[-2000:]}")
        return used.ru_utime + used.ru_stime

    def _visit_console(self, log: Path) -> None:
        """The page that logs in by certificate or by a provider."""
        _wait_until(lambda: b"console serves" in log.read_bytes(), what="the console's address")
        context = ssl.create_default_context(cafile=str(self.folder / "authority.crt"))
        urllib.request.urlopen(f"https://{self._console}/login", context=context).read()

    def _visit_silo_page(self, log: Path) -> None:
        """The overview, and the plain job that waits."""
        _wait_until(lambda: b"\n" in log.read_bytes(), what="the page's address")
        address = log.read_text().split()[-1]
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        browser.open(address).read()
        browser.open(f"{address.partition('/login')[0]}/jobs/{self._waiting[PLAIN]}").read()

    def _offer(self, word: str) -> None:
        """Submit a job, and write it into the silo's ledger as its agent does when it is offered."""
        self.cpu_seconds(
            Command(arguments=("job", "submit", str(self._jobs[word]), "--save", "signed", *AS_OPERATOR))
        )
        signed = SignedJob(
            spec_bytes=(self.folder / "signed").read_bytes(), signature=b"", operator_certificate=b""
        )
        spec = JobSpec.from_yaml(signed.spec_bytes, source=word)
        with closing(Ledger(self.folder / "silo" / LEDGER)) as ledger:
            ledger.record_job(Job(spec=spec, signed=signed, operator=OPERATOR), is_approved=False)
        self._waiting[word] = signed.digest.hex()

    def _own(self, name: str) -> dict[str, Any]:
        party = self._files.party(name)
        identity = {"certificate": str(party.certificate), "key": str(party.key)}
        return {"identity": identity, "authority": str(party.authority)}

    def _write(self, name: str, values: Mapping[str, Any]) -> Path:
        path = self.folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump(dict(values), explicit_end=True))
        return path

    def _started(self, arguments: Sequence[str], output: IO[bytes]) -> subprocess.Popen[bytes]:
        """In the desk's folder, with a cache of the desk's own, and with bytecode as installed code has it:
        an earlier run wrote it."""
        kept = {name: value for name, value in environment().items() if name != "PYTHONDONTWRITEBYTECODE"}
        folders = {"XDG_CACHE_HOME": CACHE, "PYTHONPYCACHEPREFIX": "bytecode"}
        return subprocess.Popen(
            [sys.executable, "-m", "cli.main", *arguments],
            cwd=self.folder,
            env=kept | {name: str(self.folder / folder) for name, folder in folders.items()},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )


def _wait_until(is_there: Callable[[], bool], *, what: str) -> None:
    limit = time.monotonic() + PATIENCE_SECONDS
    while not is_there():
        if time.monotonic() > limit:
            raise RuntimeError(f"{what} did not come")
        time.sleep(POLL_SECONDS)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    raise SystemExit(main())
