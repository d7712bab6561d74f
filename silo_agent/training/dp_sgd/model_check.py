"""Which models a silo trains in a private job: those in which every sample stands by itself."""

from __future__ import annotations

from torch import nn

from crypto.errors import ConfigError

BATCH_NORM = nn.modules.batchnorm._BatchNorm
DROPOUT = nn.modules.dropout._DropoutNd


def check_keeps_samples_apart(model: nn.Module) -> None:
    """Raises ConfigError for a layer that mixes the records of a batch, treats them by their place in it or
    keeps something of them."""
    for name, layer in model.named_modules():
        if isinstance(layer, BATCH_NORM):
            raise ConfigError(
                f"model: {name} is a batch normalization, which mixes the records of a batch: a private job "
                "needs norm: group (or none)"
            )
        if isinstance(layer, DROPOUT):
            raise ConfigError(
                f"model: {name} is a dropout, whose masks follow from a sample's place in the batch and from "
                "the job's public seed: a private job needs a model without"
            )
        for kept, _ in layer.named_buffers(recurse=False):
            raise ConfigError(
                f"model: {name} keeps a buffer, {kept}, which no noise covers: a private job needs a model "
                "without"
            )
