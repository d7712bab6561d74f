"""Operations on rows: the value and gradient of torch's own."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from silo_agent.training.models.row_functions import SMALLEST_NORM, mean_squares, unit_rows

GENERATOR = torch.Generator().manual_seed(7)
ROWS = torch.randn((4, 5), generator=GENERATOR, dtype=torch.float64)
OTHERS = torch.randn((4, 5), generator=GENERATOR, dtype=torch.float64)
BACK = torch.randn((4, 5), generator=GENERATOR, dtype=torch.float64)
ROWS[2] = 0.0  # as of a ReLU network

CASES: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "unit_rows": (unit_rows, lambda rows_NK: normalize(rows_NK, dim=1, eps=SMALLEST_NORM)),
    "mean_squares": (
        lambda rows_NK: mean_squares(rows_NK, OTHERS)[:, None],
        lambda rows_NK: (rows_NK - OTHERS).square().mean(dim=1, keepdim=True),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_value_and_gradient_are_those_of_torch(name: str) -> None:
    ours, torchs = CASES[name]
    rows_NK = ROWS.clone().requires_grad_()
    torch.testing.assert_close(ours(rows_NK), torchs(rows_NK))
    found, expected = (
        torch.autograd.grad((each(rows_NK) * BACK).sum(), rows_NK)[0] for each in (ours, torchs)
    )
    torch.testing.assert_close(found, expected)


def test_unit_rows_refuse_a_second_derivative() -> None:
    rows_NK = ROWS.clone().requires_grad_()
    (first_NK,) = torch.autograd.grad((unit_rows(rows_NK) ** 3).sum(), rows_NK, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        torch.autograd.backward(first_NK.sum())
