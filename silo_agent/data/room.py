"""What a private job may take of this machine's memory: decided by declared numbers, never by the data.

What a job takes grows with the number of records, by a factor that the job chooses: the width of a table,
an image, a teacher's answers. If it ran until memory ends, a job of the right width would tell how many there
are. So a job is compared with as many records as the policy declares, or MOST_RECORDS, and a data set of more
than those serves no private job. Source: docs/privacy.md "What time tells".
"""

from __future__ import annotations

from chorale.spec.job_spec import JobSpec
from crypto.errors import ConfigError
from silo_agent.data.fitting import sample_bytes
from silo_agent.data.formats.declared import machine_bytes
from silo_agent.data.settings import ARRAY_FORMATS, DataFormat, DataSettings, SettingsFault
from strategies.base import Arrays
from strategies.parts.regularizers import NO_REGULARIZER

# of a private job whose silo declares no number: a hospital's table, and of 1,000 columns 2.6 GB
MOST_RECORDS = 1 << 17
SHARE = 4  # of memory: the last job's data may still lie there, and half is for training
INPUT_COPIES = 5  # float32 that a value of a table takes while it is prepared: twice float64, then float32
ANSWER_COPIES = 3  # features and logits: in batches, together, and beside another model's
RECORD_BYTES = 64  # places, sides and marks
IMAGE_FORMATS = (DataFormat.IMAGE_FOLDER, DataFormat.DICOM, DataFormat.NIFTI)


def check_records(held: int, declared: int | None, *, settings: DataSettings) -> None:
    """Raises SettingsFault where a data set holds more rows than private jobs may count on.

    declared: constant_work_records, of units where the data set has some.
    """
    most = MOST_RECORDS if declared is None else declared
    if held > most * _rows_per_unit(settings):
        raise SettingsFault(
            f"data {settings.name}: private jobs expect at most {most} records here, it holds more: "
            "constant_work_records in the policy says how many there may be"
        )


def check_room(spec: JobSpec, state: Arrays, settings: DataSettings, *, declared: int | None) -> None:
    """Raises ConfigError where the inputs of so many records do not fit in a part of this machine's memory.

    state: whose widest array bounds the features and logits of a record.
    """
    records = (MOST_RECORDS if declared is None else declared) * _rows_per_unit(settings)
    taken = records * (RECORD_BYTES + _answer_bytes(spec, state)) + _input_bytes(spec, settings, records)
    most = machine_bytes() // SHARE
    if taken > most:
        raise ConfigError(
            f"data {settings.name}: inputs and answers of {records} records of this job may take "
            f"{taken >> 20} MiB of memory, expected at most {most >> 20} MiB, a quarter of this machine's"
        )


def _input_bytes(spec: JobSpec, settings: DataSettings, records: int) -> int:
    if settings.format in ARRAY_FORMATS:  # their shape is the file's, which no job chooses
        return 0
    every = records * sample_bytes(spec)
    if settings.format in IMAGE_FORMATS:  # beyond the cache they are read by place
        return min(every, settings.cache_megabytes << 20)
    return INPUT_COPIES * every


def _rows_per_unit(settings: DataSettings) -> int:
    return 1 if settings.unit is None else settings.max_rows_per_unit


def _answer_bytes(spec: JobSpec, state: Arrays) -> int:
    """Of one record: what a teacher, a statistic or a closing step keeps of it."""
    recipe = spec.method.recipe
    closes = recipe.closing.before_evaluation is not None or recipe.closing.after_evaluation
    if recipe.regularizer is NO_REGULARIZER and recipe.statistic is None and not closes:
        return 0
    widest = max((max(array.shape, default=1) for array in state.values()), default=1)
    return 4 * 2 * ANSWER_COPIES * widest
