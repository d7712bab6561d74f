"""Personal models on the institution's disk: one file for each job that fine-tuned one here.

A file is an output for the institution: no round reads it, and it stays when the job ends. It is written when
it is computed, durable before anything of its phase leaves; a phase that comes again replaces it, until a sum
with this silo in it was revealed. It is safetensors with arrays named as in the global state and with facts
in its metadata: which job, from which global model, what was tuned, how it does on the silo's hold-out.
It was made from the silo's data without noise and never leaves by itself: giving it away reveals something
about the data. Source: docs/protocol.md 7.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import safetensors
import safetensors.numpy

from chorale.job import Job
from chorale.runtime.files import write_atomic
from chorale.spec.model_file import facts_of
from chorale.transport.wire import PhaseKey
from crypto.errors import ConfigError
from silo_agent.training.objective import PersonalModel

SUFFIX = ".safetensors"
ANY_ATTEMPT = 1  # all attempts at a phase send the same input


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptModel:
    """A personal model's file, the phase that it was computed for, and its facts."""

    path: Path
    key: PhaseKey
    facts: Mapping[str, str]

    @property
    def id(self) -> str:
        return self.key.job_digest.hex()[:12]


class PersonalModels:
    """The folder of these files. It need not exist."""

    def __init__(self, directory: Path, *, is_revealed: Callable[[PhaseKey], bool]) -> None:
        self._directory = directory
        self._is_revealed = is_revealed

    def keep(self, model: PersonalModel, *, job: Job, key: PhaseKey, global_model: bytes) -> None:
        """Write the job's file in one step and durably. global_model: digest of the state it came from.

        Security: a coordinator may ask for the phase again with a state of its own making. What came of a
        state that t silos had is not replaced by what one alone may have.
        Raises ConfigError where the job's file is no personal model, OSError.
        """
        path = self._directory / f"{job.digest.hex()}{SUFFIX}"
        if path.exists() and self.is_confirmed(_opened(path)):
            return
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        for torn in self._directory.glob(f".{path.name}.*.tmp"):  # of a process that was killed
            torn.unlink()
        facts = {
            **facts_of(job.training, job_digest=job.digest, round=key.round),
            "phase": key.phase,
            "global_model": global_model.hex(),
            "tuned": model.tuned,
            "epochs": f"{model.epochs:g}",
            "learning_rate": f"{model.learning_rate:g}",
            "tested": str(model.tested),
        }
        if model.tested:
            facts["accuracy"] = f"{model.score:.6f}"
            if model.score_before is not None:
                facts["accuracy_of_global_model"] = f"{model.score_before:.6f}"
        write_atomic(path, safetensors.numpy.save(dict(model.arrays), metadata=facts))

    def is_confirmed(self, kept: KeptModel) -> bool:
        """Whether the sum of its phase was revealed with this silo in it: then at least t silos had the
        same global model to fine-tune."""
        return self._is_revealed(kept.key)

    def kept(self) -> list[KeptModel]:
        """All of them, the newest first. Raises ConfigError for a file that is none."""
        files = [path for path in self._directory.glob(f"*{SUFFIX}") if not path.name.startswith(".")]
        return [_opened(path) for path in sorted(files, key=lambda path: -path.stat().st_mtime_ns)]

    def find(self, job_id: str) -> KeptModel:
        """The model of the job whose digest begins so. Raises ConfigError unless there is exactly one."""
        found = [kept for kept in self.kept() if kept.key.job_digest.hex().startswith(job_id)]
        if len(found) != 1 or not job_id:
            known = ", ".join(kept.id for kept in self.kept()) or "none"
            raise ConfigError(
                f"{self._directory}: expected one personal model of a job {job_id}, got {len(found)}; "
                f"there are: {known}"
            )
        return found[0]


def _opened(path: Path) -> KeptModel:
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            facts = dict(file.metadata() or {})
        return KeptModel(
            path=path,
            key=PhaseKey(
                job_digest=bytes.fromhex(facts["job"]),
                round=int(facts["round"]),
                phase=facts["phase"],
                attempt=ANY_ATTEMPT,
            ),
            facts=facts,
        )
    except (safetensors.SafetensorError, OSError, KeyError, ValueError) as error:
        raise ConfigError(f"{path}: expected a personal model: {error}") from None
