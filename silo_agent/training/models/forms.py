"""In which number type and memory order a model is computed: what a timed trial on this machine finds.

bfloat16 (autocast) and channels_last change a model's speed, either way by a factor of two, and its rounding;
which is faster depends on the layers and the processor. So a model is tried once: a few passes and gradients
of random inputs. What is not at least a tenth faster is left as it is, on a CPU also a model whose step is
too short to gain. On a GPU a step of few samples is a row of launches that tells nothing, so the job's batch
is tried, however fast it is. Parameters, the head, losses and statistics stay float32 and float64 in any
case.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from chorale.observability.logs import get_logger
from chorale.spec.job_spec import JobSpec
from silo_agent.training.machine.seeding import forked
from silo_agent.training.machine.settings import MemoryFormat, Precision
from silo_agent.training.models.base import FederatedModel

LEAST_GAIN = 1.1  # what two runs of one form differ by on a busy machine

log = get_logger("silo_agent.training.models.forms")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """samples: most of a step. steps: after one that warms up; the fastest counts. shortest_seconds: of a
    step that is worth the trial."""

    samples: int
    steps: int
    shortest_seconds: float


# a large network's stays within seconds; in a shorter step the overhead of autocast decides
ON_CPU = Trial(samples=16, steps=3, shortest_seconds=0.02)
# as many as in a pass without gradients; clocks and caches of a GPU warm up longer
ON_GPU = Trial(samples=512, steps=10, shortest_seconds=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """How a model is computed. The first of a list is the one that others have to beat."""

    is_bfloat16: bool = False
    is_channels_last: bool = False

    def give(self, model: FederatedModel) -> FederatedModel:
        """The same model in this form, in place."""
        model.is_bfloat16 = self.is_bfloat16
        model.is_channels_last = self.is_channels_last
        memory = torch.channels_last if self.is_channels_last else torch.contiguous_format
        for parameter in model.parameters():
            if parameter.dim() == 4:
                parameter.data = parameter.data.contiguous(memory_format=memory)
        return model

    def __str__(self) -> str:
        type_ = "bfloat16" if self.is_bfloat16 else "float32"
        return f"{type_}, channels_last" if self.is_channels_last else type_


PLAIN = Form()


class Forms:
    """What a silo's settings ask for, and what its trials found, by model and inputs."""

    def __init__(
        self,
        *,
        precision: Precision = Precision.FLOAT32,
        memory_format: MemoryFormat = MemoryFormat.CONTIGUOUS,
    ) -> None:
        self._precision, self._memory_format = precision, memory_format
        self._found: dict[str, Form] = {}

    def without_trials(self) -> Forms:
        """The same, with what a trial would choose left as it is."""
        return Forms(
            precision=Precision.FLOAT32 if self._precision is Precision.AUTO else self._precision,
            memory_format=MemoryFormat.CONTIGUOUS
            if self._memory_format is MemoryFormat.AUTO
            else self._memory_format,
        )

    @property
    def asks_more(self) -> bool:
        """Whether the settings name another form than float32 as it is."""
        return self._precision is Precision.BFLOAT16 or self._memory_format is MemoryFormat.CHANNELS_LAST

    def of(self, model: FederatedModel, spec: JobSpec) -> Form:
        """The form of a job's model on the device that it is on. Private jobs and trees: float32 as it is."""
        if spec.privacy is not None or spec.method.recipe.growth is not None:
            return PLAIN
        forms = self._allowed(model)
        if len(forms) == 1:
            return forms[0]
        device = next(model.parameters()).device
        made_of = spec.model_dump_json(include={"model", "code", "adapters"})
        key = f"{device} {made_of} {spec.sizes} {spec.method.recipe.head}"
        if key not in self._found:
            trial = ON_CPU if device.type == "cpu" else ON_GPU
            inputs = _inputs(spec, device, most=trial.samples)
            self._found[key] = fastest(timed(model, inputs, forms, trial))
            log.info("form of the model chosen", model=spec.model.name, form=str(self._found[key]))
        return self._found[key]

    def _allowed(self, model: FederatedModel) -> list[Form]:
        """Plain first. Only images through layers of 4-D weights have an order to choose."""
        device = next(model.parameters()).device
        has_grids = any(parameter.dim() == 4 for parameter in model.parameters())
        types = {
            Precision.FLOAT32: [False],
            Precision.BFLOAT16: [True],
            Precision.AUTO: [False, True] if computes_bfloat16(device) else [False],
        }[self._precision]
        orders = {
            MemoryFormat.CONTIGUOUS: [False],
            MemoryFormat.CHANNELS_LAST: [True],
            MemoryFormat.AUTO: [False, True],
        }[self._memory_format]
        return [
            Form(is_bfloat16=type_, is_channels_last=order)
            for type_ in types
            for order in (orders if has_grids else [False])
        ]


def computes_bfloat16(device: torch.device) -> bool:
    """Whether the device has instructions for it; elsewhere it is emulated, and slow."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return bool(torch.backends.cpu.get_cpu_capability().startswith("AVX512")) and bool(
        torch.cpu._is_avx512_bf16_supported()
    )


def timed(model: FederatedModel, inputs: Tensor, forms: Sequence[Form], trial: Trial) -> Mapping[Form, float]:
    """Seconds of a pass and its gradients in each form, on a copy. Where the first is short, its alone; where
    a GPU's memory ends, those before."""
    seconds: dict[Form, float] = {}
    gpus = [inputs.device.index] if inputs.is_cuda else []
    with forked(gpus):  # dropout draws
        for form in forms:
            tried = form.give(copy.deepcopy(model)).train()
            try:
                taken = [_step_seconds(tried, inputs) for _ in range(1 + trial.steps)]
            except torch.OutOfMemoryError:  # of the first: training meets it next, and says so
                seconds.setdefault(forms[0], math.inf)
                break
            seconds[form] = min(taken[1:])
            if seconds[forms[0]] < trial.shortest_seconds:
                break
    return seconds


def fastest(seconds: Mapping[Form, float]) -> Form:
    """The first, unless another is at least a tenth faster."""
    first = next(iter(seconds))
    best = min(seconds, key=lambda form: seconds[form])
    return best if seconds[first] >= LEAST_GAIN * seconds[best] else first


def _step_seconds(model: FederatedModel, inputs: Tensor) -> float:
    started = time.perf_counter()
    model.zero_grad()
    outputs: Tensor = model(inputs)
    torch.autograd.backward(outputs.square().mean())
    if inputs.is_cuda:
        torch.cuda.synchronize(inputs.device)
    return time.perf_counter() - started


def _inputs(spec: JobSpec, device: torch.device, *, most: int) -> Tensor:
    """From -1 to 1, of no data. Whole numbers are zeros, which every table of embeddings has."""
    shape = (min(spec.training.batch_size, most), *spec.input_shape)
    if spec.input_type == "int64":
        return torch.zeros(shape, dtype=torch.int64, device=device)
    return torch.linspace(-1.0, 1.0, math.prod(shape)).view(shape).to(device)
