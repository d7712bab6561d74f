"""The state that a job of a built-in model starts from, drawn from the job itself: nobody chooses it.

The same bytes on every machine; a model only says which arrays it has. Source: docs/protocol.md 7.12.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from chorale.spec.job_spec import JobSpec
from chorale.spec.plug_in_specs import LORA_B
from chorale.spec.state import BUFFER_SUFFIXES
from crypto import encoding
from strategies.base import MODEL, Array
from strategies.number_stream import Normal, NumberStream, Start
from strategies.parts.heads import HEAD, frozen_head

PURPOSE = "initial-state"
SEED_ALONE = bytes(32)  # in place of a job's base: a simulation's jobs start alike where their seeds are

Shape = tuple[int, ...]


def first_state(
    spec: JobSpec, shapes: Mapping[str, Shape], *, base: bytes, starts: Mapping[str, Start] | None = None
) -> dict[str, Array]:
    """Arrays named model/<parameter>, float32.

    shapes: of the model's arrays, by those names. base: SHA-256 of the job without its `initial_state`.
    starts: how arrays of the body start otherwise, by name without `body.`.
    Raises ConfigError where the feature width has no room for a head of this kind.
    """
    given = {f"{MODEL}body.{name}": start for name, start in (starts or {}).items()}
    return {
        name: _drawn(spec, name, shapes, base, given.get(name)).astype(np.float32) for name in sorted(shapes)
    }


def _drawn(spec: JobSpec, name: str, shapes: Mapping[str, Shape], base: bytes, start: Start | None) -> Array:
    """One array, from a key of its own, so that no array's numbers depend on which others there are."""
    shape, head = shapes[name], spec.method.recipe.head
    numbers = NumberStream(encoding.digest(PURPOSE, base, spec.model.seed, name))
    if spec.adapters is not None and LORA_B in name:
        return np.zeros(shape)  # so that the model starts as what the adapters are put beside
    layer, _, kind = name.removeprefix(MODEL).rpartition(".")
    if isinstance(start, Normal):
        return numbers.normal(math.prod(shape), variance=start.std * start.std).reshape(shape)
    if start is not None:
        return np.full(shape, start)
    if name == HEAD and head.is_frozen:
        return frozen_head(head, classes=shape[0], width=shape[1], numbers=numbers)
    if layer in ("head", "projection"):  # a linear layer as torch makes it
        width = shapes[f"{MODEL}{layer}.weight"][1]
        return numbers.uniform(math.prod(shape), bound=1.0 / math.sqrt(width)).reshape(shape)
    if len(shape) > 1:
        # He et al. 2015 (arXiv 1502.01852): fan out of a convolution, fan in of a linear layer
        fan = shape[0] * math.prod(shape[2:]) if len(shape) > 2 else shape[1]
        return numbers.normal(math.prod(shape), variance=2.0 / fan).reshape(shape)
    # biases and means are 0; a normalization's weights and variances and the scale of logits are 1
    is_bias = kind == "bias" or kind.startswith("bias_") or kind.endswith("_bias")
    is_zero = is_bias or name.endswith(BUFFER_SUFFIXES[0])
    return np.full(shape, 0.0 if is_zero else 1.0)
