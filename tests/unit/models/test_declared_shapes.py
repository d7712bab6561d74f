"""The shapes that are declared of Chorale's networks are those of the networks that torch builds."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as drawn

from chorale.spec.job_spec import JobSpec
from chorale_models.networks.shapes import NETWORKS
from crypto.errors import ConfigError
from silo_agent.training.models.starting import is_declared, model_shapes
from strategies.presets import PRESETS
from tests.support.objectives import make_job

registry = pytest.importorskip("silo_agent.training.models.registry", reason="needs the extra silo")
state = pytest.importorskip("silo_agent.training.models.state")

NORMS = ("batch", "group", "none")
SHAPES = ((3, 32, 32), (1, 64, 70), (2, 16, 17), (1, 63, 64), (4, 5, 3), (6,))


def shapes_of(spec: JobSpec) -> object:
    """As declared, and as built; each may be refused in the same words."""
    found = []
    for shapes in (model_shapes, lambda spec: state.shapes_and_starts(spec)[0]):
        try:
            found.append(shapes(spec))
        except ConfigError as error:
            found.append(str(error))
    return found


def test_every_network_of_chorale_is_declared_and_starts_by_the_usual_rules() -> None:
    assert {*NETWORKS, "trees"} == registry.OWN.keys()
    assert all(registry.OWN[name].starts == {} and registry.OWN[name].head == "head" for name in NETWORKS)


@pytest.mark.parametrize("network", sorted(NETWORKS))
def test_a_network_has_the_arrays_that_are_declared_of_it(network: str) -> None:
    for norm, shape in zip(NORMS * 2, SHAPES, strict=True):
        spec = make_job(model={"name": network, "norm": norm}, input_shape=shape, classes=7)
        declared, built = shapes_of(spec)
        assert is_declared(spec)
        assert declared == built, (norm, shape)


@pytest.mark.parametrize("classes", [2, 3, 7])
def test_trees_have_the_arrays_that_are_declared_of_them(classes: int) -> None:
    spec = make_job({"preset": "trees"}, model={"name": "trees"}, input_shape=[4], classes=classes, rounds=9)
    declared, built = shapes_of(spec)
    assert is_declared(spec)
    assert declared == built


@given(
    hidden=drawn.lists(drawn.integers(1, 40), max_size=5),
    norm=drawn.sampled_from(NORMS),
    shape=drawn.lists(drawn.integers(1, 9), min_size=1, max_size=4),
    classes=drawn.integers(2, 60),
)
@settings(deadline=None, max_examples=30)
def test_an_mlp_has_them_at_any_width(hidden: list[int], norm: str, shape: list[int], classes: int) -> None:
    model = {"name": "mlp", "norm": norm, "hidden": hidden}
    declared, built = shapes_of(make_job(model=model, input_shape=shape, classes=classes))
    assert declared == built


@pytest.mark.parametrize("norm", ["batch", "none"])
def test_every_method_has_the_head_that_is_declared(norm: str) -> None:
    """One projects what its head is given."""
    wrong = []
    for method in PRESETS:
        if method == "fedbn" and norm != "batch":
            continue
        model = {"name": "mlp", "norm": norm, "hidden": [20]}
        declared, built = shapes_of(make_job({"preset": method}, model=model, input_shape=[4], classes=5))
        if declared != built:
            wrong.append(method)
    assert wrong == []


def test_a_model_with_adapters_is_not_declared() -> None:
    spec = make_job(model={"name": "mlp"}, input_shape=(4,), adapters={"rank": 2, "targets": ["1"]})
    assert not is_declared(spec)
