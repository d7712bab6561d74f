"""How long silos are away after a coordinator's restart: `python -m bench.reconnect --silos 20`.

A real coordinator is killed and started again at the same address after outages of different lengths; the
silos are real agents over mutual TLS, several in a process. Counted is from the moment that the coordinator
listens again until it has each silo's control stream.
"""

from __future__ import annotations

import json
import socket
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from bench.options import Parser, end_with_sigterm, whole
from bench.parties.light_federation import LightFederation, groups_of
from bench.parties.processes import Record
from bench.rows import Row, table

MEDIAN_SECONDS, WORST_SECONDS = 10.0, 30.0
OUTAGES_SECONDS = (0.0, 2.0, 5.0, 10.0, 20.0, 40.0)
HOST = "127.0.0.1"
PROCESSES = 2
PATIENCE_SECONDS = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """One restart. back_seconds: of each silo, from the moment that the coordinator listened again."""

    seconds: float
    back_seconds: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """reasons: why silos were not connected, as their logs say, without the coordinator's address."""

    silos: int
    outages: tuple[Outage, ...]
    reasons: dict[str, int]

    @property
    def rows(self) -> list[Row]:
        medians = [statistics.median(outage.back_seconds) for outage in self.outages]
        worst = max(max(outage.back_seconds) for outage in self.outages)
        return [
            Row(
                name="median silo is back, worst outage", target=MEDIAN_SECONDS, value=max(medians), unit="s"
            ),
            Row(name="last silo is back, worst outage", target=WORST_SECONDS, value=worst, unit="s"),
        ]

    def to_json(self) -> dict[str, Any]:
        outages = [
            {
                "outage_seconds": outage.seconds,
                "median_seconds": statistics.median(outage.back_seconds),
                "worst_seconds": max(outage.back_seconds),
            }
            for outage in self.outages
        ]
        rows = [row.to_json() for row in self.rows]
        return {"silos": self.silos, "outages": outages, "reasons": self.reasons, "rows": rows}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = Parser("reconnect", __doc__)
    parser.add_argument("--silos", type=whole(1, 200), default=20)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    end_with_sigterm()
    report = measure(silos=options.silos)
    print(json.dumps(report.to_json()) if options.json else table(report.rows))
    return 0


def measure(*, silos: int, outages_seconds: Sequence[float] = OUTAGES_SECONDS) -> Report:
    """outages_seconds: from each kill of the coordinator to the start of the next one."""
    with (
        tempfile.TemporaryDirectory(prefix="chorale-reconnect-") as name,
        LightFederation(
            Path(name), groups=groups_of(silos, processes=PROCESSES), hub_settings={"listen": _free_address()}
        ) as federation,
    ):
        outages = []
        for seconds in outages_seconds:
            federation.hub.kill()
            time.sleep(seconds)
            listening = federation.start_hub()
            outages.append(Outage(seconds=seconds, back_seconds=_back(federation, listening, silos=silos)))
        address = federation.address
        reasons = [
            record["reason"].replace(address, "ADDRESS")
            for process in federation.silos
            for record in process.records()
            if record["event"] == "not connected"
        ]
    return Report(
        silos=silos,
        outages=tuple(outages),
        reasons={each: reasons.count(each) for each in sorted(set(reasons))},
    )


def _back(federation: LightFederation, listening: Record, *, silos: int) -> tuple[float, ...]:
    """When each silo's control stream is there, in seconds after the coordinator listened."""
    back: dict[str, float] = {}

    def are_all(record: Record) -> bool:
        if record["event"] == "silo connected":
            back.setdefault(record["silo"], _unix(record) - _unix(listening))
        return len(back) == silos

    federation.hub.wait_for(are_all, what="its silos", patience_seconds=PATIENCE_SECONDS)
    return tuple(back.values())


def _unix(record: Record) -> float:
    return datetime.fromisoformat(record["time"]).timestamp()


def _free_address() -> str:
    """One that a coordinator that comes back may take again."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return f"{HOST}:{probe.getsockname()[1]}"


if __name__ == "__main__":
    raise SystemExit(main())
