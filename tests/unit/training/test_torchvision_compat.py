"""torchvision loads with and without its compiled extension."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest
import torch

from silo_agent.training.machine import torchvision_compat


def test_torchvision_has_what_we_use() -> None:
    torchvision = torchvision_compat.torchvision
    assert torchvision.datasets.CIFAR10.base_folder == "cifar-10-batches-py"
    assert torchvision.transforms.Resize(4)(torch.rand(3, 8, 8)).shape == (3, 4, 4)


def test_nothing_is_defined_where_the_extension_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded, defined = ModuleType("torchvision"), []
    monkeypatch.setattr(importlib, "import_module", lambda name: loaded)
    monkeypatch.setattr(torch.library, "define", lambda *arguments: defined.append(arguments))
    assert torchvision_compat._load() is loaded
    assert defined == []


def test_missing_operators_are_defined_once_and_the_import_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded, defined, imports = ModuleType("torchvision"), [], iter([False, True])

    def import_module(name: str) -> ModuleType:
        if not next(imports):
            raise RuntimeError("operator torchvision::nms does not exist")
        return loaded

    monkeypatch.setattr(importlib, "import_module", import_module)
    monkeypatch.setattr(torch.library, "define", lambda name, schema: defined.append(name))
    half_imported = ModuleType("sys")
    half_imported.__dict__["modules"] = {"torchvision.ops": loaded}
    monkeypatch.setattr(torchvision_compat, "sys", half_imported)
    assert torchvision_compat._load() is loaded
    assert defined == ["torchvision::nms", "torchvision::qnms"]
    assert half_imported.__dict__["modules"] == {}


def test_any_other_failure_of_the_import_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    def import_module(name: str) -> ModuleType:
        raise RuntimeError("something else is broken")

    monkeypatch.setattr(importlib, "import_module", import_module)
    with pytest.raises(RuntimeError, match="something else is broken"):
        torchvision_compat._load()
