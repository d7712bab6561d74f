"""Training of adapters alone: small matrices beside the layers of a model whose own weights stay as they are.

LoRA: Hu et al. 2022 (arXiv 2106.09685): a layer W becomes W + (alpha / rank) B A, and B starts at zero. The
global state holds A and B and the head; the weights beside them never travel.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from chorale.spec.fields import Sha256, SpecPart

LORA_B = ".lora_B."  # in the names of arrays that start at zero
MARK = ".lora_"  # in the names of an adapter's arrays

LayerName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.]{1,200}$")]


class AdaptersSpec(SpecPart):
    """Which layers get an adapter, and which weights they are put beside."""

    rank: int = Field(default=8, ge=1, le=1_024, description="r of LoRA: rows of A, columns of B")
    alpha: float = Field(default=16.0, gt=0, le=10_000, description="B A is scaled by alpha / rank")
    targets: tuple[LayerName, ...] = Field(
        default=(),
        max_length=64,
        description="names of the layers, or their ends such as q_proj; none: the model's own function has "
        "put LoRA layers in",
    )
    base: Sha256 | None = Field(
        default=None,
        description="SHA-256 of the safetensors file of the other weights, which each silo has in its "
        "`base_models` folder; null: drawn by model.seed, for trials",
    )
