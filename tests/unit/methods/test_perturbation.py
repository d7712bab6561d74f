"""FedSOL: a step is along the loss's gradient at weights moved to where the regularizer grows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from silo_agent.training.torch_objective import TorchObjective
from tests.support.objectives import LocalRound, make_data, make_job, make_model, make_setting, make_work

CLASSES, WIDTH, COUNT, RATE, RHO = 3, 4, 12, 0.3, 0.8
DRAW = np.random.default_rng(1)
FEATURES_ND, LABELS_N = DRAW.normal(size=(COUNT, WIDTH)), np.resize(np.arange(CLASSES), COUNT)
FIELDS: dict[str, Any] = {
    "classes": CLASSES,
    "input_shape": (WIDTH,),
    "rounds": 2,
    "training": {"local_epochs": 1, "batch_size": COUNT, "learning_rate": RATE},
}


def round_of(**options: Any) -> LocalRound:
    job = make_job({"preset": "fedsol", "options": {"rho": RHO, **options}}, **FIELDS)
    torch.manual_seed(0)
    body = nn.Linear(WIDTH, WIDTH)
    return LocalRound(make_setting(job, make_model(job, body, width=WIDTH), make_data(FEATURES_ND, LABELS_N)))


def parameters_of(local: LocalRound) -> dict[str, Tensor]:
    return {name: each.detach().clone() for name, each in local.model.named_parameters()}


def divergence(student_NC: Tensor, teacher_NC: Tensor, tau: float) -> Tensor:
    """KL(p || q) of the softened answers, written out."""
    p_NC, q_NC = (torch.softmax(each / tau, dim=1) for each in (teacher_NC, student_NC))
    return (p_NC * (p_NC.log() - q_NC.log())).sum(dim=1).mean()


def expected_step(local: LocalRound, start: dict[str, Tensor], *, is_adaptive: bool) -> dict[str, Tensor]:
    """w - eta grad L(w + e), e = rho g_p / |g_p|, each number times |w - w_g| over its column's norm."""
    inputs = torch.tensor(FEATURES_ND, dtype=torch.float32).double()
    labels = torch.tensor(LABELS_N)
    teacher = functional_call(local.model, start, (inputs,)).detach()
    now = parameters_of(local)

    def gradient(at: dict[str, Tensor], function: Any) -> dict[str, Tensor]:
        leaves = {name: each.clone().requires_grad_() for name, each in at.items()}
        value = function(functional_call(local.model, leaves, (inputs,)))
        return dict(zip(leaves, torch.autograd.grad(value, list(leaves.values())), strict=True))

    proximal = gradient(now, lambda scores: divergence(scores, teacher, 3.0))
    length = torch.sqrt(torch.stack([each.square().sum() for each in proximal.values()]).sum())
    moved = {}
    for name, each in now.items():
        radius = torch.ones_like(each)
        if is_adaptive:
            gap = (each - start[name]).abs()
            radius = gap / gap.square().sum(dim=0, keepdim=True).sqrt()
        moved[name] = each + RHO * radius * proximal[name] / length
    steps = gradient(moved, lambda scores: cross_entropy(scores, labels))
    return {name: each - RATE * steps[name] for name, each in now.items()}


@pytest.mark.parametrize("radius", ["fixed", "adaptive"])
def test_step_is_along_the_gradient_at_the_perturbed_weights(radius: str) -> None:
    local = round_of(radius=radius)
    start = parameters_of(local)
    with torch.no_grad():  # as after some steps: at the received weights nothing is perturbed
        for each in local.model.parameters():
            each.add_(torch.tensor(DRAW.normal(size=each.shape)))
    expected = expected_step(local, start, is_adaptive=radius == "adaptive")
    local.train()
    for name, each in local.model.named_parameters():
        torch.testing.assert_close(each.detach(), expected[name], rtol=1e-6, atol=1e-8)


def deltas(preset: str, *, epochs: int = 3, **options: Any) -> np.ndarray[Any, Any]:
    fields = {**FIELDS, "training": {**FIELDS["training"], "local_epochs": epochs}}
    job = make_job({"preset": preset, "options": options}, model={"name": "mlp", "hidden": (5,)}, **fields)
    return TorchObjective(device="cpu").compute(make_work(job, make_data(FEATURES_ND, LABELS_N)))["delta"]


def test_without_a_perturbation_it_is_fedavg() -> None:
    assert np.array_equal(deltas("fedsol", rho=0.0), deltas("fedavg"))
    assert not np.array_equal(deltas("fedsol"), deltas("fedavg"))


def test_first_step_from_the_received_model_is_fedavgs() -> None:
    """There the divergence is zero and so is its gradient, but for float32's rounding, which a fixed radius
    would blow up to rho: an adaptive one does not move what has not moved."""
    np.testing.assert_array_equal(deltas("fedsol", epochs=1), deltas("fedavg", epochs=1))


def test_running_means_follow_one_pass_of_each_step() -> None:
    fields = {**FIELDS, "training": {**FIELDS["training"], "local_epochs": 2, "learning_rate": 1e-30}}
    model = {"name": "mlp", "hidden": (5,), "norm": "batch"}
    found = []
    for preset in ("fedsol", "fedavg"):
        job = make_job({"preset": preset}, model=model, **fields)
        values = TorchObjective(device="cpu").compute(make_work(job, make_data(FEATURES_ND, LABELS_N)))
        found.append(values["buffers"])
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5, atol=1e-7)


def test_nothing_is_summed_that_fedavg_does_not_sum() -> None:
    assert make_job({"preset": "fedsol"}).quantity_names == make_job().quantity_names


def test_private_jobs_take_it_where_the_whole_update_is_clipped_and_nowhere_else() -> None:
    make_job({"preset": "fedsol"}, privacy={"epsilon": 8.0, "sums": {"clip_norm": 1.0}})
    with pytest.raises(ValueError, match=r"strategy\.mix: perturbed moves the weights by a gradient of"):
        make_job(
            {"preset": "fedsol"},
            privacy={"epsilon": 8.0, "records": {"clip_norm": 1.0, "sample_rate": 0.1}},
        )


def test_model_is_back_where_it_was_after_a_step() -> None:
    """To the last bit."""
    local = round_of()
    with torch.no_grad():
        for each in local.model.parameters():
            each.add_(0.5)
    before = parameters_of(local)
    assert local.loss.perturbation is not None
    for each in local.model.parameters():
        each.grad = torch.ones_like(each)
    with local.loss.perturbation.moved(local.model):
        assert all(not torch.equal(each, before[name]) for name, each in local.model.named_parameters())
    for name, each in local.model.named_parameters():
        assert torch.equal(each, before[name])
