"""FedCSD's class-similarity distillation: the teacher's logits, refined and masked, as soft targets.

Yan et al. 2023 (arXiv 2308.10162). With z the student's logits, z_xi the teacher's and P the global logit
prototypes of the round:

    delta-hat = softmax_c( cos(z, P[c]) )                          Eqs. 8, 9
    q_xi = softmax( delta-hat * z_xi / tau ), q = softmax( z / tau )     Eqs. 10, 11
    M = 1 if softmax(z_xi)[y] > 1/C, else 0                        Eq. 13
    R = -M tau^2 sum_c q_xi[c] log q[c]                            Eq. 14

The mean, which training takes, runs over all samples, those with M = 0 included. The paper does not say
whether the gradient also flows through delta-hat; it is stopped there unless `grad_through_delta`.
A method without the statistic logit-prototypes takes 1/C for every delta-hat, which is their mean, or with
`own_prototypes` the silo's own prototypes (Eq. 6). Adds nothing to what leaves the silo.

The authors' code (IAMJackYan/FedCSD at 4b8baaf, train_ours.py, lines 125 to 163) has a silo's own prototypes,
M by softmax(delta-hat * z_xi)[y] (`mask: refined`), KL with the gradient through delta-hat, and the sum
(1 - mu) CE + mu R.

The teacher is the moving mean of the global models (Eq. 12), which strategies/parts/csd.py makes. It is run
once a round over the samples, in eval mode, takes no gradient, and draws no random number that training would
miss. The prototypes phase and training want the same answers, so the second of them finds those of the first.

N = samples, C = classes.
"""

from __future__ import annotations

import hashlib
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import log_softmax, nll_loss, softmax

from crypto.errors import Refusal, RemoteProtocolError
from silo_agent.training.base.batches import Batches
from silo_agent.training.base.passes import Outputs, Run, frozen_copy, run_model
from silo_agent.training.base.setting import Setting
from silo_agent.training.models.row_functions import SMALLEST_NORM
from silo_agent.training.models.state import load_arrays
from strategies.parts.csd import CsdOptions, Distance, Mask, teacher_state
from strategies.parts.statistics.logit_prototypes import LOGIT_PROTOTYPES, PROTOTYPES


class ClassSimilarityDistillation:
    """Shapes: prototypes (C, C), row = class; a class that no silo sent has a zero row. None: weights 1/C."""

    def __init__(self, prototypes_CC: Tensor | None, options: CsdOptions) -> None:
        self._unit_CC = None if prototypes_CC is None else unit_or_zero(prototypes_CC)
        self._options = options

    def per_sample(self, student: Outputs, teacher: Outputs, labels_N: Tensor) -> Tensor:
        tau, z_NC = self._options.tau, student.logits_NC
        compared_NC = z_NC if self._options.grad_through_delta else z_NC.detach()
        refined_NC = self._weights(compared_NC) * teacher.logits_NC
        log_target_NC = log_softmax(refined_NC / tau, dim=1)
        judged_NC = refined_NC.detach() if self._options.mask is Mask.REFINED else teacher.logits_NC
        taught_N = mask_of(self._options.mask, judged_NC, labels_N)
        gap_NC = log_softmax(z_NC / tau, dim=1)
        if self._options.form is Distance.KL:
            gap_NC = gap_NC - log_target_NC
        return (log_target_NC.exp() * (-(tau**2) * taught_N)[:, None] * gap_NC).sum(dim=1)

    def _weights(self, z_NC: Tensor) -> Tensor:
        if not self._options.similarity:
            return torch.ones_like(z_NC)
        if self._unit_CC is None:
            return torch.full_like(z_NC, 1.0 / z_NC.shape[1])
        return softmax(similarities(z_NC, self._unit_CC), dim=1)


def class_similarity_distillation(setting: Setting) -> ClassSimilarityDistillation:
    """The regularizer of this round. Raises RemoteProtocolError for a state without its prototypes."""
    if setting.work.spec.method.recipe.statistic is not LOGIT_PROTOTYPES:
        options = setting.options(CsdOptions)
        return ClassSimilarityDistillation(
            own_prototypes(setting) if options.own_prototypes else None, options
        )
    prototypes_CC, classes = setting.tensor(PROTOTYPES), setting.work.spec.classes
    if prototypes_CC is None or prototypes_CC.shape != (classes, classes):
        got = "none" if prototypes_CC is None else tuple(prototypes_CC.shape)
        raise RemoteProtocolError(
            f"global state: {PROTOTYPES} is {got}, expected {(classes, classes)}", code=Refusal.STATE
        )
    return ClassSimilarityDistillation(prototypes_CC, setting.options(CsdOptions))


