"""Archives of what happened: silos join, leave and come back, keys change, rounds are drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from crypto.identity.certificates import Role
from research.attacks.forged.scene import (
    COLLUDERS,
    DRAWN,
    KEEP,
    LEAVES,
    SILOS,
    STOP,
    TWO_STEPS,
    Scene,
    Shown,
    shown,
)


def all_stay(scene: Scene) -> Shown:
    run = scene.honest()
    for name in SILOS:
        run.add_silo(name)
    return shown(run, known=run.rosters[1])


def one_joins(scene: Scene) -> Shown:
    return shown(scene.run().whole(scene.federation.publish(SILOS[:-1]), scene.federation.publish()))


def one_is_revoked(scene: Scene) -> Shown:
    return shown(scene.run().whole(scene.federation.publish(), scene.federation.publish(SILOS[:-1])))


def one_is_readmitted(scene: Scene) -> Shown:
    before, gone = scene.federation.publish(), scene.federation.publish(SILOS[:-1])
    return shown(scene.run().whole(before, gone, scene.federation.publish(readmitted=(LEAVES,))))


def one_is_renewed(scene: Scene) -> Shown:
    run, before = scene.run(), scene.federation.publish()
    run.phase(0, "enrollment.0", before)
    run.phase(1, "train", before)
    scene.federation.renew(Role.SILO, COLLUDERS[0])
    now = scene.federation.publish()
    for round, phase in ((2, "train"), (3, "train"), (3, "evaluate.0")):
        run.phase(round, phase, now)
    run.add_silo(COLLUDERS[0])
    return shown(run, known=before)


def key_is_rotated(scene: Scene) -> Shown:
    """Operators keep their certificate until the job is over: it signed the job."""
    run, before = scene.run(), scene.federation.publish()
    run.phase(0, "enrollment.0", before)
    operator = scene.federation.identities["olga"]
    scene.federation.rotate()
    scene.federation.identities["olga"] = operator
    now = scene.federation.publish()
    for round, phase in ((1, "train"), (2, "train"), (3, "train"), (3, "evaluate.0")):
        run.phase(round, phase, now)
    run.add_silo(LEAVES)
    return shown(run, known=before)


def rounds_are_drawn(scene: Scene) -> Shown:
    return shown(scene.run(**DRAWN).whole(scene.federation.publish()))


def drawn_while_one_is_revoked(scene: Scene) -> Shown:
    rosters = scene.federation.publish(), scene.federation.publish(SILOS[:-1])
    return shown(scene.run(**DRAWN).whole(*rosters))


def groups_take_turns(scene: Scene) -> Shown:
    return shown(scene.run(fraction=0.333, draw="groups").whole(scene.federation.publish()))


def stopped_early(scene: Scene) -> Shown:
    run, roster = scene.run(stop=STOP), scene.federation.publish()
    for round, phase in ((0, "enrollment.0"), (1, "train"), (3, "evaluate.0")):
        run.phase(round, phase, roster)
    return shown(run)


def keeps_the_best_round(scene: Scene) -> Shown:
    """A round's model is tested in the next one, once that one's statistic stands beside it."""
    run, roster = scene.with_statistics(rounds=2, keep=KEEP), scene.federation.publish()
    run.steps(roster, (0, "enrollment.0"), (0, "class-presence.0"), (1, "prototypes"), (1, "train"))
    run.steps(roster, (2, "prototypes"), (2, "train"), (2, "evaluate.0"))
    return shown(run, model=run.proofs[4].next, model_round=1)


def all_steps_are_taken(scene: Scene) -> Shown:
    run = scene.run(**TWO_STEPS).steps(scene.federation.publish(), (0, "enrollment.0"), (1, "train"))
    return shown(run.steps(run.rosters[1], (2, "train"), (3, "evaluate.0")))


def cancelled_after_a_used_up_round(scene: Scene) -> Shown:
    run, roster = scene.run(), scene.federation.publish()
    run.phase(0, "enrollment.0", roster)
    run.phase(1, "train", roster, result="used-up")
    run.phase(2, "train", roster, away=(LEAVES,))
    return shown(run, status="cancelled")


TRUE: Mapping[str, Callable[[Scene], Shown]] = {
    "all stay": all_stay,
    "one joins": one_joins,
    "one is revoked": one_is_revoked,
    "one is readmitted": one_is_readmitted,
    "one is renewed": one_is_renewed,
    "the authority's key is rotated": key_is_rotated,
    "rounds are drawn": rounds_are_drawn,
    "rounds are drawn while one is revoked": drawn_while_one_is_revoked,
    "groups take turns": groups_take_turns,
    "the job stops early": stopped_early,
    "all steps are taken before the last round": all_steps_are_taken,
    "the best round is kept": keeps_the_best_round,
    "cancelled after a used-up round": cancelled_after_a_used_up_round,
}
