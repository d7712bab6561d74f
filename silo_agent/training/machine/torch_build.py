"""Which torch is installed here, and what it can compute on. Loads torch when it is asked."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

from crypto.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchBuild:
    """cuda: the version of CUDA that it is built for; None for none. gpus: how many it finds.
    has_torchvision: which CIFAR's files and transforms of images but crops and flips need."""

    version: str
    cuda: str | None
    gpus: int
    has_torchvision: bool = True

    @property
    def description(self) -> str:
        built = "for the CPU alone" if self.cuda is None else f"for CUDA {self.cuda}"
        lacks = "" if self.has_torchvision else "; no torchvision, which some jobs of images need"
        return f"torch {self.version}, built {built}, finds {self.gpus} GPUs{lacks}"


def torch_build() -> TorchBuild:
    """Raises ConfigError where torch, or a torchvision beside it, cannot be loaded."""
    has_torchvision = find_spec("torchvision") is not None
    try:
        import torch

        if has_torchvision:
            import silo_agent.training.machine.torchvision_compat  # noqa: F401  # fails where the two are of different releases
    except (ImportError, OSError, RuntimeError) as error:
        raise ConfigError(f"torch and torchvision cannot be loaded: {error}") from None
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return TorchBuild(
        version=str(torch.__version__),
        cuda=torch.version.cuda,
        gpus=gpus,
        has_torchvision=has_torchvision,
    )
