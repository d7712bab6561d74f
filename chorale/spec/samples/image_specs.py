"""What a job does to images: random transforms of training samples, and normalization of all of them.

The silo computes them with torchvision (silo_agent/training/base/augmentation.py). A size is in pixels; a
range is [low, high].
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, TypeAlias, TypeVar

from pydantic import Field, model_validator

from chorale.spec.fields import Finite, Positive, SpecPart

MAX_TRANSFORMS = 16
COLOR_CHANNELS = (1, 3)
Chance = Annotated[float, Field(ge=0, le=1)]
Strength = Annotated[float, Field(ge=0, le=10)]
Ratio = Annotated[float, Field(ge=0.01, le=100)]
# a smaller width is no blur, and its square may be zero in float32
Width = Annotated[float, Field(ge=0.01, le=1_000)]
Area = Annotated[float, Field(gt=0, le=1)]
Number = TypeVar("Number", bound=float)
Range: TypeAlias = Annotated[tuple[Number, ...], Field(min_length=2, max_length=2)]


class NormalizeSpec(SpecPart):
    """Channel c of every input, of training, tests and statistics alike, becomes (x - mean[c]) / std[c]."""

    mean: tuple[Finite, ...] = Field(min_length=1, max_length=1_024, description="one number a channel")
    std: tuple[Positive, ...] = Field(min_length=1, max_length=1_024, description="one number a channel")

    @model_validator(mode="after")
    def _one_each(self) -> NormalizeSpec:
        if len(self.mean) != len(self.std):
            raise ValueError(
                f"std: expected as many numbers as mean has, {len(self.mean)}, got {len(self.std)}"
            )
        return self

    def refusal(self, input_shape: tuple[int, ...]) -> str:
        """Why it does not suit samples of this shape, or ""."""
        if len(input_shape) < 2:
            return f"expected input_shape [channels, ...] with it, got {list(input_shape)}"
        if len(self.mean) != input_shape[0]:
            return f"expected {input_shape[0]} numbers, one a channel, got {len(self.mean)}"
        return ""


class _Transform(SpecPart):
    """needs_color: computed of one or three channels alone. moves_labels: whether a dense label, one number
    a pixel, can go with the image."""

    needs_color: ClassVar[bool] = False
    moves_labels: ClassVar[bool] = True

    def refusal(self, height: int, width: int) -> str:
        """Why it cannot be done to an image of this size, or ""."""
        return ""


class RandomCrop(_Transform):
    """The image with a border, cut back to its size at a random place."""

    kind: Literal["random-crop"] = Field(description="which transform")
    padding: int = Field(ge=1, le=1_024, description="width of the border, at most the image's longer side")
    border: Literal["zeros", "reflect", "edge"] = Field(default="zeros", description="what the border holds")

    def refusal(self, height: int, width: int) -> str:
        if self.border == "reflect" and self.padding >= min(height, width):
            return f"padding: a reflected border of {self.padding} is wider than the image allows"
        longer = max(height, width)
        if self.padding > longer:
            return f"padding: expected at most the image's longer side, {longer}, got {self.padding}"
        return ""


class HorizontalFlip(_Transform):
    """Left becomes right."""

    kind: Literal["horizontal-flip"] = Field(description="which transform")
    chance: Chance = Field(default=0.5, description="of it being done to a sample")


class VerticalFlip(_Transform):
    """Top becomes bottom."""

    kind: Literal["vertical-flip"] = Field(description="which transform")
    chance: Chance = Field(default=0.5, description="of it being done to a sample")


class RandomRotation(_Transform):
    """A turn about the center; corners that come in are zeros."""

    kind: Literal["random-rotation"] = Field(description="which transform")
    degrees: float = Field(gt=0, le=180, description="the turn is drawn from -degrees to degrees")


class RandomResizedCrop(_Transform):
    """A random part of the image, stretched to the image's size."""

    kind: Literal["random-resized-crop"] = Field(description="which transform")
    scale: Range[Area] = Field(default=(0.08, 1.0), description="share of the image's area")
    ratio: Range[Ratio] = Field(default=(0.75, 4 / 3), description="width by height")

    @model_validator(mode="after")
    def _ordered(self) -> RandomResizedCrop:
        _check_ordered(scale=self.scale, ratio=self.ratio)
        return self

    def refusal(self, height: int, width: int) -> str:
        # a draw that does not fit becomes the largest part of the nearest ratio, which may have no pixel
        if round(height * self.ratio[1]) < 1 or round(width / self.ratio[0]) < 1:
            low, high = self.ratio
            return f"ratio: no part of {width} x {height} pixels has a ratio of {low:g} to {high:g}"
        return ""


