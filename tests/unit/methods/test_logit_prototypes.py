"""Presence and logit prototypes, at a silo and summed, against the card's worked example W1.

N = samples, C = classes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from crypto.fixed_point import ring
from crypto.fixed_point.encoder import Encoder
from crypto.fixed_point.layout import CLIPPED, Layout
from silo_agent.training.base.batches import Tensors
from silo_agent.training.base.passes import Outputs, outputs_of
from silo_agent.training.base.setting import Setting
from silo_agent.training.parts.regularizers.csd import logit_sums, teacher_answers, teacher_logits
from silo_agent.training.parts.statistics.logit_prototypes import logit_prototypes
from silo_agent.training.torch_objective import presence
from strategies.base import Array, PhaseContext
from strategies.parts.statistics.logit_prototypes import PROTOTYPES, PrototypesPhase
from strategies.phases.enrollment import ClassPresencePhase
from tests.support.objectives import CPU, make_data, make_job, make_model, make_work
from tests.support.small_methods import make_context, sum_of

ALL = np.ones(3, dtype=np.bool_)
SILO_A = ([[2, 0, -1], [4, 2, -3], [1, 3, 0]], [0, 0, 1])
SILO_B = ([[0, 2, 0], [-2, 4, 2], [2, 0, 4], [0, 1, 5], [1, -1, 3]], [1, 1, 2, 2, 2])
SILO_C = ([[0.125, -1.5, 0.3]], [0])
P_A = [[3, 1, -2], [1, 3, 0], [0, 0, 0]]
P_B = [[0, 0, 0], [-1, 3, 1], [1, 0, 4]]


def make_setting(
    logits: Any, labels: Any, *, rows: Any = ALL, options: Mapping[str, Any] | None = None
) -> Setting:
    """A silo whose teacher's logits are its features: the model passes them on as they are."""
    job = make_job({"preset": "fedcsd", "options": dict(options or {})}, classes=3, input_shape=(3,))
    model = make_model(job, torch.nn.Identity(), width=3, head_CD=np.eye(3)).float()
    torch.nn.init.zeros_(model.head.bias)
    state = {f"model/{name}": array.detach().numpy() for name, array in model.state_dict().items()}
    work = make_work(job, make_data(logits, labels), state=state, kind="prototypes")
    return Setting(work=dataclasses.replace(work, class_rows=rows), received=model, device=CPU)


def context(**changes: Any) -> PhaseContext:
    state = {"model/head.weight": np.eye(3, dtype=np.float32)}
    return make_context(state, **({"trained": ("head.weight",)} | changes))


def summed(silos: list[Mapping[str, Array]], of: PhaseContext) -> Array:
    """method/prototypes from the plain sums."""
    state = PrototypesPhase().next_state(of, {**sum_of(silos), CLIPPED: np.zeros(())}).state
    assert state is not None
    return state[PROTOTYPES]


# presence


def test_presence_is_a_one_for_every_class_in_the_training_set() -> None:
    values = presence(make_setting(*SILO_B))
    assert list(values) == ["class_presence"]
    assert values["class_presence"].tolist() == [0, 1, 1]


def test_presence_counts_holders_by_class() -> None:
    silos = [presence(make_setting(*data))["class_presence"] for data in (SILO_A, SILO_B, SILO_C)]
    result = ClassPresencePhase().next_state(context(), {"class_presence": np.sum(silos, axis=0)})
    assert result.state is not None
    holders = result.state["method/presence"]
    assert holders.dtype == np.int64
    assert holders.tolist() == [2, 2, 1]
    assert result.figures == {"classes_without_holder": 0.0}
    assert set(result.state) == {"model/head.weight", "method/presence"}


def test_a_class_without_holder_is_counted() -> None:
    result = ClassPresencePhase().next_state(context(), {"class_presence": np.array([2, 0, 1])})
    assert result.figures == {"classes_without_holder": 1.0}


# a silo's prototypes


def test_w1_prototypes_are_mean_logits_with_zero_rows_for_missing_classes() -> None:
    np.testing.assert_array_equal(logit_prototypes(make_setting(*SILO_A))["prototypes"], P_A)
    np.testing.assert_array_equal(logit_prototypes(make_setting(*SILO_B))["prototypes"], P_B)


