from __future__ import annotations

import asyncio
import io
import json
import logging
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from chorale.observability import logs


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    root = logging.getLogger(logs.ROOT)
    before = root.handlers[:], root.level, root.propagate
    yield
    root.handlers[:], root.level, root.propagate = before[0], before[1], before[2]


def test_a_line_holds_its_fields_and_those_of_the_process() -> None:
    stream = io.StringIO()
    logs.configure(stream=stream, silo="clinic-a")
    logs.get_logger("rounds").info("round applied", round=3, cohort=("a", "b"), share=0.5)
    line = json.loads(stream.getvalue())
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "level": "info",
        "logger": "chorale.rounds",
        "event": "round applied",
        "silo": "clinic-a",
        "round": 3,
        "cohort": ["a", "b"],
        "share": 0.5,
    }


def test_a_field_cannot_pose_as_the_event() -> None:
    stream = io.StringIO()
    logs.configure(stream=stream)
    logs.get_logger("rounds").info("refused", event="applied", level="debug")
    line = json.loads(stream.getvalue())
    assert (line["event"], line["level"]) == ("refused", "info")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (b"\x01" * 32, "01" * 32),
        (b"\x01" * 33, "<33 bytes>"),
        (bytearray(40), "<40 bytes>"),
        (memoryview(b"\x01\x02"), "0102"),
        ({"a": [b"\x01" * 33]}, {"a": ["<33 bytes>"]}),
        ({"b", "a"}, ["a", "b"]),
        (np.zeros((2, 3)), "<array of shape (2, 3)>"),
        (Path("x"), "x"),
        (None, None),
    ],
)
@pytest.mark.parametrize("json_lines", [True, False])
def test_payloads_are_written_by_their_size_alone(value: object, shown: object, json_lines: bool) -> None:
    stream = io.StringIO()
    logs.configure(stream=stream, json=json_lines)
    logs.get_logger("x").info("sent", value=value)
    if json_lines:
        assert json.loads(stream.getvalue())["value"] == shown
    else:
        assert "\\x01\\x01" not in stream.getvalue()


def test_text_lines_quote_what_would_read_as_two_fields() -> None:
    stream = io.StringIO()
    logs.configure(stream=stream, json=False)
    logs.get_logger("x").warning("left out", silo="a", reason="too late", forged="a\nb=c", round=3)
    text = stream.getvalue()
    assert text.endswith('warning left out silo=a reason="too late" forged="a\\nb=c" round=3\n')


def test_lines_below_the_level_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "log"
    logs.configure(path=path, level="warning")
    log = logs.get_logger("x")
    log.debug("a")
    log.info("b")
    log.warning("c")
    log.error("d")
    assert [json.loads(line)["event"] for line in path.read_text().splitlines()] == ["c", "d"]
    logs.configure(stream=io.StringIO())  # closes the file


def test_a_bug_of_ours_leaves_its_traceback() -> None:
    stream = io.StringIO()
    logs.configure(stream=stream)
    try:
        raise RuntimeError("broken")
    except RuntimeError:
        logs.get_logger("x").exception("the round failed", round=3)
    line = json.loads(stream.getvalue())
    assert line["level"] == "error"
    assert "RuntimeError: broken" in line["traceback"]


def test_configure_again_replaces_the_first_stream() -> None:
    first, second = io.StringIO(), io.StringIO()
    logs.configure(stream=first)
    logs.configure(stream=second)
    logs.get_logger("x").info("once")
    assert first.getvalue() == ""
    assert second.getvalue().count("\n") == 1


async def test_a_signal_turns_debug_on_and_the_next_one_off() -> None:
    stream, log = io.StringIO(), logs.get_logger("x")
    logs.configure(stream=stream, level="error")
    logs.toggle_debug_on_signal("error")
    for number in range(3):
        log.debug("a", number=number)
        before = stream.getvalue()
        signal.raise_signal(signal.SIGUSR1)
        while stream.getvalue() == before:  # the loop takes signals in turns of its own
            await asyncio.sleep(0)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line.get("number", line.get("chosen")) for line in lines] == ["debug", 1, "error", "debug"]
    asyncio.get_running_loop().remove_signal_handler(signal.SIGUSR1)
