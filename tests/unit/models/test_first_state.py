"""First states of built-in models: their bytes, what they follow from, and what they do not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from chorale.job import SignedJob
from chorale.spec.job_spec import JobSpec
from chorale.spec.state import state_digest, state_to_bytes
from crypto.errors import ConfigError
from silo_agent.training.models.registry import build_model
from silo_agent.training.models.starting import initial_state
from silo_agent.training.models.state import load_arrays
from tests.vectors import make_vectors

ALL = json.loads((Path(make_vectors.__file__).parent / "initial_state.json").read_text())["states"]
STATES = [vector for vector in ALL if "model" in vector]


def make_spec(*, strategy: str = "fedavg", **model: Any) -> JobSpec:
    return JobSpec.model_validate(
        {
            "name": "digits",
            "federation": "test",
            "not_after": "2100-01-01T00:00:00Z",
            "silos": ["a", "b", "c"],
            "rounds": 1,
            "strategy": {"preset": strategy},
            "model": {"name": "mlp", "hidden": [64], **model},
            "classes": 10,
            "input_shape": [1, 8, 8],
            "training": {"learning_rate": 0.1},
        }
    )


def digest(spec: JobSpec, **options: Any) -> str:
    return state_digest(state_to_bytes(initial_state(spec, **options))).hex()


@pytest.mark.parametrize("vector", STATES, ids=lambda each: f"{each['model']['name']}-{each['strategy']}")
def test_the_package_still_draws_the_committed_states(vector: dict[str, Any]) -> None:
    model, shape = vector["model"], vector["input_shape"]
    made = make_vectors.initial_state_vector(
        model,
        preset=vector["strategy"],
        classes=vector["classes"],
        shape=shape,
        has_arrays="arrays" in vector,
    )
    assert json.loads(json.dumps(made)) == vector


def test_arrays_that_an_authors_model_starts_otherwise_have_a_vector() -> None:
    (vector,) = (vector for vector in ALL if "model" not in vector)
    assert json.loads(json.dumps(make_vectors.started_state_vector())) == vector


def test_every_network_norm_and_frozen_head_has_a_vector() -> None:
    seen = {(each["model"]["name"], each["model"].get("norm")) for each in STATES}
    names = ("mlp", "cnn", "resnet18", "vgg11", "mobilenet_v2")
    assert seen >= {(name, norm) for name in names for norm in ("batch", "group", "none")}
    heads = {"trained", "frozen-random", "frozen-orthonormal", "frozen-etf"}
    assert {each["head"] for each in STATES} == heads


def test_a_state_depends_on_no_generator_and_leaves_torch_alone() -> None:
    before, seen = torch.random.get_rng_state(), set()
    for seed in (1, 2):
        np.random.seed(seed)
        with torch.random.fork_rng():
            torch.default_generator.manual_seed(seed)
            seen.add(digest(make_spec(name="cnn", norm="batch")))
    assert len(seen) == 1
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_state_fits_its_model_and_has_the_deviations_that_its_layers_ask_for() -> None:
    """Six standard errors: 4,096 weights have their variance to 2.2 %, so 13 % of false alarm 2e-9."""
    spec = make_spec(norm="batch")
    state = initial_state(spec)
    model = build_model(spec.model, classes=10, input_shape=(1, 8, 8))
    load_arrays(model, state)
    assert state["model/body.1.weight"].var() == pytest.approx(2 / 64, rel=0.13)
    assert not state["model/body.1.bias"].any()
    assert (state["model/body.2.weight"] == 1).all()
    assert (state["model/body.2.running_var"] == 1).all()
    assert not state["model/body.2.running_mean"].any()
    head_CD = state["model/head.weight"]
    assert 0.98 / 8 < np.abs(head_CD).max() <= 1 / 8
    assert 0 < np.abs(state["model/head.bias"]).max() <= 1 / 8


def test_a_state_follows_from_the_whole_job_but_for_its_own_digest() -> None:
    spec = make_spec().filled(nonce="ab" * 16, initial_state=None)
    changed = [
        {"nonce": "ab" * 15 + "ac"},
        {"federation": "other"},
        {"rounds": 2},
        {"silos": ("a", "b", "d")},
        {"model": spec.model.model_copy(update={"seed": 1})},
    ]
    others = [spec.model_copy(update=each) for each in changed]
    assert len({digest(each, base=each.base()) for each in (spec, *others)}) == 6
    signed = spec.filled(nonce=spec.nonce, initial_state=b"\1" * 32)
    assert signed.base() == spec.base()
    alone = [each for each in (spec, *others) if each.model.seed == 0]
    assert len({digest(each) for each in alone}) == 1  # a simulation's follows from the seed


def test_the_base_of_a_signed_job_is_what_stands_before_the_last_line() -> None:
    def base(data: bytes) -> bytes | None:
        return SignedJob(spec_bytes=data, signature=b"", operator_certificate=b"").base

    spec = make_spec().filled(nonce="ab" * 16, initial_state=b"\xab" * 32)
    data = spec.to_yaml()
    assert data.endswith(b"\ninitial_state: " + b"ab" * 32 + b"\n")
    assert base(data) == spec.base()
    of_digits = spec.filled(nonce=spec.nonce, initial_state=b"\1" * 32).to_yaml()
    assert of_digits.endswith(b"\ninitial_state: '" + b"01" * 32 + b"'\n")
    assert base(of_digits) == spec.base()
    body, _, last = data[:-1].rpartition(b"\n")
    for other in (last + b"\n" + body + b"\n", data[:-1], data + b"\n", data + b"# more\n", body + b"\n"):
        assert base(other) is None
    assert base(body + b" # a comment\n" + last + b"\n") != spec.base()


def test_a_state_that_is_larger_than_allowed_is_refused_before_memory_is_taken() -> None:
    spec = make_spec(hidden=[65_536] * 16)  # 257 GB
    with pytest.raises(ConfigError, match="model mlp: expected at most 1024 bytes, needs 2577"):
        initial_state(spec, max_bytes=1024)
