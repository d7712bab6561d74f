"""FedDr+: the worked examples of its cards, A to C and E1 to E7, to their printed digits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from crypto.fixed_point import ring
from crypto.fixed_point.encoder import Encoder
from crypto.fixed_point.layout import Layout, Quantity
from silo_agent.training.base.loss import Comparison, LocalLoss
from silo_agent.training.base.passes import Outputs, run_model
from silo_agent.training.parts.losses.cosine import DotRegression
from silo_agent.training.parts.regularizers.distillation import FeatureDistillation
from strategies.base import PhaseContext
from strategies.parts import heads
from strategies.parts.server_updates.mean import WeightedMean
from tests.support.numbers import numbers
from tests.support.objectives import (
    LocalRound,
    gradient_by_backward,
    make_data,
    make_job,
    make_model,
    make_setting,
    simplex,
    task_loss,
)

BETA = 0.9
Gradients = dict[str, list[float]]


def double(values: Any) -> Tensor:
    return torch.tensor(np.asarray(values, dtype=np.float64))


class Example:
    """Features, teacher's features and labels on a simplex; the model is head and cosine alone."""

    def __init__(self, head_CD: Any, teacher_ND: Any, labels: list[int], *, beta: float = BETA) -> None:
        head_CD = np.asarray(head_CD)
        job = make_job({"preset": "feddr_plus"}, classes=len(head_CD))
        self.model = make_model(job, nn.Identity(), width=head_CD.shape[1], head_CD=head_CD)
        self.labels_N = torch.tensor(labels)
        self.places_N = torch.arange(len(labels))
        self.teacher = run_model(self.model, double(teacher_ND))
        self.loss = LocalLoss(
            loss=DotRegression(),
            loss_weight=beta,
            comparisons=(
                Comparison(regularizer=FeatureDistillation(), weight=1 - beta, teacher=self.teacher),
            ),
        )

    def per_sample(self, features_ND: Tensor) -> Tensor:
        outputs = run_model(self.model, features_ND)
        return self.loss.per_sample(outputs, features_ND, self.labels_N, self.places_N)

    def mean(self, features_ND: Tensor) -> Tensor:
        return self.per_sample(features_ND).mean()

    def dot_regression(self, features_ND: Tensor) -> Tensor:
        return DotRegression().per_sample(run_model(self.model, features_ND), self.labels_N)

    def distillation(self, features_ND: Tensor) -> Tensor:
        student = run_model(self.model, features_ND)
        return FeatureDistillation().per_sample(student, self.teacher, self.labels_N)

    def cosines(self, features_ND: Tensor) -> Tensor:
        return self.model(features_ND).gather(1, self.labels_N[:, None]).squeeze(1)


def assert_digits(found: Any, expected: Any, *, digits: int) -> None:
    """Equal to the printed digits."""
    values = found.detach().numpy() if isinstance(found, Tensor) else np.asarray(found)
    np.testing.assert_allclose(values, np.asarray(expected), rtol=0, atol=0.5001 * 10.0**-digits)


def test_example_e1_simplex(monkeypatch: pytest.MonkeyPatch) -> None:
    """U of the paper is the identity: the simplex is turned by Helmert's matrix, so by its inverse here."""
    helmert_KD = np.array([[1, -1, 0, 0, 0], [1, 1, -2, 0, 0], [1, 1, 1, -3, 0]])
    unit_KD = helmert_KD / np.linalg.norm(helmert_KD, axis=1, keepdims=True)
    monkeypatch.setattr(heads, "orthonormal_rows", lambda rows, width, _: unit_KD)
    head_CD = heads.etf_head(4, 5, numbers())
    expected = np.full((4, 5), -0.2886751346)
    np.fill_diagonal(expected, 0.8660254038)
    expected[:, 4] = 0
    assert_digits(head_CD, expected, digits=10)
    assert_digits(head_CD @ head_CD.T, np.where(np.eye(4) == 1, 1, -1 / 3), digits=12)
    assert_digits(head_CD.sum(axis=0), np.zeros(5), digits=12)