def own_prototypes(setting: Setting) -> Tensor:
    """P_k, which stays at this silo; a class that it lacks has a zero row. Shapes: -> (C, C)."""
    samples, classes = setting.train, setting.work.spec.classes
    logits_NC = teacher_logits(setting, samples)
    counts_C = torch.bincount(samples.labels, minlength=classes).clamp(min=1)
    sums_CC = logit_sums(logits_NC, samples.labels, classes=classes)
    return (sums_CC / counts_C[:, None]).to(logits_NC.dtype)


def logit_sums(logits_NC: Tensor, labels_N: Tensor, *, classes: int) -> Tensor:
    """Row c sums the logits of the samples of class c. Shapes: -> (C, C) float64."""
    sums_CC = torch.zeros((classes, classes), dtype=torch.float64, device=logits_NC.device)
    return sums_CC.index_add_(0, labels_N, logits_NC.double())


def ema_teacher(setting: Setting) -> Run:
    """Raises RemoteProtocolError for a teacher that is not the job's model."""
    teacher = frozen_copy(setting.received)
    load_arrays(teacher, teacher_state(setting.work.state))
    return partial(run_model, teacher)


def teacher_answers(setting: Setting, samples: Batches) -> Outputs:
    """Logits alone: nothing compares this teacher's features. Raises RemoteProtocolError, Cancelled."""
    logits_NC = teacher_logits(setting, samples)
    return Outputs(features_ND=logits_NC.new_empty((len(samples), 0)), logits_NC=logits_NC)


def teacher_logits(setting: Setting, samples: Batches) -> Tensor:
    """Shapes: -> (N, C). Raises RemoteProtocolError for a teacher that is not the job's model, Cancelled."""
    arrays = teacher_state(setting.work.state)

    def run() -> Tensor:
        return setting.logits_of(ema_teacher(setting), samples)

    # job, silo and every byte of the teacher: the digest of the whole state changes within a round
    key = hashlib.sha256((setting.work.spec.model_dump_json() + setting.work.silo).encode())
    for name in sorted(arrays):
        key.update(name.encode())
        key.update(np.ascontiguousarray(arrays[name]).data)
    return setting.cache.logits(key.digest(), run)


def similarities(z_NC: Tensor, unit_CC: Tensor) -> Tensor:
    """delta: cosines of each sample's logits with each class's prototype, 0 where either is zero.

    unit: the prototypes' `unit_or_zero`. Shapes: -> (N, C).
    """
    return unit_or_zero(z_NC) @ unit_CC.T


def mask_of(mask: Mask, teacher_NC: Tensor, labels_N: Tensor) -> Tensor:
    """M, a 1 for every sample that the teacher teaches. Shapes: -> (N,)."""
    match mask:
        case Mask.ADAPTIVE | Mask.REFINED:
            # softmax(z_xi)[y] > 1/C, as C exp(z[y]) > sum exp(z): exactly equal, so false, where all z are
            shares_NC = (teacher_NC - teacher_NC.amax(dim=1, keepdim=True)).exp()
            # nll_loss takes the label's value, in less time than gather
            own_N = -nll_loss(shares_NC, labels_N, reduction="none")
            is_taught_N = teacher_NC.shape[1] * own_N > shares_NC.sum(dim=1)
        case Mask.FORCIBLE:
            is_taught_N = teacher_NC.argmax(dim=1) == labels_N
        case Mask.NONE:
            is_taught_N = torch.ones_like(labels_N, dtype=torch.bool)
    return is_taught_N.to(teacher_NC.dtype)


def unit_or_zero(rows_NC: Tensor) -> Tensor:
    """Rows at unit length; a zero row stays zero and passes on no huge gradient."""
    norms_N1: Tensor = torch.linalg.vector_norm(rows_NC, dim=1, keepdim=True)
    return rows_NC / norms_N1.masked_fill(norms_N1 < SMALLEST_NORM, 1.0)
