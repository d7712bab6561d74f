"""What one secure sum costs: a whole session in this process, of the code that silos and coordinator run.

Silos hold real certificates and a roster; `--drop` of them are lost after SHARE, so that masks must be
recovered. The revealed sum is compared with the sum of the encoded inputs, bit for bit.
"""

# L = words of one vector

from __future__ import annotations

import argparse
import json
import resource
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from bench.clock import Clock
from bench.federation import NAME, Federation, make_federation
from crypto import masking, prg, ring
from crypto.cohort import SMALLEST_FEDERATION, CohortRule
from crypto.coordinator_session import CoordinatorSession
from crypto.errors import LocalProtocolError
from crypto.layout import WORD_BITS, Layout, Quantity
from crypto.masking import UnmaskPlan
from crypto.messages import SessionTerms, Shares, SignedBody, UnmaskShares
from crypto.reveal import PendingReveal
from crypto.silo_session import SiloSession

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
BOUND = 8.0  # the default update_bound, in parameter units
MOST_SILOS = 200
MOST_VALUES = 1 << 27


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Means per silo, but for what the coordinator does; bytes are those of one silo that stayed."""

    silos: int
    length: int
    word: int
    dropped: int
    silo_mask_cpu_seconds: float
    silo_mask_wall_seconds: float
    encode_cpu_seconds: float
    setup_cpu_seconds: float
    noise_cpu_seconds: float
    keystream_cpu_seconds: float
    mask_to_keystream: float
    coordinator_unmask_seconds: float
    upload_bytes: int
    float32_bytes: int
    max_abs_error: float
    peak_rss_mb: float


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    report = measure(silos=options.silos, length=options.length, drop=options.drop, word=options.word)
    if options.json:
        print(json.dumps(asdict(report)))
    else:
        for name, value in asdict(report).items():
            print(f"{name:<28}{value:>14.6g}" if isinstance(value, float) else f"{name:<28}{value:>14}")
    return 0


def measure(*, silos: int, length: int, drop: int, word: int) -> Report:
    """Run one session and take its times. Raises LocalProtocolError if its sum is not exact."""
    run = _Run(make_federation(silos, now=NOW), length=length, word=word)
    run.share()
    run.mask(staying=silos - drop)
    run.reveal()
    run.draw_keystreams()
    clock = run.clock
    mask, keystream = clock.mean("mask"), clock.mean("keystream")
    return Report(
        silos=silos,
        length=length,
        word=word,
        dropped=drop,
        silo_mask_cpu_seconds=mask.cpu_seconds,
        silo_mask_wall_seconds=mask.wall_seconds,
        encode_cpu_seconds=clock.mean("encode").cpu_seconds,
        setup_cpu_seconds=clock.total("setup").cpu_seconds / silos,
        noise_cpu_seconds=0.0,
        keystream_cpu_seconds=keystream.cpu_seconds,
        mask_to_keystream=mask.cpu_seconds / keystream.cpu_seconds,
        coordinator_unmask_seconds=clock.total("unmask").wall_seconds,
        upload_bytes=run.upload_bytes,
        float32_bytes=4 * length,
        max_abs_error=run.max_abs_error(),
        peak_rss_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    )


class _Run:
    """Every stage of docs/protocol.md 5 in turn; steps: setup, encode, mask, unmask, keystream."""

    def __init__(self, federation: Federation, *, length: int, word: int) -> None:
        self.clock = Clock()
        self.upload_bytes = 0
        self._terms = _terms(federation, length=length, word=word)
        self._layout = self._terms.layout
        self._coordinator = CoordinatorSession(
            terms=self._terms, roster=federation.roster, authority=federation.authority, now=NOW
        )
        self._silos = {name: self._silo(federation, name) for name in self._terms.names}
        self._masked = ring.zeros(self._layout)  # what the coordinator holds
        self._encoded = ring.zeros(self._layout)  # what only this bench knows
        self._exact_L: NDArray[np.float64] = np.zeros(length)

    def share(self) -> None:
        """ADVERTISE and SHARE of every silo."""
        for name, silo in self._silos.items():
            with self.clock.step("setup"):
                advert = silo.advertise()
            self._coordinator.on_advert(name, advert)
        cohort = self._coordinator.close_advertise()
        for name, silo in self._silos.items():
            with self.clock.step("setup"):
                shares = silo.receive(cohort)
            self._coordinator.on_shares(name, shares)
        self.upload_bytes += _size(advert) + _shares_size(shares)

    def mask(self, *, staying: int) -> None:
        """MASKED_INPUT of those who stay; each upload is added when it is complete."""
        envelopes = self._coordinator.close_share()
        for index, name in enumerate(self._terms.names[:staying]):
            with self.clock.step("setup"):
                masker = self._silos[name].receive(envelopes[name])
            values_L = _values(index, self._exact_L.size)
            with self.clock.step("encode"):
                encoded = ring.encode({"delta": values_L}, layout=self._layout)
            with self.clock.step("mask"):
                chunks = list(masker.stream(encoded))
            self._exact_L += values_L
            ring.add_into(self._encoded, encoded.vectors)
            ring.add_into(self._masked, masking.vectors_from_stream(self._layout, b"".join(chunks)))
            self._coordinator.on_masked(name)
        self.upload_bytes += self._layout.total_bytes

    def reveal(self) -> None:
        """CONSISTENCY and UNMASK. Raises LocalProtocolError if the sum is not exact."""
        survivors = self._coordinator.close_masked()
        for name in survivors.survivors:
            with self.clock.step("setup"):
                signature = self._silos[name].receive(survivors)
            self._coordinator.on_consistency(name, signature)
        request = self._coordinator.close_consistency()
        for name in survivors.survivors:
            with self.clock.step("setup"):
                answer = self._silos[name].receive(request)
            with self.clock.step("unmask"):
                self._coordinator.on_unmask(name, answer)
        self.upload_bytes += _size(signature) + _answer_size(answer)
        with self.clock.step("unmask"):
            self._unmask()
        if any(not np.array_equal(sum_L, self._encoded[word]) for word, sum_L in self._masked.items()):
            raise LocalProtocolError("bench: the revealed sum is not the sum of the inputs")

    def draw_keystreams(self) -> None:
        """As many key streams as a silo applies, in the same blocks, and nothing done with them."""
        block = np.empty(min(prg.BLOCK_BYTES, self._layout.total_bytes), np.uint8)
        blocks = -(-self._layout.total_bytes // block.size)
        for _ in self._silos:  # a mean of as many turns as there are silos
            with self.clock.step("keystream"):
                for index in range(len(self._silos)):
                    stream = prg.Keystream(index.to_bytes(prg.KEY_BYTES, "big"))
                    for _ in range(blocks):
                        stream.fill(block)

    def max_abs_error(self) -> float:
        """Against the sum of the survivors' floats, in the units of the values."""
        decoded_L = ring.decode(self._masked, layout=self._layout)["delta"]
        return float(np.max(np.abs(decoded_L - self._exact_L)))

    def _unmask(self) -> None:
        plan = self._coordinator.close_unmask()
        assert isinstance(plan, UnmaskPlan)  # nobody lies here, so nothing is left to recover
        plan.unmask(self._masked)

    def _silo(self, federation: Federation, name: str) -> SiloSession:
        with self.clock.step("setup"):
            return SiloSession(
                terms=self._terms,
                identity=federation.silos[name],
                roster=federation.roster,
                authority=federation.authority,
                ledger=_SingleUseLedger(),
                now=NOW,
            )


