"""Which torch is installed here, and what it can compute on. Loads torch when it is asked."""

from __future__ import annotations

from dataclasses import dataclass

from crypto.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchBuild:
    """cuda: the version of CUDA that it is built for; None for none. gpus: how many it finds."""

    version: str
    cuda: str | None
    gpus: int

    @property
    def description(self) -> str:
        built = "for the CPU alone" if self.cuda is None else f"for CUDA {self.cuda}"
        return f"torch {self.version}, built {built}, finds {self.gpus} GPUs"


def torch_build() -> TorchBuild:
    """Raises ConfigError where torch, or the torchvision beside it, cannot be loaded."""
    try:
        import torch

        import silo_agent.training.machine.torchvision_compat  # noqa: F401  # fails where the two are of different releases
    except (ImportError, OSError, RuntimeError) as error:
        raise ConfigError(f"torch and torchvision cannot be loaded: {error}") from None
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return TorchBuild(version=str(torch.__version__), cuda=torch.version.cuda, gpus=gpus)
