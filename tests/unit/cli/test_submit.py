"""What an operator is told right after submitting: who of the job is not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.job import _initial_state, read_spec, tell_absent
from crypto.errors import ConfigError
from tests.unit.cli.conftest import Desk


@pytest.mark.parametrize(
    ("connected", "told"),
    [
        ({"silo-0": True, "silo-1": True, "silo-2": True, "other": False}, ""),
        (
            {"silo-0": True, "silo-1": False},
            "not on the roster, so not in the job until they are: silo-2\n"
            "not connected now, the job waits for them: silo-1\n",
        ),
    ],
)
def test_silos_that_are_not_there_are_named(
    connected: dict[str, bool], told: str, desk: Desk, capsys: pytest.CaptureFixture[str]
) -> None:
    tell_absent(read_spec(desk.job()), connected)
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", told)


def test_weights_of_another_model_are_refused_before_submission(desk: Desk, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="without torch the silos refuse it")
    spec, wider = (
        read_spec(desk.job(model={"name": "mlp", "hidden": [width]}, input_shape=[2])) for width in (8, 16)
    )
    init = tmp_path / "init.safetensors"
    init.write_bytes(_initial_state(spec, None))
    assert _initial_state(spec, init) == init.read_bytes()
    with pytest.raises(ConfigError, match=r"init\.safetensors: model/body\..*expects \(16.*got \(8"):
        _initial_state(wider, init)
