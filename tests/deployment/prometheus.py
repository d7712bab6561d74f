"""A Prometheus server of the test's own: targets, rules, and questions in PromQL."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import yaml

from tests.deployment.servers import serving
from tests.support import programs
from tests.support.processes import wait_until

SCRAPE_SECONDS = 0.5
_WINDOW = re.compile(r"\[(\d+)([smhd])\]")
_SPAN = re.compile(r"(\d+)([smhd])")
_HOURS = re.compile(r"\b(\d+) \* 3600\b")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}

Rules = dict[str, Any]
Labels = dict[str, str]
Series = list[tuple[Labels, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prometheus:
    """A server that runs. Questions go to its HTTP API."""

    address: str

    def ask(self, expression: str) -> Series:
        """The vector of an expression now: (labels, value), NaN included."""
        answer = self._get("query", query=expression)["result"]
        return [(each["metric"], float(each["value"][1])) for each in answer]

    def value(self, expression: str) -> float | None:
        """The one value of an expression; None where there is none."""
        found = self.ask(expression)
        assert len(found) <= 1, f"{expression}: {found}"
        return found[0][1] if found else None

    def rules(self) -> list[dict[str, Any]]:
        groups = self._get("rules")["groups"]
        return [rule for group in groups for rule in group["rules"]]

    def wait(self, expression: str, *, seconds: float = 60.0) -> None:
        """Until the expression has a value, and so is true."""
        wait_until(lambda: bool(self.ask(expression)), expression, seconds=seconds, detail=self._series)

    def _series(self) -> str:
        return "\n".join(f"{labels} {value:g}" for labels, value in self.ask("up or ALERTS"))

    def _get(self, path: str, **parameters: str) -> Any:
        with urlopen(f"http://{self.address}/api/v1/{path}?{urlencode(parameters)}", timeout=30) as answer:
            found = json.load(answer)
        assert found["status"] == "success", found
        return found["data"]


@contextmanager
def running(
    folder: Path, *, targets: Mapping[str, list[Rules]], rules: list[Path], alertmanager: str | None = None
) -> Iterator[Prometheus]:
    """A server that scrapes at short intervals, ready. targets: static configurations by job.

    alertmanager: the address of one that is told what fires.
    """
    config = folder / "prometheus.yml"
    alerting = {} if alertmanager is None else {"alerting": _alerting(alertmanager)}
    config.write_text(yaml.safe_dump({**configuration(targets, rules), **alerting}))
    check("config", str(config))
    options = (f"--config.file={config}", f"--storage.tsdb.path={folder / 'tsdb'}")
    with serving("prometheus", *options, log=folder / "prometheus.log") as address:
        yield Prometheus(address=address)


def configuration(targets: Mapping[str, list[Rules]], rules: list[Path]) -> Rules:
    interval = f"{SCRAPE_SECONDS * 1000:.0f}ms"
    return {
        "global": {
            "scrape_interval": interval,
            "scrape_timeout": interval,
            "evaluation_interval": interval,
        },
        "rule_files": [str(each) for each in rules],
        "scrape_configs": [
            {"job_name": job, "static_configs": configurations} for job, configurations in targets.items()
        ],
    }


def _alerting(address: str) -> Rules:
    return {"alertmanagers": [{"static_configs": [{"targets": [address]}]}]}


def paced(rules: Rules, *, seconds: float, others: Mapping[str, float]) -> Rules:
    """The same rules, each at a pace of its own at which its longest time, other than days, takes so long.

    others: seconds of those alarms that need others.
    """
    found: Rules = json.loads(json.dumps(rules))
    for rule in (each for group in found["groups"] for each in group["rules"]):
        times = [int(match[1]) * _SECONDS[match[2]] for match in _WINDOW.finditer(rule["expr"])]
        times += [int(match[1]) * _SECONDS[match[2]] for match in _SPAN.finditer(rule.get("for", ""))]
        times += [int(match[1]) * _SECONDS["h"] for match in _HOURS.finditer(rule["expr"])]
        if times:
            _hasten(rule, max(times) / others.get(rule["alert"], seconds))
    return found


def _hasten(rule: Rules, factor: float) -> None:
    def shorter(match: re.Match[str]) -> str:
        return f"{int(match[1]) * _SECONDS[match[2]] * 1000 / factor:.0f}ms"

    rule["expr"] = _WINDOW.sub(lambda match: f"[{shorter(match)}]", rule["expr"])
    rule["expr"] = _HOURS.sub(lambda match: f"{int(match[1]) * _SECONDS['h'] / factor:g}", rule["expr"])
    if "for" in rule:
        rule["for"] = _SPAN.sub(shorter, rule["for"])


def check(what: str, *arguments: str, text: str | None = None) -> str:
    """`promtool check`. Raises AssertionError with what it says."""
    done = subprocess.run(
        [programs.needed("promtool"), "check", what, *arguments],
        input=text,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr
