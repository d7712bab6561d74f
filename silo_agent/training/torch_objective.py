"""The built-in objective: one phase of a job on this silo's data, with torch.

What leaves is what the phase's quantities name, all of it inside one secure sum.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from chorale.observability.logs import get_logger
from chorale.spec.job_spec import JobSpec
from crypto.errors import ConfigError, Refusal, RemoteProtocolError
from silo_agent.training.base.batches import PRIVATE_BATCH, DeviceCopies, batches_of
from silo_agent.training.base.evaluation import NO_METRICS, Figures, evaluate
from silo_agent.training.base.setting import Setting, TeacherCache, own_names
from silo_agent.training.base.shares import ALONE, BatchShares
from silo_agent.training.data.base import Samples
from silo_agent.training.dp_sgd.checks import (
    BATCH_NORM,
    Probes,
    check_answers,
    check_keeps_samples_apart,
    one_thread,
)
from silo_agent.training.local_loss import evaluation_loss_for, local_loss, loss_for
from silo_agent.training.loop.local_training import summed_gradient
from silo_agent.training.loop.tree_level import bin_sums
from silo_agent.training.machine.devices import device_of, float32_kernels
from silo_agent.training.machine.seeding import seeded, shuffler
from silo_agent.training.models.base import FederatedModel
from silo_agent.training.models.forms import Forms
from silo_agent.training.models.registry import job_model_on_its_base
from silo_agent.training.models.state import flat_arrays, flat_values, load_arrays, model_arrays
from silo_agent.training.objective import PersonalModel, Work
from silo_agent.training.parts.closing.fine_tuning import fine_tune
from silo_agent.training.parts.computed_parts import (
    PERSONALIZATIONS,
    PHASES,
    SERVER_UPDATES,
    STATISTICS,
    computed,
    computed_regularizers,
)
from strategies.analysis.subgroups import RECORDS, SUBGROUPS, SubgroupsPhase, named
from strategies.base import MODEL, Array
from strategies.parts.closing.fine_tuning import FINE_TUNE
from strategies.phases.enrollment import CLASS_PRESENCE
from strategies.phases.evaluation import EVALUATE, EVALUATE_ALL
from strategies.phases.step import GRADIENT
from strategies.phases.training import TRAIN
from strategies.tasks.base import LOSS_CLIP

log = get_logger("silo_agent.training.torch_objective")


class TorchObjective:
    """Trains, tests and computes statistics in this process, on the GPU where there is one.

    device, gpu: as `device_of`'s asked and place. threads: of one training; more than one per silo on a
    shared machine is slower, not faster. base_models: the silo's folder of weights that adapters are put
    beside.
    forms: in which number type and memory order models are computed. shares: how batches are cut. A private
    job takes neither: it runs in float32, in one process.
    """

    def __init__(
        self,
        *,
        device: str = "auto",
        gpu: int = 0,
        threads: int = 1,
        base_models: Path | None = None,
        forms: Forms | None = None,
        shares: BatchShares = ALONE,
    ) -> None:
        self._device = device_of(device, place=gpu)
        self._threads, self._forms, self._shares = threads, forms or Forms(), shares
        self._halved: tuple[JobSpec, BatchShares] | None = None  # the job that is too large in whole batches
        self._cache, self._copies = TeacherCache(), DeviceCopies()
        self._last_private: JobSpec | None = None
        self._checked: JobSpec | None = None  # the job whose steps' model was tried with probes
        self._earlier = EarlierPhases()
        self._base_models = base_models
        self._with_base: tuple[JobSpec, FederatedModel] | None = None

    @property
    def device(self) -> torch.device:
        return self._device

    def compute(self, work: Work) -> Mapping[str, Array]:
        """The quantities of the phase. Raises ConfigError, RemoteProtocolError, Cancelled.

        Deterministic on a CPU: everything random follows from the work's seed, but for DP-SGD. A private
        job is refused before its data are used if the model does not treat each sample by itself.
        Where a GPU's memory ends, the phase is computed once more from its beginning, with half a batch in
        the model at a time, and so are the job's next ones: the same sums up to rounding.
        """
        shares, is_halved = self._shares, False
        if self._halved is not None and self._halved[0] == work.spec:
            shares, is_halved = self._halved[1], True
        try:
            return self._computed(work, shares)
        except torch.OutOfMemoryError:
            most = shares.most(work.spec.training.batch_size)
            self._check_can_halve(work.spec, most, is_halved=is_halved)
        self._free()  # not before: the error holds what was being computed
        log.warning(
            "out of memory: half a batch at a time from now on", job=work.spec.name, samples=most // 2
        )
        self._halved = work.spec, replace(shares, micro_batch=most // 2)
        try:
            return self._computed(work, self._halved[1])
        except torch.OutOfMemoryError:
            self._check_can_halve(work.spec, most // 2, is_halved=True)
            raise

    def _check_can_halve(self, spec: JobSpec, most: int, *, is_halved: bool) -> None:
        """Raises ConfigError where half a batch at a time was tried, or would compute something else."""
        what = f"device: {self._device} has too little memory for this model with"
        privacy = spec.privacy
        if privacy is not None and privacy.records is not None:
            raise ConfigError(
                f"{what} {PRIVATE_BATCH} samples, which every private job takes at a time: set device: cpu"
            )
        has_norm = any(isinstance(layer, BATCH_NORM) for layer in self._built_model(spec).modules())
        if is_halved or has_norm or privacy is not None or self._shares.processes > 1 or most == 1:
            advice = f"set micro_batch below {most} or device: cpu" if most > 1 else "set device: cpu"
            norm = "; batch normalization then sees a part of each batch" if has_norm and most > 1 else ""
            raise ConfigError(f"{what} {most} samples at a time: {advice}{norm}")

    def _free(self) -> None:
        """What may be computed again."""
        self._cache, self._copies = TeacherCache(), DeviceCopies()
        gc.collect()
        torch.cuda.empty_cache()

    def _computed(self, work: Work, shares: BatchShares) -> Mapping[str, Array]:
        phases: dict[str, Callable[[Setting], Mapping[str, Array]]] = {
            CLASS_PRESENCE: presence,
            TRAIN: self._train,
            EVALUATE: evaluated,
            EVALUATE_ALL: evaluated,
            SUBGROUPS: by_subgroup,
            FINE_TUNE: lambda setting: fine_tune(setting, local_loss, tested_by=evaluation_loss_for(setting)),
            **PHASES,
        }
        computes = phases.get(work.phase_kind)
        if computes is None:
            raise ConfigError(f"objective: the built-in training has no phase {work.phase_kind}")
        torch.set_num_threads(self._threads)
        privacy = work.spec.privacy
        kernels = float32_kernels(self._device, is_private=privacy is not None)
        threads = nullcontext() if privacy is None else one_thread()
        with kernels, threads, seeded(work.seed, self._device):
            received = self._received_model(work)
            setting = Setting(
                work=work,
                received=self._forms.of(received, work.spec).give(received),
                device=self._device,
                cache=self._cache,
                copies=self._copies,
                shares=shares,
            )
            if privacy is not None:
                self._tell_private(work)
                check_keeps_samples_apart(received)
            if privacy is not None and privacy.has_shared_noise and work.phase_kind == TRAIN:
                return self._step(setting)
            if privacy is not None:
                spec = work.spec
                probes = Probes(
                    input_shape=spec.input_shape,
                    input_type=spec.input_type,
                    target=spec.method.task.target,
                    device=self._device,
                )
                check_answers(received, probes, loss=evaluation_loss_for(setting))
            started = time.monotonic()
            values = computes(setting)
            self._earlier.add(work, seconds=time.monotonic() - started)
            return values

    def test(self, work: Work) -> Mapping[str, Array]:
        """What a round sums of the received model over the work's hold-out, and of no silo's own model.
        For data that are nobody's secret: no clip, no noise."""
        with float32_kernels(self._device), seeded(work.seed, self._device):
            received = self._received_model(work)
            return _test_of(Setting(work=work, received=received, device=self._device))(received).sums

    def _step(self, setting: Setting) -> Mapping[str, Array]:
        """The step's gradient alone: a step tests nothing."""
        spec = setting.work.spec
        gradient_P = summed_gradient(
            setting, local_loss(setting, setting.train), is_checked=self._checked == spec
        )
        # kernels are chosen by shapes, which stay; the probes are ten times a step's work
        self._checked = spec
        return {GRADIENT: gradient_P}

    def _tell_private(self, work: Work) -> None:
        """Once a job. Its exactness is that of float32 in one process (docs/privacy.md)."""
        if self._last_private != work.spec and (self._forms.asks_more or self._shares != ALONE):
            log.warning(
                "private job: trains in float32 and in one process, whatever the settings ask",
                job=work.spec.name,
            )
        self._last_private = work.spec

    def _received_model(self, work: Work) -> FederatedModel:
        model = self._built_model(work.spec)
        load_arrays(model, work.state)
        trained, parameters = work.context.trained, dict(model.named_parameters())
        unknown = [name for name in trained if name not in parameters]
        if unknown:
            raise RemoteProtocolError(
                f"global state: trained parameter {unknown[0]} is not in the job's model", code=Refusal.STATE
            )
        learned = {*trained, *own_names(work)}
        for name, parameter in parameters.items():
            parameter.requires_grad_(name in learned)
        return model.to(self._device)

    def _built_model(self, spec: JobSpec) -> FederatedModel:
        """Before the state is loaded. One with adapters is kept: its base is large and never changes."""
        if self._with_base is not None and self._with_base[0] == spec:
            return self._with_base[1]
        self._with_base = None  # the old one's memory first
        model = job_model_on_its_base(spec, self._base_models)
        if spec.adapters is not None:
            self._with_base = (spec, model)
        return model

    def _train(self, setting: Setting) -> Mapping[str, Array]:
        """Test the received model where this round does so, train it, then compute the method's further
        sums."""
        work, recipe = setting.work, setting.work.spec.method.recipe
        tested = evaluated(setting) if work.context.tests_model else {}
        if recipe.growth is not None:
            return {**bin_sums(setting), "weight": np.asarray(work.weight, np.float64), **tested}
        samples = setting.train
        started = time.monotonic()
        generator = shuffler(work.seed)
        correction = computed(recipe.server_update, SERVER_UPDATES).correction
        loss = local_loss(setting, samples)
        if correction is not None:
            loss = replace(loss, penalties=(*loss.penalties, (1.0, correction(work))))
        steps = computed(recipe.personalization, PERSONALIZATIONS).train(setting, samples, generator, loss)
        for regularizer in computed_regularizers(work.spec):
            if regularizer.keep is not None:
                regularizer.keep(setting)
        trained, statistics = time.monotonic(), dict[str, Array]()
        if recipe.statistic is not None:
            compute = computed(recipe.statistic, STATISTICS)
            statistics |= {} if compute is None else compute(setting, samples)
            earlier, ended = self._earlier.seconds(work), time.monotonic()
            # units: seconds, without the test of the received model
            share = (earlier + ended - trained) / max(earlier + ended - started, 1e-9)
            log.info(
                "statistics computed",
                round=work.round,
                phase=work.phase_kind,
                share_of_round=round(share, 4),
            )
        return {**contribution(setting.received, work, steps=steps), **tested, **statistics}


def presence(setting: Setting) -> Mapping[str, Array]:
    """A 1 for every class that this silo trains on, with as many samples as the closing asks for.

    Shapes: (C,) int64.
    """
    least = max(1, setting.work.spec.method.recipe.closing.least_class_samples)
    counts_C = np.bincount(setting.work.data.train.labels, minlength=setting.work.spec.classes)
    return {"class_presence": (counts_C >= least).astype(np.int64)}


def evaluated(setting: Setting) -> Mapping[str, Array]:
    """The received model's figures on the hold-out and, where a part of it is the silo's own, how good the
    silo's own model is. At the end that model stays with the institution.

    Where the whole model is the silo's own, the sums are of that one alone, and there are none in a round
    that sums nothing of the data.
    """
    work, method = setting.work, setting.work.spec.method
    own_models, score = method.recipe.personalization, method.task.score
    if own_models.shares_nothing and work.phase_kind == TRAIN and method.recipe.statistic is None:
        return {}
    tested = _test_of(setting)
    received: Figures | None = None
    if not own_models.shares_nothing:
        received = tested(
            setting.received,
            metrics=method.task.asked if work.phase_kind == EVALUATE else NO_METRICS,
            loss_clip=None if work.spec.privacy is None else LOSS_CLIP,
            weight_steps=setting.weight_steps,
        )
    sums = {} if received is None else received.sums
    find_own = computed(own_models, PERSONALIZATIONS).model
    if find_own is None:
        return sums
    model = find_own(setting, setting.train, loss_for(setting))
    own = tested(model)
    if work.phase_kind == EVALUATE:
        work.keep_personal(
            PersonalModel(
                arrays=model_arrays(model),
                tuned=own_models.word,
                epochs=work.spec.training.passes_over(len(work.data.train)),
                learning_rate=work.spec.learning_rate_at(work.spec.rounds),
                tested=own.tested,
                score_before=None if received is None else score(received.sums),
                score=score(own.sums),
            )
        )
    return {**sums, **own.personal_quantities(score)}


