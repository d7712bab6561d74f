"""Writes session.json: four silos, one lost after SHARE, every message and every secret of them, and the
check of their sum.

Seals and signatures differ each time, so nothing re-makes the committed file bit for bit;
`check_vectors.py` re-computes all that is determined and opens and verifies the rest.
Run it only when docs/protocol.md 5 changes: python -m tests.vectors.make_session
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from crypto.errors import RemoteProtocolError
from crypto.fixed_point import ring
from crypto.fixed_point.encoder import Encoder
from crypto.fixed_point.layout import Layout, Quantity
from crypto.fixed_point.ring import Words
from crypto.identity.certificates import SignedBody
from crypto.masking import masks
from crypto.masking.masks import UnmaskPlan
from crypto.session.bodies import MARK_BYTES, sign_statement
from crypto.session.coordinator_session import CoordinatorSession
from crypto.session.messages import Envelopes, LedgerMark, SessionTerms, UnmaskShares
from crypto.session.silo_session import SiloSession
from crypto.session.sum_check import SumCheck
from tests.support import sessions
from tests.vectors.make_vectors import counter_bytes

SILOS = 4
LOST = 1
SECRETS = (
    "recovery_seed",
    "self_mask_seed",
    "channel_seed",
    "sum_key",
)  # in the order in which a silo draws them


def main() -> None:
    path = Path(__file__).parent / "session.json"
    path.write_text(json.dumps(session_vector(), indent=1) + "\n")


def session_vector() -> dict[str, Any]:
    federation = sessions.make_federation(SILOS)
    terms = sessions.make_terms(federation, layout=_layout(SILOS))
    coordinator = sessions.make_coordinator(federation, terms)
    drawn: dict[str, list[bytes]] = {name: [] for name in terms.names}
    ledgers = _ledgers(federation, terms)
    silos = {name: _silo(federation, terms, name, ledgers[name], drawn[name]) for name in terms.names}
    rows: dict[str, dict[str, Any]] = {name: {} for name in terms.names}
    for name, silo in silos.items():
        advert = silo.advertise()
        coordinator.on_advert(name, advert)
        rows[name] |= {label: secret.hex() for label, secret in zip(SECRETS, drawn[name], strict=False)}
        rows[name]["advert"] = _signed(advert)
    cohort = coordinator.close_advertise()
    for name, silo in silos.items():
        shares = silo.receive(cohort)
        coordinator.on_shares(name, shares)
        rows[name]["dealing"] = _signed(shares.dealing)
        rows[name]["envelopes"] = [envelope.hex() for envelope in shares.envelopes]
    envelopes = coordinator.close_share()
    for name, given in envelopes.items():
        rows[name]["paths"] = [relayed.path.hex() for relayed in given.envelopes]
    total, check = _mask(coordinator, silos, rows, envelopes, staying=terms.names[:-LOST])
    _reveal(coordinator, silos, rows, total)
    return {
        "terms": _terms(terms),
        "quantities": _quantities(terms.layout),
        "layout_digest": terms.layout.digest.hex(),
        "session_digest": terms.digest().hex(),
        "cohort_digest": coordinator.cohort_digest.hex(),
        "sharers": list(coordinator.sharers),
        "survivors": list(coordinator.survivors),
        "silos": rows,
        "sum": _words(total),
        "sum_key": check.sum_key.hex(),
        "sum_check": check.to_bytes().hex(),
        "tagged_sum": _tagged(terms.layout, total).hex(),
        "refused": _refused(terms.layout, total, check, coordinator.survivors),
    }


def _layout(members: int) -> Layout:
    """Tagged and other quantities of every word size, out of order."""
    return Layout(
        members=members,
        quantities=(
            Quantity(name="counts", shape=(3,), bound=1000, is_count=True),
            Quantity(name="half", shape=(5,), bound=1.0, ring_bits=16, is_tagged=True),
            Quantity(name="moments", shape=(2, 2), bound=8.0, is_tagged=True),
            Quantity(name="loss", bound=8.0, ring_bits=32),
            Quantity(name="delta", shape=(7,), bound=8.0, ring_bits=32, is_tagged=True),
        ),
    )


def _values(name: str) -> dict[str, Any]:
    """Of both signs, up to the bounds."""
    rank = int(name[-3:]) - 1  # -1 to 2
    return {
        "counts": [rank, -1000, 1000],
        "half": [rank / 3, -1.0, 1.0, 0.0, -0.25],
        "moments": [[rank / 3, -8.0], [8.0, -1e-9]],
        "loss": 0.7,
        "delta": [rank / 3, -8.0, 8.0, 0.0, 1.5, -1e-9, 0.3],
    }


def _mask(
    coordinator: CoordinatorSession,
    silos: dict[str, SiloSession],
    rows: dict[str, dict[str, Any]],
    envelopes: dict[str, Envelopes],
    *,
    staying: tuple[str, ...],
) -> tuple[dict[int, Words], SumCheck]:
    """The masked sum, and what the first silo keeps to check it."""
    terms = coordinator.terms
    total = ring.zeros(terms.layout)
    checks = []
    for name in staying:
        encoded = Encoder(_values(name), layout=terms.layout).encode()
        masker = silos[name].receive(envelopes[name])
        checks.append(silos[name].sum_check)
        stream = b"".join(masker.stream(encoded))
        ring.add_into(total, masks.vectors_from_stream(terms.layout, stream))
        coordinator.on_masked(name)
        rows[name] |= {"input": _words(encoded.vectors), "masked": stream.hex()}
    assert checks[0] is not None
    return total, checks[0]


def _refused(
    layout: Layout, total: dict[int, Words], check: SumCheck, survivors: tuple[str, ...]
) -> list[dict[str, str]]:
    """Tagged parts of a sum that the check refuses, by what is wrong with them."""
    assert layout.tagged is not None
    refused = []
    for failure in ("changed word", "highest bit of a 64-bit word", "words swapped", "doubled with its tags"):
        changed = {ring_bits: words.copy() for ring_bits, words in total.items()}
        match failure:
            case "changed word":
                changed[16][layout.slices(16)["half"]][2] += np.uint16(1)
            case "highest bit of a 64-bit word":
                changed[64][layout.slices(64)["moments"]][0] ^= np.uint64(1 << 63)
            case "words swapped":
                changed[32][layout.slices(32)["delta"]][[1, 2]] = changed[32][layout.slices(32)["delta"]][
                    [2, 1]
                ]
            case _:
                changed = {ring_bits: 2 * words for ring_bits, words in total.items()}
        stream = _tagged(layout, changed)
        try:
            check.check_sum(stream, layout.tagged, survivors)
        except RemoteProtocolError:
            refused.append({"failure": failure, "tagged_sum": stream.hex()})
    check.check_sum(_tagged(layout, total), layout.tagged, survivors)
    return refused


def _tagged(layout: Layout, total: dict[int, Words]) -> bytes:
    return b"".join(masks.tagged_stream(layout, total))


def _reveal(
    coordinator: CoordinatorSession,
    silos: dict[str, SiloSession],
    rows: dict[str, dict[str, Any]],
    total: dict[int, Words],
) -> None:
    survivors = coordinator.close_masked()
    for name in survivors.survivors:
        signature = silos[name].receive(survivors)
        coordinator.on_consistency(name, signature)
        rows[name]["consistency"] = signature.hex()
    request = coordinator.close_consistency()
    for name in survivors.survivors:
        answer = silos[name].receive(request)
        coordinator.on_unmask(name, answer)
        rows[name]["answer"] = _answer(answer)
    plan = coordinator.close_unmask()
    assert isinstance(plan, UnmaskPlan)
    plan.unmask(total)


def _ledgers(federation: sessions.Federation, terms: SessionTerms) -> dict[str, sessions.MemoryLedger]:
    """Each silo was in a session before, which all others but the last one keep."""
    earlier = {name: LedgerMark(1, counter_bytes(f"ledger {name}")(MARK_BYTES)) for name in terms.names}
    ledgers = {name: sessions.MemoryLedger() for name in terms.names}
    for name, ledger in ledgers.items():
        ledger.marks = [earlier[name]]
        if name != terms.names[-1]:
            said = {peer: sign_statement(federation.silos[peer], earlier[peer]) for peer in terms.names}
            ledger.keep_statements({peer: said[peer] for peer in terms.names if peer != name})
    return ledgers


def _silo(
    federation: sessions.Federation,
    terms: SessionTerms,
    name: str,
    ledger: sessions.MemoryLedger,
    drawn: list[bytes],
) -> SiloSession:
    return SiloSession(
        terms=terms,
        identity=federation.silos[name],
        roster=federation.roster,
        authority=federation.authority,
        ledger=ledger,
        now=sessions.NOW,
        random=_recorded(counter_bytes(f"session {name}"), drawn),
    )


def _recorded(random: Callable[[int], bytes], drawn: list[bytes]) -> Callable[[int], bytes]:
    def draw(size: int) -> bytes:
        drawn.append(random(size))
        return drawn[-1]

    return draw


def _terms(terms: SessionTerms) -> dict[str, Any]:
    return {
        "federation": terms.federation,
        "job_digest": terms.job_digest.hex(),
        "roster_version": terms.roster_version,
        "roster_digest": terms.roster_digest.hex(),
        "round": terms.round,
        "phase": terms.phase,
        "attempt": terms.attempt,
        "names": list(terms.names),
        "members": terms.rule.members,
        "threshold": terms.rule.threshold,
        "min_cohort": terms.rule.min_cohort,
        "state_digest": terms.state_digest.hex(),
    }


def _quantities(layout: Layout) -> list[dict[str, Any]]:
    return [
        {
            "name": quantity.name,
            "shape": list(quantity.shape),
            "bound": quantity.bound,
            "word": quantity.ring_bits,
            "is_count": quantity.is_count,
            "sensitivity_l2": quantity.sensitivity_l2,
            "is_tagged": quantity.is_tagged,
        }
        for quantity in layout.quantities
    ]


def _signed(signed: SignedBody) -> dict[str, str]:
    return {"body": signed.body.hex(), "signature": signed.signature.hex()}


def _answer(answer: UnmaskShares) -> dict[str, dict[str, str]]:
    return {
        "self_mask_shares": {name: share.hex() for name, share in answer.self_mask_shares.items()},
        "recovery_shares": {name: share.hex() for name, share in answer.recovery_shares.items()},
    }


def _words(vectors: dict[int, Words]) -> dict[str, list[str]]:
    return {
        str(ring_bits): [str(each) for each in vector.tolist()]
        for ring_bits, vector in sorted(vectors.items())
    }


if __name__ == "__main__":
    main()
