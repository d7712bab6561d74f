"""When patients relapse: hazards of ten intervals, with losses to follow-up."""

import numpy as np
import torch

from chorale_models import Data, model


@model(head="2")
def hazard_net(sizes, *, width=32):
    columns = sizes.input_shape[0]
    return torch.nn.Sequential(
        torch.nn.Linear(columns, width), torch.nn.ReLU(), torch.nn.Linear(width, sizes.classes)
    )


def patients(sizes, *, samples=1500):
    random = np.random.default_rng(0)
    measured = np.float32(random.normal(size=(samples, *sizes.input_shape)))
    risk = measured[:, 0] - measured[:, 1] * (measured[:, 2] > 0)
    relapse = random.exponential(4 * np.exp(-risk))
    lost = random.uniform(0, 20, samples)
    interval = np.minimum(np.minimum(relapse, lost), sizes.classes - 1).astype(np.int64)
    targets = np.stack([interval, relapse <= lost], axis=1).astype(np.int64)
    return Data(train=list(zip(measured, targets, strict=True)))
