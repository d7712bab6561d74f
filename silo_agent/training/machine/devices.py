"""The processor that a training runs on, and what keeps its float32 at float32 and alike in every run.

Everything that decides how a GPU rounds is set here: TF32 off in matrix products and convolutions, no search
for the fastest convolution, kernels that add in one order. It costs up to half of a round of convolutions
(docs/performance.md). A CPU computes float32 as it is; there nothing is set.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from crypto.errors import ConfigError
from silo_agent.training.machine.settings import first_gpu


def device_of(asked: str, *, place: int = 0) -> torch.device:
    """asked: a setting's `device`. place: counted on from the GPU that it names, around those that there are.

    Raises ConfigError for a GPU that this machine does not have.
    """
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if asked == "cpu" or (asked == "auto" and not gpus):
        return torch.device("cpu")
    if not gpus:
        raise ConfigError(f"device: {asked} is set but torch finds no GPU; allowed here: auto, cpu")
    if first_gpu(asked) >= gpus:
        raise ConfigError(
            f"device: {asked} is set but torch finds {gpus} GPUs on this machine, the last is cuda:{gpus - 1}"
        )
    return torch.device("cuda", (first_gpu(asked) + place) % gpus)


@contextmanager
def float32_kernels(device: torch.device, *, is_private: bool = False) -> Iterator[None]:
    """On a GPU, matrix products and convolutions of float32 in float32, where they may be set to TF32's 10
    bits, and rounded alike in every run.

    Security: in a private job without cuDNN, whose convolutions may round a sample by its place in the batch,
    and by kernels that add in one order where torch has such. What does neither, the probes of
    dp_sgd/checks.py refuse.
    """
    if device.type == "cpu":
        yield
        return
    cudnn = torch.backends.cudnn.flags(
        enabled=not is_private, benchmark=False, deterministic=True, allow_tf32=False
    )
    # NVIDIA's images turn it on, by TORCH_ALLOW_TF32_CUBLAS_OVERRIDE. It stays off: where code of others set
    # it by torch's newer names, what it was cannot be read
    torch.backends.cuda.matmul.allow_tf32 = False
    before = torch.get_deterministic_debug_mode()
    with cudnn, warnings.catch_warnings():
        if is_private:
            warnings.filterwarnings("ignore", message=".*deterministic")  # of kernels without such a form
            torch.set_deterministic_debug_mode("warn")
        try:
            yield
        finally:
            torch.set_deterministic_debug_mode(before)
