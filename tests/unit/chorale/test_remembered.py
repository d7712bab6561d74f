"""What was computed for a person is found again by that user alone, and only while nothing of it changed."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from chorale.privacy import accountant, remembered, renyi
from chorale.privacy.releases import DpSgd, Gaussian
from crypto.fixed_point.layout import Side

VALUE = [1.5, math.inf]


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "chorale" / remembered.FILE


def asked(inputs: object = "same", value: list[float] = VALUE) -> int:
    """How often it was computed by a new process that remembers."""
    times = []

    def compute() -> list[float]:
        times.append(1)
        return value

    with remembered.remembering():
        for _ in range(2):
            assert list(remembered.remembered("f", inputs, compute, count=len(value))) == value
    return len(times)


def test_a_number_is_computed_once_for_the_same_inputs(file: Path) -> None:
    assert [asked(), asked(), asked("other"), asked("other"), asked()] == [1, 0, 1, 0, 0]
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700


def test_outside_of_a_command_nothing_is_read_or_written(file: Path) -> None:
    """As in an agent: what it charges and refuses is its own."""
    asked()
    written = file.read_bytes()
    assert remembered.remembered("f", "same", lambda: [2.0], count=1) == [2.0]
    assert file.read_bytes() == written


def test_another_version_of_what_computes_computes_again(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked()
    monkeypatch.setattr(remembered, "computed_by", lambda: ("other code",))
    assert asked() == 1


def others_may_write(file: Path) -> None:
    file.chmod(0o620)


def others_may_write_its_folder(file: Path) -> None:
    file.parent.chmod(0o777)


def is_a_link(file: Path) -> None:
    file.rename(file.with_name("elsewhere"))
    file.symlink_to("elsewhere")


def is_cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-3])


def has_another_digit(file: Path) -> None:
    file.write_bytes(file.read_bytes().replace(b"1.5", b"1.4"))


def is_no_number(file: Path) -> None:
    with_its_digest(file, json.dumps({key: [math.nan, 1.0] for key in entries_of(file)}))


def has_one_number_less(file: Path) -> None:
    with_its_digest(file, json.dumps({key: [1.5] for key in entries_of(file)}))


def is_negative(file: Path) -> None:
    with_its_digest(file, json.dumps({key: [-1.0, 1.0] for key in entries_of(file)}))


def is_no_json(file: Path) -> None:
    with_its_digest(file, "[" * 100_000)


def entries_of(file: Path) -> list[str]:
    return list(json.loads(file.read_bytes().partition(b"\n")[2]))


def with_its_digest(file: Path, text: str) -> None:
    file.write_bytes(hashlib.sha256(text.encode()).hexdigest().encode() + b"\n" + text.encode())


def is_a_pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


@pytest.mark.parametrize(
    "spoiled",
    [
        others_may_write,
        others_may_write_its_folder,
        is_a_link,
        is_cut,
        has_another_digit,
        is_no_number,
        has_one_number_less,
        is_negative,
        is_no_json,
        is_a_pipe,
    ],
)
def test_a_file_of_others_or_a_damaged_one_is_none(file: Path, spoiled: Callable[[Path], None]) -> None:
    asked()
    spoiled(file)
    assert asked() == 1


def test_a_file_of_another_user_is_none(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert asked() == 1


def test_a_cache_that_cannot_be_written_is_no_error(file: Path) -> None:
    file.parent.write_bytes(b"")  # a file in the folder's place
    assert [asked(), asked()] == [1, 1]


def test_no_folder_is_made_in_that_of_another_user(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under sudo with the user's HOME: the user's programs could not write there afterwards."""
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert asked() == 1
    assert not file.parent.exists()


def test_the_file_keeps_the_newest(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remembered, "MOST_KEPT", 2)
    assert [asked(each) for each in ("a", "b", "c")] == [1, 1, 1]
    assert [asked("b"), asked("c"), asked("a")] == [0, 0, 1]


def test_what_is_remembered_of_releases_is_what_they_cost(file: Path) -> None:
    """To the last bit, also where the process has forgotten it."""
    pytest.importorskip("dp_accounting")
    step = DpSgd(noise_multiplier=1.1, sample_rate=0.01, steps=100, draws=1, distance=0.0, side=Side.TRAIN)
    releases = {step: 1, Gaussian(noise_multiplier=4.0, draws=1, failure=0.0, side=Side.BOTH): 3}

    def found() -> tuple[float, float, list[float]]:
        for each in (accountant._epsilon, accountant._composed, renyi._rdp_of, renyi._step_rdp):
            each.cache_clear()
        return (
            accountant.epsilon(releases, 1e-5),
            accountant.delta_at(releases, 1.0),
            list(renyi.rdp(releases)),
        )

    computed = found()
    with remembered.remembering():
        assert found() == computed
    with remembered.remembering():
        assert found() == computed
    _, _, text = file.read_bytes().partition(b"\n")
    assert len(json.loads(text)) == 5  # epsilon and delta of two sides each, and a step's divergences