def by_subgroup(setting: Setting) -> Mapping[str, Array]:
    """The received model's sums over the records of each part that the closing evaluation tests on. Shapes:
    (P, ...) each, records by class."""
    work = setting.work
    phase, samples = work.spec.method.phase(SUBGROUPS), work.data.tested
    # other data than tables were refused when they were read
    assert isinstance(phase, SubgroupsPhase)
    assert isinstance(samples, Samples)
    assert samples.subgroups is not None
    found: dict[str, list[Array]] = {named(each): [] for each in phase.sums}
    records_PC = np.zeros((phase.partition.size, phase.classes), np.int64)
    for part, records_C in enumerate(records_PC):
        chosen = samples.take(np.flatnonzero(samples.subgroups == part))
        classes_N = chosen.labels if phase.task.has_classes else np.zeros(len(chosen), np.int64)
        records_C += np.bincount(classes_N, minlength=phase.classes)
        tested = evaluate(
            setting.received,
            batches_of(chosen, setting.device, micro_batch=setting.shares.micro_batch),
            loss=evaluation_loss_for(setting),
            task=setting.task,
            sums=phase.task.round_sums,
            is_cancelled=work.is_cancelled,
            metrics=phase.metrics,
        )
        for each in phase.sums:
            found[named(each)].append(tested.sums[each.name])
    return {RECORDS: records_PC, **{name: np.stack(parts) for name, parts in found.items()}}


