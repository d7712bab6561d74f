"""A network trained without privacy on public images, as the file that a job of the head alone begins from:
`python -m research.private_sum.body --out body.safetensors`; docs/examples/job-head.yaml is such a job.

digits: scikit-learn's 1,797 scans, which are of another source than MNIST's, enlarged, turned, sheared and
moved at random. fashion: the first half of Fashion-MNIST, images of another kind. The head is zero: a job
trains its own.
"""

# N = images, D = feature width

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import affine_grid, cross_entropy, grid_sample, interpolate, pad

from bench.options import Parser
from chorale.spec.state import state_to_bytes
from client.submission import NEVER, read_spec
from research.private_sum.images import images
from silo_agent.training.data.base import Samples
from silo_agent.training.data.formats.digits import read_all
from silo_agent.training.machine.seeding import shuffler
from silo_agent.training.models.base import FederatedModel
from silo_agent.training.models.registry import job_model
from silo_agent.training.models.starting import initial_state
from silo_agent.training.models.state import load_arrays, model_arrays

JOB = Path(__file__).resolve().parents[2] / "docs" / "examples" / "job-head.yaml"
DIGITS_PASSES, FASHION_PASSES = 60, 2
FASHION_IMAGES = 30_000
SIDE, MARGIN = 28, 4  # MNIST has its digits in the middle
BATCH = 64
LEARNING_RATE = 1e-3  # of Adam
SEED = 0
AT_ONCE = 500  # images whose features are computed together


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    model = trained(options.fashion)
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias.zero_()
    options.out.write_bytes(state_to_bytes(model_arrays(model)))
    return 0


def trained(fashion: Path | None = None) -> FederatedModel:
    """The network after so many passes over the digits; the same bits each time on one machine.

    fashion: folder of Fashion-MNIST's four idx files, for a body trained on those.
    """
    torch.set_num_threads(1)
    generator = shuffler(SEED)
    images_N, labels_N = public_digits() if fashion is None else _fashion(fashion)
    spec = read_spec(JOB, not_after=NEVER)
    model = job_model(spec)
    with torch.no_grad():
        load_arrays(model, initial_state(spec))
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    for _ in range(DIGITS_PASSES if fashion is None else FASHION_PASSES):
        order_N = torch.randperm(len(images_N), generator=generator)
        for start in range(0, len(order_N), BATCH):
            places = order_N[start : start + BATCH]
            batch = images_N[places] if fashion else moved(images_N[places], generator)
            optimizer.zero_grad()
            cross_entropy(model(batch), labels_N[places]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return model


def public_digits() -> tuple[Tensor, Tensor]:
    """Enlarged to MNIST's size and place. Shapes: -> (N, 1, 28, 28) float32, (N,) int64."""
    found = read_all()
    inner = SIDE - 2 * MARGIN
    large = interpolate(
        torch.from_numpy(found.features), (inner, inner), mode="bilinear", align_corners=False
    )
    return pad(large, (MARGIN,) * 4), torch.from_numpy(found.labels)


def moved(batch: Tensor, generator: torch.Generator) -> Tensor:
    """Each image turned by up to 0.3 radians, sheared, stretched by 0.8 to 1.3, moved by up to 2 pixels."""
    turn_N, shear_N, right_N, down_N = (
        most * (2.0 * torch.rand(len(batch), generator=generator) - 1.0) for most in (0.3, 0.3, 0.15, 0.15)
    )
    scale_N = 0.8 + 0.5 * torch.rand(len(batch), generator=generator)
    cosine_N, sine_N = scale_N * torch.cos(turn_N), scale_N * torch.sin(turn_N)
    across = torch.stack([cosine_N, scale_N * shear_N - sine_N, right_N], dim=1)
    along = torch.stack([sine_N, cosine_N, down_N], dim=1)
    grid = affine_grid(torch.stack([across, along], dim=1), list(batch.shape), align_corners=False)
    return grid_sample(batch, grid, align_corners=False)


def features(model: FederatedModel, samples: Samples) -> NDArray[np.float64]:
    """What the head gets, and a 1 for its bias. Shapes: (N, 1, 28, 28) -> (N, D + 1)."""
    with torch.no_grad():
        parts = [
            model.features(torch.from_numpy(samples.features[start : start + AT_ONCE]))
            for start in range(0, len(samples), AT_ONCE)
        ]
    found_ND = torch.cat(parts).double().numpy()
    return np.hstack([found_ND, np.ones((len(found_ND), 1))])


def _fashion(folder: Path) -> tuple[Tensor, Tensor]:
    own = images(folder).own.take(slice(FASHION_IMAGES))
    return torch.from_numpy(own.features), torch.from_numpy(own.labels)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser("private_sum.body", __doc__, package="research")
    parser.add_argument("--fashion", type=Path, help="folder of Fashion-MNIST; default: the digits")
    parser.add_argument("--out", type=Path, required=True, help="file of the body, safetensors")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
