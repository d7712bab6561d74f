"""docs/examples/own: each runs as its page says, in simulation beside its pooled training, and in real
processes.
"""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from chorale_models import Sizes
from tests.support.processes import INSTALLED, REPOSITORY, environment
from tools.examples import Example, examples, installed, lines_of_code

# not imported: torchvision, which some of them import, may need what Chorale does before
MISSING = [each for each in ("torch", "monai", "peft", "transformers", "timm") if find_spec(each) is None]
pytestmark = [
    pytest.mark.gate,
    pytest.mark.timeout(400),
    pytest.mark.skipif(bool(MISSING), reason=f"needs the extras silo and examples: no {MISSING}"),
]
EXAMPLES = list(examples())
MOST_LINES = 30  # of the author's own code


IN_GATES = ("regression",)  # whose federations are not left to `make soak`


def in_soak(folder: str) -> object:
    """What takes longest."""
    is_long = folder in ("vision", "multi-label", "text")
    return pytest.param(folder, marks=pytest.mark.soak) if is_long else folder


def federation_in_soak(example: Example) -> object:
    return example if example.folder.name in IN_GATES else pytest.param(example, marks=pytest.mark.soak)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    for example in {each.folder for each in EXAMPLES}:
        installed(example, folder)
    return folder


@pytest.mark.parametrize("folder", [*map(in_soak, sorted({each.folder.name for each in EXAMPLES}))])
def test_example_reaches_its_share_of_the_pooled_figure(folder: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tools.examples", folder],
        cwd=REPOSITORY,
        env=environment({"PYTHONPATH": str(REPOSITORY)}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert all("pooled" in line and "share" in line for line in done.stdout.splitlines())


@pytest.mark.parametrize("example", [*map(federation_in_soak, EXAMPLES)], ids=lambda example: example.name)
def test_example_runs_in_a_federation_of_three_processes(
    example: Example, site: Path, tmp_path: Path
) -> None:
    """Fewer rounds than in simulation: that it learns is shown there."""
    job = tmp_path / "job.yaml"
    job.write_text(yaml.safe_dump(yaml.safe_load(example.job.read_text()) | {"rounds": 2}))
    done = subprocess.run(
        [
            *(INSTALLED, "demo", "--job", str(job), "--data", str(example.folder / "data.yaml")),
            *("--out", str(tmp_path / "out")),
        ],
        cwd=REPOSITORY,
        env=environment({"PYTHONPATH": f"{REPOSITORY}:{site}"}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["final_figure"] is not None
    assert (report["status"], report["rounds_completed"]) == ("done", 2)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_author_of_an_example_wrote_few_lines(example: Example) -> None:
    assert 0 < example.lines <= MOST_LINES


def test_lines_of_code_are_without_prose() -> None:
    assert (
        lines_of_code('"""Prose."""\n\nx = 1  # one\n# none\ndef f():\n    """More."""\n    return x\n') == 3
    )


@pytest.mark.parametrize("architecture", ["hf-hub:stranger/model", "local-dir:/etc", "local-dir:."])
def test_the_vision_example_takes_names_that_timm_lists_and_no_address(architecture: str) -> None:
    """timm.create_model fetches the first, and reads the others, for the author of the job's options."""
    import silo_agent.training.machine.torchvision_compat  # noqa: F401

    code = runpy.run_path(str(REPOSITORY / "docs" / "examples" / "own" / "vision" / "timm_resnet.py"))
    sizes = Sizes(classes=3, input_shape=(3, 8, 8))
    assert code["resnet"](sizes, architecture="test_resnet") is not None
    with pytest.raises(ValueError, match=r"architecture: expected a name of timm.list_models\(\)"):
        code["resnet"](sizes, architecture=architecture)