class _SingleUseLedger:
    """Nothing to remember: its silo takes part in one session and ends with the process."""

    def begin_attempt(self, terms: SessionTerms) -> None:
        pass

    def check_reveal(self, terms: SessionTerms, survivors: tuple[str, ...]) -> None:
        pass

    def write_pending(self, pending: PendingReveal) -> None:
        pass

    def mark_revealed(self, pending: PendingReveal) -> None:
        pass


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        print(f"secagg: error: {message}", file=sys.stderr)
        sys.exit(2)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = _Parser(prog="python -m bench.secagg", description=(__doc__ or "").splitlines()[0])
    silos = _whole(SMALLEST_FEDERATION, MOST_SILOS)
    parser.add_argument("--silos", type=silos, default=10, help="silos that advert")
    parser.add_argument("--length", type=_whole(1, MOST_VALUES), default=1_000_000, help="values of each")
    parser.add_argument("--drop", type=_whole(0, MOST_SILOS), default=2, help="silos lost after SHARE")
    parser.add_argument("--word", type=int, choices=WORD_BITS, default=32, help="bits of a summed value")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    options = parser.parse_args(arguments)
    most = options.silos - CohortRule.for_members(options.silos).least_survivors
    if options.drop > most:
        parser.error(f"argument --drop: {options.silos} silos bear the loss of {most}, got {options.drop}")
    return options


def _whole(least: int, most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.isascii() or not text.isdigit() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"expected a whole number from {least} to {most}, got {text}")
        return int(text)

    return parse


def _terms(federation: Federation, *, length: int, word: int) -> SessionTerms:
    names = tuple(federation.silos)
    quantity = Quantity(name="delta", shape=(length,), bound=BOUND, word=word)
    return SessionTerms(
        federation=NAME,
        job_digest=bytes(32),
        roster_version=federation.roster.version,
        roster_digest=federation.roster.digest,
        round=1,
        phase="train",
        attempt=1,
        names=names,
        rule=CohortRule.for_members(len(names)),
        layout=Layout(quantities=(quantity,), members=len(names)),
        state_digest=bytes(32),
    )


def _values(index: int, length: int) -> NDArray[np.float32]:
    """Updates of one silo: few of them near the bound, as in training."""
    return np.random.default_rng(index).normal(0.0, BOUND / 16, length).astype(np.float32)


def _size(signed: SignedBody) -> int:
    return len(signed.body) + len(signed.signature)


def _shares_size(shares: Shares) -> int:
    return sum(_size(one) for one in (*shares.envelopes, shares.own_share))


def _answer_size(answer: UnmaskShares) -> int:
    shares = [*answer.self_mask_shares.values(), *answer.recovery_shares.values()]
    return sum(len(share) for share in shares)


if __name__ == "__main__":
    sys.exit(main())
