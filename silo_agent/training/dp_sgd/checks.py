"""Which models a silo trains in a private job: those in which every sample stands by itself.

By their layers, and by probes: whether a sample's answers and gradient are the same bits at any place of a
batch. What one record moves is bounded only if it does not move what the model says of the others, and a
record less shifts the others' places. Kernels promise nothing of the kind: some round the last samples of a
batch otherwise than the first ones, and a coordinator may send weights that make whole numbers of such last
bits.
So each phase, before it uses data, runs random probes through the received model, and through the same
model with random weights: kernels are chosen by shapes, and in weights that the coordinator chose all probes
may come out alike. A refusal therefore tells nothing of the data.
"""

# N = probes = samples of every batch in a private job, K = those of one arrangement

from __future__ import annotations

import copy
import dataclasses
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from crypto.errors import ConfigError
from crypto.prg import KEY_BYTES, Keystream
from silo_agent.training.base.batches import PRIVATE_BATCH, padded
from silo_agent.training.base.loss import LocalLoss, SampleLoss
from silo_agent.training.base.passes import Outputs, Run, run_model
from silo_agent.training.dp_sgd.clipping import squares
from silo_agent.training.dp_sgd.outer_products import OuterProducts, SampleRows, materialized
from silo_agent.training.models.base import FederatedModel
from strategies.tasks.base import Target

SAME_GRADIENT = 1e-2  # of a gradient's length: float32 sums in another order stay far below
NO_SINGLE_GRADIENT = (
    "model: DP-SGD cannot take the gradient of each sample by itself through it: it needs layers that are "
    "called, not read for their weights, with samples in their first dimension"
)
BATCH_NORM = nn.modules.batchnorm._BatchNorm
DROPOUT = nn.modules.dropout._DropoutNd

# which probe is at which place: all of them elsewhere, and a few or one before zeros
ARRANGEMENTS = tuple(
    torch.arange(PRIVATE_BATCH).roll(shift)[:kept]
    for shift, kept in ((1, PRIVATE_BATCH), (11, PRIVATE_BATCH), (5, 7), (3, 1))
)


def check_keeps_samples_apart(model: nn.Module) -> None:
    """Raises ConfigError for a layer that mixes the records of a batch, treats them by their place in it or
    keeps something of them."""
    for name, layer in model.named_modules():
        if isinstance(layer, BATCH_NORM):
            raise ConfigError(
                f"model: {name} is a batch normalization, which mixes the records of a batch: a private job "
                "needs norm: group (or none)"
            )
        if isinstance(layer, DROPOUT) and layer.p > 0:
            raise ConfigError(
                f"model: {name} is a dropout, whose masks follow from a sample's place in the batch and from "
                "the job's public seed: a private job needs a model without"
            )
        for kept, _ in layer.named_buffers(recurse=False):
            raise ConfigError(
                f"model: {name} keeps a buffer, {kept}, which no noise covers: a private job needs a model "
                "without"
            )


@contextmanager
def one_thread() -> Iterator[None]:
    """How many threads share a kernel's work decides where it is cut, and so how it rounds."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class Probes:
    """Random inputs, labels, answers and weights. Values: uniform in [-1, 1), of three inputs in four
    10, 100 and 1,000 times as large, since a model may treat large ones in another way; tokens 0 and 1, which
    every vocabulary has."""

    def __init__(
        self,
        *,
        input_shape: tuple[int, ...],
        target: Target,
        device: torch.device,
        input_type: str = "float32",
    ) -> None:
        self._stream, self._device = Keystream(os.urandom(KEY_BYTES)), device
        self.inputs = self.values((PRIVATE_BATCH, *input_shape))
        if input_type == "int64":
            self.inputs = (self.inputs > 0).long()
        else:
            sizes_N = 10.0 ** (torch.arange(PRIVATE_BATCH, device=device) % 4)
            self.inputs *= sizes_N.view(-1, *(1,) * len(input_shape))
        self.labels_N = torch.from_numpy(target.examples(PRIVATE_BATCH)).to(device)

    def values(self, shape: tuple[int, ...]) -> Tensor:
        words = np.empty(math.prod(shape), "<i4")
        self._stream.fill(words.view(np.uint8))
        return torch.from_numpy(words.astype(np.float32) / 2**31).view(shape).to(self._device)

    def models(self, model: FederatedModel) -> tuple[FederatedModel, FederatedModel]:
        """Copies: with its weights, and with random ones of about the size that keeps a signal's."""
        same, other = copy.deepcopy(model), copy.deepcopy(model)
        with torch.no_grad():
            for parameter in other.parameters():
                inputs = parameter[0].numel() if parameter.dim() > 1 else 1
                values = self.values(tuple(parameter.shape)) * math.sqrt(6.0 / max(1, inputs))
                parameter.copy_(values)
        return same, other


