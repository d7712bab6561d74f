"""FedDW's regularizer: the head's rows relate to one another as the soft labels say the classes do.

Liu et al., FedDW, Eq. 11: R = ||Omega - S||_F^2 / C^2 with S the softmax of each row of W W^T; no
temperature, no scaling, no normalized rows. Omega, the soft-label matrix of the round before, is data;
in a method without the statistic soft-labels it stays what `init_slm` says.
Both factors of W W^T are differentiated; nothing but the head's weight takes a gradient. A class whose
row is not known drops out of the sum, and C^2 stays.

C = classes, D = feature width.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from silo_agent.training.models.base import CutModel
from silo_agent.training.parts.base import Setting
from strategies.parts.soft_labels import SoftLabelOptions, soft_labels_in


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassRelations:
    """Shapes: soft_labels (C, C), is_known (C,) bool. The same for every batch of a round."""

    soft_labels_CC: Tensor = field(repr=False)
    is_known_C: Tensor

    def penalty(self, model: CutModel) -> Tensor:
        """Shapes: -> (). Constant, so without a gradient, where no row is known."""
        if not bool(self.is_known_C.any()):
            return torch.zeros((), device=self.soft_labels_CC.device)
        return relation_gap(model.head.weight, self.soft_labels_CC, is_known_C=self.is_known_C)


def class_relations(setting: Setting) -> ClassRelations:
    """The penalty of this round. Raises RemoteProtocolError for a state of another shape."""
    matrix = soft_labels_in(
        setting.work.state, classes=setting.work.spec.classes, options=setting.options(SoftLabelOptions)
    )
    return ClassRelations(
        soft_labels_CC=torch.tensor(matrix.rows_CC, dtype=torch.float32, device=setting.device),
        is_known_C=torch.tensor(matrix.is_known_C, device=setting.device),
    )


def relations_of(weight_CD: Tensor) -> Tensor:
    """S: softmax of each row of the Gram matrix. Shapes: (C, D) -> (C, C)."""
    return torch.softmax(weight_CD @ weight_CD.T, dim=1)


def relation_gap(weight_CD: Tensor, soft_labels_CC: Tensor, *, is_known_C: Tensor) -> Tensor:
    """The mean squared difference of all C^2 entries, unknown rows counting as none. Shapes: -> ()."""
    squares_CC = (soft_labels_CC - relations_of(weight_CD)) ** 2
    return (is_known_C[:, None] * squares_CC).sum() / soft_labels_CC.numel()
