"""How few neighbors would do: k-regular masking of n silos by tail bounds, and what it would cost.

Each silo draws k out-neighbors and deals its shares to them, t of which rebuild a secret; it shares a
mask with whomever it drew and whoever drew it. docs/decisions/0007-large-n.md says what the bounds mean and
shows what this prints. Source: J. H. Bell et al., Secure Single-Server Aggregation with
(Poly)Logarithmic Overhead, CCS 2020, the variant against a malicious coordinator.
"""

# n = silos, k = out-neighbors that each draws, t = shares that rebuild a secret, s = silos of a group
# corrupted, dropped = how many of the n; every probability is a log2

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from functools import cache, lru_cache

import numpy as np
from numpy.typing import NDArray

from bench.options import Parser
from crypto.session.cohort import CohortRule

SECURITY_BITS = 40  # sigma: a silo is exposed in at most one session of 2^40
FAILURE_BITS = 30  # eta: losses within the bound spoil at most one session of 2^30
CORRUPTED = Fraction(1, 3)
DROPPED = (Fraction(1, 10), Fraction(1, 5))
SILOS = (50, 100, 200, 500, 1000, 2000, 5000, 10_000)

# CPU milliseconds of one operation, and bytes, on the machine of docs/performance.md
KEY_PAIR, SEAL, OPEN, SIGN, VERIFY = 0.16, 0.11, 0.09, 0.03, 0.07
KEYSTREAM = 0.5  # 4 MB: a million words of 32 bits
ENVELOPE_BYTES = 2100  # shares and, in every second one, a pair seed, sealed, hashed and signed

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The worst that a bound must bear."""

    silos: int
    corrupted: int
    dropped: int

    @classmethod
    def of(cls, silos: int, dropped: Fraction) -> Setting:
        return cls(silos=silos, corrupted=int(silos * CORRUPTED), dropped=int(silos * dropped))

    @property
    def honest(self) -> int:
        return self.silos - self.corrupted


@dataclass(frozen=True, slots=True, kw_only=True)
class Degree:
    """k, t and the log2 of what can go wrong. least_group: honest silos that no one can cut off."""

    neighbors: int
    threshold: int
    exposed: float
    disconnected: float
    unrecovered: float
    least_group: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Means of one session: of one silo, but for the coordinator's key streams."""

    keystreams: float
    envelopes: float
    sent_bytes: float
    setup_ms: float
    masking_ms: float
    coordinator_keystreams: float

    @property
    def silo_ms(self) -> float:
        return self.setup_ms + self.masking_ms


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    if options.json:
        rows = [_row_json(n, share) for share in DROPPED for n in options.silos]
        print(json.dumps({"rows": [], "sigma": SECURITY_BITS, "eta": FAILURE_BITS, "table": rows}))
        return 0
    print("\n\n".join(markdown(share, options.silos) for share in DROPPED))
    return 0


def min_degree(setting: Setting, *, is_consistent: bool) -> Degree | None:
    """The least k for which some t bears the setting, with the largest such t; None from k = n - 1 on.

    is_consistent: all silos agree who is in the sum before they answer, so that no coordinator gets
    both secrets of a silo by telling its neighbors different sets.
    """
    return next(
        (
            _degree(setting, k, t)
            for k in range(1, setting.silos - 1)
            if (t := max_threshold(setting, k)) > 0
            and _is_private(setting, k, t, is_consistent=is_consistent)
        ),
        None,
    )


def min_g1_degree(setting: Setting) -> Degree | None:
    """As min_degree where all agree, and every part of a sum holds as many honest silos as in G1.

    That is t - c of the whole federation: floor(2n/3) + 1 less the corrupted.
    """
    rule = CohortRule.for_members(setting.silos)
    wanted = max(rule.threshold, rule.min_cohort) - setting.corrupted
    last = np.array([wanted - 1])
    return next(
        (
            _degree(setting, k, t)
            for k in range(1, setting.silos - 1)
            if (t := max_threshold(setting, k)) > 0
            and _is_private(setting, k, t, is_consistent=True)
            and _log2_groups(setting, k, t, last)[0] <= -SECURITY_BITS  # the likeliest, so the cheapest check
            and least_group(setting, k, t) >= wanted
        ),
        None,
    )


