"""What runs before a commit is what `make` runs, and what .ci/run runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from tools.prose import found

ROOT = Path(__file__).resolve().parents[2]
CHECKS = ("lint", "typecheck")


def recipe(target: str) -> list[str]:
    """The commands of a target of the Makefile."""
    found = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert found is not None, target
    return [line.strip().replace("$(BIN)", ".venv/bin") for line in found.group(1).splitlines()]


def test_hooks_run_what_make_runs() -> None:
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    hooks = repository["hooks"]
    assert [hook["entry"] for hook in hooks] == [command for target in CHECKS for command in recipe(target)]
    assert repository["repo"] == "local"  # nothing is fetched: the versions are those of constraints.txt
    assert {hook["language"] for hook in hooks} == {"system"}
    assert {hook["pass_filenames"] for hook in hooks} == {False}  # the commands name what they check


def test_continuous_integration_runs_what_make_runs() -> None:
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    made = re.findall(r"\bmake ([a-z-]+)", "\n".join(line for line in lines if not line.startswith("#")))
    assert made[0] == "setup"
    assert made[1 : 1 + len(CHECKS)] == list(CHECKS)
    assert "test" in made


def test_pages_name_targets_that_there_are() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    for page in ("CONTRIBUTING.md", "README.md"):
        named = set(re.findall(r"(?:`|^)make ([a-z-]+)", (ROOT / page).read_text(), re.MULTILINE))
        assert named
        assert named <= targets, page


@pytest.mark.parametrize("line", ["refuses whoever asks", "def test_roster_of_before():", "Made anew."])
def test_idioms_are_found_in_prose_and_names(line: str) -> None:
    assert [number for number, _ in found(f"plain words\n{line}\n")] == [2]


def test_plain_words_pass() -> None:
    assert found("A second sum covers the same silos, as the protocol says.") == []