def _test_of(setting: Setting) -> Callable[..., Figures]:
    """A test on the hold-out by what a round sums, still without its model."""
    return partial(
        evaluate,
        samples=setting.holdout,
        loss=evaluation_loss_for(setting),
        task=setting.task,
        sums=setting.work.spec.method.task.round_sums,
        is_cancelled=setting.work.is_cancelled,
    )


def contribution(model: FederatedModel, work: Work, *, steps: int) -> Mapping[str, Array]:
    """What a trained model adds to the sum: p * delta, p, the buffers, and what the server update needs; p
    alone where the whole model is the silo's own.

    Shapes: delta (P,) float32, weight () float64, and buffers (B,) float32 if the model has any. P = trained
    parameters, B = values of the float buffers.
    """
    context, weight = work.context, np.float32(work.weight)
    if not context.trained:
        return {"weight": np.asarray(work.weight, dtype=np.float64)}
    before_P = flat_arrays([work.state[MODEL + name] for name in context.trained])
    delta_P = flat_values(model, context.trained) - before_P
    privacy = work.spec.privacy
    if privacy is not None and privacy.sums is not None and not np.isfinite(delta_P).all():
        # under noise on the sums a refusal would reveal of the data what no noise covers
        delta_P = np.zeros_like(delta_P)
    values: dict[str, Array] = {
        "delta": weight * delta_P,
        "weight": np.asarray(work.weight, dtype=np.float64),
    }
    if context.buffers:
        values["buffers"] = weight * flat_values(model, context.buffers)
    summed = computed(work.spec.method.recipe.server_update, SERVER_UPDATES).summed
    return values if summed is None else {**values, **summed(work, delta_P, steps)}


class EarlierPhases:
    """How long the phases of a round took that ran before its training: the last round's alone."""

    def __init__(self) -> None:
        self._round: tuple[JobSpec, str, int] | None = None
        self._seconds = 0.0

    def add(self, work: Work, *, seconds: float) -> None:
        if self._round != _round_of(work):
            self._round, self._seconds = _round_of(work), 0.0
        self._seconds += seconds

    def seconds(self, work: Work) -> float:
        return self._seconds if self._round == _round_of(work) else 0.0


def _round_of(work: Work) -> tuple[JobSpec, str, int]:
    # the whole job: two of them may have one nonce
    return work.spec, work.silo, work.round
