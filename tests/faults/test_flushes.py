"""What a silo flushes to disk within a session, and what it has again when a power loss took the rest.

The flushes are those that the kernel was asked for, as strace has them. Source: docs/protocol.md 6.3, 6.8.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from chorale.runtime.audit import read_entries
from tests.faults.conftest import MakeFederation
from tests.support.federation import LocalFederation
from tests.support.history import check_finished
from tests.support.processes import PATIENCE_SECONDS, run_cli, wait_until
from tests.support.programs import needed

SILO = "silo-1"
ROUNDS = 3
CALL = re.compile(r"\d+ +(?P<name>\w+)\(\d+<(?P<path>[^>]*)>(?:, \"(?P<data>.*)\", \d+)?")
LEDGER = "ledger.sqlite-wal"


@contextmanager
def traced(process_id: int, out: Path) -> Iterator[None]:
    """Writes and flushes of a process that runs, with the files that they were on."""
    strace = needed("strace")
    calls = "trace=write,fsync,fdatasync,sync,syncfs,msync,sync_file_range"
    tracing = subprocess.Popen(
        [strace, "-f", "-y", "-s", "200", "-e", calls, "-o", out, "-p", str(process_id)],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert tracing.stderr is not None
    with tracing.stderr as stderr:
        said = stderr.readline()
        if "attached" not in said:
            tracing.wait(PATIENCE_SECONDS)
            pytest.skip(f"strace may not look at processes here: {said.strip()}")
        try:
            yield
        finally:
            tracing.send_signal(signal.SIGINT)
            tracing.communicate(timeout=PATIENCE_SECONDS)


def flushes_and_messages(trace: Path, *, round: int) -> list[str]:
    """From a round's advert to its share: files that were flushed, and kinds of messages as they leave."""
    seen: list[str] = []
    for line in trace.read_text().splitlines():
        call = CALL.match(line)
        if call is None:
            continue
        name = Path(call["path"]).name
        if call["name"] != "write":
            seen.append(name)
        elif name == f"{SILO}.sent":
            message = json.loads(call["data"].encode().decode("unicode_escape"))
            sent = f"{message['kind']} {message['round']}"
            seen += [sent] if sent not in seen else []  # a slow coordinator may have asked again
    first, last = seen.index(f"advert {round}"), seen.index(f"unmask_shares {round}")
    return [each.removesuffix(f" {round}") for each in seen[first : last + 1]]


def run(federation: LocalFederation, trace: Path) -> None:
    federation.start()
    federation.wait_connected()
    with traced(federation.services[SILO].process.pid, trace):
        check_finished(federation, federation.submit(values=federation.silos, rounds=ROUNDS), rounds=ROUNDS)


def test_a_silo_flushes_three_times_from_its_advert_to_its_share(
    make_federation: MakeFederation, tmp_path: Path
) -> None:
    """What must not be lost before the vector, the signature and the share leave: one commit each."""
    federation = make_federation(silos=3, records_sent=True)
    run(federation, tmp_path / "trace")
    for round in range(1, ROUNDS + 1):
        assert flushes_and_messages(tmp_path / "trace", round=round) == [
            *("advert", "shares", LEDGER, LEDGER),
            *("consistency", LEDGER, "unmask_shares"),
        ]


def ledger_entries(path: Path) -> list[tuple[str, int, str]]:
    events = ("spent", "revealed")
    return [
        (each["event"], each["round"], each["phase"])
        for each in read_entries(path)
        if each["event"] in events
    ]


@pytest.mark.parametrize("kept_entries", [0, 3, 6])
def test_an_audit_log_whose_end_was_lost_with_the_power_is_completed(
    make_federation: MakeFederation, kept_entries: int
) -> None:
    """Nothing that the ledger knows is missing from it, and the ledger is what it was."""
    federation = make_federation(silos=3)
    federation.start()
    check_finished(federation, federation.submit(values=federation.silos))
    silo = federation.services[SILO]
    silo.kill()
    audit = federation.folder / SILO / "audit.jsonl"
    whole, lines = ledger_entries(audit), audit.read_bytes().splitlines(keepends=True)
    survivors = [each["survivors"] for each in read_entries(audit) if each["event"] == "revealed"]
    # the last line came to disk, and nothing of the others
    lost = lines[kept_entries:]
    audit.write_bytes(b"".join([*lines[:kept_entries], bytes(sum(map(len, lost[:-1]))), lost[-1]]))

    federation.start_silo(SILO)
    again = federation.services[SILO]
    wait_until(lambda: [each["event"] for each in again.records()].count("started") == 2, "its start")
    assert sorted(ledger_entries(audit)) == sorted(whole)
    assert survivors == [each["survivors"] for each in read_entries(audit) if each["event"] == "revealed"]
    checked = run_cli("silo", "ledger", "--check", "--config", federation.folder / f"{SILO}.yaml")
    assert checked.returncode == 0, checked.stderr
    assert "lacks" not in checked.stdout