def test_w1_count_weighted_sends_sums_and_counts() -> None:
    values = logit_prototypes(make_setting(*SILO_A, options={"count_weighted": True}))
    np.testing.assert_array_equal(values["prototype_sums"], [[6, 2, -4], [1, 3, 0], [0, 0, 0]])
    assert values["class_counts"].tolist() == [2, 1, 0]
    assert values.keys() == {"prototype_sums", "class_counts"}


@pytest.mark.parametrize("is_weighted", [False, True])
@pytest.mark.parametrize("rows", [np.array([True, False, True]), np.zeros(3, dtype=np.bool_), None])
def test_rows_of_classes_with_few_holders_stay_at_the_silo(is_weighted: bool, rows: Any) -> None:
    """Without the class-presence sum it is unknown who else holds a class, so no row leaves."""
    options = {"count_weighted": is_weighted}
    sent = logit_prototypes(make_setting(*SILO_A, rows=rows, options=options))
    everything = logit_prototypes(make_setting(*SILO_A, options=options))
    kept = np.zeros(3, dtype=np.bool_) if rows is None else rows
    for name, values in sent.items():
        assert not values[~kept].any()
        np.testing.assert_array_equal(values[kept], everything[name][kept])


def test_n12_neither_order_nor_batches_change_the_sums() -> None:
    generator = torch.Generator().manual_seed(12)
    logits = 10 * torch.randn((1000, 5), generator=generator)
    labels = torch.randint(5, (1000,), generator=generator)
    order = torch.randperm(1000, generator=generator)
    whole = logit_sums(logits, labels, classes=5)
    shuffled = logit_sums(logits[order], labels[order], classes=5)
    starts = range(0, 1000, 7)
    pieces = [logit_sums(logits[at : at + 7], labels[at : at + 7], classes=5) for at in starts]
    assert whole.dtype is torch.float64
    torch.testing.assert_close(shuffled, whole, rtol=0, atol=1e-9)
    torch.testing.assert_close(torch.stack(pieces).sum(dim=0), whole, rtol=0, atol=1e-9)
    expected = torch.stack([logits[labels == place].double().sum(dim=0) for place in range(5)])
    torch.testing.assert_close(whole, expected, rtol=0, atol=1e-9)


# the sums


@pytest.mark.parametrize(
    ("is_count_weighted", "expected"),
    [
        (False, [[1.5, 0.5, -1.0], [0.0, 3.0, 0.5], [0.5, 0.0, 2.0]]),
        (True, [[3.0, 1.0, -2.0], [-1 / 3, 3.0, 2 / 3], [1.0, 0.0, 4.0]]),
    ],
    ids=["every silo weighs the same", "mean over all samples"],
)
def test_w1_sums(is_count_weighted: bool, expected: Any) -> None:
    options = {"count_weighted": is_count_weighted}
    silos = [logit_prototypes(make_setting(*data, options=options)) for data in (SILO_A, SILO_B)]
    got = summed(silos, context(members=2 if not is_count_weighted else 3, options=options))
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-12)
    assert got.dtype == np.float64


def test_w4_both_ways_of_joining_point_elsewhere() -> None:
    data = (SILO_A, SILO_B, SILO_C)
    plain = summed([logit_prototypes(make_setting(*one)) for one in data], context())
    np.testing.assert_allclose(
        plain,
        [[1.041667, -0.166667, -0.566667], [0.0, 2.0, 0.333333], [0.333333, 0.0, 1.333333]],
        rtol=0,
        atol=6e-7,
    )
    options = {"count_weighted": True}
    weighted = summed(
        [logit_prototypes(make_setting(*one, options=options)) for one in data], context(options=options)
    )
    np.testing.assert_allclose(weighted[0], [2.041667, 0.166667, -1.233333], rtol=0, atol=6e-7)


@pytest.mark.parametrize("is_weighted", [False, True])
def test_a_class_that_no_silo_holds_has_a_zero_row(is_weighted: bool) -> None:
    options = {"count_weighted": is_weighted}
    of = context(options=options)
    silos = [logit_prototypes(make_setting(*SILO_A, options=options)) for _ in range(3)]
    got = summed(silos, of)
    assert not got[2].any()
    assert np.isfinite(got).all()
    sums = {name: np.sum([silo[name] for silo in silos], axis=0) for name in silos[0]}
    assert PrototypesPhase().next_state(of, sums).figures == {"classes_with_prototype": 2.0}
    assert PrototypesPhase().figures(of, {**sums, CLIPPED: np.array(4)}) == {"clipped": 4.0}


