"""FedCSD's distillation against the worked examples and properties of its card (methods/fedcsd.md 10).

N = samples, C = classes.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from crypto.errors import ConfigError, RemoteProtocolError
from silo_agent.training.base.setting import Setting
from silo_agent.training.parts.computed_parts import REGULARIZERS
from silo_agent.training.parts.regularizers.csd import (
    ClassSimilarityDistillation,
    mask_of,
    similarities,
    unit_or_zero,
)
from strategies.methods import strategy_for, strategy_of
from strategies.parts.csd import CSD, CsdOptions, Mask
from strategies.parts.statistics.logit_prototypes import LOGIT_PROTOTYPES
from strategies.presets import FEDAVG, recipe_of
from tests.support.objectives import (
    CPU,
    gradient_by_backward,
    gradient_by_differences,
    make_data,
    make_job,
    make_model,
    make_work,
    task_loss,
)
from tests.support.small_methods import logits_alone


def rows(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


# worked example W2: C = 3, batch of 3
PROTOTYPES = rows([[3.0, 1.0, -2.0], [0.0, 3.0, 0.5], [1.0, 0.0, 4.0]])
STUDENT = rows([[1.5, 0.5, -1.0], [0.2, 1.0, 0.4], [-0.5, 0.3, 2.0]])
TEACHER = rows([[1.0, 0.2, -0.6], [0.9, 0.3, 0.6], [0.1, 0.0, 0.8]])
LABELS = torch.tensor([0, 1, 2])
PRINTED = 6e-7  # half a unit of the sixth decimal


def csd(prototypes_CC: Tensor | None = PROTOTYPES, **options: Any) -> ClassSimilarityDistillation:
    return ClassSimilarityDistillation(prototypes_CC, CsdOptions.model_validate({"tau": 10.0} | options))


def losses(
    part: ClassSimilarityDistillation,
    student: Tensor = STUDENT,
    teacher: Tensor = TEACHER,
    labels: Tensor = LABELS,
) -> Tensor:
    return part.per_sample(logits_alone(student), logits_alone(teacher), labels)


def gradient(part: ClassSimilarityDistillation, **changes: Any) -> Tensor:
    """Of the batch mean by the student's logits."""
    at = changes.pop("student", STUDENT)
    return gradient_by_backward(lambda z: losses(part, z, **changes).mean(), at)


def close(got: Tensor, expected: Any, *, within: float = PRINTED) -> None:
    np.testing.assert_allclose(np.asarray(got), np.asarray(expected), rtol=0, atol=within)


# worked examples


@pytest.mark.parametrize(
    ("prototypes", "cosines", "weights"),
    [
        (
            [[1.5, 0.5, -1], [0, 3, 0.5], [0.5, 0, 2]],
            [1, 0.175750, -0.324102],
            [0.586646, 0.257282, 0.156072],
        ),
        ([[3, 1, -2], [0, 3, 0.5], [1, 0, 4]], [1, 0.175750, -0.324102], [0.586646, 0.257282, 0.156072]),
        (
            [[3, 1, -2], [-1 / 3, 3, 2 / 3], [1, 0, 4]],
            [1, 0.057639, -0.324102],
            [0.603956, 0.235366, 0.160678],
        ),
        ([[3, 1, -2], [0, 0, 0], [1, 0, 4]], [1, 0, -0.324102], [0.612025, 0.225151, 0.162824]),
    ],
    ids=["Eq. 7 with zero rows", "mean over holders", "count-weighted", "a class that no silo holds"],
)
def test_w1_similarity_to_the_global_prototypes(prototypes: Any, cosines: Any, weights: Any) -> None:
    delta_NC = similarities(STUDENT[:1], unit_or_zero(rows(prototypes)))
    close(delta_NC[0], cosines)
    close(torch.softmax(delta_NC, dim=1)[0], weights)


