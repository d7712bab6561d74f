"""The model over all inputs of a file, and what is written: a row an input in its order, and its masks.

N = inputs.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import torch

from chorale.runtime.files import write_atomic
from chorale.spec.job_spec import JobSpec
from chorale.spec.model_file import CalibrationLine
from crypto.errors import ConfigError
from silo_agent.training.data.formats.images.grids import Grid, as_stored, back
from silo_agent.training.models.base import FederatedModel
from silo_agent.training.predicting.answers import Columns, answers_of, mask_of
from silo_agent.training.predicting.inputs import Inputs

BATCH = 64  # inputs at once
REMARKS, MASK = "remarks", "mask"
MASKS = "masks"  # folder beside the table
MOST_MASK_CLASSES = 256  # of a PNG's pixel


def predictions(
    model: FederatedModel,
    inputs: Inputs,
    job: JobSpec,
    *,
    masks: Path,
    line: CalibrationLine | None = None,
    tell: Callable[[int, int], None] = lambda done, total: None,
) -> Columns:
    """A column of keys, those of `answers_of` and one of remarks; an input that cannot be read has the last
    alone. masks: folder for those of a segmentation. line: of the model's file. tell: how many are
    done, and of how many."""
    rows: list[Mapping[str, object]] = []
    for start in range(0, len(inputs.names), BATCH):
        places = range(start, min(start + BATCH, len(inputs.names)))
        rows += _batch(model, inputs, job, places, masks, line)
        tell(len(rows), len(inputs.names))
    headings = dict.fromkeys(heading for row in rows for heading in row)
    answers: Columns = {heading: [row.get(heading) for row in rows] for heading in headings}
    said: list[object] = ["; ".join(inputs.remarks.get(place, ())) for place in range(len(rows))]
    # a unit may be called as an answer is, and takes no answer's place
    key = f"input_{inputs.key}" if inputs.key in (*answers, REMARKS) else inputs.key
    return {key: [*inputs.names], **answers, REMARKS: said}


def _batch(
    model: FederatedModel,
    inputs: Inputs,
    job: JobSpec,
    places: range,
    masks: Path,
    line: CalibrationLine | None,
) -> Iterator[Mapping[str, object]]:
    read: dict[int, np.ndarray] = {}
    grids: dict[int, Grid | None] = {}
    for place in places:
        try:
            read[place], grids[place] = inputs.read(place)
        except Exception as error:  # what an institution's own data raise is on no list
            why = str(error) if isinstance(error, ConfigError) else f"{type(error).__name__}: {error}"
            inputs.remarks[place] = [why]
            inputs.unread.append(place)
    if not read:
        yield from ({} for _ in places)
        return
    with torch.inference_mode():
        outputs = model(torch.from_numpy(np.stack([*read.values()])))
    answers = answers_of(outputs, job, line)
    found = {
        place: {heading: values[at] for heading, values in answers.items()} for at, place in enumerate(read)
    }
    if job.method.task.word == "segmentation":
        for at, place in enumerate(read):
            mask = mask_of(outputs[at]).numpy()
            name = inputs.names[place].removesuffix(inputs.mask_suffix)
            path = masks / f"{name}{inputs.mask_suffix}"
            written = _write_mask(mask, grids[place], path)
            counts = np.bincount(written.ravel(), minlength=len(answers)).tolist()
            found[place] |= dict(zip(answers, counts, strict=True))
            found[place][MASK] = path.relative_to(masks.parent).as_posix()
    yield from (found.get(place, {}) for place in places)


def _write_mask(mask: np.ndarray, grid: Grid | None, path: Path) -> np.ndarray:
    """In the size of the image's file, without mixing numbers: PNG, or NIfTI with its place in space. Gives
    what was written."""
    if grid is not None:
        mask = back(mask, grid)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".png":
        from PIL import Image

        if mask.max(initial=0) >= MOST_MASK_CLASSES:
            raise ConfigError(f"{path}: expected at most {MOST_MASK_CLASSES} classes in a mask")
        Image.fromarray(mask.astype(np.uint8)).save(path)
        return mask
    import nibabel

    affine = np.eye(4)
    if grid is not None:
        mask, affine = as_stored(mask, grid)
    image: Any = nibabel.Nifti1Image(mask.astype(np.int16), affine)  # type: ignore[no-untyped-call]
    nibabel.save(image, path)
    return mask


def write_columns(columns: Columns, facts: Mapping[str, object], out: Path) -> None:
    """As csv, with the facts in a file of JSON beside it, or as parquet with both. Raises ConfigError."""
    if out.suffix == ".parquet":
        try:
            import pyarrow
            from pyarrow import parquet
        except ModuleNotFoundError:
            raise ConfigError("--out: parquet needs pyarrow: pip install '.[tables]'") from None
        table = pyarrow.table({heading: pyarrow.array(values) for heading, values in columns.items()})
        parquet.write_table(table.replace_schema_metadata({"chorale": json.dumps(facts)}), out)
        return
    text = StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    write_atomic(out, text.getvalue().encode())
    write_atomic(out.with_suffix(".json"), json.dumps(facts, indent=1).encode())
