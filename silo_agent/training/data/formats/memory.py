"""Memory, decided by what is declared before anything is read: by a file, and in a private job by numbers.

Compressed files give a thousand times their size. A file that is one record is compared with the job's
input_shape alone, so in a private job nothing else decides whether it is left out; a file that holds all
records is compared with this process's memory. In a private job nothing that the job chooses enters there: an
operator who could move the limit would learn the number of records.

What a job takes grows with the number of records, by a factor that the job chooses: the width of a table,
an image, a teacher's answers. If it ran until memory ends, a job of the right width would tell how many there
are. So a job is compared with as many records as the policy expects at most, and a data set of more than
those serves no private job. Source: docs/privacy-proofs.md "What time tells".
"""

from __future__ import annotations

import math
import os
import resource
from pathlib import Path

from chorale.runtime.machine import memory_limit_bytes
from chorale.spec.job_spec import JobSpec
from crypto.errors import ConfigError
from silo_agent.training.data.fitting import sample_bytes
from silo_agent.training.data.settings import ARRAY_FORMATS, DataFormat, DataSettings, SettingsFault
from strategies.base import Arrays
from strategies.parts.regularizers import NO_REGULARIZER

MOST_VALUES = 1 << 28  # of an image before it is resized, 1 GiB as float32: a CT of 1,000 slices
REDUCED = 64  # an image is resized to no less than this part, where the job's own is large
SHARE = 2  # data that take half of the memory leave no room to train on them
PRIVATE_SHARE = 4  # of memory: the last job's data may still lie there, and half is for training
INPUT_COPIES = 5  # float32 that a value of a table takes while it is prepared: twice float64, then float32
ANSWER_COPIES = 3  # features and logits: in batches, together, and beside another model's
RECORD_BYTES = 64  # places, sides and marks
IMAGE_FORMATS = (DataFormat.IMAGE_FOLDER, DataFormat.DICOM, DataFormat.NIFTI)


def check_values(declared: int, shape: tuple[int, ...], *, source: object) -> None:
    """Raises ConfigError for an image of more values than can be resized to the shape."""
    most = max(MOST_VALUES, REDUCED * math.prod(shape))
    if declared > most:
        raise ConfigError(f"{source}: declares an image of {declared} values, expected at most {most}")


def check_bytes(declared: int, *, source: object) -> None:
    """Raises ConfigError for data that take more than half of this process's memory."""
    most = _memory_bytes() // SHARE
    if declared > most:
        raise ConfigError(
            f"{source}: declares data that take {declared >> 20} MiB of memory, expected at most "
            f"{most >> 20} MiB, half of what this process may take"
        )


def check_records(held: int, most: int, *, settings: DataSettings) -> None:
    """Raises SettingsFault where a data set holds more rows than private jobs may count on.

    most: as `Policy.most_records`, of units where the data set has some.
    """
    if held > most * settings.rows_per_unit:
        raise SettingsFault(
            f"data {settings.name}: private jobs expect at most {most} records here, it holds more: "
            "constant_work_records in the policy says how many there may be"
        )


def check_room(spec: JobSpec, state: Arrays, settings: DataSettings, *, most: int) -> None:
    """Raises ConfigError where the inputs of so many records do not fit in a part of this machine's memory.

    state: whose widest array bounds the features and logits of a record. most: as of `check_records`.
    """
    records = most * settings.rows_per_unit
    taken = records * (RECORD_BYTES + _answer_bytes(spec, state)) + _input_bytes(spec, settings, records)
    most_bytes = memory_limit_bytes() // PRIVATE_SHARE
    if taken > most_bytes:
        raise ConfigError(
            f"data {settings.name}: inputs and answers of {records} records of this job may take "
            f"{taken >> 20} MiB of memory, expected at most {most_bytes >> 20} MiB, a quarter of all"
        )


def _memory_bytes() -> int:
    """What `ulimit -v` leaves of it, where it is set."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_AS)
    if allowed == resource.RLIM_INFINITY:
        return memory_limit_bytes()
    taken_pages = int(Path("/proc/self/statm").read_text().split()[0])
    return max(0, min(memory_limit_bytes(), allowed - os.sysconf("SC_PAGE_SIZE") * taken_pages))


def _input_bytes(spec: JobSpec, settings: DataSettings, records: int) -> int:
    if settings.format in ARRAY_FORMATS:  # their shape is the file's, which no job chooses
        return 0
    every = records * sample_bytes(spec)
    if settings.format in IMAGE_FORMATS:  # beyond the cache they are read by place
        return min(every, settings.cache_megabytes << 20)
    return INPUT_COPIES * every


def _answer_bytes(spec: JobSpec, state: Arrays) -> int:
    """Of one record: what a teacher, a statistic or a closing step keeps of it."""
    recipe = spec.method.recipe
    closes = recipe.closing.before_evaluation is not None or recipe.closing.after_evaluation
    if recipe.regularizer is NO_REGULARIZER and recipe.statistic is None and not closes:
        return 0
    widest = max((max(array.shape, default=1) for array in state.values()), default=1)
    return 4 * 2 * ANSWER_COPIES * len(recipe.regularizers) * widest
