"""DP-SGD against opacus' own loop: its hooks, its DPOptimizer with float noise, Poisson sampling by torch.

Both take steps of 64 expected records, in micro-batches of the same 32. The block of a transformer has its
attention in dense layers, because opacus knows no other of torch's own.
"""

from __future__ import annotations

import ctypes
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from bench.device_seconds import seconds_of
from chorale.spec.privacy_spec import RecordsSpec
from chorale_models.model import Sizes
from chorale_models.tasks.classification import Classification
from silo_agent.training.base.batches import PRIVATE_BATCH, Tensors
from silo_agent.training.base.loss import LocalLoss, TaskLoss
from silo_agent.training.dp_sgd.micro_batches import Draws, MicroBatches
from silo_agent.training.dp_sgd.records import NoisedGradients
from silo_agent.training.dp_sgd.sample_gradients import SampleGradients
from silo_agent.training.loop.sgd import SGD
from silo_agent.training.models.base import FederatedModel

STEPS, BATCH, RECORDS, RATE = 4, 64, 1024, 0.05
WIDTH, HEADS, LENGTH = 128, 4, 32  # of the transformer's block
MEASURED_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """ratio: our seconds by those of opacus' loop. memory: our highest memory above that before, by theirs;
    not of a GPU."""

    ratio: float
    memory: float | None


def compare(model: Callable[[], FederatedModel], samples: Tensors, *, classes: int, turns: int) -> Compared:
    """model: builds it again, with the same weights each time."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # opacus says that its noise is not for production
        loops = [each(model().to(samples.device), samples, classes) for each in (_Ours, _Opacus)]
        seconds = [[seconds_of(loop.run, samples.device) for loop in loops] for _ in range(turns + 1)][1:]
        ours, theirs = (min(each) for each in zip(*seconds, strict=True))
        if samples.device.type != "cpu":
            return Compared(ratio=round(ours / theirs, 3), memory=None)
        own, other = (_peak_bytes(loop.run) for loop in loops)
    return Compared(ratio=round(ours / theirs, 3), memory=round(own / other, 3))


class Block(nn.Module):
    """One block of a transformer over LENGTH positions, and the mean of what it gives. (N, LENGTH, WIDTH)"""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.attention, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, classes)

    def forward(self, inputs: Tensor) -> Tensor:
        heads = self.attention(self.before(inputs)).unflatten(2, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        attended = scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2)
        found = inputs + self.out(attended)
        found = found + self.narrow(torch.relu(self.wide(self.between(found))))
        answer: Tensor = self.head(found.mean(dim=1))
        return answer


class _Ours:
    def __init__(self, model: FederatedModel, samples: Tensors, classes: int) -> None:
        self._model, self._samples = model, samples
        self._loss = LocalLoss(loss=TaskLoss(Classification(Sizes(classes=classes))))

    def run(self) -> None:
        optimizer = SGD(self._model.parameters(), lr=RATE, momentum=0.0, weight_decay=0.0)
        with SampleGradients(self._model.train()) as gradients:
            records = RecordsSpec(sample_rate=BATCH / RECORDS, clip_norm=1.0, noise_multiplier=1.0)
            batches = MicroBatches(
                samples=self._samples,
                loss=self._loss,
                gradients=gradients,
                sample_rate=records.sample_rate,
                draws=Draws(os.urandom),
                is_cancelled=lambda: False,
            )
            noised = NoisedGradients(batches, records=records, expected_batch=BATCH)
            for step in range(STEPS):
                noised.write(step)
                optimizer.step()


class _Opacus:
    def __init__(self, model: FederatedModel, samples: Tensors, classes: int) -> None:
        self._model = GradSampleModule(model.train(), loss_reduction="sum")
        self._samples = samples

    def run(self) -> None:
        optimizer = DPOptimizer(
            torch.optim.SGD(self._model.parameters(), lr=RATE),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            expected_batch_size=BATCH,
            loss_reduction="sum",
        )
        for _ in range(STEPS):
            drawn_N = torch.rand(RECORDS, device=self._samples.device) < BATCH / RECORDS
            parts = torch.split(drawn_N.nonzero().squeeze(1), PRIVATE_BATCH)
            for place, part_N in enumerate(parts, start=1):
                optimizer.zero_grad()
                inputs, labels_N = self._samples.features[part_N], self._samples.labels[part_N]
                inputs.requires_grad_()  # its hooks warn of a first layer without
                torch.autograd.backward(cross_entropy(self._model(inputs), labels_N, reduction="sum"))
                if place < len(parts):
                    optimizer.signal_skip_step(do_skip=True)
                optimizer.step()
        optimizer.zero_grad()


def _peak_bytes(run: Callable[[], object]) -> int:
    """Of this process, above what it takes now; Linux counts again where it is asked to.

    What earlier runs have freed is given back first, or this one would find it there.
    """
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = _status_kilobytes("VmRSS")
    run()
    return max(MEASURED_BYTES, (_status_kilobytes("VmHWM") - before) << 10)


def _status_kilobytes(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(f"{name}:")).split()[1])
