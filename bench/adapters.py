"""A round of a large model by adapters at one silo, and what 7 billion weights would take.

    python -m bench.adapters --layers 12 --width 1024 --json

A llama from its configuration, with drawn weights in a file as a silo has them, LoRA on the projections of
queries and values, next-token loss on drawn tokens. One process computes what a silo does: it checks the file
and reads it, trains some steps in float32, tests. Seconds are of CPU, on a GPU of the clock. Memory is the
process's peak, pages of the file that it read among it. Bytes of a round are those of the encoded update;
with all weights they would be four a weight.
"""

from __future__ import annotations

import hashlib
import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import silo_agent.training.machine.torchvision_compat  # noqa: F401  transformers imports torchvision
from bench.options import Parser, whole
from chorale.spec.job_spec import JobSpec, phase_context
from chorale_models.model import model
from silo_agent.training.data.base import Samples, SiloData
from silo_agent.training.models import registry
from silo_agent.training.models.starting import initial_state
from silo_agent.training.objective import Work
from silo_agent.training.torch_objective import TorchObjective

FOLDER = Path("/var/tmp")  # /tmp is often in memory
WORDS, HEAD_WIDTH, RANK = 32_000, 64, 8
LARGE_WEIGHTS = 7e9  # a model of 32 layers of width 4,096
LARGE_ADAPTERS = 32 * 2 * 2 * RANK * 4_096  # of the same rank on the same two projections
WORD_BYTES = 4


class Language(nn.Module):
    """Shapes: tokens (N, L) -> logits of the next one (N, L, V)."""

    def __init__(self, layers: int, width: int) -> None:
        from transformers import LlamaConfig, LlamaForCausalLM

        super().__init__()
        config = LlamaConfig(
            vocab_size=WORDS,
            hidden_size=width,
            intermediate_size=width * 11 // 4,
            num_hidden_layers=layers,
            num_attention_heads=width // HEAD_WIDTH,
        )
        self.llama = LlamaForCausalLM(config)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.llama(input_ids=tokens, use_cache=False).logits
        return logits


def measure(
    folder: Path, *, device: str, layers: int, width: int, length: int, batch: int, steps: int
) -> dict[str, Any]:
    """What the rows are is in the docstring of this module."""
    # in place of one of ours: a network of another distribution would have to be installed
    registry.OWN["mlp"] = model()(lambda sizes, **_: Language(layers, width))
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as other:  # its memory is not counted
        weights, digest = other.submit(written, folder, layers=layers, width=width).result()
    job = job_of(digest, length=length, batch=batch)
    state = initial_state(job)
    objective = TorchObjective(device=device, threads=torch.get_num_threads(), base_models=folder)
    work = work_of(job, state, samples=batch * steps, length=length)
    testing = replace(work, phase_kind="evaluate")
    clock = time.process_time if device == "cpu" else time.perf_counter
    first, _ = timed(lambda: objective.compute(testing), clock)
    tested, _ = timed(lambda: objective.compute(testing), clock)
    trained, values = timed(lambda: objective.compute(work), clock)
    adapters = int(values["delta"].size)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "weights": weights,
        "adapter_weights": adapters,
        "round_bytes": adapters * WORD_BYTES,
        "round_bytes_of_all_weights": weights * WORD_BYTES,
        "base_bytes": weights * WORD_BYTES,
        "device": device,
        "gpu_peak_bytes": torch.cuda.max_memory_allocated() if device == "cuda" else None,
        "read_base_seconds": round(first - tested, 2),
        "step_seconds": round((trained - tested) / steps, 4),
        "tokens_a_second": round(batch * length * steps / (trained - tested), 1),
        "peak_bytes": peak,
        "peak_bytes_by_base_bytes": round(peak / (weights * WORD_BYTES), 2),
        "threads": torch.get_num_threads(),
        "7b": {
            "adapter_weights": LARGE_ADAPTERS,
            "round_bytes": LARGE_ADAPTERS * WORD_BYTES,
            "base_bytes": int(LARGE_WEIGHTS * WORD_BYTES),
            "read_base_seconds": round((first - tested) * LARGE_WEIGHTS / weights),
            "step_seconds": round((trained - tested) / steps * LARGE_WEIGHTS / weights, 2),
        },
    }


def written(folder: Path, *, layers: int, width: int) -> tuple[int, str]:
    """A base of drawn weights in the folder: how many, and the file's digest."""
    tensors = {name: each.contiguous() for name, each in Language(layers, width).state_dict().items()}
    path = folder / "base"
    save_file(tensors, path)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    path.rename(folder / f"{digest}.safetensors")
    return sum(each.numel() for each in tensors.values()), digest


def job_of(base: str, *, length: int, batch: int) -> JobSpec:
    """One round of next-token training beside the base of that digest."""
    return JobSpec.model_validate(
        {
            "name": "adapters",
            "federation": "bench",
            "not_after": "2100-01-01T00:00:00Z",
            "silos": ("a", "b", "c"),
            "rounds": 1,
            "model": {"name": "mlp"},
            "task": {"name": "next-token"},
            "classes": WORDS,
            "input_shape": (length,),
            "input_type": "int64",
            "adapters": {"rank": RANK, "targets": ("q_proj", "v_proj"), "base": base},
            "training": {"learning_rate": 0.01, "batch_size": batch},
        }
    )


def work_of(job: JobSpec, state: dict[str, Any], *, samples: int, length: int) -> Work:
    """A training phase over so many sequences, one of which is tested."""
    tokens = np.random.default_rng(1).integers(0, WORDS, (samples, length + 1))
    train = Samples(features=tokens[:, :-1].copy(), labels=tokens[:, 1:].copy())
    data = SiloData(train=train, holdout=train.take(np.arange(1)), name="bench")
    return Work(
        spec=job,
        phase_kind="train",
        round=1,
        silo="a",
        state=state,
        context=phase_context(job, 1, state, 3, public_seed=b""),
        data=data,
        weight=1 / 3,
        seed=1,
        is_cancelled=lambda: False,
    )


def timed(run: Callable[[], Any], clock: Callable[[], float]) -> tuple[float, Any]:
    started = clock()
    found = run()
    return clock() - started, found


def main(arguments: list[str] | None = None) -> None:
    """Read the options, measure, print."""
    parser = Parser("adapters", __doc__)
    parser.add_argument("--layers", type=whole(1, 200), default=12)
    parser.add_argument("--width", type=whole(64, 16_384), default=1_024, help="a multiple of 64")
    parser.add_argument("--length", type=whole(8, 8_192), default=128, help="tokens of a sample")
    parser.add_argument("--batch", type=whole(1, 1_024), default=4)
    parser.add_argument("--steps", type=whole(1, 10_000), default=4)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="cuda: wall seconds count")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    if options.width % HEAD_WIDTH:
        parser.error(f"--width: expected a multiple of {HEAD_WIDTH}, got {options.width}")
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        sizes = ("device", "layers", "width", "length", "batch", "steps")
        found = measure(Path(folder), **{name: getattr(options, name) for name in sizes})
    if options.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name:28} {value}")


if __name__ == "__main__":
    main(sys.argv[1:])
