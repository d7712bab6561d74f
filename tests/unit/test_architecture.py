"""The rules that keep the parts apart, read from the source: arrows, torch, size, docstrings."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# what each package may import of ours:
# crypto <- strategies <- chorale <- {coordinator, silo_agent <- simulation} <- cli
ARROWS = {
    "crypto": {"crypto"},
    "strategies": {"crypto", "strategies"},
    "chorale": {"crypto", "strategies", "chorale"},
    "coordinator": {"crypto", "strategies", "chorale", "coordinator"},
    "silo_agent": {"crypto", "strategies", "chorale", "silo_agent"},
    "simulation": {"crypto", "strategies", "chorale", "silo_agent", "simulation"},
    "cli": {"crypto", "strategies", "chorale", "coordinator", "silo_agent", "simulation", "cli"},
    "bench": {"crypto", "strategies", "chorale", "coordinator", "silo_agent", "simulation", "bench"},
    "research": {
        "crypto",
        "strategies",
        "chorale",
        "coordinator",
        "silo_agent",
        "simulation",
        "bench",
        "research",
    },
    "tools": {"chorale", "coordinator", "silo_agent", "cli", "tools"},
}
# what the innermost packages may import of others
OUTSIDE = {"crypto": {"numpy", "cryptography"}, "strategies": {"numpy", "pydantic"}}
# optional: imported where it is used, never when a process starts
COMPILER = ("numba", "llvmlite")
# where torch and what needs it may appear
TORCH = ("torch", "torchvision", "opacus")
TORCH_PLACES = (
    "silo_agent/seeding.py",
    "silo_agent/torchvision_compat.py",
    "silo_agent/training/",
    "research/heart_disease/",
)
MAX_LINES = 500
# what processes import when they start: none of it may pull in torch
ENTRIES = (
    "cli.main",
    "coordinator.server",
    "silo_agent.agent",
    "silo_agent.data",
    "simulation.engine",
    "chorale.job",
)


@dataclass(frozen=True)
class Source:
    path: str
    tree: ast.Module
    lines: int

    @property
    def package(self) -> str:
        return self.path.split("/")[0]


@dataclass(frozen=True)
class Import:
    path: str
    line: int
    module: str
    is_lazy: bool

    def __str__(self) -> str:
        return f"{self.path}:{self.line} imports {self.module}"

    @property
    def top(self) -> str:
        return self.module.split(".")[0]


@cache
def sources() -> tuple[Source, ...]:
    found = []
    for package in ARROWS:
        for path in sorted((ROOT / package).rglob("*.py")):
            if path.name.endswith(("_pb2.py", "_pb2_grpc.py")):
                continue
            text = path.read_text()
            found.append(Source(str(path.relative_to(ROOT)), ast.parse(text), text.count("\n")))
    return tuple(found)


@cache
def imports() -> tuple[Import, ...]:
    return tuple(one for source in sources() for one in imports_of(source))


def imports_of(source: Source) -> Iterator[Import]:
    at_start = {id(node) for node in source.tree.body}
    for node in ast.walk(source.tree):
        is_lazy = id(node) not in at_start
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(source.path, node.lineno, alias.name, is_lazy)
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{source.path}:{node.lineno}: a relative import hides where it leads"
            yield Import(source.path, node.lineno, node.module or "", is_lazy)


def test_there_is_something_to_read() -> None:
    assert {source.package for source in sources()} == set(ARROWS)
    assert len(imports()) > 500


def test_imports_run_one_way() -> None:
    ours = set(ARROWS) | {"tests"}
    wrong = [
        str(one) for one in imports() if one.top in ours and one.top not in ARROWS[one.path.split("/")[0]]
    ]
    assert wrong == []


@pytest.mark.parametrize("package", sorted(OUTSIDE))
def test_inner_packages_lean_on_little(package: str) -> None:
    allowed = OUTSIDE[package] | ARROWS[package] | set(sys.stdlib_module_names) - {"asyncio", "socket"}
    mine = [one for one in imports() if one.path.startswith(f"{package}/")]
    late = [one for one in mine if one.top in COMPILER and one.is_lazy]
    wrong = [one for one in mine if one.top not in allowed and one not in late]
    assert [str(one) for one in wrong] == []


def test_torch_stays_where_it_belongs() -> None:
    wrong = [str(one) for one in imports() if one.top in TORCH and not one.path.startswith(TORCH_PLACES)]
    assert wrong == []


def test_torchvision_is_imported_through_one_module() -> None:
    """Beside a CPU torch its compiled part needs schemas that silo_agent/torchvision_compat.py defines."""
    through = [one for one in imports() if one.top == "torchvision"]
    assert {one.path for one in through} <= {"silo_agent/torchvision_compat.py"}


def test_grpc_is_not_imported_by_what_only_checks_and_computes() -> None:
    wrong = [
        str(one)
        for one in imports()
        if one.top == "grpc"
        and not one.is_lazy
        and one.path.startswith(("crypto/", "strategies/", "chorale/", "cli/"))
    ]
    assert wrong == []


@pytest.mark.parametrize("module", ENTRIES)
def test_processes_start_without_torch_and_numba(module: str) -> None:
    loaded = modules_after(f"import {module}")
    assert loaded.isdisjoint({*TORCH, *COMPILER})


def test_help_imports_neither_torch_nor_grpc() -> None:
    lines = (
        "import sys, cli.main",
        "sys.argv = ['chorale', '--help']",
        "try: cli.main.main()",
        "except SystemExit: pass",
    )
    loaded = modules_after("\n".join(lines))
    assert "cli" in loaded
    assert loaded.isdisjoint({"torch", "grpc", "sklearn", "sqlalchemy"})


def modules_after(code: str) -> set[str]:
    """Top-level modules that are loaded when a fresh interpreter has run the code."""
    report = "\nimport sys; print('\\nmodules:', *{name.split('.')[0] for name in sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", code + report], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return set(done.stdout.splitlines()[-1].split()[1:])


def test_no_module_is_too_long() -> None:
    assert [f"{one.path}: {one.lines} lines" for one in sources() if one.lines > MAX_LINES] == []


def test_every_module_says_what_it_is() -> None:
    bare = [one.path for one in sources() if one.tree.body and ast.get_docstring(one.tree) is None]
    assert bare == []


def test_public_functions_and_classes_say_what_they_do() -> None:
    """Where the name and a few lines of body do not say it already."""
    bare = [
        f"{source.path}:{node.lineno} {node.name}"
        for source in sources()
        for node in source.tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and not node.name.startswith("_")
        and (node.end_lineno or 0) - node.lineno > 12
        and ast.get_docstring(node) is None
    ]
    assert bare == []


@pytest.mark.parametrize("name", ["eval", "exec", "__import__"])
def test_no_code_is_made_from_text(name: str) -> None:
    calls = [
        f"{source.path}:{node.lineno}"
        for source in sources()
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name
    ]
    assert calls == []


def test_global_seeding_happens_in_one_module() -> None:
    places = {
        source.path
        for source in sources()
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Attribute) and node.attr == "manual_seed"
    }
    assert places <= {"silo_agent/seeding.py"}
