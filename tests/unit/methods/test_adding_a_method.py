"""docs/adding-a-method.md, carried out: its changes in a copy of this tree, then its commands."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from crypto.fixed_point.layout import Disclosure

ROOT = Path(__file__).resolve().parents[3]
GUIDE = (ROOT / "docs" / "adding-a-method.md").read_text()
COPIED = (
    *(
        "bench",
        "chorale",
        "chorale_models",
        "cli",
        "client",
        "coordinator",
        "crypto",
        "docs",
        "helm",
    ),
    *("research", "silo_agent", "simulation", "strategies", "tests", "tools", "web"),
)
FILES = ("pyproject.toml", "README.md")
NAMED = re.compile(r"`([\w/-]+\.\w+)`:$")
NAMED_FILES = sorted(set(re.findall(r"`((?:strategies|silo_agent|tests)/[\w/]+\.py)`", GUIDE)))

pytestmark = pytest.mark.timeout(300)


@dataclass(frozen=True, kw_only=True)
class Change:
    """A block of the guide. kind: python is a whole new file, diff the lines of one place."""

    path: str
    kind: str
    lines: tuple[str, ...]


def changes(guide: str = GUIDE) -> list[Change]:
    """In the guide's order; a block belongs to the file that was named last."""
    found: list[Change] = []
    path, block = "", list[str]()
    kind: str | None = None
    for line in guide.splitlines():
        if line.startswith("```"):
            if kind in ("python", "diff"):
                found.append(Change(path=path, kind=kind, lines=tuple(block)))
            kind, block = (line[3:], []) if kind is None else (None, [])
        elif kind is not None:
            block.append(line)
        elif named := NAMED.search(line):
            path = named[1]
    return found


def apply(change: Change, root: Path) -> None:
    """Write a new file, or replace one place that is found exactly once."""
    target = root / change.path
    if change.kind == "python":
        assert not target.exists(), f"{change.path} is there already"
        target.write_text("\n".join(change.lines) + "\n")
        return
    before = "".join(f"{line[1:]}\n" for line in change.lines if not line.startswith("+"))
    after = "".join(f"{line[1:]}\n" for line in change.lines if not line.startswith("-"))
    text = target.read_text()
    assert text.count(before) == 1, f"{change.path} has {text.count(before)} places like\n{before}"
    target.write_text(text.replace(before, after))


def commands() -> list[list[str]]:
    """Of the guide, run by the interpreter that runs this test."""
    shown = re.findall(r"^\$ (.*)$", GUIDE, re.MULTILINE)
    own = {"python": [sys.executable], "ruff": [sys.executable, "-m", "ruff"]}
    return [[*own[program], *rest] for program, *rest in map(shlex.split, shown)]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of this tree with the guide's method in it."""
    root = tmp_path_factory.mktemp("tree")
    for name in COPIED:
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    for name in FILES:
        shutil.copy(ROOT / name, root / name)
    for change in changes():
        apply(change, root)
    return root


def run(command: list[str], tree: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)


@pytest.mark.soak  # 80 s
def test_commands_of_the_guide_succeed_in_turn(tree: Path) -> None:
    """One test, because a later command reads what an earlier one wrote."""
    for command in commands():
        done = run(command, tree)
        assert done.returncode == 0, done.stdout + done.stderr


def test_copy_and_not_this_tree_is_what_runs(tree: Path) -> None:
    done = run([sys.executable, "-c", "import strategies.presets as p; print(p.__file__)"], tree)
    assert done.stdout.strip() == str(tree / "strategies" / "presets.py")


@pytest.mark.gate
def test_guides_test_is_red_where_the_part_is_wrong(tree: Path, tmp_path: Path) -> None:
    """alpha on the classes that the silo holds."""
    wrong = tmp_path / "wrong"
    shutil.copytree(tree, wrong, ignore=shutil.ignore_patterns("__pycache__"))
    part = wrong / "silo_agent" / "training" / "parts" / "losses" / "restricted_softmax.py"
    assert "1.0, restriction)" in part.read_text()
    part.write_text(part.read_text().replace("1.0, restriction)", "restriction, 1.0)"))
    done = run(commands()[0], wrong)
    assert done.returncode == 1
    assert "test_absent_class_is_judged_by_a_share_of_its_score" in done.stdout


def test_a_loss_is_three_files_of_the_product_and_a_preset_one_more() -> None:
    changed = {change.path for change in changes() if change.path.endswith(".py")}
    assert {path for path in changed if not path.startswith("tests/")} == {
        "strategies/parts/losses.py",
        "silo_agent/training/parts/losses/restricted_softmax.py",
        "silo_agent/training/parts/computed_parts.py",
        "strategies/presets.py",
    }


@pytest.mark.parametrize("table", re.findall(r"`([A-Z_]{6,})`", GUIDE))
def test_tables_that_the_guide_names_exist(table: str) -> None:
    files = [path for side in ("strategies", "silo_agent") for path in (ROOT / side).rglob("*.py")]
    assert any(re.search(rf"^{table}\b", path.read_text(), re.MULTILINE) for path in files)


def test_the_guide_says_what_each_quantity_may_disclose() -> None:
    assert re.findall(r"^\| `Disclosure\.([A-Z_]+)`", GUIDE, re.MULTILINE) == [
        each.name for each in Disclosure
    ]


@pytest.mark.parametrize("path", NAMED_FILES)
def test_files_that_the_guide_names_exist(tree: Path, path: str) -> None:
    assert (tree / path).is_file()


def test_place_that_is_gone_is_not_passed_over(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    (change,) = changes("In `a.py`:\n\n```diff\n y = 1\n+z = 1\n```\n")
    with pytest.raises(AssertionError, match=r"a\.py has 0 places like"):
        apply(change, tmp_path)
