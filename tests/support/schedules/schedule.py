"""A schedule of faults as a pure value: the same seed is the same schedule, on every machine.

A fault begins when the coordinator's log says that a stage of a round is reached, some lines later, and for
some of them once so many bytes have passed its line; it is over after so many seconds.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from coordinator.phase_machine import PhaseState

COORDINATOR = "hub"
ONE_EACH = 10  # up to so many silos have a process each; more share five processes
SHARED_PROCESSES = 5
MAX_LINES = 12  # of the coordinator's log after a stage; a round of five silos has about 25
MOMENTS = tuple(state for state in PhaseState if state is not PhaseState.USED_UP)
MAX_SKEW_SECONDS = 300.0  # docs/protocol.md 8: beyond it a silo stops


class Kind(StrEnum):
    KILL = "kill"
    STOP = "stop"
    RESTART = "restart"
    CUT = "cut"
    DELAY = "delay"
    THROTTLE = "throttle"
    FULL_DISK = "full disk"
    BUSY_DATABASE = "busy database"
    SKEWED_CLOCK = "skewed clock"
    NEW_CERTIFICATE = "new certificate"


OF_LINES = frozenset({Kind.CUT, Kind.DELAY, Kind.THROTTLE})
OF_PROCESSES = frozenset({Kind.KILL, Kind.STOP, Kind.RESTART, Kind.SKEWED_CLOCK})
OF_SILOS = OF_LINES | {Kind.NEW_CERTIFICATE}  # the rest happens to the coordinator as well


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """target: the coordinator, a process of silos or one silo. amount: seconds there and back of a delayed
    line, bytes a second of a throttled one, seconds that a clock is wrong; 0 where the kind has none.

    It begins in the first stage of that name in the round, or at once where the round is over.
    """

    kind: Kind
    target: str
    round: int
    stage: PhaseState
    lines: int
    line_bytes: int = 0
    seconds: float
    amount: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """values: of the model. patience: how long the coordinator waits, as fields of its settings."""

    seed: int
    silos: int
    rounds: int
    values: int
    patience: Mapping[str, float] = field(hash=False)
    faults: tuple[Fault, ...]

    @property
    def processes(self) -> dict[str, list[str]]:
        """The silos of each process."""
        names = [f"silo-{place}" for place in range(self.silos)]
        if self.silos <= ONE_EACH:
            return {f"process-{place}": [name] for place, name in enumerate(names)}
        return {f"process-{place}": names[place::SHARED_PROCESSES] for place in range(SHARED_PROCESSES)}

    def targets(self, *kinds: Kind) -> set[str]:
        return {fault.target for fault in self.faults if fault.kind in kinds}

    def __str__(self) -> str:
        lines = [
            f"schedule {self.seed}: {self.silos} silos in {len(self.processes)} processes, "
            f"{self.rounds} rounds, {self.values} values, {dict(self.patience)}"
        ]
        for fault in self.faults:
            after = f" and {fault.line_bytes} bytes of its line" if fault.line_bytes else ""
            lines.append(
                f"  {fault.kind.value} of {fault.target}, {fault.amount:g}, for {fault.seconds:g} s: "
                f"round {fault.round} {fault.stage.value} + {fault.lines} lines{after}"
            )
        return "\n".join(lines)


# size, and how often it is drawn: 50 silos take a minute of a core
SIZES = {5: 8, 6: 4, 7: 4, 8: 3, 10: 3, 16: 2, 25: 1, 50: 1}
VALUES = (64, 64, 20_000, 300_000)
PATIENCE = (
    {"reconnect_grace_seconds": 1.5, "stage_deadline_seconds": 3.0},
    {"reconnect_grace_seconds": 4.0, "stage_deadline_seconds": 8.0},
    {"reconnect_grace_seconds": 20.0, "stage_deadline_seconds": 20.0},
)


def draw(seed: int) -> Schedule:
    """The schedule of a seed."""
    chance = random.Random(seed)
    silos = chance.choices(list(SIZES), list(SIZES.values()))[0]
    rounds = 5 if silos <= ONE_EACH else 3 if silos < 50 else 2
    bare = Schedule(
        seed=seed,
        silos=silos,
        rounds=rounds,
        values=max(silos, chance.choice(VALUES) if silos <= ONE_EACH else silos),
        patience=chance.choice(PATIENCE),
        faults=(),
    )
    kinds = chance.choices(list(Kind), k=chance.randint(3, 6))
    # a phase without a sum is abandoned under the roster of its round: by t silos with certificates of then
    while kinds.count(Kind.NEW_CERTIFICATE) > 1:
        kinds.remove(Kind.NEW_CERTIFICATE)
    faults = [_fault(kind, bare, chance) for kind in kinds]
    faults.sort(key=lambda fault: (fault.round, MOMENTS.index(fault.stage), fault.lines))
    return replace(bare, faults=tuple(faults))


def _fault(kind: Kind, schedule: Schedule, chance: random.Random) -> Fault:
    silos = [name for names in schedule.processes.values() for name in names]
    places = list(schedule.processes) if kind in OF_PROCESSES else silos
    is_hub = kind not in OF_SILOS and chance.random() < 1 / 3
    target = COORDINATOR if is_hub else chance.choice(places)
    longest = 2.0 if kind is Kind.BUSY_DATABASE else 5.0
    return Fault(
        kind=kind,
        target=target,
        round=chance.randint(0, schedule.rounds),
        stage=chance.choice(MOMENTS),
        lines=chance.randint(0, MAX_LINES),
        line_bytes=chance.choice((0, 0, 1_000, 10_000)) if kind in OF_LINES else 0,
        seconds=round(chance.uniform(0.0, longest), 2),
        amount=_amount(kind, chance, is_hub=is_hub),
    )


def _amount(kind: Kind, chance: random.Random, *, is_hub: bool) -> float:
    if kind is Kind.DELAY:
        return round(chance.uniform(0.05, 1.0), 2)
    if kind is Kind.THROTTLE:
        return float(chance.choice((2_000, 20_000, 200_000)))
    if kind is Kind.SKEWED_CLOCK:
        # to a coordinator so far behind no certificate is valid yet: a phase whose inputs left is lost
        behind = () if is_hub else (-86_400, -400)
        return float(chance.choice((*behind, -90, 90, 400, 3_600)))
    return 0.0
