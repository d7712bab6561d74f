"""The rules that keep the parts apart, read from the source: arrows, torch, size, docstrings."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# what each package may import of ours:
# crypto <- strategies <- chorale <- {coordinator, silo_agent <- {simulation, client <- web}} <- cli
ARROWS = {
    "crypto": {"crypto"},
    "strategies": {"crypto", "strategies"},
    "chorale_models": {"crypto", "strategies", "chorale_models"},
    "chorale": {"crypto", "strategies", "chorale"},
    "coordinator": {"crypto", "strategies", "chorale", "coordinator"},
    "silo_agent": {"crypto", "strategies", "chorale_models", "chorale", "silo_agent"},
    "simulation": {"crypto", "strategies", "chorale", "silo_agent", "simulation"},
    "client": {"crypto", "strategies", "chorale_models", "chorale", "silo_agent", "simulation", "client"},
    "web": {"crypto", "strategies", "chorale", "silo_agent", "client", "web"},
    "cli": {
        "crypto",
        "strategies",
        "chorale_models",
        "chorale",
        "coordinator",
        "silo_agent",
        "simulation",
        "client",
        "web",
        "cli",
    },
    "bench": {
        "crypto",
        "strategies",
        "chorale_models",
        "chorale",
        "coordinator",
        "silo_agent",
        "simulation",
        "bench",
    },
    "research": {
        "crypto",
        "strategies",
        "chorale",
        "coordinator",
        "silo_agent",
        "simulation",
        "client",
        "bench",
        "research",
    },
    "tools": {
        "crypto",
        "strategies",
        "chorale",
        "coordinator",
        "silo_agent",
        "client",
        "cli",
        "research",
        "tools",
    },
}
# the rooms of a package, and the modules next to them, in the order of their arrows: each may import those to
# its left
ROOMS = {
    "crypto": "errors < encoding < envelope_tree < prg < identity < noise < fixed_point < masking < session",
    "strategies": "expected < rounding < base < intervals < figure < number_stream < exact "
    "< server_optimizer < update_scale < recipe < tasks < phases < analysis < parts < checks < presets "
    "< published < declared_parts < methods",
    "chorale_models": "data < model < task < parts < networks < tasks",
    "chorale": "results < v1 < runtime < transport < spec < pinned_code < observability < credentials "
    "< privacy < job < evidence",
    "coordinator": "process < settings < reasons < complaints < phase_machine < storage < metrics < members "
    "< resources < jobs < service < server",
    # three wings: what is computed, what may leave, and the agent, which is all that stands right of them
    "silo_agent": "training < disclosure < metrics < local_storage < settings < in_force < account_units "
    "< objective < training_process < connection < rounds < approval < evidence < start < agent",
    "silo_agent.disclosure": "policy < ledger",
    "silo_agent.training.data": "table < settings < problems < units < own_data < base < private < fitting "
    "< workers < misfits < store < streamed < scan < partition < formats < records < loading",
    "silo_agent.training": "machine < unit_marks < data < analysis < objective < arm_values "
    "< computed_columns < phase_input < models < base < dp_sgd < loop < parts < local_loss < plug_ins "
    "< torch_objective < processes < built_in < predicting < exporting",
    "silo_agent.training.parts": "given < losses < regularizers < statistics < server_updates < closing "
    "< personalization < computed_parts",
    "simulation": "stored < silos < members < results < fixed_set < local_session < pool < processes "
    "< on_ray < sums < engine < analysis < folder < trial",
    "client": "errors < formula < settings < row_figures < history < results < operations < written "
    "< submission < planning < analysis < drift < evidence < mlflow_export < federation < notebook",
    "client.analysis": "parts < figures < published < columns < noised < tables < records < text < described "
    "< tails < coefficients < regression < survival < correlations < results < submission",
    "web": "shared < report < console < silo_page",
    "web.console": "settings < rounds < proofs < logins < oidc < under_way < coordinator < app < server",
    "web.silo_page": "facts < app",
    "web.shared": "templating < phases < charts < bars < steps < serving < pages < sessions < streams",
    "cli.job": "options < following < submit < listing < plan < report < evidence < export < steering "
    "< commands",
    "cli.analysis": "rendering < plan < submit < results < commands",
    "cli.authority": "history < folder < rotation < show < commands",
    "cli": "startup < errors < schema < keys < output < authority < settings_files < coordinator "
    "< operator < evidence < model < package < job < analysis < tune < console < given_data < silo < doctor "
    "< init < install < audit < demo < simulate < main",
}
MOST_SIDE_BY_SIDE = 15
PRODUCT = (
    "crypto",
    "strategies",
    "chorale_models",
    "chorale",
    "coordinator",
    "silo_agent",
    "simulation",
    "client",
    "web",
    "cli",
)
# what the innermost packages may import of others
OUTSIDE = {"crypto": {"numpy", "cryptography"}, "strategies": {"numpy", "pydantic", "pydantic_core"}}
# optional: imported where it is used, never when a process starts
COMPILER = ("numba", "llvmlite")
# where torch and what needs it may appear
TORCH = ("torch", "torchvision", "opacus")
TORCH_PLACES = (
    "silo_agent/training/",
    "bench/adapters.py",
    "bench/device_seconds.py",
    "bench/dp_sgd.py",
    "bench/peers/simulation_side.py",
    "bench/training.py",
    "chorale_models/",
    "research/accuracy/mechanism/probes.py",
    "research/accuracy/source.py",
    "research/heart_disease/",
    "research/private_sum/",
)
MAX_LINES = 500
# what an agent imports when it is needed, if ever: gRPC reads its environment when it is imported, the others
# would each add up to a second of CPU to every start
AGENT_LATE = ("grpc", "scipy", "dp_accounting", "opentelemetry", "sklearn", "PIL")
# what processes import when they start: none of it may pull in torch
ENTRIES = (
    "cli.main",
    "coordinator.server",
    "silo_agent.agent",
    "silo_agent.training.data.loading",
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
    names: tuple[str, ...] = ()

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
            names = tuple(alias.name for alias in node.names)
            yield Import(source.path, node.lineno, node.module or "", is_lazy, names)


def of_ours(one: Import) -> Iterator[str]:
    """The modules of ours that an import leads to; of `from a import b` the module b, where it is one."""
    known = modules()
    if one.names:
        for name in one.names:
            inner = f"{one.module}.{name}"
            yield inner if inner in known else one.module
    else:
        yield one.module


@cache
def modules() -> dict[str, str]:
    """Paths by dotted name."""
    return {
        source.path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): source.path
        for source in sources()
    }


def module_of(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def test_there_is_something_to_read() -> None:
    assert {source.package for source in sources()} == set(ARROWS)
    assert len(imports()) > 500


def test_imports_run_one_way() -> None:
    ours = set(ARROWS) | {"tests"}
    wrong = [
        str(one) for one in imports() if one.top in ours and one.top not in ARROWS[one.path.split("/")[0]]
    ]
    assert wrong == []


def test_the_wings_of_a_silo_stand_apart() -> None:
    """Training knows no policy and no ledger, these know no training, a simulation knows no agent."""
    allowed = {
        "silo_agent/training/": ("silo_agent.training",),
        "silo_agent/disclosure/": ("silo_agent.disclosure", "silo_agent.training.unit_marks"),
        "simulation/": ("silo_agent.training", "silo_agent.disclosure"),
    }
    wrong = [
        f"{one.path}:{one.line}: imports {module}"
        for one in imports()
        for wing, whole in allowed.items()
        if one.path.startswith(wing)
        for module in of_ours(one)
        if module.startswith("silo_agent.") and not module.startswith(whole)
    ]
    assert wrong == []


def test_client_loads_a_silos_code_only_to_try_it() -> None:
    """The operator's machine may have no torch, and it has no ledger."""
    at_start = [str(one) for one in imports() if one.path.startswith("client/") and not one.is_lazy]
    assert [line for line in at_start if "imports silo_agent" in line] == []


def rooms_of(package: str) -> list[str]:
    return ROOMS[package].split(" < ")


@pytest.mark.parametrize("package", ROOMS)
def test_rooms_import_one_way(package: str) -> None:
    """A room imports those to its left in ROOMS, and itself."""
    place = {name: rank for rank, name in enumerate(rooms_of(package))}

    def room(module: str) -> str | None:
        inner = module.removeprefix(f"{package}.")
        return inner.split(".")[0] if inner != module and inner.split(".")[0] in place else None

    wrong = []
    for one in imports():
        here = room(module_of(one.path))
        if here is None:
            continue
        for module in of_ours(one):
            there = room(module)
            if there is not None and place[there] > place[here]:
                wrong.append(f"{one.path}:{one.line}: {here} imports {module}")
    assert wrong == []


def test_every_room_is_in_the_table() -> None:
    for package in ROOMS:
        rooms = rooms_of(package)
        folder = ROOT / package.replace(".", "/")
        there = {path.parent.name for path in folder.glob("*/__init__.py")}
        there |= {path.stem for path in folder.glob("*.py")} - {"__init__"}
        assert there == set(rooms), package


def test_no_modules_import_one_another_in_a_circle() -> None:
    arrows = {module: set[str]() for module in modules()}
    for one in imports():
        here = module_of(one.path)
        arrows[here] |= {module for module in of_ours(one) if module in arrows and module != here}
    try:
        tuple(TopologicalSorter(arrows).static_order())
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def test_no_folder_holds_too_many_modules_side_by_side() -> None:
    folders = Counter(
        str(Path(source.path).parent)
        for source in sources()
        if source.package in PRODUCT and not source.path.endswith("__init__.py")
    )
    assert {folder: count for folder, count in folders.items() if count > MOST_SIDE_BY_SIDE} == {}


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
    """With a CPU torch its compiled part needs schemas that one module defines."""
    through = [one for one in imports() if one.top == "torchvision"]
    assert {one.path for one in through} <= {"silo_agent/training/machine/torchvision_compat.py"}


