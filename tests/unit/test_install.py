"""What people see while `make` installs: a line for each step of pip, and one where a step takes long."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from subprocess import run

import pytest

from tools import install
from tools.install import follow
from tools.sizes import INSTALLS

ROOT = Path(__file__).resolve().parents[2]
PIP = """
import sys
print("Looking in indexes: https://pypi.org/simple")
print("Downloading https://files.example.org/ab/torch-2.13.0-cp311.whl (188.0 MB)", flush=True)
print("Installing collected packages: mpmath, torch", flush=True)
print("ERROR: no space left", file=sys.stderr)
sys.exit(3)
"""


def test_steps_are_told_as_they_come_and_the_exit_code_is_pips(capfd: pytest.CaptureFixture[str]) -> None:
    lines: list[str] = []
    assert follow([sys.executable, "-c", PIP], say=lines.append, quiet_seconds=60) == 3
    assert lines == ["  Downloading torch-2.13.0-cp311.whl (188.0 MB)", "  Installing 2 packages"]
    assert "ERROR: no space left" in capfd.readouterr().err


def test_step_that_takes_long_is_told_again(tmp_path: Path) -> None:
    """Before, nothing was said for minutes."""
    end = tmp_path / "end"
    waits = f"""
import pathlib, time
print("Downloading a.whl", flush=True)
while not pathlib.Path({str(end)!r}).exists():
    time.sleep(0.01)
"""
    lines: list[str] = []

    def say(line: str) -> None:
        lines.append(line)
        if sum("still downloading a.whl" in each for each in lines) == 2:
            end.touch()

    assert follow([sys.executable, "-c", waits], say=say, quiet_seconds=0.05) == 0
    assert end.exists()


@pytest.mark.parametrize(
    ("installed", "installs"),
    [
        ((), ["torch", "'.[demo]'"]),
        ((".demo",), []),
        ((".demo", ".installed"), []),
        ((".installed",), []),
    ],
)
def test_make_demo_installs_the_demo_alone_and_only_once(
    tmp_path: Path, installed: tuple[str, ...], installs: list[str]
) -> None:
    assert _installs(tmp_path, "demo", installed) == installs


@pytest.mark.parametrize("installed", [(), (".demo",)])
def test_make_test_adds_what_tests_need_to_what_the_demo_installed(
    tmp_path: Path, installed: tuple[str, ...]
) -> None:
    whole = f"'.[{','.join(INSTALLS['the tests'])}]'"
    assert _installs(tmp_path, "test", installed) == ["torch torchvision", whole]


def _installs(folder: Path, target: str, installed: tuple[str, ...]) -> list[str]:
    """What make would have pip install, where these markers are newer than pyproject.toml."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        copied = folder / name
        copied.write_bytes((ROOT / name).read_bytes())
        os.utime(copied, (0, 0))
    python = folder / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    for path in (python, *(folder / ".venv" / marker for marker in installed)):
        path.touch()
    done = run(["make", "-n", target], cwd=folder, capture_output=True, text=True, check=True)
    return re.findall(r"-c constraints.txt (?:--no-compile )?(?:-e )?(.*)$", done.stdout, re.MULTILINE)


def test_no_address_is_printed_that_may_hold_a_login() -> None:
    arguments = ["-c", "constraints.txt", "--index-url", "https://ann:secret@pypi.example/simple", "torch"]
    assert install._packages(arguments) == ["torch"]
    assert install._packages(["-c", "constraints.txt", "torch", ".[demo]"]) == [
        "torch",
        ".[demo]",
    ]  # the control
