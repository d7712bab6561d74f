"""What a part may look at: the round's work, the model as it was received, the silo's local state.

N = samples, C = classes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chorale.spec.state import buffer_names, trained_names
from chorale_models.task import Task
from crypto.errors import ConfigError, RemoteProtocolError
from silo_agent.training.base.batches import Batches, DeviceCopies
from silo_agent.training.base.passes import Outputs, Run, frozen_copy, outputs_of, run_model
from silo_agent.training.base.shares import ALONE, BatchShares
from silo_agent.training.data.base import SampleSet
from silo_agent.training.data.units import WEIGHT_STEPS
from silo_agent.training.models.base import FederatedModel
from silo_agent.training.models.registry import build_task
from silo_agent.training.models.state import load_arrays, model_arrays
from silo_agent.training.objective import Work
from strategies.base import MODEL, Array, PartOptions
from strategies.phases.evaluation import EVALUATE

Options = TypeVar("Options", bound=PartOptions)


class TeacherCache:
    """What a teacher answered, kept from one phase of a round to the next so that it is asked once.

    One pass, the last: N * C floats; another key replaces it.
    """

    def __init__(self) -> None:
        self._key = b""
        self._logits_NC: Tensor | None = None

    def logits(self, key: bytes, run: Callable[[], Tensor]) -> Tensor:
        """What `run` gave under this key. Shapes: -> (N, C)."""
        if self._logits_NC is None or key != self._key:
            self._logits_NC = None  # the old one's memory first
            self._logits_NC, self._key = run(), key
        return self._logits_NC


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a part may look at when it is made: the round's work and the model as it was received.

    cache: a teacher's answers that an earlier phase of the round left for this one. copies: samples that are
    on the device. shares: of its batches.
    """

    work: Work
    received: FederatedModel
    device: torch.device
    cache: TeacherCache = field(default_factory=TeacherCache)
    copies: DeviceCopies = field(default_factory=DeviceCopies)
    shares: BatchShares = ALONE
    task: Task = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "task", build_task(self.work.spec))

    @property
    def is_private(self) -> bool:
        return self.work.spec.privacy is not None

    @property
    def train(self) -> Batches:
        """This silo's training samples on the training's device."""
        return self._batches("train", self.work.data.train)

    @property
    def holdout(self) -> Batches:
        """What this phase tests on: the closing evaluation has a part of its own where the job says so."""
        data, is_closing = self.work.data, self.work.phase_kind == EVALUATE
        return self._batches("hold-out", data.tested if is_closing else data.holdout)

    def _batches(self, part: str, samples: SampleSet) -> Batches:
        return self.copies.of(
            part,
            samples,
            self.device,
            constant_work=self.work.constant_work or 0,
            micro_batch=self.shares.micro_batch,
        )

    def options(self, part: type[Options]) -> Options:
        return self.work.spec.method.options_of(part)

    def outputs_of(self, model: FederatedModel | Run, samples: Batches) -> Outputs:
        """One pass of a model that does not learn. Raises Cancelled."""
        run = partial(run_model, model.eval()) if isinstance(model, FederatedModel) else model
        return outputs_of(run, samples, is_cancelled=self.work.is_cancelled, is_private=self.is_private)

    def logits_of(self, model: FederatedModel | Run, samples: Batches) -> Tensor:
        """As `outputs_of`, without the features, which may be wide. Shapes: -> (N, C)."""
        run = partial(run_model, model.eval()) if isinstance(model, FederatedModel) else model

        def without_features(inputs: Tensor) -> Outputs:
            logits_NC = run(inputs).logits_NC
            return Outputs(features_ND=logits_NC.new_empty((len(logits_NC), 0)), logits_NC=logits_NC)

        return self.outputs_of(without_features, samples).logits_NC

    def tensor(self, name: str) -> Tensor | None:
        """A float array of the global state on the training's device; None where it is not there yet."""
        array = self.work.state.get(name)
        return None if array is None else torch.tensor(np.asarray(array, np.float32), device=self.device)

    @property
    def weight_steps(self) -> int:
        """Of rows' weights, as `Units.weights_N`: 1 / steps is a whole number of ring units wherever counts
        under noise are whole numbers of them, so that nothing of a count is rounded."""
        layout = self.work.layout
        scales = [each.noise.scale for each in layout.quantities if each.noise] if layout is not None else []
        return int(min([WEIGHT_STEPS, *(scale for scale in scales if scale >= 1.0)]))

    @property
    def class_counts_C(self) -> Tensor:
        """This silo's own training samples by class; they stay here."""
        counts_C = np.bincount(self.work.data.train.labels, minlength=self.work.spec.classes)
        return torch.tensor(counts_C, dtype=torch.float32, device=self.device)

    @property
    def sent_rows_C(self) -> NDArray[np.bool_]:
        """Classes whose rows this silo sends. Before the class-presence sum it is unknown who else
        holds a class, so no row is sent. In a private job all are: noise protects them in any case."""
        if self.is_private:
            return np.ones(self.work.spec.classes, dtype=np.bool_)
        rows_C = self.work.class_rows
        return np.zeros(self.work.spec.classes, dtype=np.bool_) if rows_C is None else rows_C


def kept_model(setting: Setting, prefix: str) -> FederatedModel | None:
    """The received model with the arrays that the local state has of it, frozen; None where it has none.

    Raises ConfigError for arrays of another model.
    """
    kept = {
        MODEL + name.removeprefix(prefix): array
        for name, array in setting.work.local.arrays.items()
        if name.startswith(prefix)
    }
    if not kept:
        return None
    model = frozen_copy(setting.received)
    try:
        load_arrays(model, {**model_arrays(model), **kept})
    except RemoteProtocolError:
        raise ConfigError(f"local state: {prefix} is not of this job's model") from None
    return model


def model_to_keep(
    model: FederatedModel, prefix: str, *, names: Collection[str] | None = None
) -> dict[str, Array]:
    """Arrays for the local state. names: of those to keep, without prefix; None: all."""
    arrays = {name.removeprefix(MODEL): array for name, array in model_arrays(model).items()}
    return {prefix + name: array for name, array in arrays.items() if names is None or name in names}


def own_names(work: Work) -> set[str]:
    """Of the model's arrays in the state, those of the silo's own part. Raises ConfigError."""
    return work.spec.method.own(trained_names(work.state), buffer_names(work.state))