class ColorJitter(_Transform):
    """Brightness, contrast, saturation and hue by random factors; values are taken into 0 to 1."""

    kind: Literal["color-jitter"] = Field(description="which transform")
    brightness: Strength = Field(default=0.0, description="the factor is drawn from 1 - this to 1 + this")
    contrast: Strength = Field(default=0.0, description="likewise")
    saturation: Strength = Field(default=0.0, description="likewise")
    hue: float = Field(default=0.0, ge=0, le=0.5, description="the shift is drawn from -this to this")
    needs_color: ClassVar[bool] = True


class RandAugment(_Transform):
    """Random operations of equal strength: Cubuk et al. 2020 (arXiv 1909.13719). Values are 0 to 1."""

    kind: Literal["rand-augment"] = Field(description="which transform")
    operations: int = Field(default=2, ge=1, le=16, description="how many are done to a sample")
    magnitude: int = Field(default=9, ge=0, le=30, description="how strong they are, of 31 steps")
    needs_color: ClassVar[bool] = True
    moves_labels: ClassVar[bool] = False


class GaussianBlur(_Transform):
    """A blur of random width."""

    kind: Literal["gaussian-blur"] = Field(description="which transform")
    kernel: int = Field(default=3, ge=3, le=63, description="side of the kernel; an odd number")
    sigma: Range[Width] = Field(default=(0.1, 2.0), description="standard deviation, in pixels")

    @model_validator(mode="after")
    def _odd(self) -> GaussianBlur:
        if self.kernel % 2 == 0:
            raise ValueError(f"kernel: expected an odd number, got {self.kernel}")
        _check_ordered(sigma=self.sigma)
        return self

    def refusal(self, height: int, width: int) -> str:
        if self.kernel // 2 >= min(height, width):
            return f"kernel: {self.kernel} is wider than the image allows"
        return ""


class RandomErasing(_Transform):
    """A random rectangle becomes zeros: Zhong et al. 2020 (arXiv 1708.04896)."""

    kind: Literal["random-erasing"] = Field(description="which transform")
    chance: Chance = Field(default=0.5, description="of it being done to a sample")
    scale: Range[Area] = Field(default=(0.02, 0.33), description="share of the image's area")
    ratio: Range[Ratio] = Field(default=(0.3, 3.3), description="width by height")
    moves_labels: ClassVar[bool] = False

    @model_validator(mode="after")
    def _ordered(self) -> RandomErasing:
        _check_ordered(scale=self.scale, ratio=self.ratio)
        return self


TransformSpec: TypeAlias = (
    RandomCrop
    | HorizontalFlip
    | VerticalFlip
    | RandomRotation
    | RandomResizedCrop
    | ColorJitter
    | RandAugment
    | GaussianBlur
    | RandomErasing
)
Transforms: TypeAlias = Annotated[
    tuple[Annotated[TransformSpec, Field(discriminator="kind")], ...],
    Field(min_length=1, max_length=MAX_TRANSFORMS),
]


def check_images(
    normalize: NormalizeSpec | None,
    augment: tuple[TransformSpec, ...] | None,
    *,
    input_type: str,
    input_shape: tuple[int, ...],
    target_shape: tuple[int, ...],
) -> None:
    """Raises ValueError for what a job does to images that its samples cannot be given."""
    for field, given in (("normalize", normalize), ("augment", augment)):
        if given is not None and input_type != "float32":
            raise ValueError(f"{field}: not allowed with input_type {input_type}: it changes numbers")
    if normalize is not None and (why := normalize.refusal(input_shape)):
        raise ValueError(f"normalize: {why}")
    if augment is not None:
        check_transforms(augment, input_shape=input_shape, target_shape=target_shape)


def check_transforms(
    transforms: tuple[TransformSpec, ...], *, input_shape: tuple[int, ...], target_shape: tuple[int, ...]
) -> None:
    """Raises ValueError for transforms that samples of these shapes cannot be given."""
    if len(input_shape) != 3:
        raise ValueError(
            f"augment: expected images, of input_shape (channels, height, width), got {list(input_shape)}"
        )
    channels, height, width = input_shape
    for place, each in enumerate(transforms):
        field, why = f"augment.{place}", each.refusal(height, width)
        if why:
            raise ValueError(f"{field}.{why}")
        if each.needs_color and channels not in COLOR_CHANNELS:
            raise ValueError(f"{field}: expected 1 or 3 channels for {each.kind}, got {channels}")
        if has_dense_labels(input_shape=input_shape, target_shape=target_shape) and not each.moves_labels:
            raise ValueError(f"{field}: {each.kind} moves pixels that a label by pixel does not follow")


def has_dense_labels(*, input_shape: tuple[int, ...], target_shape: tuple[int, ...]) -> bool:
    """Whether a label is one number a pixel, which goes with the image."""
    return len(target_shape) >= 2 and target_shape[-2:] == input_shape[-2:]


def _check_ordered(**ranges: tuple[float, ...]) -> None:
    for field, (low, high) in ranges.items():
        if low > high:
            raise ValueError(f"{field}: expected [low, high], got [{low:g}, {high:g}]")