@pytest.mark.parametrize("is_weighted", [False, True])
def test_n13_the_rings_sum_is_the_plain_sum(is_weighted: bool) -> None:
    options = {"count_weighted": is_weighted}
    silos = [logit_prototypes(make_setting(*data, options=options)) for data in (SILO_A, SILO_B, SILO_C)]
    layout = Layout(quantities=PrototypesPhase().quantities(context(options=options)), members=3)
    encoded = [Encoder(silo, layout=layout).encode() for silo in silos]
    total = {
        ring_bits: np.sum([one.vectors[ring_bits] for one in encoded], axis=0)
        for ring_bits in layout.ring_sizes
    }
    decoded = ring.decode(total, layout=layout)
    for quantity in layout.quantities:
        if quantity.name != CLIPPED:
            plain = np.sum([silo[quantity.name] for silo in silos], axis=0)
            atol = 3 / quantity.scale(3)
            least = 1e-3 if quantity.name == "prototype_sums" else 1e-6  # sums have the larger bound
            assert atol < least or quantity.is_count
            np.testing.assert_allclose(decoded[quantity.name], plain, rtol=0, atol=atol)
    assert decoded[CLIPPED] == 0


@pytest.mark.parametrize("is_weighted", [False, True])
def test_values_of_a_silo_are_those_that_the_phase_sums(is_weighted: bool) -> None:
    options = {"count_weighted": is_weighted}
    quantities = PrototypesPhase().quantities(context(options=options))
    values = logit_prototypes(make_setting(*SILO_A, options=options))
    expected = {quantity.name: quantity.shape for quantity in quantities if quantity.name != CLIPPED}
    assert {name: value.shape for name, value in values.items()} == expected
    for members in (3, 1000):
        assert Layout(quantities=quantities, members=members).total_bytes > 0


# one pass for both phases


def test_prototypes_and_training_share_one_pass_over_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[int] = []

    def counted(*args: Any, **keywords: Any) -> Outputs:
        passes.append(1)
        return outputs_of(*args, **keywords)

    monkeypatch.setattr("silo_agent.training.base.setting.outputs_of", counted)
    prototypes = make_setting(*SILO_A)
    logit_prototypes(prototypes)
    # the train phase: another state, in which the same teacher stands
    state = {**prototypes.work.state, PROTOTYPES: np.zeros((3, 3))}
    train = dataclasses.replace(
        prototypes, work=dataclasses.replace(prototypes.work, phase_kind="train", state=state)
    )
    samples = Tensors.of(train.work.data.train, CPU)
    np.testing.assert_array_equal(teacher_answers(train, samples).logits_NC, SILO_A[0])
    assert len(passes) == 1


@pytest.mark.parametrize("change", ["teacher", "silo", "job"])
def test_another_teacher_silo_or_job_is_another_pass(change: str) -> None:
    first = make_setting(*SILO_A)
    samples = Tensors.of(first.work.data.train, CPU)
    before = teacher_logits(first, samples)
    work = first.work
    if change == "teacher":
        teacher = {"method/teacher/head.weight": 2 * np.eye(3, dtype=np.float32)}
        work = dataclasses.replace(work, state={**work.state, **teacher})
    elif change == "silo":
        work = dataclasses.replace(work, silo="b")
    else:
        work = dataclasses.replace(work, spec=work.spec.model_copy(update={"nonce": "0" * 32}))
    again = teacher_logits(dataclasses.replace(first, work=work), samples)
    assert again is not before
    assert teacher_logits(dataclasses.replace(first, work=work), samples) is again
    factor = 2.0 if change == "teacher" else 1.0
    torch.testing.assert_close(again, factor * before)


def test_a_class_without_a_prototype_is_like_itself_alone_where_the_job_says_so() -> None:
    silos = [{"prototypes": np.asarray(P_A)}, {"prototypes": np.array([[1, 1, 0], [0, 0, 2], [0, 0, 0]])}]
    named = context(members=2, options={"missing_prototypes": "identity"})
    expected = np.array([[2, 1, -1], [0.5, 1.5, 1]])
    np.testing.assert_allclose(summed(silos, named), [*expected, [0, 0, 1]])
    np.testing.assert_allclose(summed(silos, context(members=2)), [*expected, [0, 0, 0]])


def test_public_prototypes_are_not_counted_as_sent() -> None:
    sums = {"prototypes": np.zeros((3, 3)), CLIPPED: np.zeros(())}
    result = PrototypesPhase().next_state(context(options={"missing_prototypes": "identity"}), sums)
    assert result.figures["classes_with_prototype"] == 0