def test_w2_similarities_mask_and_cross_entropy() -> None:
    close(
        similarities(STUDENT, unit_or_zero(PROTOTYPES)),
        [[1, 0.175750, -0.324102], [0.195180, 0.960480, 0.398527], [-0.667105, 0.299873, 0.873156]],
    )
    assert mask_of(Mask.ADAPTIVE, TEACHER, LABELS).tolist() == [1, 0, 1]
    close(task_loss().per_sample(logits_alone(STUDENT), LABELS).mean(), 0.4328817332, within=1e-10)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"tau": 10.0}, 73.43809994),
        ({"tau": 10.0, "form": "kl"}, 0.21907474),
        ({"tau": 10.0, "mask": "none"}, 110.08034703),
        ({"tau": 10.0, "similarity": False}, 73.26337133),
        ({"tau": 10.0, "similarity": False, "form": "kl"}, 0.11498369),
        ({"tau": 4.0}, 11.91355258),
        ({"tau": 4.0, "form": "kl"}, 0.21713279),
    ],
)
def test_w2_loss(options: dict[str, Any], expected: float) -> None:
    close(losses(csd(**options)).mean(), expected, within=1e-8)  # the card cuts off, it does not round


@pytest.mark.parametrize(
    ("tau", "expected"),
    [(10.0, [110.109892, 109.926741, 110.204407]), (4.0, [17.814609, 17.643782, 17.926049])],
)
def test_w2_loss_by_sample_before_the_mask(tau: float, expected: list[float]) -> None:
    close(losses(csd(tau=tau, mask="none")), expected)


@pytest.mark.parametrize(("tau", "mu", "expected"), [(10.0, 0.001, 0.5063198331), (4.0, 0.5, 6.3896580214)])
def test_w2_total(tau: float, mu: float, expected: float) -> None:
    plain = task_loss().per_sample(logits_alone(STUDENT), LABELS)
    close((plain + mu * losses(csd(tau=tau))).mean(), expected, within=6e-11)


@pytest.mark.parametrize(
    ("options", "first", "last"),
    [
        ({"tau": 10.0}, [0.085539, 0.027609, -0.113148], [-0.105301, -0.021535, 0.126835]),
        (
            {"tau": 10.0, "grad_through_delta": True},
            [0.083971, 0.039107, -0.109752],
            [-0.108425, -0.007909, 0.124010],
        ),
        ({"tau": 4.0}, [0.085698, 0.019671, -0.105368], [-0.102329, -0.028857, 0.131186]),
        (
            {"tau": 4.0, "grad_through_delta": True},
            [0.084188, 0.031469, -0.101734],
            [-0.105520, -0.014956, 0.128303],
        ),
        (
            {"tau": 4.0, "grad_through_delta": True, "form": "kl"},
            [0.084356, 0.027142, -0.103645],
            [-0.104830, -0.017889, 0.128915],
        ),
    ],
)
def test_w2_gradient(options: dict[str, Any], first: list[float], last: list[float]) -> None:
    close(gradient(csd(**options)), [first, [0, 0, 0], last])


W3 = [
    ([0, 0, 0, 0], 0, False, True),
    ([1, 0, 0, 0], 0, True, True),
    ([0, 1, 0, 0], 0, False, False),
    ([2, 1.8, 0, -1], 1, True, False),
    ([2, 1, 0, -1], 1, False, False),
    ([5, 1.5, 1, 0], 1, False, False),
]


@pytest.mark.parametrize(("logits", "label", "is_adaptive", "is_forcible"), W3)
def test_w3_masks(logits: list[float], label: int, is_adaptive: bool, is_forcible: bool) -> None:
    teacher, labels = rows([logits]), torch.tensor([label])
    assert mask_of(Mask.ADAPTIVE, teacher, labels).tolist() == [is_adaptive]
    assert mask_of(Mask.FORCIBLE, teacher, labels).tolist() == [is_forcible]
    assert mask_of(Mask.NONE, teacher, labels).tolist() == [True]


# properties


@pytest.mark.parametrize("classes", [3, 10, 100])
def test_n4_weights_are_a_distribution_within_the_bounds_of_cosines(classes: int) -> None:
    generator = torch.Generator().manual_seed(4)
    shape = (200, classes)
    z, prototypes = (
        torch.randn(shape, generator=generator),
        torch.randn((classes, classes), generator=generator),
    )
    extreme = torch.full((1, classes), -1.0)
    extreme[0, 0] = 1.0
    for delta in (
        similarities(z.double(), unit_or_zero(prototypes.double())),
        extreme.double(),
        -extreme.double(),
    ):
        weights = torch.softmax(delta, dim=1)
        least = math.exp(-1) / (math.exp(-1) + (classes - 1) * math.e)
        most = math.e / (math.e + (classes - 1) * math.exp(-1))
        close(weights.sum(dim=1), np.ones(len(weights)), within=1e-12)
        assert least - 1e-12 <= float(weights.min())
        assert float(weights.max()) <= most + 1e-12