def check_answers(model: FederatedModel, probes: Probes, *, loss: SampleLoss) -> None:
    """In eval mode, without gradients. Raises ConfigError if an answer depends on its sample's place."""

    @torch.inference_mode()
    def answers(tried: FederatedModel, inputs: Tensor, order_K: Tensor) -> list[Tensor]:
        outputs = run_model(tried, inputs)
        labels_N = padded(probes.labels_N[order_K], PRIVATE_BATCH)
        embedded_ND = tried.embed(outputs.features_ND)
        return [outputs.features_ND, embedded_ND, outputs.logits_NC, loss.per_sample(outputs, labels_N)]

    for tried in probes.models(model.eval()):
        _check(tried, probes, answers, what="answer to")


def check_gradients(model: FederatedModel, probes: Probes, *, loss: LocalLoss) -> dict[str, bool]:
    """In train mode: by trained parameter, whether its samples' gradients come as products.

    Raises ConfigError if a sample's gradient depends on its place.
    """
    from silo_agent.training.dp_sgd.sample_gradients import SampleGradients

    def tried_teacher(teacher: Outputs | Run) -> Outputs | Run:
        if not isinstance(teacher, Outputs):
            return teacher
        features_NK, logits_NK = (
            probes.values((PRIVATE_BATCH, *rows.shape[1:]))
            for rows in (teacher.features_ND, teacher.logits_NC)
        )
        return Outputs(features_ND=features_NK, logits_NC=logits_NK)

    compared = (dataclasses.replace(each, teacher=tried_teacher(each.teacher)) for each in loss.comparisons)
    tried_loss = dataclasses.replace(loss, comparisons=tuple(compared))

    def gradients(tried: FederatedModel, inputs: Tensor, order_K: Tensor) -> list[SampleRows]:
        labels_N, places_N = (padded(rows, PRIVATE_BATCH) for rows in (probes.labels_N[order_K], order_K))
        with SampleGradients(tried) as sampled:
            return sampled.of(tried_loss, inputs, labels_N, places_N)

    def factors(tried: FederatedModel, inputs: Tensor, order_K: Tensor) -> list[Tensor]:
        """What a sample's whole numbers follow from."""
        rows = gradients(tried, inputs, order_K)
        parts = [part for row in rows for part in (row.parts if isinstance(row, OuterProducts) else [row])]
        return [*parts, *(squares([each.flatten(1)]) for each in parts)]

    try:
        same, other = probes.models(model.train())
        for tried in (same, other):
            _check(tried, probes, factors, what="gradient of")
        _check_single_gradient(other, probes, gradients, loss=tried_loss)
        order_N = torch.arange(PRIVATE_BATCH, device=probes.inputs.device)
        rows = gradients(other, probes.inputs.clone(), order_N)
    except ConfigError:
        raise
    except Exception as error:  # what torch and opacus raise for layers that they do not know is on no list
        raise ConfigError(NO_SINGLE_GRADIENT) from error
    names = [name for name, each in other.named_parameters() if each.requires_grad]
    return {name: isinstance(each, OuterProducts) for name, each in zip(names, rows, strict=True)}


Tried = Callable[[FederatedModel, Tensor, Tensor], list[Tensor]]
Gradients = Callable[[FederatedModel, Tensor, Tensor], list[SampleRows]]


def _check(model: FederatedModel, probes: Probes, run: Tried, *, what: str) -> None:
    order_N = torch.arange(PRIVATE_BATCH, device=probes.inputs.device)
    first = run(model, probes.inputs.clone(), order_N)
    for arrangement_K in ARRANGEMENTS:
        order_K = arrangement_K.to(probes.inputs.device)
        again = run(model, padded(probes.inputs[order_K], PRIVATE_BATCH), order_K)
        if [each.shape for each in again] != [each.shape for each in first]:
            raise ConfigError(NO_SINGLE_GRADIENT)
        for expected, found in zip(first, again, strict=True):
            left, right = expected[order_K], found[: len(order_K)]
            if not bool(((left == right) | (left.isnan() & right.isnan())).all()):
                other = "" if probes.inputs.device.type == "cpu" else ": set device: cpu"
                raise ConfigError(
                    f"model: on this machine the {what} a sample depends on its place in the batch, which a "
                    f"private job must not have{other}"
                )


def _check_single_gradient(model: FederatedModel, probes: Probes, run: Gradients, *, loss: LocalLoss) -> None:
    """Raises ConfigError where the hooks on the layers give another gradient of a sample than autograd does:
    they do for layers whose rows are no samples, and for weights of a module that has layers; what is
    clipped then is no sample's."""
    order_N = torch.arange(PRIVATE_BATCH, device=probes.inputs.device)
    first = probes.inputs[:1].clone()
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    loss_N = loss.per_sample(run_model(model, first), first, probes.labels_N[:1], order_N[:1])
    alone = torch.autograd.grad(loss_N.sum(), parameters, allow_unused=True, materialize_grads=True)
    together = [materialized(rows)[0] for rows in run(model, probes.inputs.clone(), order_N)]
    missed = [float((one - other).square().sum()) for one, other in zip(alone, together, strict=True)]
    length = math.sqrt(sum(float(one.square().sum()) for one in alone))
    if not math.sqrt(sum(missed)) <= SAME_GRADIENT * length:
        raise ConfigError(NO_SINGLE_GRADIENT)
