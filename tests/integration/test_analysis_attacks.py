"""What readers of an analysis get, with real processes: published figures, and no cell behind them."""

from __future__ import annotations

import csv
import json
import re
import struct
from pathlib import Path
from typing import Any

import numpy as np

from strategies.analysis.counts import PART_COUNTS
from tests.integration.test_analysis import POLICY, Wards
from tests.support.federation import COORDINATOR

COLUMNS = [
    {"name": "sex", "categories": ["f", "m"]},
    {"name": "drug", "categories": ["none", "rare", "other"]},
    {"name": "age", "edges": [18.0, 40.0, 60.0, 110.0], "show": ["mean"]},
]
# by drug, records of women and of men at each of four silos: those with `rare` are few among men
AT_EACH = {"none": (700, 611), "rare": (17_203, 2), "other": (305, 150)}
SILOS = 4
PUBLISHED = SILOS * sum(AT_EACH["rare"])  # 68,820, of all records
HIDDEN = SILOS * AT_EACH["rare"][0]  # 68,812, no port of a machine: the men would follow


def federation_in(folder: Path) -> Wards:
    federation = Wards(folder=folder, silos=SILOS, policy=POLICY)
    for place, name in enumerate(federation.names):
        rng = np.random.default_rng(place)
        with (folder / f"{name}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["sex", "drug", "age"])
            for drug, counts in AT_EACH.items():
                for sex, count in zip("fm", counts, strict=True):
                    writer.writerows((sex, drug, age) for age in rng.integers(20, 90, count))
    return federation


def places_of(number: int, texts: dict[str, bytes]) -> set[str]:
    """Where it stands in digits, as no part of a digest or of a longer number, or as the state has it."""
    words = b"|".join(re.escape(form.encode()) for form in (f"{number}", f"{number:,}"))
    found = re.compile(rb"(?<![0-9A-Za-z.,])(%s)(?![0-9A-Za-z])" % words)
    stored = struct.pack("<q", number)
    return {name for name, text in texts.items() if stored in text or found.search(text)}


def test_nothing_that_readers_get_holds_a_cell_that_is_not_published(tmp_path: Path) -> None:
    federation = federation_in(tmp_path)
    with federation:
        federation.start()
        federation.wait_connected()
        done = federation.cli("analysis", "submit", federation.analysis(columns=COLUMNS))
        assert done.returncode == 0, done.stderr
        job_id = done.stdout.split()[0]
        assert federation.finish()["status"] == "done"
        texts = {f"results {form}": rendered(federation, job_id, form) for form in ("text", "json", "html")}
        texts["report"] = json.dumps(federation.report(job_id), default=str).encode()
        archive = tmp_path / "proof.zip"
        assert federation.cli("job", "evidence", job_id, "--out", archive).returncode == 0
        texts["evidence"] = archive.read_bytes()
        state = federation.fetch(job_id)
        texts["state"] = (tmp_path / "fetched.safetensors").read_bytes()
        for name in (COORDINATOR, *federation.names):
            metrics = json.dumps(federation.scrape(name))
            texts[f"{name} metrics"] = metrics.encode()
    for name in (COORDINATOR, *federation.names):
        texts[f"{name} log"] = (tmp_path / f"{name}.log").read_bytes()
        texts |= {
            f"{name}/{path.relative_to(tmp_path / name)}": path.read_bytes()
            for path in (tmp_path / name).rglob("*")
            if path.is_file()
        }
    assert state[f"{PART_COUNTS}1"].tolist()[1] == PUBLISHED
    assert places_of(PUBLISHED, texts) >= {"results text", "results json", "results html", "state"}
    assert places_of(HIDDEN, texts) == set()


def rendered(federation: Wards, job_id: str, form: str) -> bytes:
    done: Any = federation.cli("analysis", "results", job_id, "--format", form)
    assert done.returncode == 0, done.stderr
    return str(done.stdout).encode()
