"""Where the pages are made from, besides the code itself: the charts and their alert rules."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
HELM = ROOT / "helm"
CHARTS = {"Coordinator": "chorale-coordinator", "Silo": "chorale-silo"}


def chart_file(chart: str, name: str) -> str:
    return (HELM / chart / name).read_text()


def alerts(chart: str) -> Iterator[dict[str, Any]]:
    for group in yaml.safe_load(chart_file(chart, "files/alerts.yaml"))["groups"]:
        yield from group["rules"]
