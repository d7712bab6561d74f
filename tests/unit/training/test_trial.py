"""A module in training mode: what it gives, and the buffers that a step changes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crypto.errors import ConfigError

torch = pytest.importorskip("torch", reason="needs the extra silo")
trial = pytest.importorskip("silo_agent.training.models.trial")
registry = pytest.importorskip("silo_agent.training.models.registry")
nn = torch.nn

INPUTS = torch.rand(2, 4, generator=torch.Generator().manual_seed(0))


def module(gives: Any) -> Any:
    """A linear layer whose training answer goes through `gives`; in eval mode it is a tensor."""

    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(4, 3)

        def forward(self, x: Any) -> Any:
            return gives(self.net(x)) if self.training else self.net(x)

    return Module()


def with_buffer(name: str, start: Any, *, moves: bool, is_persistent: bool = True) -> Any:
    made = module(lambda y: y)
    holder = nn.Module()
    holder.register_buffer(name, start, persistent=is_persistent)
    made.inner = holder
    if moves:
        made.register_forward_hook(
            lambda *_: holder.register_buffer(name, ~start if start.dtype is torch.bool else start + 1)
        )
    return made


@pytest.mark.parametrize(
    ("gives", "got"),
    [
        (lambda y: (y, y), "a tuple"),
        (lambda y: [y], "a list"),
        (lambda y: {"out": y}, "a dict"),
        (lambda y: None, "a NoneType"),
        (lambda y: y.argmax(1), r"torch.int64 \(2,\)"),
        (lambda y: y.sum(), r"torch.float32 \(\)"),
    ],
)
def test_an_answer_that_is_no_tensor_of_numbers_is_named(gives: Any, got: str) -> None:
    with pytest.raises(ConfigError, match=f"net, in training mode: expected one tensor .*, got {got}"):
        trial.try_training_step(module(gives), INPUTS, what="net")


def test_an_answer_without_a_gradient_and_an_error_of_the_code_are_named() -> None:
    with pytest.raises(ConfigError, match="no parameter takes a gradient"):
        trial.try_training_step(module(lambda y: y.detach()), INPUTS, what="net")
    with pytest.raises(ConfigError, match="given 2 samples in training mode: KeyError: 'mask'"):
        trial.try_training_step(module(lambda y: {}["mask"]), INPUTS, what="net")


NAMES = st.from_regex(r"b_[a-z_]{0,12}", fullmatch=True)
TYPES = st.sampled_from([torch.float32, torch.int64, torch.bool])


@given(name=NAMES, dtype=TYPES, is_persistent=st.booleans())
def test_a_buffer_that_a_step_changes_is_refused_by_name_unless_it_is_averaged(
    name: str, dtype: Any, is_persistent: bool
) -> None:
    start = torch.zeros(3, dtype=dtype)
    still = with_buffer(name, start, moves=False, is_persistent=is_persistent)
    assert trial.try_training_step(still, INPUTS, what="net").shape == (2, 3)
    moving = with_buffer(name, start, moves=True, is_persistent=is_persistent)
    with pytest.raises(ConfigError, match=f"a training step changes inner.{name}: buffers"):
        trial.try_training_step(moving, INPUTS, what="net")
    averaged = with_buffer(f"{name}_running_mean", torch.zeros(3), moves=True)
    assert trial.try_training_step(averaged, INPUTS, what="net").shape == (2, 3)


@pytest.mark.parametrize(
    "layer",
    [
        nn.BatchNorm1d(3),
        nn.BatchNorm1d(3, momentum=None),
        nn.BatchNorm1d(3, track_running_stats=False),
        nn.Sequential(nn.Unflatten(1, (1, 3)), nn.InstanceNorm1d(1, track_running_stats=True), nn.Flatten()),
        nn.Dropout(0.5),
        nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_layers_of_torch_pass(layer: Any) -> None:
    tried = nn.Sequential(nn.Linear(4, 3), layer)
    assert trial.try_training_step(tried, INPUTS, what="net").shape == (2, 3)
    assert all(each.grad is None for each in tried.parameters())


@pytest.mark.parametrize("lazy", [nn.LazyLinear(3), nn.Sequential(nn.LazyBatchNorm1d(), nn.Linear(4, 3))])
def test_a_lazy_layer_is_named_where_the_model_is_built(lazy: Any) -> None:
    from chorale.spec.plug_in_specs import ModelSpec
    from chorale_models.model import Model, Sizes

    spec = ModelSpec(name="net", **{"from": "nets==1.0"})
    with pytest.raises(ConfigError, match=r"parameter (0\.)?weight has no shape before the first sample"):
        registry.build_module(spec, Model(build=lambda sizes: lazy), Sizes(classes=3, input_shape=(4,)))
