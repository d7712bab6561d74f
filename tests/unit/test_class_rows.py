"""research/class_rows: its table of a file that is not whole, and its end at Ctrl-C."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.options import ended
from research import class_rows


def line(rule: str, seed: int, accuracy: float) -> dict[str, Any]:
    return {
        "method": "feddw",
        "cut": "2 shards",
        "rule": rule,
        "seed": seed,
        "accuracy": [0.1, *[accuracy] * class_rows.TAIL],
        "share": 0.25,
    }


def test_table_of_a_stopped_run_tells_what_is_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Means of nothing and errors of one seed were numpy's warnings, which are errors here."""
    lines = [line("default", 1, 0.5), line("default", 2, 0.7), line("all", 1, 0.6), line("group", 3, 0.4)]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in lines))
    assert class_rows.main(["--out", str(path), "--table"]) == 0
    assert capsys.readouterr().out.splitlines()[2:] == [
        "| feddw | 2 shards | default | 0.25 | 60.0 +- 10.0 |  |",
        "| feddw | 2 shards | group | 0.25 | 40.0 |  |",
        "| feddw | 2 shards | all | 0.25 | 60.0 | +10.0 |",
        "",
        "Provisional: 4 of 160 runs have ended.",
    ]


def test_a_stop_by_hand_ends_without_a_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> dict[str, Any]:
        raise KeyboardInterrupt

    monkeypatch.setattr(class_rows, "run", interrupted)
    assert ended(lambda: class_rows.main(["--out", str(tmp_path / "rows.jsonl")])) == 130