def test_grpc_is_not_imported_by_what_only_checks_and_computes() -> None:
    wrong = [
        str(one)
        for one in imports()
        if one.top == "grpc"
        and not one.is_lazy
        and one.path.startswith(("crypto/", "strategies/", "chorale/", "client/", "cli/"))
    ]
    assert wrong == []


@pytest.mark.parametrize("module", ENTRIES)
def test_processes_start_without_torch_and_numba(module: str) -> None:
    loaded = modules_after(f"import {module}")
    assert loaded.isdisjoint({*TORCH, *COMPILER})


def test_the_agent_starts_without_what_few_jobs_need() -> None:
    loaded = modules_after("import silo_agent.agent")
    assert "numpy" in loaded
    assert loaded.isdisjoint(AGENT_LATE)


def test_help_imports_neither_torch_nor_grpc() -> None:
    lines = (
        "import sys, cli.main",
        "sys.argv = ['chorale', '--help']",
        "try: cli.main.main()",
        "except SystemExit: pass",
    )
    loaded = modules_after("\n".join(lines))
    assert "cli" in loaded
    assert loaded.isdisjoint({"torch", "grpc", "sklearn", "sqlite3"})


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
    assert places <= {"silo_agent/training/machine/seeding.py"}


def test_no_member_of_an_enum_is_an_empty_tuple() -> None:
    """Python 3.11.0 to 3.11.3 read it as no value at all: the coordinator did not start on Debian 12's."""
    found = [
        f"{source.path}:{statement.lineno}"
        for source in sources()
        for defined in ast.walk(source.tree)
        if isinstance(defined, ast.ClassDef)
        and "Enum" in [base.id for base in defined.bases if isinstance(base, ast.Name)]
        for statement in defined.body
        if isinstance(statement, ast.Assign)
        and isinstance(statement.value, ast.Tuple)
        and not statement.value.elts
    ]
    assert not found