def log2_exposed(setting: Setting, k: int, t: int, *, is_consistent: bool) -> float:
    """Of the union over honest silos: too many corrupted out-neighbors.

    X ~ Hypergeometric(n - 1, corrupted, k). Where all agree, t corrupted neighbors rebuild a secret.
    Where they do not, each honest neighbor gives one share of either secret: both are rebuilt once
    2 (t - X) <= k - X, so X must stay below 2t - k.
    """
    least = t if is_consistent else max(2 * t - k, 0)
    return _log2(setting.honest) + log2_tail(setting.silos - 1, setting.corrupted, k, least)


def log2_unrecovered(setting: Setting, k: int, t: int) -> float:
    """Of the union over all silos: fewer than t out-neighbors stay.

    Lost ones ~ Hypergeometric(n - 1, dropped, k), more than k - t of them.
    """
    return _log2(setting.silos) + log2_tail(setting.silos - 1, setting.dropped, k, k - t + 1)


def max_threshold(setting: Setting, k: int) -> int:
    """The largest t with log2_unrecovered <= -eta; 0 if there is none."""
    tails = _log2(setting.silos) + log2_tails(setting.silos - 1, setting.dropped, k)
    (bearable,) = np.nonzero(tails <= -FAILURE_BITS)  # so many lost neighbors or more do not occur
    return int(k + 1 - bearable[0]) if bearable.size and bearable[0] > 0 else 0


