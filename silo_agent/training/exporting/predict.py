"""Answers of this folder's model: `python predict.py rows.csv answers.csv`, or of the array x of an npz file.

Needs numpy and onnxruntime, and nothing of Chorale, whose `chorale model export` wrote it. A row is made into
inputs as training made it: preprocessing.json says the columns. An .npz file holds inputs as they are.

N = inputs.
"""

from __future__ import annotations

import csv
import json
import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).parent
NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
THRESHOLD = 0.5  # of a label's probability


def inputs_of(row: Mapping[str, str], columns: Sequence[Mapping[str, Any]]) -> Iterator[float]:
    """What the model is given for a row; a cell that is no number, category or plausible value is missing."""
    for column in columns:
        cell, known = (row[column["name"]] or "").strip(), column["categories"]
        if known is not None and column["encoding"] != "index":
            yield from (float(cell == each and cell not in (column["rare"] or ())) for each in known)
            continue
        if known is not None:
            value = float(known.index(cell)) if cell in known else math.nan
        else:
            value = float(cell) if NUMBER.fullmatch(cell) else math.nan
            low, high = column["plausible"] or (-math.inf, math.inf)
            value = value if low <= value <= high and math.isfinite(value) else math.nan
        yield ((column["fill"] if math.isnan(value) else value) - column["mean"]) / column["scale"]


def answers_of(outputs: Any, answers: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Columns of N answers each. Shapes: outputs (N, ...)."""
    flat = outputs.astype(np.float64).reshape(len(outputs), -1)
    names, kind, range_ = answers["names"], answers["kind"], answers["range"]
    chosen: list[Any]
    if answers["task"] == "multi-label":
        values = 1.0 / (1.0 + np.exp(-flat))
        chosen = ["; ".join(np.array(names)[row].tolist()) for row in values > THRESHOLD]
    elif answers["task"] == "classification":
        flat = answers["slope"] * flat
        flat[:, 1] += answers["intercept"]
        powers = np.exp(flat - flat.max(axis=1, keepdims=True))
        values = flat if kind == "score" else powers / powers.sum(axis=1, keepdims=True)
        chosen = [names[place] for place in flat.argmax(axis=1)]
    else:  # a number is -1 at the lowest of its range and 1 at the highest
        low, high = range_ or (-1.0, 1.0)
        values = low + (flat + 1.0) / 2.0 * (high - low)
        return {name: values[:, place].tolist() for place, name in enumerate(names)}
    by_name = {f"{kind}_{name}": values[:, place].tolist() for place, name in enumerate(names)}
    return {"prediction": chosen, **by_name}


def main(source: Path, out: Path) -> None:
    """Ends with a sentence for a table that lacks a column, and overwrites nothing."""
    import onnxruntime  # type: ignore[import-untyped]

    facts = json.loads((FOLDER / "preprocessing.json").read_text(encoding="utf-8"))
    if source.suffix == ".npz":
        with np.load(source, allow_pickle=False) as arrays:
            inputs = arrays["x"]
    else:
        with source.open(encoding="utf-8-sig", newline="") as file:
            rows = list(csv.DictReader(file))
        columns = facts["columns"]
        lacking = [each["name"] for each in columns if rows and each["name"] not in rows[0]]
        if lacking:
            sys.exit(f"{source}: no column {lacking[0]!r}")
        inputs = np.array([list(inputs_of(row, columns)) for row in rows], np.float64)
    inputs = inputs.astype(facts["input_type"]).reshape(-1, *facts["input_shape"])
    session = onnxruntime.InferenceSession(FOLDER / "model.onnx", providers=["CPUExecutionProvider"])
    (outputs,) = session.run(None, {session.get_inputs()[0].name: inputs})
    answers = {"row": list(range(1, len(inputs) + 1)), **answers_of(outputs, facts["answers"])}
    with out.open("x", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(answers)
        writer.writerows(zip(*answers.values(), strict=True))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python predict.py ROWS.csv ANSWERS.csv")
    main(Path(sys.argv[1]), Path(sys.argv[2]))
