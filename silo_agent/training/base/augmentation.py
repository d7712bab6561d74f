"""Random transforms of the job, and of the data's own function after them, done to a batch in the process
that trains.

What a sample becomes follows from the silo's seed of the phase, the step (an epoch, or in DP-SGD a step) and
the sample: neither from its place in the batch nor from the samples beside it. A sample is known by its place
in the training set, and in a private job by its own bytes, because its place says how many stand before it:
what another record becomes must not move with one record more or less.
Evaluation, statistics and calibration never come here.
N = samples of a batch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from chorale.spec.job_spec import JobSpec
from chorale.spec.samples.image_specs import (
    ColorJitter,
    GaussianBlur,
    HorizontalFlip,
    RandAugment,
    RandomCrop,
    RandomErasing,
    RandomResizedCrop,
    RandomRotation,
    TransformSpec,
    VerticalFlip,
    has_dense_labels,
)
from crypto.errors import ConfigError
from silo_agent.training.base.batches import Batch
from silo_agent.training.base.crops_and_flips import Move, crops_and_flips
from silo_agent.training.data.fitting import expected_inputs, known_inputs
from silo_agent.training.machine.seeding import derive_seed, reseeding
from silo_agent.training.objective import Work

BORDERS = {"zeros": "constant", "reflect": "reflect", "edge": "edge"}


class Augmentation:
    """Inputs and labels of a batch, each sample transformed by itself.

    seed: of the phase, at this silo. has_dense_labels: whether labels are one number a pixel and go with the
    image; what comes in at the borders is then class 0. is_private: see above. own: `Data.train_transform`.
    """

    def __init__(
        self,
        transforms: tuple[TransformSpec, ...],
        *,
        size: tuple[int, int],
        seed: int,
        has_dense_labels: bool,
        is_private: bool,
        own: Move | None = None,
        spec: JobSpec | None = None,
    ) -> None:
        self._moves: list[Move] = []
        if transforms:
            quick = None if has_dense_labels else crops_and_flips(transforms)
            self._moves.append(quick or by_torchvision(transforms, size, has_masks=has_dense_labels))
        if own is not None:
            assert spec is not None
            self._moves.append(_checked(own, spec=spec))
        self._moves_labels = has_dense_labels or own is not None
        self._seed, self._is_private = seed, is_private

    def __call__(self, batch: Batch, *, step: int) -> Batch:
        """Shapes: inputs (N, channels, height, width), labels (N, ...) -> the same. N: at least 1."""
        images, labels = [], []
        with reseeding() as reseed:
            for image, label, known in zip(batch.inputs, batch.labels_N, self._names(batch), strict=True):
                reseed(derive_seed("augment", self._seed, step, known))
                for move in self._moves:
                    image, label = move(image, label)
                images.append(image)
                labels.append(label)
        labels_N = torch.stack(labels) if self._moves_labels else batch.labels_N
        return replace(batch, inputs=torch.stack(images), labels_N=labels_N)

    def _names(self, batch: Batch) -> list[str]:
        if not self._is_private:
            return [str(place) for place in batch.places_N.tolist()]
        rows = batch.inputs.cpu().contiguous().numpy()
        return [hashlib.sha256(row).hexdigest() for row in rows]


def augmentation_of(work: Work) -> Augmentation | None:
    """That of a phase; None where neither the job nor the data name transforms."""
    spec, target, own = work.spec, work.spec.method.task.target, work.data.train_transform
    if spec.augment is None and own is None:
        return None
    height, width = spec.input_shape[-2:] if spec.augment else (0, 0)
    return Augmentation(
        spec.augment or (),
        size=(height, width),
        seed=derive_seed("augment", work.phase_kind, work.seed),
        has_dense_labels=has_dense_labels(input_shape=spec.input_shape, target_shape=target.shape),
        is_private=spec.privacy is not None,
        own=own,
        spec=spec,
    )


def _checked(own: Move, *, spec: JobSpec) -> Move:
    """What an institution's function gives, in the form of what it was given. Raises ConfigError; in a
    private job a sample that it fails on stays as it is, as no single record refuses such a job."""

    def move(image: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
        try:
            found = own(image.cpu().clone(), label.cpu().clone())
            made = torch.as_tensor(found[0]).to(image), torch.as_tensor(found[1]).to(label)
            for what, each, before in zip(("input", "target"), made, (image, label), strict=True):
                if each.shape != before.shape:
                    shapes = f"expected shape {tuple(before.shape)}, got {tuple(each.shape)}"
                    raise ConfigError(f"data: train_transform: {what}: {shapes}")
            inputs_1, targets_1 = (each[None].numpy(force=True) for each in made)
            target = spec.method.task.target
            if not target.fitting(targets_1).all():
                raise ConfigError(f"data: train_transform: target: expected {target.range}")
            if not known_inputs(inputs_1, spec).all():
                raise ConfigError(f"data: train_transform: input: {expected_inputs(spec)}")
        except Exception as error:  # it is not our code
            if spec.privacy is not None:
                return image, label
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"data: train_transform: {type(error).__name__}: {error}") from error
        return made

    return move


def by_torchvision(transforms: Sequence[TransformSpec], size: tuple[int, int], *, has_masks: bool) -> Move:
    """All of them; has_masks: labels are one number a pixel, and go with their image."""
    # a second to load, and most jobs do not need it
    from silo_agent.training.machine.torchvision_compat import tv_tensors, v2

    transform = v2.Compose([_made(each, size) for each in transforms])

    def move(image: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
        if not has_masks:
            return transform(tv_tensors.Image(image)).as_subclass(Tensor), label
        moved, mask = transform(tv_tensors.Image(image), tv_tensors.Mask(label))
        return moved.as_subclass(Tensor), mask.as_subclass(Tensor)

    return move


def _made(spec: TransformSpec, size: tuple[int, int]) -> Any:
    from silo_agent.training.machine.torchvision_compat import v2

    match spec:
        case RandomCrop():
            return v2.RandomCrop(size, padding=spec.padding, padding_mode=BORDERS[spec.border])
        case HorizontalFlip():
            return v2.RandomHorizontalFlip(spec.chance)
        case VerticalFlip():
            return v2.RandomVerticalFlip(spec.chance)
        case RandomRotation():
            return v2.RandomRotation(spec.degrees)
        case RandomResizedCrop():
            return v2.RandomResizedCrop(size, scale=spec.scale, ratio=spec.ratio)
        case ColorJitter():
            return v2.ColorJitter(spec.brightness, spec.contrast, spec.saturation, spec.hue)
        case RandAugment():
            return v2.RandAugment(spec.operations, spec.magnitude)
        case GaussianBlur():
            return v2.GaussianBlur(spec.kernel, spec.sigma)
        case RandomErasing():
            return v2.RandomErasing(spec.chance, spec.scale, spec.ratio)
