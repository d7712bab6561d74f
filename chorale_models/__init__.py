"""What an institution brings of its own: models, tasks, data, losses and regularizers (docs/own-models.md).

Chorale's own networks, tasks and data formats are written with the same names. Importing this package does
not
import torch.
"""

from chorale_models.data import Data
from chorale_models.model import Model, Normal, Sizes, model
from chorale_models.parts import Loss, Regularizer
from chorale_models.task import Task
from strategies.tasks.base import Sum, Target

__all__ = ["Data", "Loss", "Model", "Normal", "Regularizer", "Sizes", "Sum", "Target", "Task", "model"]