def log2_disconnected(setting: Setting, k: int) -> float:
    """Of the union over groups: no edge leads from s honest survivors to the other ones.

    With a survivors, sum over s <= a/2 of C(a, s) p(a - s)^s p(s)^(a - s), where p(m) =
    C(n - 1 - m, k) / C(n - 1, k) is the chance that a silo draws none of m others. Who drops is
    fixed before the neighbors are drawn; see least_group for losses that follow the graph.
    """
    a = setting.honest - setting.dropped
    if a < 2:
        return 0.0
    s = np.arange(1, a // 2 + 1)
    groups = _log2_choose(np.full_like(s, a), s) + s * _log2_none(setting.silos, k, a - s)
    groups += (a - s) * _log2_none(setting.silos, k, s)
    return float(np.logaddexp2.reduce(groups))


def least_group(setting: Setting, k: int, t: int) -> int:
    """Honest silos that any part of a sum holds at least, even if the losses follow the graph.

    A coordinator that cuts off a group of s must rebuild the self-masks of all s from t shares each, and
    all of these come from the group and from corrupted silos. So the chance of a group that can be
    cut off is at most the sum over s of C(honest, s) P[Hypergeometric(n - 1, corrupted + s - 1, k) >= t]^s.
    """
    s = np.arange(1, setting.honest // 2 + 1)
    (too_likely,) = np.nonzero(np.logaddexp2.accumulate(_log2_groups(setting, k, t, s)) > -SECURITY_BITS)
    return int(s[too_likely[0]]) if too_likely.size else setting.honest // 2 + 1


def log2_tail(population: int, marked: int, draws: int, least: int) -> float:
    """log2 P[X >= least], X ~ Hypergeometric: marked ones among draws without replacement."""
    return float(log2_tails(population, marked, draws)[least]) if least <= draws else -np.inf


@lru_cache(maxsize=8)
def log2_tails(population: int, marked: int, draws: int) -> Floats:
    """log2 P[X >= x] for x = 0 .. draws + 1, summed term by term from the top.

    P[X = x] = C(marked, x) C(population - marked, draws - x) / C(population, draws).
    """
    x = np.arange(draws + 2)
    ways = _log2_choose(np.full_like(x, marked), x)
    ways += _log2_choose(np.full_like(x, population - marked), draws - x)
    whole = _log2_choose(np.array(population), np.array(draws))
    tails: Floats = np.logaddexp2.accumulate(ways[::-1])[::-1] - whole
    return np.minimum(tails, 0.0)


def degree_of_masks(silos: int, k: int) -> float:
    """Mean number of silos that one shares masks with: those it drew and those that drew it."""
    return 2 * k - k * k / (silos - 1)


def complete_cost(setting: Setting) -> Cost:
    """The session of docs/protocol.md 5, where everyone is everyone's neighbor."""
    return _cost(setting, shared=setting.silos - 1, masked=setting.silos - 1, adverts=setting.silos - 1)


def regular_cost(setting: Setting, k: int) -> Cost:
    """The same steps among neighbors; the agreement on the survivors still names and hears all."""
    masked = degree_of_masks(setting.silos, k)
    return _cost(setting, shared=k, masked=masked, adverts=masked)


def _cost(setting: Setting, *, shared: float, masked: float, adverts: float) -> Cost:
    """shared: silos that hold shares; masked: silos that hold a pair seed; the dealer of it is either."""
    staying = setting.silos - setting.dropped
    sealed = shared + masked / 2
    verified = adverts + masked + staying  # adverts, envelopes, signatures over the survivors
    setup_ms = 2 * KEY_PAIR + sealed * (SEAL + OPEN) + (masked + 3) * SIGN + verified * VERIFY
    lost_masks = masked * staying / (setting.silos - 1)  # a lost silo's masks with those that stay
    return Cost(
        keystreams=1 + masked,
        envelopes=masked,
        sent_bytes=masked * ENVELOPE_BYTES,
        setup_ms=setup_ms,
        masking_ms=(1 + masked) * KEYSTREAM,
        coordinator_keystreams=staying + setting.dropped * lost_masks,
    )


def markdown(dropped: Fraction, silos: Sequence[int]) -> str:
    """Two tables of one share of losses: degrees, then costs."""
    lines = [f"Lost: {dropped} of the silos.", "", *_DEGREE_HEAD]
    found = [_Found.of(Setting.of(n, dropped)) for n in silos]
    lines += [_degree_line(one) for one in found]
    lines += ["", *_COST_HEAD]
    lines += [_cost_line(one.setting, one.as_in_g1) for one in found]
    return "\n".join(lines)


_DEGREE_HEAD = (
    "| n | k | t | exposed | disconnected | not rebuilt | least group | k, t for G1 | k, t alone |",
    "|---|---|---|---|---|---|---|---|---|",
)
_NONE = "none below n - 1"
_COST_HEAD = (
    "| n | key streams | envelopes' bytes | silo CPU | coordinator's key streams | silo CPU, x less |",
    "|---|---|---|---|---|---|",
)


@dataclass(frozen=True, slots=True)
class _Found:
    setting: Setting
    agreed: Degree | None
    as_in_g1: Degree | None
    alone: Degree | None

    @classmethod
    def of(cls, setting: Setting) -> _Found:
        agreed, alone = (min_degree(setting, is_consistent=agrees) for agrees in (True, False))
        return cls(setting, agreed, min_g1_degree(setting), alone)


def _degree_line(found: _Found) -> str:
    cells: list[object] = [found.setting.silos]
    if (agreed := found.agreed) is None:
        cells += [_NONE] * 6
    else:
        chances = (agreed.exposed, agreed.disconnected, agreed.unrecovered)
        cells += [agreed.neighbors, agreed.threshold, *map(_bits, chances), agreed.least_group]
    cells += [f"{one.neighbors}, {one.threshold}" if one else _NONE for one in (found.as_in_g1, found.alone)]
    return f"| {' | '.join(map(str, cells))} |"


def _cost_line(setting: Setting, degree: Degree | None) -> str:
    full = complete_cost(setting)
    if degree is None:
        return f"| {setting.silos} | {full.keystreams:.0f} | | | | |"
    few = regular_cost(setting, degree.neighbors)
    pairs = (
        (full.keystreams, few.keystreams, "{:,.0f}"),
        (full.sent_bytes / 1e6, few.sent_bytes / 1e6, "{:,.2f} MB"),
        (full.silo_ms / 1e3, few.silo_ms / 1e3, "{:,.2f} s"),
        (full.coordinator_keystreams, few.coordinator_keystreams, "{:,.0f}"),
    )
    cells = [f"{shown.format(whole)} -> {shown.format(part)}" for whole, part, shown in pairs]
    return f"| {setting.silos} | {' | '.join(cells)} | {full.silo_ms / few.silo_ms:.1f} |"


def _bits(log2: float) -> str:
    return "never" if log2 == -np.inf else f"2^{log2:.0f}"


def _is_private(setting: Setting, k: int, t: int, *, is_consistent: bool) -> bool:
    exposed = log2_exposed(setting, k, t, is_consistent=is_consistent)
    if exposed > -SECURITY_BITS:  # the dearer sum need not be taken
        return False
    return bool(np.logaddexp2(exposed, log2_disconnected(setting, k)) <= -SECURITY_BITS)


def _degree(setting: Setting, k: int, t: int) -> Degree:
    return Degree(
        neighbors=k,
        threshold=t,
        exposed=log2_exposed(setting, k, t, is_consistent=True),
        disconnected=log2_disconnected(setting, k),
        unrecovered=log2_unrecovered(setting, k, t),
        least_group=least_group(setting, k, t),
    )


def _log2_groups(setting: Setting, k: int, t: int, s: NDArray[np.int64]) -> Floats:
    """log2 of C(honest, s) P[Hypergeometric(n - 1, corrupted + s - 1, k) >= t]^s, for each s."""
    x = np.arange(t, k + 1)[None, :]
    marked = (setting.corrupted + s - 1)[:, None]
    ways = _log2_choose(marked, x) + _log2_choose(setting.silos - 1 - marked, k - x)
    one = np.logaddexp2.reduce(ways, axis=1) - _log2_choose(np.array(setting.silos - 1), np.array(k))
    groups: Floats = _log2_choose(np.full_like(s, setting.honest), s) + s * np.minimum(one, 0.0)
    return groups


def _row_json(silos: int, dropped: Fraction) -> dict[str, object]:
    found = _Found.of(Setting.of(silos, dropped))
    costed = found.as_in_g1
    return {
        **asdict(found.setting),
        "agreed": _finite(found.agreed),
        "as_in_g1": _finite(costed),
        "without_agreement": _finite(found.alone),
        "complete_cost": asdict(complete_cost(found.setting)),
        "regular_cost": asdict(regular_cost(found.setting, costed.neighbors)) if costed else None,
    }


def _finite(degree: Degree | None) -> dict[str, float | None] | None:
    """JSON has no infinity: null stands for a thing that cannot happen."""
    if degree is None:
        return None
    return {name: value if np.isfinite(value) else None for name, value in asdict(degree).items()}


def _log2_none(silos: int, k: int, others: NDArray[np.int64]) -> Floats:
    """log2 of the chance that k draws of n - 1 silos meet none of these others."""
    whole = _log2_choose(np.array(silos - 1), np.array(k))
    return _log2_choose(silos - 1 - others, np.full_like(others, k)) - whole


def _log2_choose(n: NDArray[np.int64], k: NDArray[np.int64]) -> Floats:
    """log2 C(n, k), elementwise; -inf where there is no way."""
    is_possible = (k >= 0) & (k <= n)
    n, k = np.where(is_possible, n, 0), np.where(is_possible, k, 0)
    factorials = _log2_factorials(max(SILOS))
    ways: Floats = np.where(is_possible, factorials[n] - factorials[k] - factorials[n - k], -np.inf)
    return ways


@cache
def _log2_factorials(most: int) -> Floats:
    return np.concatenate([[0.0], np.cumsum(np.log2(np.arange(1, most + 1)))])


def _log2(count: int) -> float:
    return float(np.log2(count))


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser("neighbors", __doc__)
    parser.add_argument("--silos", type=int, nargs="+", choices=SILOS, default=list(SILOS), help="n")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of tables")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
