"""The rooms of `crypto` stand in one order, and each imports what stands before it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

CRYPTO = Path(__file__).parents[3] / "crypto"
ORDER = ("errors", "prg", "encoding", "identity", "noise", "fixed_point", "masking", "session")


def test_every_room_and_module_has_its_place() -> None:
    found = {path.stem for path in CRYPTO.iterdir() if path.name[0] != "_"}
    assert found == set(ORDER)


@pytest.mark.parametrize("room", ORDER)
def test_a_room_imports_what_stands_before_it(room: str) -> None:
    files = [CRYPTO / f"{room}.py"] if (CRYPTO / f"{room}.py").exists() else [*(CRYPTO / room).rglob("*.py")]
    allowed = set(ORDER[: ORDER.index(room) + 1])
    assert files
    for path in files:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "crypto":
                _, *inner = node.module.split(".")
                imported = {inner[0]} if inner else {alias.name for alias in node.names}
                assert imported <= allowed, f"{path.name} imports {imported - allowed}"
