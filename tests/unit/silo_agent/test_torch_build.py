"""What the doctor says of the torch that is installed."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from silo_agent.training.machine import torch_build


@pytest.mark.parametrize("is_there", [True, False])
def test_a_machine_without_torchvision_trains(is_there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo's environment has none: a job of tables or plain images needs none."""
    if is_there and find_spec("torchvision") is None:
        pytest.skip("torchvision is not installed here")
    if not is_there:
        monkeypatch.setattr(torch_build, "find_spec", lambda name: None)
    found = torch_build.torch_build()
    assert found.has_torchvision is is_there
    assert ("no torchvision" in found.description) is not is_there
