"""Figures of secure sums are those of the pooled predictions, or within the bound that they come with."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from sklearn import metrics
from torch.nn.functional import cross_entropy, softmax

from chorale.spec.job_spec import JobSpec
from chorale_models import Sizes
from chorale_models.tasks.histograms import tempered_losses
from chorale_models.tasks.segmentation import Segmentation
from strategies.base import Array, PhaseContext
from strategies.phases.evaluation import EvaluatePhase
from strategies.tasks.temperature import Temperature, largest_loss
from tests.support.task_samples import answers, both_of, job_of, targets
from tests.unit.tasks.test_sensitivities import summed

SILOS = (31, 80, 7, 120)  # samples of each


class Pooled:
    """Predictions of four silos, their summed sums, and what the closing evaluation says of these."""

    def __init__(self, name: str, *, spread: float = 1.5, seed: int = 3) -> None:
        self.job: JobSpec = job_of(name)
        rng = np.random.default_rng(seed)
        true = targets(self.job, sum(SILOS), rng)
        said = answers(self.job, sum(SILOS), rng, spread=spread)
        if self.job.method.task.has_classes:  # a model that is right more often than not
            said[torch.arange(len(true)), true] += 2.0
        cuts = np.cumsum(SILOS)[:-1].tolist()
        parts = zip(torch.tensor_split(said, cuts), torch.tensor_split(true, cuts), strict=True)
        found = [summed(name, one, other, loss_clip=None) for one, other in parts]
        self.sums: Mapping[str, Array] = {key: sum(each[key] for each in found) for key in found[0]}
        self.said, self.true = said.double(), true.numpy()
        phase = self.job.method.phase("evaluate")
        assert isinstance(phase, EvaluatePhase)
        context = PhaseContext(round=0, members=len(SILOS), classes=self.job.classes, state={}, trained=())
        self.figures = phase.figures(context, self.sums)
        self.tables = phase.tables(context, self.sums)


def ece_of(confidence: Array, is_right: Array, *, bins: int = 15) -> float:
    """Naeini et al. 2015, bin by bin."""
    place = np.minimum((confidence * bins).astype(int), bins - 1)
    parts = [place == each for each in range(bins) if (place == each).any()]
    gaps = [chosen.mean() * abs(is_right[chosen].mean() - confidence[chosen].mean()) for chosen in parts]
    return float(sum(gaps))


def check_curves(pooled: Pooled, scores_NK: Array, is_of_class_NK: Array) -> None:
    """By class and in the mean; the bounds hold, and are small."""
    for name, area in (
        ("roc_auc", metrics.roc_auc_score),
        ("pr_auc", metrics.average_precision_score),
    ):
        exact_K = [area(is_of_class_NK[:, k], scores_NK[:, k]) for k in range(scores_NK.shape[1])]
        bound_K = pooled.tables[f"{name}_bound"]
        assert (np.abs(pooled.tables[name] - exact_K) <= bound_K + 1e-12).all()
        assert abs(pooled.figures[name] - np.mean(exact_K)) <= pooled.figures[f"{name}_bound"] < 0.03
    for place in range(scores_NK.shape[1]):
        rates = pooled.tables["roc_curve"][place]
        assert metrics.auc(rates[:, 0], rates[:, 1]) == pytest.approx(pooled.tables["roc_auc"][place])
        # every point of the histogram's curve is the count at its threshold
        threshold = pooled.tables["curve_thresholds"][120]
        taken = scores_NK[:, place] >= threshold
        assert rates[120, 1] == pytest.approx(taken[is_of_class_NK[:, place]].mean())


@pytest.mark.parametrize("name", ["two-classes", "classification"])
def test_classification_is_as_scikit_learn_has_it(name: str) -> None:
    pooled = Pooled(name)
    classes = pooled.job.classes
    chance = softmax(pooled.said, dim=1).numpy()
    answer, true = chance.argmax(axis=1), pooled.true
    report = metrics.classification_report(true, answer, output_dict=True, zero_division=0)
    by_class = metrics.precision_recall_fscore_support(true, answer, zero_division=0)
    assert pooled.tables["confusion"].tolist() == metrics.confusion_matrix(true, answer).tolist()
    for expected, found in zip(by_class, ("precision", "sensitivity", "f1"), strict=False):
        assert pooled.tables[found] == pytest.approx(expected)
    inverse = [metrics.recall_score(true != k, answer != k) for k in range(classes)]
    assert pooled.tables["specificity"] == pytest.approx(inverse)
    assert pooled.figures["accuracy"] == pytest.approx(report["accuracy"])
    balanced = metrics.balanced_accuracy_score(true, answer)
    assert pooled.figures["balanced_accuracy"] == pytest.approx(balanced)
    assert pooled.figures["mean_f1"] == pytest.approx(report["macro avg"]["f1-score"])
    hot = np.eye(classes)[true]
    assert pooled.figures["brier"] == pytest.approx(((chance - hot) ** 2).sum(axis=1).mean())
    assert pooled.figures["ece"] == pytest.approx(ece_of(chance.max(axis=1), answer == true))
    kept = slice(1, None) if classes == 2 else slice(None)
    check_curves(pooled, chance[:, kept], hot[:, kept].astype(bool))


def test_multi_label_is_as_scikit_learn_has_it() -> None:
    pooled = Pooled("multi-label")
    chance, true = torch.sigmoid(pooled.said).numpy(), pooled.true.astype(bool)
    answer = chance > 0.5
    assert pooled.tables["confusion"].tolist() == metrics.multilabel_confusion_matrix(true, answer).tolist()
    assert pooled.figures["label_accuracy"] == pytest.approx(1 - metrics.hamming_loss(true, answer))
    assert pooled.figures["mean_f1"] == pytest.approx(metrics.f1_score(true, answer, average="macro"))
    assert pooled.figures["brier"] == pytest.approx(((chance - true) ** 2).mean())
    sure = np.maximum(chance, 1 - chance)
    assert pooled.figures["ece"] == pytest.approx(ece_of(sure.ravel(), (answer == true).ravel()))
    check_curves(pooled, chance, true)


@pytest.mark.parametrize("name", ["regression", "numbers"])
def test_regression_is_as_scikit_learn_has_it(name: str) -> None:
    pooled = Pooled(name, spread=0.4)
    declared, _ = both_of(pooled.job)
    low, high = declared.target.low, declared.target.high
    true = pooled.true.reshape(len(pooled.true), -1).ravel()
    said = (low + (high - low) * (pooled.said.clamp(-1, 1).numpy() + 1) / 2).ravel()
    assert pooled.figures["mae"] == pytest.approx(metrics.mean_absolute_error(true, said))
    assert pooled.figures["rmse"] == pytest.approx(metrics.root_mean_squared_error(true, said))
    assert pooled.figures["r2"] == pytest.approx(metrics.r2_score(true, said))


def test_segmentation_is_as_scikit_learn_has_it() -> None:
    pooled = Pooled("segmentation")
    answer, true = pooled.said.argmax(dim=1).numpy(), pooled.true
    dice = metrics.f1_score(true.ravel(), answer.ravel(), average=None)
    assert pooled.tables["dice_by_class"] == pytest.approx(dice)
    iou = metrics.jaccard_score(true.ravel(), answer.ravel(), average=None)
    assert pooled.tables["iou_by_class"] == pytest.approx(iou)
    assert pooled.figures["mean_iou_by_class"] == pytest.approx(iou[1:].mean())
    images = [
        metrics.f1_score(one.ravel(), other.ravel(), labels=[1, 2], average="micro")
        for one, other in zip(true, answer, strict=True)
    ]
    assert pooled.figures["dice"] == pytest.approx(np.mean(images))
    assert pooled.figures["pixel_accuracy"] == pytest.approx((answer == true).mean())


@pytest.mark.parametrize("loss", ["cross-entropy", "dice", "both"])
def test_void_pixels_of_a_segmentation_count_nowhere(loss: str) -> None:
    """Outputs and classes there may be anything; an image that is all void has no part in a figure."""
    task = Segmentation(Sizes(classes=3, input_shape=(1, 5, 6)), loss=loss, void=255)
    generator = torch.Generator().manual_seed(3)
    said = torch.randn((4, 3, 5, 6), generator=generator).requires_grad_()
    true = torch.randint(0, 3, (4, 5, 6), generator=generator)
    is_void = torch.rand((4, 5, 6), generator=generator) < 0.3
    is_void[3] = True
    losses = task.loss(said, true.masked_fill(is_void, -1))
    losses.sum().backward()
    assert said.grad is not None
    assert not said.grad.masked_select(is_void.unsqueeze(1)).any()
    assert said.grad[:3].any()
    sums = task.measure(said, true.masked_fill(is_void, -1))
    dice, right = 1.0, 0.0  # of the image without a pixel
    for place in range(3):
        kept = ~is_void[place]
        if loss == "cross-entropy":
            expected = cross_entropy(said[place][:, kept].T, true[place][kept])
            assert float(losses[place].detach()) == pytest.approx(float(expected.detach()), rel=1e-5)
        answer, own = said[place].argmax(dim=0)[kept].numpy(), true[place][kept].numpy()
        dice += metrics.f1_score(own, answer, labels=[1, 2], average="micro")
        right += (answer == own).mean()
    assert float(sums["dice_sum"]) == pytest.approx(dice)
    assert float(sums["pixels_right"]) == pytest.approx(right)
    every = task.measure_metric("overlap", said, true.masked_fill(is_void, -1))["overlap"]
    assert float(every[2].sum()) == pytest.approx(float((~is_void).sum()) / 30)


def test_concordance_is_that_of_all_pairs_within_its_bound() -> None:
    pooled = Pooled("survival")
    living = torch.cumprod(torch.sigmoid(-pooled.said), dim=1)
    risk, (interval, is_event) = 1 - living.mean(dim=1).numpy(), pooled.true.T
    pairs = [
        (1.0 if risk[i] > risk[j] else 0.5 if risk[i] == risk[j] else 0.0)
        for i, j in itertools.permutations(range(len(risk)), 2)
        if is_event[i] and (interval[j] > interval[i] or (interval[j] == interval[i] and not is_event[j]))
    ]
    exact, bound = np.mean(pairs), pooled.figures["concordance_bound"]
    assert abs(pooled.figures["concordance"] - exact) <= bound < 0.01
    briers = []
    for i in range(len(risk)):
        known = [j for j in range(6) if j < interval[i] or is_event[i]]
        errors = [(float(living[i, j]) - (j < interval[i])) ** 2 for j in known]
        briers.append(np.mean(errors) if errors else 0.0)
    assert pooled.figures["brier"] == pytest.approx(np.mean(briers))
    losses = []
    for i in range(len(risk)):
        hazard = torch.sigmoid(pooled.said[i]).numpy()
        likely = np.log(1 - hazard[: interval[i]]).sum()
        losses.append(-likely - (np.log(hazard[interval[i]]) if is_event[i] else 0.0))
    assert pooled.figures["loss"] == pytest.approx(np.mean(losses), rel=1e-5)


def test_perplexity_is_that_of_all_predicted_tokens() -> None:
    pooled = Pooled("next-token")
    is_predicted = pooled.true >= 0
    assert 0 < is_predicted.sum() < is_predicted.size
    chance = softmax(pooled.said, dim=2).numpy()[is_predicted]
    true = pooled.true[is_predicted]
    loss = metrics.log_loss(true, chance, labels=range(7))
    assert pooled.figures["perplexity"] == pytest.approx(np.exp(loss), rel=1e-5)
    assert pooled.figures["token_accuracy"] == pytest.approx((chance.argmax(axis=1) == true).mean())


def test_areas_stay_within_their_bounds_where_scores_are_tied_or_far_apart() -> None:
    """Bins hold few scores, one score many samples, or all of them the same."""
    for seed, spread in itertools.product(range(4), (0.0, 0.01, 30.0)):
        pooled = Pooled("two-classes", spread=spread, seed=seed)
        score = (pooled.said[:, 1] - pooled.said[:, 0]).numpy()
        for name, area in (
            ("roc_auc", metrics.roc_auc_score),
            ("pr_auc", metrics.average_precision_score),
        ):
            missed = abs(pooled.figures[name] - area(pooled.true, score))
            assert missed <= pooled.figures[f"{name}_bound"] + 1e-12, (name, seed, spread)


@pytest.mark.parametrize("name", ["two-classes", "classification"])
@pytest.mark.parametrize("spread", [0.05, 1.5, 20.0])
def test_the_temperature_is_that_of_the_least_cross_entropy(name: str, spread: float) -> None:
    pooled = Pooled(name, spread=1.5)
    scale = spread / 1.5
    said, true = pooled.said * scale, torch.tensor(pooled.true)
    found = Temperature(pooled.job.classes)
    sums = {key: value.numpy() for key, value in tempered_losses(said, true).items()}
    figure = found.figures(sums)["temperature"].value

    def loss(log_temperature: float) -> float:
        losses_N = cross_entropy(said / np.exp(log_temperature), true, reduction="none")
        return float(losses_N.clamp(max=largest_loss(pooled.job.classes)).sum())

    least = minimize_scalar(loss, bounds=(np.log(1 / 128), np.log(64)), method="bounded")
    assert loss(np.log(figure)) <= 1.001 * loss(least.x)
    if spread == 1.5:
        assert pooled.figures["temperature"] == pytest.approx(figure)


def test_a_temperature_at_an_end_of_the_range_is_no_number() -> None:
    """Answers that say nothing of the targets are best at no temperature."""
    said, true = torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([1, 1])
    sums = {key: value.numpy() for key, value in tempered_losses(said, true).items()}
    assert np.isnan(Temperature(2).figures(sums)["temperature"].value)
