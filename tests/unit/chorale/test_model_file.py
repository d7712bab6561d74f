"""Facts in a model's file, beside arrays whose bytes stay as they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import safetensors
import safetensors.numpy

from chorale.spec.model_file import described_job, facts_of, open_model, read_model, with_facts
from chorale.spec.state import state_to_bytes
from crypto.errors import ConfigError, RemoteProtocolError
from tests.unit.chorale.test_selection import spec

STATE = {"model/w": np.arange(6, dtype=np.float32).reshape(2, 3), "method/total": np.array(7)}
OTHERS_NET = '{"name": "net", "from": "nets==1.0"}'
UNPINNED = '[{"distribution": "nets==1.0", "sha256": null}]'
COLUMNS = ({"name": "age", "mean": 50.0, "scale": 9.0}, {"name": "chol"})


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_facts_are_added_to_a_stream_and_the_arrays_have_the_same_digest(tmp_path: Path, size: int) -> None:
    data, facts = state_to_bytes(STATE), facts_of(spec(), job_digest=bytes(32), round=4)
    pieces = (data[start : start + size] for start in range(0, len(data), size))
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"".join(with_facts(pieces, facts)))
    arrays, found = read_model(path)
    assert found == facts
    assert state_to_bytes(arrays) == data
    with safetensors.safe_open(path, framework="numpy") as file:  # as any other program reads it
        assert file.metadata() == facts


def test_facts_describe_model_method_and_inputs_and_no_silo() -> None:
    job = spec(
        strategy={"preset": "feddr_plus", "options": {"beta": 0.5}},
        model={"name": "mlp", "hidden": (8, 4)},
        columns=COLUMNS,
        label_column="sick",
        input_shape=(2,),
        silos=("secret-a", "secret-b", "secret-c"),
        classes=("well", "ill"),
    )
    facts = facts_of(job, job_digest=bytes(32), round=4)
    assert "secret" not in str(facts)
    again = described_job(facts, source="file")
    for name in ("strategy", "model", "task", "code", "classes", "input_shape", "columns", "label_column"):
        assert getattr(again, name) == getattr(job, name)
    assert (facts["classes"], again.class_names) == ('["well", "ill"]', ("well", "ill"))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"model": None}, "file: its metadata do not describe a model; expected a file of `job fetch`"),
        ({"model": "{"}, "file: its metadata describe no model of this release: "),
        ({"classes": '"many"'}, "file: its metadata describe no model of this release: "),
        ({"round": None}, "file: its metadata do not describe a model; expected a file of `job fetch`"),
        ({"round": '7"""\nprint()\n"""'}, "file: its metadata: round: expected a number of at most 9 digits"),
        ({"round": "7\n"}, "file: its metadata: round: expected a number of at most 9 digits"),
        ({"job": "0" * 63 + '"'}, "file: its metadata: job: expected the job's SHA-256 in hexadecimal, got "),
        ({"model": OTHERS_NET, "code": "null"}, "metadata: code: expected the SHA-256 of nets==1.0"),
        ({"model": OTHERS_NET, "code": UNPINNED}, "metadata: code: expected the SHA-256 of nets==1.0"),
    ],
)
def test_facts_of_another_kind_are_one_sentence(change: dict[str, str | None], why: str) -> None:
    facts = {**facts_of(spec(), job_digest=bytes(32), round=4), **change}
    with pytest.raises(ConfigError, match=why):
        described_job({name: text for name, text in facts.items() if text is not None}, source="file")


def test_a_type_that_no_state_has_is_named(tmp_path: Path) -> None:
    half = safetensors.numpy.save({"w": np.zeros(2, np.float16)}, metadata={"format": "pt"})
    with pytest.raises(RemoteProtocolError, match="state: w: expected one of F32, F64, I64, U8, got F16"):
        open_model(half)


@pytest.mark.parametrize("facts", [{}, {"round": "4"}])
def test_metadata_of_a_state_are_no_facts(facts: dict[str, str]) -> None:
    """A coordinator's own stood in the place of what `job fetch` writes."""
    foreign = safetensors.numpy.save(STATE, metadata={"round": "9"})
    with pytest.raises(RemoteProtocolError, match="model: expected a state, which has no metadata"):
        b"".join(with_facts([foreign], facts))
    assert open_model(b"".join(with_facts([state_to_bytes(STATE)], facts)))[1] == facts