@pytest.mark.parametrize(("classes", "width", "cosine"), [(10, 512, -0.1111111), (100, 1024, -0.0101010)])
def test_simplex_of_the_papers_sizes(classes: int, width: int, cosine: float) -> None:
    head_CD = heads.etf_head(classes, width, numbers(4))
    gram_CC = head_CD @ head_CD.T
    assert_digits(gram_CC[~np.eye(classes, dtype=bool)], cosine, digits=7)
    np.testing.assert_allclose(np.diag(gram_CC), 1, atol=1e-10)
    np.testing.assert_allclose(head_CD.sum(axis=0), 0, atol=1e-10)
    assert np.linalg.matrix_rank(gram_CC) == classes - 1


EXAMPLE_A = (double([[1, 2, -1, 0.5]]), [[0.8, 1.5, -0.5, 0.5]])


def test_example_a_losses_and_gradients() -> None:
    feature_ND, teacher_ND = EXAMPLE_A
    example = Example(simplex(4, 4), teacher_ND, [1])
    assert_digits(example.cosines(feature_ND), [0.6350852961], digits=10)
    assert_digits(example.dot_regression(feature_ND), [0.0665813706], digits=10)
    assert_digits(example.distillation(feature_ND), [0.135], digits=12)
    assert_digits(example.per_sample(feature_ND), [0.0734232335], digits=10)
    by_part: dict[Any, list[float]] = {
        example.dot_regression: [0.0792170345, -0.0522495334, 0.0050564065, 0.0606768775],
        example.distillation: [0.1, 0.25, -0.25, 0.0],
        example.mean: [0.0812953311, -0.0220245801, -0.0204492342, 0.0546091898],
    }
    for part, expected in by_part.items():
        gradient = gradient_by_backward(lambda f, part=part: part(f).sum(), feature_ND)
        assert_digits(gradient[0], expected, digits=10)
    assert_digits(
        gradient_by_backward(lambda f: example.dot_regression(f).sum(), feature_ND).norm(),
        0.1127501797,
        digits=10,
    )


def test_example_a_steps() -> None:
    feature_ND, teacher_ND = EXAMPLE_A
    example = Example(simplex(4, 4), teacher_ND, [1])
    moved = feature_ND - 0.5 * gradient_by_backward(example.mean, feature_ND)
    assert_digits(moved[0], [0.9593523345, 2.0110122900, -0.9897753829, 0.4726954051], digits=10)
    assert_digits(example.mean(moved), 0.0683470459, digits=10)
    assert_digits(example.cosines(moved), [0.6498627538], digits=10)
    alone = feature_ND - 0.5 * gradient_by_backward(lambda f: example.dot_regression(f).sum(), feature_ND)
    assert_digits(alone.norm(), 2.5006355494, digits=10)
    assert_digits(example.cosines(alone), [0.6523380541], digits=10)


def test_example_b_batch() -> None:
    features_ND = double([[2, 0, 0, 1, 0], [0, -1, 1, 0, 2]])
    example = Example(simplex(3, 5), [[1.5, 0, 0.5, 1, 0], [0, -1, 1, 0, 2]], [0, 2])
    assert_digits(example.cosines(features_ND), [0.7302967433, 0.5], digits=10)
    assert_digits(example.dot_regression(features_ND), [0.0363699233, 0.125], digits=10)
    assert_digits(example.distillation(features_ND), [0.1, 0], digits=10)
    assert_digits(example.dot_regression(features_ND).mean(), 0.0806849617, digits=10)
    assert_digits(example.distillation(features_ND).mean(), 0.05, digits=10)
    assert_digits(example.mean(features_ND), 0.0776164655, digits=10)
    logits_NC = features_ND @ double(simplex(3, 5)).T
    expected = [[1.6329931619, -0.8164965809, -0.8164965809], [0, -1.2247448714, 1.2247448714]]
    assert_digits(logits_NC, expected, digits=10)
    assert example.model(features_ND).argmax(dim=1).tolist() == [0, 2]


def example_e3() -> tuple[Tensor, Example]:
    features_ND = double([[2, 0, 0, 0], [1, 1, 1, 0]])
    return features_ND, Example(simplex(4, 4), [[1, 0, 0, 1], [1, 1, 0, 0]], [0, 3])


