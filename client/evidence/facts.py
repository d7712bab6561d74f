"""What an archive says in numbers: from the signed job and its arrays' shapes, by maker and reader alike."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from chorale.evidence import CoordinatorStatement, read_document
from chorale.job import Job
from chorale.privacy.plan import planned_phases
from chorale.privacy.promise import promise_of
from chorale.privacy.quantity_noise import noised
from chorale.spec.phase_context import phase_context
from chorale.spec.state import GlobalState
from client.evidence.phases import Chain, shapes_of
from crypto.errors import EvidenceMismatch
from crypto.fixed_point.layout import Quantity

RELATIVE = 1e-6  # of two computations of one number on different machines


def facts_of(job: Job, statement: CoordinatorStatement, chain: Chain) -> dict[str, Any]:
    """All that is not there word by word in a signed file."""
    spec, shapes = job.spec, shapes_of(statement.arrays, statement.phases)
    rule = spec.rule(spec.named_per_round)
    return {
        "job": job.digest.hex(),
        "name": spec.name,
        "federation": spec.federation,
        "operator": job.operator,
        "method": spec.strategy.name,
        "model_name": spec.model.name,
        "task": "classification" if spec.task is None else spec.task.name,
        "silos": list(spec.silos),
        "rounds": spec.rounds,
        "named_each_round": spec.named_per_round,
        "signatures_each_state": rule.threshold,
        "least_silos_in_a_sum": rule.min_survivors,
        "phases_told": len(statement.phases),
        "states_signed_by_silos": len(chain.states),
        "silos_missing_from_a_roster": list(chain.lacking),
        "model_sha256": statement.model,
        "model_round": statement.model_round,
        "model_numbers": sum(array.size for name, array in shapes.items() if name.startswith("model/")),
        "first_state_sha256": spec.initial_state,
        "epsilon": _epsilon(job, shapes),
        "quantities": {
            kind: {
                "times": times,
                "silos": silos,
                "summed": [_quantity_facts(each, silos) for each in _quantities(job, kind, shapes, silos)],
            }
            for kind, silos, times in planned_phases(spec)
        },
    }


def check_facts(document: bytes, expected: Mapping[str, Any]) -> dict[str, Any]:
    """The facts as they stand in the archive, which may differ from ours in the last digits of a number.

    Raises EvidenceMismatch that names the first field that differs.
    """
    found = read_document(document)
    _compare(found, json.loads(json.dumps(expected)), ())
    return found


def _compare(found: Any, expected: Any, place: tuple[str, ...]) -> None:
    where = ": ".join(place)
    if isinstance(expected, dict) and isinstance(found, dict):
        for name in sorted(expected.keys() | found.keys()):
            if (name in expected) != (name in found):
                raise EvidenceMismatch(
                    f"{': '.join((*place, name))}: it is missing, or does not belong there"
                )
            _compare(found[name], expected[name], (*place, name))
    elif isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        for number, (one, other) in enumerate(zip(found, expected, strict=True), start=1):
            _compare(one, other, (*place, str(number)))
    elif isinstance(expected, float) and isinstance(found, float):
        if not math.isclose(found, expected, rel_tol=RELATIVE):
            raise EvidenceMismatch(f"{where}: the signed job gives {expected:.6g}, it says {found:.6g}")
    elif type(found) is not type(expected) or found != expected:
        gives, says = (json.dumps(each)[:80] for each in (expected, found))
        raise EvidenceMismatch(f"{where}: the signed job gives {gives}, it says {says}")


def _epsilon(job: Job, shapes: GlobalState) -> dict[str, Any] | None:
    """What the plan of a private job costs; None where nothing bounds what its sums tell."""
    if job.spec.privacy is None:
        return None
    promise = promise_of(job.spec, shapes)
    collude = promise.epsilon_if_all_others_collude
    return {
        "planned": promise.epsilon,
        "delta": promise.delta,
        "for_each": promise.unit,
        "against_the_coordinator_and_silos": promise.colluders,
        "if_all_other_silos_collude": None if math.isinf(collude) else collude,
        "updates_for_each_silo": promise.epsilon_updates_per_silo,
        "statistics_for_each_record": promise.epsilon_statistics_per_record,
        "noise_multipliers": dict(promise.multipliers),
    }


def _quantities(job: Job, kind: str, shapes: GlobalState, members: int) -> tuple[Quantity, ...]:
    context = phase_context(job.spec, 1, shapes, members, public_seed=bytes(32))
    return noised(job.strategy.phase(kind).quantities(context), job.spec, members)


def _quantity_facts(quantity: Quantity, members: int) -> dict[str, Any]:
    noise = quantity.noise
    return {
        "name": quantity.name,
        "numbers": quantity.size,
        "bound_of_each": float(quantity.bound),
        "bits_of_each": quantity.ring_bits,
        "what_it_tells": quantity.discloses.value,
        "most_one_record_moves_it": quantity.sensitivity_l2,
        "noise_deviation": None
        if noise is None
        else float(math.sqrt(members * noise.variance) / noise.scale),
        "checked_by_silos": quantity.is_tagged,
    }
