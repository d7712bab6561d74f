"""What a file declares is compared with what the job can use before memory is taken for it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from chorale.spec.samples.column_specs import ColumnSpec
from crypto.errors import ConfigError
from silo_agent.training.data.formats import memory
from silo_agent.training.data.loading import load_data
from silo_agent.training.data.settings import DataSettings
from tests.fuzz.data import PRIVACY
from tests.support.bombs import BECAME, BOMBS
from tests.unit.data.loading import make_job

pytestmark = pytest.mark.timeout(300)  # the process imports MONAI, 10 s of a core that is its own
ROOT = Path(__file__).parents[3]
IMAGE = r"{}: declares an image of \d+ values, expected at most 268435456"
MEMORY = r"ConfigError: {}: declares data that take \d+ MiB of memory, expected at most \d+ MiB"
# by bomb: what a job without privacy is refused with, and what a private job says
EXPECTED = {
    **{
        name: (f"ConfigError: .*{IMAGE.format(file)}", f"2 records; .*{IMAGE.format(file)}$")
        for name, file in (
            ("nifti", r"a\.nii\.gz"),
            ("dicom", r"a\.dcm"),
            ("png", r"a\.png"),
            ("jpeg", r"a\.jpg"),
        )
    },
    "npz": (r"ConfigError: .*data\.npz: x: a sample has shape \(268435456,\), the job's",) * 2,
    "npz, two of a name": (r"ConfigError: .*data\.npz: x: a sample has shape \(268435456,\), the job's",) * 2,
    "mnist": (MEMORY.format(r".*train-images-idx3-ubyte\.gz"),) * 2,
    "cifar10": (r"ConfigError: data\.path: .* does not hold the folder cifar-10-batches-py with whole",) * 2,
    "csv": (MEMORY.format(r".*data\.csv"),) * 2,
    "parquet": (MEMORY.format(r".*data\.parquet"),) * 2,
    "parquet text": (
        r"ConfigError: .*data\.parquet, record 0, column age: expected a number, got 'x{40}'",
        r"300 records; .*data\.parquet, record 0, column age: expected a number, .*, and 299 more like it$",
    ),
    "sql": (MEMORY.format(r"data\.database: the query"),) * 2,
}


@pytest.fixture(scope="module")
def became(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What became of each bomb in a process with 256 MiB to spare."""
    folder = tmp_path_factory.mktemp("bombs")
    command = [sys.executable, "-m", "tests.support.bombs", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, list[str]] = json.loads((folder / BECAME).read_text())
    return found


@pytest.mark.parametrize("name", BOMBS)
def test_what_a_file_declares_is_compared_before_memory_is_taken(
    became: dict[str, list[str]], name: str
) -> None:
    # nifti took 95 s and ended in MemoryError; npz was read whole before its shape was compared
    for found, expected in zip(became[name], EXPECTED[name], strict=True):
        assert re.match(expected, found), (found, expected)


def test_no_choice_of_columns_moves_what_a_private_job_is_refused_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # who makes the columns wider until the job is refused has counted the records
    rows, wide = 1_000, tuple(f"c{number}" for number in range(1_000))
    table = pyarrow.table({name: ["1"] * rows for name in ("age", "sex", "y")})
    parquet.write_table(table, tmp_path / "data.parquet")
    (tmp_path / "data.csv").write_text("age,sex,y\n" + "1,1,1\n" * rows)
    narrow = {"columns": (ColumnSpec(name="age"),), "shape": (1,), "label_column": "y"}
    broad = {**narrow, "columns": (ColumnSpec(name="age", categories=wide),), "shape": (1_000,)}
    declared_bytes = {"csv": 8 * (tmp_path / "data.csv").stat().st_size, "parquet": 3 * 8 * rows}
    for form, needed_bytes in declared_bytes.items():
        settings = DataSettings(format=form, path=tmp_path / f"data.{form}")
        for most_bytes, is_refused in ((needed_bytes, False), (needed_bytes - 1, True)):
            monkeypatch.setattr(memory, "_memory_bytes", lambda most=most_bytes: most * memory.SHARE)
            for fields in (narrow, broad):
                job = make_job(2, **fields, privacy=PRIVACY)
                with pytest.raises(ConfigError, match="declares data") if is_refused else nullcontext():
                    assert len(load_data(settings, job).train) > 0
        monkeypatch.setattr(memory, "_memory_bytes", lambda: 8_000_000)
        with pytest.raises(ConfigError, match="columns: 1000 records: declares data that take 7 MiB"):
            load_data(settings, make_job(2, **broad))