def test_example_e3_batch_loss_and_gradient() -> None:
    features_ND, example = example_e3()
    assert_digits(example.cosines(features_ND), [0.8660254, -0.5], digits=7)
    assert_digits(example.dot_regression(features_ND), [0.0089745962, 1.125], digits=10)
    assert_digits(example.dot_regression(features_ND).mean(), 0.5669872981, digits=10)
    assert_digits(example.distillation(features_ND), [0.5, 0.25], digits=12)
    assert_digits(example.per_sample(features_ND), [0.0580771366, 1.0375], digits=10)
    assert_digits(example.mean(features_ND), 0.5477885683, digits=10)
    expected = [[0.025, 0.00870191, 0.00870191, -0.01629809], [0, 0, 0.025, -0.3375]]
    assert_digits(gradient_by_backward(example.mean, features_ND), expected, digits=8)


def test_example_e3_numbers_of_wrong_variants_are_not_ours() -> None:
    """What distilling normalized features, or a sum over the features, would have given."""
    features_ND, example = example_e3()
    teacher_ND = example.teacher.features_ND
    regression = example.dot_regression(features_ND).mean()
    on_unit = nn.functional.normalize(features_ND) - nn.functional.normalize(teacher_ND)
    summed = (features_ND - teacher_ND).square().sum(dim=1)
    wrong = [
        BETA * regression + (1 - BETA) * on_unit.square().mean(),
        BETA * regression + (1 - BETA) * summed.mean(),
    ]
    assert_digits(torch.stack(wrong), [0.5221984843, 0.6602885683], digits=9)
    assert all(abs(float(example.mean(features_ND) - value)) > 0.02 for value in wrong)


def client_of_e4(inputs: list[list[float]], label: int, *, steps: int) -> LocalRound:
    head_CD = np.sqrt(0.5) * np.array([[1, -1, 0], [-1, 1, 0]])
    training = {"learning_rate": 0.5, "momentum": 0.9, "local_epochs": max(steps, 1)}
    job = make_job({"preset": "feddr_plus"}, classes=2, training=training)
    body = nn.Linear(2, 3, bias=False)
    with torch.no_grad():
        body.weight.copy_(double([[1, 0], [0, 1], [1, 1]]))
    model = make_model(job, body, width=3, head_CD=head_CD)
    client = LocalRound(make_setting(job, model, make_data(inputs, [label])))
    if steps:
        client.train()
    return client


E4_CLIENTS = {
    "first": ([[1.0, 0.0]], 0, [0.1125, 0.07940122, 0.04450296]),
    "second": ([[0.0, 2.0]], 1, [0.1125, 0.08129966, 0.05827553]),
}


@pytest.mark.parametrize("name", E4_CLIENTS)
def test_example_e4_losses_of_a_silos_two_steps(name: str) -> None:
    inputs, label, expected = E4_CLIENTS[name]
    losses = [float(client_of_e4(inputs, label, steps=steps).mean_loss().detach()) for steps in range(3)]
    assert_digits(losses, expected, digits=8)


def test_example_e4_weights_and_their_means() -> None:
    step_1, first, second = (
        client_of_e4(inputs, label, steps=steps).model.body.weight.detach().numpy()
        for inputs, label, steps in (
            ([[1.0, 0.0]], 0, 1),
            ([[1.0, 0.0]], 0, 2),
            ([[0.0, 2.0]], 1, 2),
        )
    )
    assert_digits(step_1, [[1.05625, 0], [-0.1125, 1], [0.94375, 1]], digits=8)
    assert_digits(first, [[1.14140462, 0], [-0.29759006, 1], [0.84381456, 1]], digits=8)
    assert_digits(second, [[1, -0.28634006], [0, 1.13577962], [1, 0.84943956]], digits=8)
    start = np.array([[1.0, 0], [0, 1], [1, 1]])
    weighted = start + mean_delta([(first - start).ravel(), (second - start).ravel()], [500, 1500]).reshape(
        3, 2
    )
    uniform = start + mean_delta([(first - start).ravel(), (second - start).ravel()], [1, 1]).reshape(3, 2)
    expected = [[1.03535115, -0.21475504], [-0.07439751, 1.10183471], [0.96095364, 0.88707967]]
    assert_digits(weighted, expected, digits=8)
    expected = [[1.07070231, -0.14317003], [-0.14879503, 1.06788981], [0.92190728, 0.92471978]]
    assert_digits(uniform, expected, digits=8)


