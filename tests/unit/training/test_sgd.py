from __future__ import annotations

import copy
import subprocess
import sys

import pytest
import torch
from torch import nn

from silo_agent.training.loop.sgd import SGD

STEPS = 12


def model() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 4), nn.Linear(4, 4, bias=False))


def train(net: nn.Sequential, optimizer: SGD | torch.optim.SGD) -> list[torch.Tensor]:
    """Every third step leaves the last layer out, so that it has no gradient."""
    generator = torch.Generator().manual_seed(5)
    for step in range(STEPS):
        inputs = torch.randn(8, 6, generator=generator)
        outputs = net[:-1](inputs) if step % 3 == 2 else net(inputs)
        optimizer.zero_grad()
        torch.autograd.backward(outputs.square().mean())
        optimizer.step()
    return [parameter.detach() for parameter in net.parameters()]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
def test_every_bit_is_that_of_torchs_own_class(momentum: float, weight_decay: float) -> None:
    ours, theirs = model(), copy.deepcopy(model())
    plan = {"lr": 0.1, "momentum": momentum, "weight_decay": weight_decay}
    moved = train(ours, SGD(ours.parameters(), **plan))
    expected = train(theirs, torch.optim.SGD(theirs.parameters(), **plan))
    start = [parameter.detach() for parameter in model().parameters()]
    assert all(torch.equal(one, other) for one, other in zip(moved, expected, strict=True))
    assert not any(torch.equal(one, other) for one, other in zip(moved, start, strict=True))


def test_nothing_to_train_is_refused() -> None:
    with pytest.raises(ValueError, match="no parameter to train"):
        SGD([], lr=0.1, momentum=0.0, weight_decay=0.0)


def test_sparse_gradients_are_taken_as_torchs_own_class_does() -> None:
    ours, theirs = (nn.Embedding(5, 2, sparse=True, _weight=torch.ones(5, 2)) for _ in range(2))
    plan = {"lr": 0.1, "momentum": 0.0, "weight_decay": 0.0}
    for table, optimizer in (
        (ours, SGD(ours.parameters(), **plan)),
        (theirs, torch.optim.SGD(theirs.parameters(), **plan)),
    ):
        torch.autograd.backward(table(torch.tensor([1, 3])).sum())
        optimizer.step()
    assert torch.equal(ours.weight, theirs.weight)
    assert not torch.equal(ours.weight, torch.ones(5, 2))


def test_a_step_does_not_load_torchs_compiler() -> None:
    lines = (
        "import sys, torch",
        "from silo_agent.training.loop.sgd import SGD",
        "weight = torch.nn.Parameter(torch.ones(3))",
        "optimizer = SGD([weight], lr=0.5, momentum=0.9, weight_decay=0.0)",
        "optimizer.zero_grad()",
        "weight.sum().backward()",
        "optimizer.step()",
        "assert weight.tolist() == [0.5] * 3",
        "sys.exit('torch._dynamo' in sys.modules)",
    )
    assert subprocess.run([sys.executable, "-c", "\n".join(lines)], check=False).returncode == 0
