"""What a private job may take of memory is decided by declared numbers: no data set is read for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chorale.spec.samples.column_specs import ColumnSpec
from crypto.errors import ConfigError
from silo_agent.disclosure.policy.policy import Policy
from silo_agent.training.data.formats import memory
from silo_agent.training.data.formats.memory import check_records, check_room
from silo_agent.training.data.settings import DataSettings, SettingsFault
from tests.fuzz.data import PRIVACY
from tests.unit.data.loading import make_job

MOST = Policy(federation="test").most_records
TABLE = {"columns": (ColumnSpec(name="age"),), "shape": (1,), "label_column": "y"}
RECORD = memory.RECORD_BYTES
STATE = {"model/body.weight": np.zeros((8, 500), np.float32)}
TEACHER = 4 * 2 * memory.ANSWER_COPIES * 500


def of(form: str, **settings: Any) -> DataSettings:
    return DataSettings.model_validate({"format": form, "path": Path("data"), **settings})


@pytest.mark.parametrize(
    ("settings", "job", "record_bytes"),
    [
        (of("csv"), TABLE, RECORD + 5 * (4 + 8)),
        (of("csv"), TABLE | {"strategy": {"preset": "fedntd"}}, RECORD + 5 * (4 + 8) + TEACHER),
        (of("csv", unit="patient", max_rows_per_unit=3), TABLE, 3 * (RECORD + 5 * (4 + 8))),
        (of("module", path=None, module="hospital:data"), {"shape": (3, 10, 10)}, RECORD + 5 * (1200 + 8)),
        (of("npz"), {"shape": (3, 1000, 1000)}, RECORD),  # the file says how wide a record is
    ],
    ids=["table", "teacher", "unit", "function", "arrays"],
)
@pytest.mark.parametrize("most", [MOST, 1000])
def test_a_job_is_compared_with_the_declared_number_of_records(
    settings: DataSettings,
    job: dict[str, Any],
    record_bytes: int,
    most: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = make_job(3, **job, privacy=PRIVACY)
    taken = most * record_bytes
    monkeypatch.setattr(memory, "memory_limit_bytes", lambda: memory.PRIVATE_SHARE * taken)
    check_room(spec, STATE, settings, most=most)
    monkeypatch.setattr(memory, "memory_limit_bytes", lambda: memory.PRIVATE_SHARE * taken - 1)
    with pytest.raises(ConfigError, match=rf"inputs and answers of \d+ records .* {taken >> 20} MiB"):
        check_room(spec, STATE, settings, most=most)


def test_images_take_no_more_than_their_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = make_job(2, shape=(3, 500, 500), privacy=PRIVACY)
    taken = MOST * RECORD + (64 << 20)
    monkeypatch.setattr(memory, "memory_limit_bytes", lambda: memory.PRIVATE_SHARE * taken)
    check_room(spec, STATE, of("image-folder", cache_megabytes=64), most=MOST)
    with pytest.raises(ConfigError, match="inputs and answers"):
        check_room(spec, STATE, of("image-folder", cache_megabytes=65), most=MOST)


def test_a_data_set_of_more_records_than_declared_waits_for_its_institution() -> None:
    check_records(MOST, MOST, settings=of("csv"))
    check_records(30, 10, settings=of("csv", unit="patient", max_rows_per_unit=3))
    for held, most, settings in (
        (MOST + 1, MOST, of("csv")),
        (31, 10, of("csv", unit="patient", max_rows_per_unit=3)),
    ):
        with pytest.raises(SettingsFault, match="constant_work_records in the policy says how many"):
            check_records(held, most, settings=settings)