CONTEXT = PhaseContext(round=1, members=3, classes=2, state={}, trained=())
UNMASKED_BOUND = 0.5 * 3 / 2**16


def mean_delta(deltas: list[np.ndarray], counts: list[int]) -> np.ndarray:
    """The server's own step from p * delta and p. Shapes: (P,) each -> (P,)."""
    total = sum(counts)
    sums = {
        "delta": np.sum([n / total * delta for n, delta in zip(counts, deltas, strict=True)], axis=0),
        "weight": np.asarray(1.0),
    }
    step = WeightedMean().step(CONTEXT, sums)
    return step.steps(slice(None)) / step.divisor


@pytest.mark.parametrize(
    ("thetas", "weighted", "uniform"),
    [
        (
            [[1, -2, 0.5], [3, 0, -1], [0, 4, 2]],
            [1.4, -0.2, 0.35],
            [1.3333333333, 0.6666666667, 0.5],
        ),
        (
            [[1, -2, 0.5], [0.4, 0, 1], [-0.2, 1, 2]],
            [0.58, -0.80, 0.95],
            [0.4, -0.3333333333, 1.1666666667],
        ),
    ],
    ids=["e5", "c"],
)
def test_examples_e5_and_c_means_survive_the_ring(
    thetas: list[list[float]], weighted: list[float], uniform: list[float]
) -> None:
    counts = [500, 300, 200]
    values = [np.array(theta) for theta in thetas]
    assert_digits(mean_delta(values, counts), weighted, digits=10)
    assert_digits(mean_delta(values, [7, 7, 7]), uniform, digits=10)
    layout = Layout(
        quantities=(Quantity(name="delta", shape=(3,), bound=8.0), Quantity(name="weight", bound=1.0)),
        members=3,
    )
    total = sum(counts)
    encoded = [
        Encoder({"delta": n / total * theta, "weight": np.asarray(n / total)}, layout=layout).encode()
        for n, theta in zip(counts, values, strict=True)
    ]
    sums = dict(encoded[0].vectors)
    for one in encoded[1:]:
        ring.add_into(sums, one.vectors)
    decoded = ring.decode(sums, layout=layout)
    step = WeightedMean().step(CONTEXT, decoded)
    np.testing.assert_allclose(step.steps(slice(None)) / step.divisor, weighted, rtol=0, atol=1e-6)


def test_example_e6_pull_and_push_of_cross_entropy() -> None:
    head_CD, feature_D, label = double(simplex(4, 4)), double([1, -1, 0.5, 2]), torch.tensor([2])

    def loss(feature: Tensor) -> Tensor:
        outputs = Outputs(features_ND=feature[None], logits_NC=(head_CD @ feature)[None])
        return task_loss().per_sample(outputs, label).squeeze()

    logits_C = head_CD @ feature_D
    shares_C = logits_C.softmax(dim=0)
    assert_digits(logits_C, [0.4330127, -1.8763884, -0.1443376, 1.5877132], digits=7)
    assert_digits(shares_C, [0.2068775, 0.0205472, 0.1161377, 0.6564375], digits=7)
    assert_digits(loss(feature_D), 2.1529786, digits=7)
    gradient = gradient_by_backward(loss, feature_D)
    assert_digits(gradient, [0.2388816, 0.0237259, -1.0205963, 0.7579888], digits=7)
    pull = (1 - shares_C[2]) * head_CD[2]
    push = -(shares_C[[0, 1, 3]] @ head_CD[[0, 1, 3]])
    torch.testing.assert_close(-gradient, pull + push, rtol=0, atol=1e-12)


def test_example_e7_learning_rate_by_round() -> None:
    schedule = {"kind": "milestones", "milestones": [160, 240], "gamma": 0.1}
    job = make_job(
        {"preset": "feddr_plus"}, rounds=320, training={"learning_rate": 5.0, "schedule": schedule}
    )
    rates = [job.learning_rate_at(round) for round in (160, 161, 240, 241, 320)]
    assert rates == pytest.approx([5.0, 0.5, 0.5, 0.05, 0.05], abs=1e-12)
