"""What is not installed, or is another package's, is named in one line before anything starts."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from chorale.spec.state import state_to_bytes
from cli.startup.packages import PACKAGES, foreign_package
from tests.support.processes import REPOSITORY, environment
from tests.unit.cli.conftest import Desk, Settings

# what only the extras bring is not to be had
BASE_INSTALL = """
import sys
extras = ["torch", "torchvision", "opacus", "sklearn", "PIL", "numba", "dp_accounting", "scipy"]
sys.modules.update(dict.fromkeys(extras))
from cli.main import main
main(sys.argv[1:])
"""
NEEDS_PRIVACY = "needs the extra 'privacy' (no dp_accounting here): pip install '.[privacy]'\n"


def _on_a_base_install(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", BASE_INSTALL, *map(str, arguments)],
        cwd=REPOSITORY,
        env=environment({}),
        capture_output=True,
        text=True,
        check=False,
    )


def test_demo_names_the_missing_extra_before_it_makes_a_folder(tmp_path: Path) -> None:
    done = _on_a_base_install("demo", "--out", tmp_path / "out")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "chorale: error: demo needs the extra 'demo' (no torch, sklearn, opacus, dp_accounting here): "
        "pip install '.[demo]'\n"
    )
    assert list(tmp_path.iterdir()) == []


ADAPTERS: Settings = {"rank": 2, "targets": ["1"]}
NEEDS_SILO = "needs the extra 'silo' (no torch here): pip install '.[silo]'\n"


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        (lambda desk: ["simulate", desk.job()], [NEEDS_SILO]),
        (
            lambda desk: ["silo", "run", "--config", desk.silo()],
            [
                "chorale: error: a silo with the built-in training needs the extra 'silo' "
                "(no torch, dp_accounting here): pip install '.[silo]'\n"
            ],
        ),
        (
            lambda desk: ["silo", "run", "--config", desk.silo(objective="math:sqrt")],
            [f"chorale: error: a silo's account of its privacy budget {NEEDS_PRIVACY}"],
        ),
        (
            lambda desk: ["job", "submit", desk.job(adapters=ADAPTERS), "--config", desk.operator()],
            [NEEDS_SILO, "chorale: hint: give --init FILE.safetensors\n"],
        ),
    ],
    ids=["simulation", "silo", "silo with an objective of its own", "job without weights of its adapters"],
)
def test_the_missing_extra_is_named(
    desk: Desk, typed: Callable[[Desk], list[str | Path]], told: list[str]
) -> None:
    done = _on_a_base_install(*typed(desk))
    assert done.returncode == 2
    assert all(each in done.stderr for each in told)


def _submitted(desk: Desk, **changes: object) -> subprocess.CompletedProcess[str]:
    """A job with weights of its own, so that no torch is needed, to a coordinator that is not there."""
    init = desk.folder / "init.safetensors"
    init.write_bytes(state_to_bytes({"model/votes": np.zeros(100, np.float32)}))
    job = desk.job(model={"name": "custom"}, **changes)
    return _on_a_base_install("job", "submit", job, "--init", init, "--config", desk.operator())


def test_private_job_names_the_missing_extra(desk: Desk) -> None:
    privacy: Settings = {"epsilon": 4.0, "sums": {"clip_norm": 0.5}}
    done = _submitted(desk, privacy=privacy)
    assert done.returncode == 2
    assert done.stderr == f"chorale: error: computing what noise costs {NEEDS_PRIVACY}"


def test_job_without_privacy_needs_no_extra(desk: Desk) -> None:
    done = _submitted(desk)
    assert (done.returncode, "coordinator is unreachable" in done.stderr) == (1, True)


def test_job_of_a_network_of_chorale_needs_no_extra(desk: Desk) -> None:
    """Its first weights are drawn here, as silos draw them."""
    done = _on_a_base_install("job", "submit", desk.job(), "--config", desk.operator())
    assert (done.returncode, "coordinator is unreachable" in done.stderr) == (1, True)


def test_coordinator_needs_no_extra(desk: Desk) -> None:
    """It comes as far as its port."""
    done = _on_a_base_install("coordinator", "run", "--config", desk.coordinator(listen=desk.taken_address))
    assert done.returncode == 1
    assert desk.taken_address in done.stderr.splitlines()[-1]


def _started_in(folder: Path) -> subprocess.CompletedProcess[str]:
    """As in a clone of the repository: the working directory comes first."""
    return subprocess.run(
        [sys.executable, "-m", "cli.main", "--version"],
        cwd=folder,
        env=environment({}),
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("name", [name for name in PACKAGES if name != "cli"])  # a foreign cli runs itself
def test_foreign_folder_of_our_name_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("raise SystemExit('foreign code ran')\n")
    done = _started_in(tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"chorale: error: package {name}: {tmp_path / name} hides {REPOSITORY / name}; "
        "rename it, or start chorale elsewhere\n"
    )


def test_bare_folder_is_refused_where_it_hides_an_editable_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bare = ModuleSpec("chorale", None, is_package=True)
    bare.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setattr(
        "cli.startup.packages.find_spec", lambda name: bare if name == "chorale" else find_spec(name)
    )
    assert foreign_package().startswith(f"package chorale: {tmp_path} hides ")


def test_package_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cli.startup.packages.find_spec", lambda name: None)
    assert foreign_package() == (
        f"package crypto: expected {REPOSITORY / 'crypto'}, found none; install chorale again"
    )


def test_folders_of_other_names_are_no_concern(tmp_path: Path) -> None:
    (tmp_path / "cryptography_notes").mkdir()
    assert _started_in(tmp_path).returncode == 0


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_line_of_the_page_sets_up_completion(shell: str) -> None:
    assert f"_CHORALE_COMPLETE={shell}_source chorale" in (REPOSITORY / "docs" / "install.md").read_text()
    script = _completing(_CHORALE_COMPLETE=f"{shell}_source")
    assert f"_CHORALE_COMPLETE={shell}_complete" in script
    words = {"COMP_WORDS": "chorale doctor --c", "COMP_CWORD": "--c" if shell == "fish" else "2"}
    assert "--config" in _completing(_CHORALE_COMPLETE=f"{shell}_complete", **words)


def _completing(**variables: str) -> str:
    """What a shell is told that asks for completion."""
    done = subprocess.run(
        [sys.executable, "-c", "from cli.main import main; main()"],
        cwd=REPOSITORY,
        env=environment(variables),
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout
