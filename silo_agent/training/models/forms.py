"""In which number type and memory order a model is computed: what a timed trial on this machine finds.

bfloat16 (autocast) and channels_last change a model's speed, either way by a factor of two, and its rounding;
which is faster depends on the layers and the processor. So a model is tried once: a few passes and gradients
of random inputs. What is not at least a tenth faster is left as it is, and so is a model whose step is too
short to gain. Parameters, the head, losses and statistics stay float32 and float64 in any case.
"""

from __future__ import annotations

import copy
import math
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from chorale.observability.logs import get_logger
from chorale.spec.job_spec import JobSpec
from silo_agent.training.machine.seeding import forked
from silo_agent.training.machine.settings import MemoryFormat, Precision
from silo_agent.training.models.base import FederatedModel

SHORTEST_SECONDS = 0.02  # of a step that is worth a trial; below it, the overhead of autocast decides
LEAST_GAIN = 1.1  # what two runs of one form differ by on a busy machine
TRIAL_SAMPLES = 16  # a trial of a large network on a CPU stays within seconds
TRIAL_STEPS = 3  # after one that warms up; the fastest counts

log = get_logger("silo_agent.training.models.forms")


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
        """The form of a job's model on the device that it is on. A private job's is float32 as it is."""
        if spec.privacy is not None:
            return PLAIN
        forms = self._allowed(model)
        if len(forms) == 1:
            return forms[0]
        device = next(model.parameters()).device
        made_of = spec.model_dump_json(include={"model", "code", "adapters"})
        key = f"{device} {made_of} {spec.sizes} {spec.method.recipe.head}"
        if key not in self._found:
            inputs = _inputs(spec, device)
            seconds = timed(model, inputs, forms)
            self._found[key] = fastest(seconds)
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


@contextmanager
def float32_kernels(device: torch.device, *, is_private: bool = False) -> Iterator[None]:
    """On a GPU, convolutions that compute float32 as float32, where cuDNN would take TF32's 10 bits, and
    round alike in every run.

    Security: in a private job without cuDNN, whose convolutions may round a sample by its place in the batch,
    and by kernels that add in one order where torch has such. What does neither, the probes of
    dp_sgd/checks.py refuse.
    """
    if device.type == "cpu":
        yield
        return
    cudnn = torch.backends.cudnn.flags(enabled=not is_private, deterministic=True, allow_tf32=False)
    before = torch.get_deterministic_debug_mode()
    with cudnn, warnings.catch_warnings():
        if is_private:
            warnings.filterwarnings("ignore", message=".*deterministic")  # of kernels without such a form
            torch.set_deterministic_debug_mode("warn")
        try:
            yield
        finally:
            torch.set_deterministic_debug_mode(before)


def computes_bfloat16(device: torch.device) -> bool:
    """Whether the device has instructions for it; elsewhere it is emulated, and slow."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return bool(torch.backends.cpu.get_cpu_capability().startswith("AVX512")) and bool(
        torch.cpu._is_avx512_bf16_supported()
    )


def timed(model: FederatedModel, inputs: Tensor, forms: Sequence[Form]) -> Mapping[Form, float]:
    """Seconds of a pass and its gradients in each form, on a copy. Where the first is short, its alone."""
    seconds: dict[Form, float] = {}
    gpus = [inputs.device.index] if inputs.is_cuda else []
    with forked(gpus):  # dropout draws
        for form in forms:
            tried = form.give(copy.deepcopy(model)).train()
            taken = [_step_seconds(tried, inputs) for _ in range(1 + TRIAL_STEPS)]
            seconds[form] = min(taken[1:])
            if seconds[forms[0]] < SHORTEST_SECONDS:
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


def _inputs(spec: JobSpec, device: torch.device) -> Tensor:
    """From -1 to 1, of no data. Whole numbers are zeros, which every table of embeddings has."""
    shape = (min(spec.training.batch_size, TRIAL_SAMPLES), *spec.input_shape)
    if spec.input_type == "int64":
        return torch.zeros(shape, dtype=torch.int64, device=device)
    return torch.linspace(-1.0, 1.0, math.prod(shape)).view(shape).to(device)
