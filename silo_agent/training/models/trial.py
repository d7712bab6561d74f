"""One step of an author's module in training mode, on made-up samples.

A tuple that it gives then, or a buffer that it moves, shows in no answer of eval mode.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from chorale.runtime.distributions import error_line
from chorale.spec.state import BUFFER_SUFFIXES
from crypto.errors import ChoraleError, ConfigError

BATCH_COUNTER = "num_batches_tracked"  # of torch's own layers; every round counts from 0


@contextmanager
def author_errors(where: str) -> Iterator[None]:
    """What an author's code raises becomes one line."""
    try:
        yield
    except ChoraleError:
        raise
    except Exception as error:
        raise ConfigError(f"{where}: {error_line(error)}") from error


def try_training_step(module: nn.Module, inputs: Tensor, *, what: str) -> Tensor:
    """What the module gives in training mode, once forward and backward went through.

    Raises ConfigError where it is not one tensor, where no parameter takes a gradient of it, and where the
    step changes a buffer that is never sent: each silo would compute with its own, and the model that is
    handed out has none of them.
    """
    before = {name: each.clone() for name, each in module.named_buffers()}
    with author_errors(f"{what}: given {len(inputs)} samples in training mode"):
        outputs = one_tensor(module.train()(inputs), what=f"{what}, in training mode")
        if not outputs.requires_grad:
            raise ConfigError(f"{what}: no parameter takes a gradient of what it gives in training mode")
        outputs.sum().backward()  # type: ignore[no-untyped-call]
    module.zero_grad()
    changed = [
        name
        for name, each in module.named_buffers()
        if not name.endswith((*BUFFER_SUFFIXES, BATCH_COUNTER))
        and (name not in before or not torch.equal(each, before[name]))
    ]
    if changed:
        raise ConfigError(
            f"{what}: a training step changes {', '.join(changed)}: buffers that are never sent, so the "
            "model that comes out lacks what they held; float buffers whose names end in "
            f"{' or '.join(BUFFER_SUFFIXES)} are averaged over the silos, others stay as they are built"
        )
    return outputs.detach()


def one_tensor(outputs: object, *, what: str) -> Tensor:
    """Raises ConfigError that says what a model gives in place of one tensor, a row a sample."""
    expected = "expected one tensor of floating-point numbers, a row a sample"
    if not isinstance(outputs, Tensor):
        raise ConfigError(f"{what}: {expected}, got a {type(outputs).__name__}")
    if not outputs.is_floating_point() or outputs.dim() == 0:
        raise ConfigError(f"{what}: {expected}, got {outputs.dtype} {tuple(outputs.shape)}")
    return outputs