def test_n5_lengths_of_prototypes_change_nothing() -> None:
    longer = PROTOTYPES * rows([[0.01], [7.0], [300.0]])
    part, stretched = csd(grad_through_delta=True), csd(longer, grad_through_delta=True)
    close(losses(stretched), losses(part), within=1e-12)
    close(gradient(stretched), gradient(part), within=1e-12)


def test_n5_length_of_the_students_logits_leaves_the_weights() -> None:
    unit_CC = unit_or_zero(PROTOTYPES)
    close(similarities(3.7 * STUDENT, unit_CC), similarities(STUDENT, unit_CC), within=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("classes", [2, 3, 7, 10, 100, 1000])
@pytest.mark.parametrize("logit", [0.0, 0.1, -33.3, 1e4])
def test_n7_a_teacher_that_knows_nothing_teaches_nobody(
    dtype: torch.dtype, classes: int, logit: float
) -> None:
    """The bound is strict: with equal logits the true class has exactly 1/C."""
    teacher, labels = torch.full((classes, classes), logit, dtype=dtype), torch.arange(classes)
    assert not mask_of(Mask.ADAPTIVE, teacher, labels).any()


def test_n7_mask_is_the_tempered_softmax_above_chance_whatever_is_added() -> None:
    generator = torch.Generator().manual_seed(7)
    teacher = 3 * torch.randn((500, 10), generator=generator, dtype=torch.float64)
    labels = torch.randint(10, (500,), generator=generator)
    own = torch.softmax(teacher, dim=1).gather(1, labels[:, None]).squeeze(1)
    adaptive, forcible = (mask_of(mask, teacher, labels).bool() for mask in (Mask.ADAPTIVE, Mask.FORCIBLE))
    assert torch.equal(adaptive, own > 0.1)
    assert torch.equal(adaptive, mask_of(Mask.ADAPTIVE, teacher + 700.0, labels).bool())
    assert torch.equal(adaptive & forcible, forcible)
    means = teacher.mean(dim=1)
    assert bool((teacher.gather(1, labels[:, None]).squeeze(1) > means)[adaptive].all())


def test_n7_mask_looks_at_the_teachers_own_logits_not_the_refined_ones() -> None:
    """Refined, this teacher would give its class more than chance: 0.9 * 1 against 0.1 * 1.2."""
    z, teacher = rows([[10.0, -10.0]]), rows([[1.0, 1.2]])
    part = csd(rows([[1.0, -1.0], [-1.0, 1.0]]))
    assert losses(part, z, teacher, torch.tensor([0])).tolist() == [0.0]


def test_n8_masked_samples_stay_in_the_mean() -> None:
    part, taught = csd(), mask_of(Mask.ADAPTIVE, TEACHER, LABELS).bool()
    ignored = -TEACHER
    assert not mask_of(Mask.ADAPTIVE, ignored, LABELS)[taught].any()
    student, labels = STUDENT[taught], LABELS[taught]
    alone = losses(part, student, TEACHER[taught], labels).mean()
    both = losses(
        part,
        torch.cat([student, student]),
        torch.cat([TEACHER[taught], ignored[taught]]),
        torch.cat([labels, labels]),
    ).mean()
    close(both, alone / 2, within=1e-12)


@pytest.mark.parametrize("form", ["ce", "kl"])
def test_n9_detached_gradient_is_the_difference_of_both_softmaxes(form: str) -> None:
    tau, mask = 4.0, mask_of(Mask.ADAPTIVE, TEACHER, LABELS)
    weights = torch.softmax(similarities(STUDENT, unit_or_zero(PROTOTYPES)), dim=1)
    target = torch.softmax(weights * TEACHER / tau, dim=1)
    expected = mask[:, None] / 3 * tau * (torch.softmax(STUDENT / tau, dim=1) - target)
    got = gradient(csd(tau=tau, form=form))
    close(got, expected, within=1e-14)
    close(got.sum(dim=1), np.zeros(3), within=1e-14)


@pytest.mark.parametrize("form", ["ce", "kl"])
def test_n9_full_gradient_is_that_of_finite_differences(form: str) -> None:
    part = csd(tau=4.0, form=form, mask="none", grad_through_delta=True)
    differences = gradient_by_differences(lambda z: losses(part, z).mean(), STUDENT)
    close(gradient(part), differences, within=1e-8)


def test_n9_detached_gradient_is_that_of_finite_differences_with_fixed_targets() -> None:
    """The weights stand still while the student moves: what stopping the gradient means."""
    tau = 4.0
    weights = torch.softmax(similarities(STUDENT, unit_or_zero(PROTOTYPES)), dim=1)
    part = csd(tau=tau, similarity=False, mask="none")
    differences = gradient_by_differences(lambda z: losses(part, z, weights * TEACHER).mean(), STUDENT)
    close(gradient(csd(tau=tau, mask="none")), differences, within=1e-8)


def test_n10_both_forms_differ_by_the_targets_entropy() -> None:
    tau = 4.0
    weights = torch.softmax(similarities(STUDENT, unit_or_zero(PROTOTYPES)), dim=1)
    target = torch.softmax(weights * TEACHER / tau, dim=1)
    entropy = -(target * target.log()).sum(dim=1)
    gap = losses(csd(tau=tau)) - losses(csd(tau=tau, form="kl"))
    close(gap, mask_of(Mask.ADAPTIVE, TEACHER, LABELS) * tau**2 * entropy, within=1e-12)


@pytest.mark.parametrize(("tau", "deviation"), [(10.0, 5.4e-3), (100.0, 5.4e-4), (1000.0, 5.4e-5)])
def test_n11_at_high_temperature_centered_logits_are_pulled_together(tau: float, deviation: float) -> None:
    weights = torch.softmax(similarities(STUDENT, unit_or_zero(PROTOTYPES)), dim=1)
    gap = STUDENT - weights * TEACHER
    limit = mask_of(Mask.ADAPTIVE, TEACHER, LABELS)[:, None] / 9 * (gap - gap.mean(dim=1, keepdim=True))
    got = float((gradient(csd(tau=tau)) - limit).abs().max())
    assert got == pytest.approx(deviation, rel=0.02)


@pytest.mark.parametrize("is_full", [False, True])
@pytest.mark.parametrize(
    ("student", "prototypes"),
    [
        ([[0.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]]),
        ([[1.0, -1.0]], [[0.0, 0.0], [0.0, 0.0]]),
        ([[0.0, 0.0]], [[0.0, 0.0], [0.0, 0.0]]),
        ([[1.0, -1.0]], [[1.0, 0.0], [0.0, 0.0]]),
    ],
    ids=["student of zeros", "no prototype", "neither", "one class known"],
)
@pytest.mark.parametrize("form", ["ce", "kl"])
def test_n15_zero_rows_give_ordinary_gradients(
    student: Any, prototypes: Any, is_full: bool, form: str
) -> None:
    """Divided by the bare lower bound of a norm, a student of zeros would move by 1e12."""
    part = csd(rows(prototypes), grad_through_delta=is_full, form=form)
    teacher, labels = rows([[2.0, -1.0]]), torch.tensor([0])
    loss = losses(part, rows(student), teacher, labels)
    assert bool(torch.isfinite(loss).all())
    assert float(gradient(part, student=rows(student), teacher=teacher, labels=labels).abs().max()) < 100.0


@pytest.mark.parametrize(
    ("prototypes", "options", "weight"),
    [
        # weights of 1, not of 1/C, which would make a nearly flat target
        (PROTOTYPES, {"similarity": False}, 1.0),
        # the mean of delta-hat, so that target and student stay on the method's own scale
        (None, {}, 1 / 3),
    ],
    ids=["without similarity", "without prototypes"],
)
def test_teachers_logits_are_weighted_alike(prototypes: Any, options: dict[str, Any], weight: float) -> None:
    part = csd(prototypes, tau=4.0, **options)
    target = torch.softmax(TEACHER * weight / 4.0, dim=1)
    taught = mask_of(Mask.ADAPTIVE, TEACHER, LABELS)[:, None]
    close(gradient(part), taught / 3 * 4.0 * (torch.softmax(STUDENT / 4.0, dim=1) - target), within=1e-14)


# as a part of a method


def setting_of(state: dict[str, Any], strategy: dict[str, Any] | None = None) -> Setting:
    job = make_job(strategy or {"preset": "fedcsd"}, classes=3, input_shape=(3,))
    work = make_work(job, make_data(np.zeros((3, 3)), [0, 1, 2]), state=state)
    return Setting(work=work, received=make_model(job, torch.nn.Identity(), width=3), device=CPU)


def test_prototypes_come_from_the_global_state() -> None:
    part = REGULARIZERS[CSD].make(setting_of({"method/prototypes": PROTOTYPES.numpy()}))
    assert isinstance(part, ClassSimilarityDistillation)
    close(losses(part, STUDENT.float(), TEACHER.float()).mean(), 73.43809994, within=1e-4)


@pytest.mark.parametrize(
    ("state", "got"), [({}, "none"), ({"method/prototypes": np.zeros((3, 2))}, r"\(3, 2\)")]
)
def test_a_state_without_its_prototypes_is_refused(state: dict[str, Any], got: str) -> None:
    with pytest.raises(RemoteProtocolError, match=rf"method/prototypes is {got}, expected \(3, 3\)"):
        REGULARIZERS[CSD].make(setting_of(state))


def test_a_method_without_the_statistic_needs_no_prototypes_and_sums_none() -> None:
    setting = setting_of({}, {"parts": {"regularizer": "csd"}, "options": {"tau": 10.0}})
    part = REGULARIZERS[CSD].make(setting)
    assert isinstance(part, ClassSimilarityDistillation)
    close(losses(part), losses(ClassSimilarityDistillation(None, CsdOptions.model_validate({"tau": 10.0}))))
    method = setting.work.spec.method
    assert (method.opening, method.round_phases) == (("enrollment",), ("train",))


def test_fedcsd_has_the_papers_numbers_and_prototypes_before_training() -> None:
    fedcsd = strategy_for("fedcsd", {})
    options = fedcsd.options_of(CsdOptions)
    assert (fedcsd.options["mu"], options.tau, options.alpha) == (0.001, 10.0, 0.9)
    assert (options.mask, options.form, options.similarity, options.grad_through_delta) == (
        "adaptive",
        "ce",
        True,
        False,
    )
    assert (fedcsd.opening, fedcsd.round_phases, fedcsd.closing) == (
        ("enrollment", "class-presence"),
        ("prototypes", "train"),
        ("evaluate",),
    )


@pytest.mark.parametrize(
    ("option", "value"), [("mask", "sometimes"), ("form", "mse"), ("alpha", 1.1), ("tau", 0.0), ("mu", -0.1)]
)
def test_values_outside_an_options_range_are_refused_by_name(option: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"strategy\.options\.{option}: .*got"):
        strategy_for("fedcsd", {option: value})


def test_a_teacher_that_hardly_moves_is_refused_with_prototypes_and_not_without() -> None:
    strategy_for("fedcsd", {"alpha": 0.99})  # the control, and the paper's largest
    for alpha in (0.991, 0.999999, 1.0):
        with pytest.raises(ConfigError, match=r"strategy\.options\.alpha: expected at most 0\.99"):
            strategy_for("fedcsd", {"alpha": alpha})
    strategy_of(
        "custom", replace(recipe_of("fedcsd"), statistic=None), {"alpha": 1.0, "own_prototypes": True}
    )


def test_a_teacher_that_moves_slowly_is_refused_where_rounds_are_drawn() -> None:
    """16 rounds of 4 of 12 silos at 0.9999 were solved for each silo's sums, to a thousandth."""
    slow = {"preset": "fedcsd", "options": {"alpha": 0.95}}
    with pytest.raises(ValueError, match=r"strategy\.options\.alpha: expected at most 0\.9 with statistic"):
        make_job(slow, fraction=0.75)
    make_job(slow)  # the controls
    make_job({"preset": "fedcsd"}, fraction=0.75)


def test_prototypes_that_nothing_reads_are_refused() -> None:
    with pytest.raises(ConfigError, match="csd compares with"):
        strategy_of("custom", replace(FEDAVG, statistic=LOGIT_PROTOTYPES), {})
