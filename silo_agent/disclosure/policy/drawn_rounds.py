"""Which draws of the silos of rounds a silo takes part in. Source: docs/protocol.md 3.2."""

from __future__ import annotations

from chorale.spec.job_spec import JobSpec
from chorale.spec.selection import draws, is_by_groups, redraws
from crypto.errors import PolicyRefusal, Rule
from crypto.session.cohort import (
    MAX_DRAW_RISK,
    draw_risk,
    drawn_count,
    fraction_for,
    group_fractions,
    smallest_draw,
)

# over a data set, of jobs that a policy accepted and no person: each is one more draw that an operator could
# choose to continue with
MAX_UNASKED_OPENINGS = 100


def check_drawn_rounds(spec: JobSpec, *, colluders: int, may_redraw: bool) -> None:
    """Raises PolicyRefusal where rounds are so small that colluders may be too many in one, and where each
    draws a new set of silos and may not."""
    if not spec.draws_rounds:
        return
    if not may_redraw and redraws(spec):
        raise PolicyRefusal(
            "policy: expected rounds of all silos, or of groups that are drawn once (draw: groups), by "
            "drawn_rounds: refuse, got rounds that each draw a new set",
            rule=Rule.DRAWN_ROUNDS,
        )
    silos, members, drawn = len(spec.silos), spec.named_per_round, draws(spec)
    risk = draw_risk(silos, members, colluders=colluders, draws=drawn)
    if risk <= MAX_DRAW_RISK:
        return
    enough = _enough(spec, colluders=colluders)
    way_out = "no fraction below 1 has so little"
    if enough is not None:
        way_out = f"{enough} silos a round are enough (fraction {fraction_for(enough, silos):g})"
    raise PolicyRefusal(
        f"policy: expected a chance of at most {float(MAX_DRAW_RISK):g} that a round names more than "
        f"{members // 3} of {colluders} colluders, got {float(risk):.2g} by rounds of {members} of {silos} "
        f"silos; {way_out}",
        rule=Rule.DRAWN_ROUNDS,
    )


def check_redrawn_statistics(spec: JobSpec) -> None:
    """Raises PolicyRefusal where statistics by class without noise are summed in rounds that each draw a new
    set of silos.

    Security: where a model hardly moves, so do its answers, and as many sums over other sets as there are
    silos are equations for each silo's own. Many fields of a job make a model stand still, so none is
    looked at (docs/threat-model.md).
    """
    statistic = spec.method.recipe.statistic
    if statistic is not None and spec.privacy is None and redraws(spec):
        raise PolicyRefusal(
            "policy: expected rounds of all silos, or of groups that are drawn once (draw: groups), with "
            f"statistic {statistic} without noise, by drawn_rounds: allow, got rounds that each draw a new "
            "set",
            rule=Rule.DRAWN_ROUNDS,
        )


def _enough(spec: JobSpec, *, colluders: int) -> int | None:
    """The smallest round, or size of groups, whose risk is at most MAX_DRAW_RISK; None if there is none."""
    silos = len(spec.silos)
    if not is_by_groups(spec):
        return smallest_draw(silos, colluders=colluders, draws=spec.rounds, max_risk=MAX_DRAW_RISK)
    sizes = [drawn_count(silos, fraction) for fraction in group_fractions(silos)]
    risks = {
        size: draw_risk(silos, size, colluders=colluders, draws=min(spec.rounds, silos // size))
        for size in sizes
    }
    return next((size for size in sizes if risks[size] <= MAX_DRAW_RISK), None)
