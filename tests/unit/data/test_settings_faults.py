"""What is wrong with the settings of a data set is said by the settings alone: nothing counts the answer."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from chorale.spec.samples.column_specs import ColumnSpec
from crypto.errors import ConfigError
from silo_agent.training.data.loading import load_data
from silo_agent.training.data.settings import DataSettings, SettingsFault
from tests.unit.data.loading import make_job

JOB = make_job(
    2, (1,), columns=(ColumnSpec(name="age", mean=0.0, scale=1.0, fill=0.0),), label_column="state"
)
HEAD = "age,state,patient"
WELL, ILL, ODD = "40,well,a", "50,ill,b", "60,odd,c"
NEIGHBORS = ([WELL], [WELL, ILL], [WELL, ODD], [WELL, ILL, ODD])

FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "a class that no label has": ({"labels": {"well": 0, "ill": 2}}, "data.labels: expected .* 0 to 1"),
    "no column of units": ({"unit": "person"}, "no column 'person'"),
    "no column of a missing value": ({"missing": {"weight": ["-9"]}}, "no column 'weight'"),
    "no file": ({"path": "nowhere.csv"}, "data.path: no such file or folder: nowhere.csv"),
}
NO_FAULTS: dict[str, dict[str, Any]] = {
    "a label of another job": {"labels": {"well": 0, "ill": 1, "odd": 2}},
    "one class alone": {"labels": {"well": 0}},
    "a label that is mistyped": {"labels": {"wel": 0, "ill": 1}},
}


def load(tmp_path: Path, rows: list[str], fields: dict[str, Any]) -> None:
    table = tmp_path / "table.csv"
    table.write_text("\n".join([HEAD, *rows * 10]) + "\n")
    given = {"format": "csv", "path": table, "labels": {"well": 0, "ill": 1}} | fields
    load_data(DataSettings.model_validate(given), JOB)


@pytest.mark.parametrize(("fields", "words"), FAULTS.values(), ids=FAULTS)
def test_a_fault_of_settings_is_the_same_whatever_the_records_are(
    tmp_path: Path, fields: dict[str, Any], words: str
) -> None:
    for rows in NEIGHBORS:
        with pytest.raises(SettingsFault, match=words):
            load(tmp_path, rows, fields)


@pytest.mark.parametrize("fields", NO_FAULTS.values(), ids=NO_FAULTS)
def test_what_a_record_decides_is_no_fault_of_settings(tmp_path: Path, fields: dict[str, Any]) -> None:
    """Neighboring data sets would be distinguished by a refusal that nothing counts."""
    found = list[type[ConfigError]]()
    for rows in NEIGHBORS:
        with suppress(ConfigError):
            try:
                load(tmp_path, rows, fields)
            except ConfigError as error:
                found.append(type(error))
                raise
    assert SettingsFault not in found
