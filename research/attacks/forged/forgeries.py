"""Archives of evidence that claim what did not happen, and how each is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from chorale.evidence import parsed
from chorale.spec.state import state_to_bytes
from client.evidence.proofs import ProofDocument
from crypto.identity.certificates import Role
from research.attacks.forged.federation import Federation, Run
from research.attacks.forged.scene import (
    COLLUDERS,
    DRAWN,
    HONEST,
    KEEP,
    LEAVES,
    SILOS,
    TWO_STEPS,
    Scene,
    Shown,
    shown,
)

OPENING = (0, "enrollment.0"), (0, "class-presence.0")

# rosters


def old_roster(scene: Scene) -> Shown:
    """The job never ran: nobody honest saw it."""
    early = scene.federation.publish(COLLUDERS)
    return shown(scene.run().whole(early), scene.federation.publish())


def old_roster_with_an_honest_silo(scene: Scene) -> Shown:
    early = scene.federation.publish(SILOS[:4])
    return shown(scene.run().whole(early), scene.federation.publish())


def newer_roster(scene: Scene) -> Shown:
    """The honest silos left after two rounds; the third never was."""
    return shown(scene.run().whole(*[scene.federation.publish()] * 3, scene.federation.publish(COLLUDERS)))


def older_roster_in_between(scene: Scene) -> Shown:
    early, now = scene.federation.publish(COLLUDERS), scene.federation.publish()
    return shown(scene.run().whole(now, now, early, now))


def roster_of_retired_keys(scene: Scene) -> Shown:
    """Who holds keys that honest silos gave up signs all; a reader who knew the roster since finds it."""
    early, retired = scene.federation.publish(), dict(scene.federation.identities)
    for name in HONEST:
        scene.federation.renew(Role.SILO, name)
    now = scene.federation.publish()
    return shown(scene.run().whole(early, keys=retired), now, known=now)


def other_federations_roster(scene: Scene) -> Shown:
    run, other = scene.honest(), Federation(SILOS)
    run.rosters[1] = other.publish()
    return shown(run)


def readmitted_colluders(scene: Scene) -> Shown:
    scene.federation.publish()
    scene.federation.publish(HONEST)
    back = scene.federation.publish(COLLUDERS, readmitted=COLLUDERS)
    return shown(scene.run().whole(back))


def returned_without_a_mark(scene: Scene) -> Shown:
    """No authority signs that; one whose key was stolen may have."""
    before, gone = scene.federation.publish(), scene.federation.publish(SILOS[1:])
    return shown(scene.run().whole(before, gone, scene.federation.publish()))


def rotated_back(scene: Scene) -> Shown:
    """After the authority's key was changed, a roster of the old key again."""
    early, old_keys = scene.federation.publish(), dict(scene.federation.identities)
    scene.federation.rotate()
    now, run = scene.federation.publish(), scene.run()
    run.phase(0, "enrollment.0", now)
    scene.federation.identities |= {"olga": scene.federation.identities["olga"]}
    run.phase(1, "train", early, keys=old_keys)
    return shown(run, status="cancelled")


def shrunk_draw(scene: Scene) -> Shown:
    """Four are drawn from a roster of four, of whom three lie."""
    rosters = [scene.federation.publish(), scene.federation.publish(SILOS[:4])]
    return shown(scene.run(**DRAWN).whole(*rosters))


def draw_of_colluders(scene: Scene) -> Shown:
    rosters = [scene.federation.publish(), scene.federation.publish(COLLUDERS)]
    return shown(scene.run(**DRAWN).whole(*rosters))


def replaced_draw(scene: Scene) -> Shown:
    run = scene.run(**DRAWN).whole(scene.federation.publish())
    run.proofs[2] = _changed(run.proofs[2], draw_seed="ab" * 32)
    return shown(run)


# phases


def dropped(scene: Scene) -> Shown:
    run = scene.honest()
    del run.phases[2], run.proofs[2]
    return shown(run)


def last_round_dropped(scene: Scene) -> Shown:
    """The job is called done, and the state of round 2 its end."""
    run = scene.honest()
    del run.phases[3], run.proofs[3]
    run.phases[-1] = run.phases[-1].model_copy(update={"state": run.proofs[-1].next})
    return shown(run, model=run.proofs[-1].next)


def end_of_round_dropped(scene: Scene) -> Shown:
    """Of the last round a statistic is shown, and not the training that followed."""
    run = scene.with_statistics(rounds=1)
    return shown(run.steps(scene.federation.publish(), *OPENING, (1, "prototypes"), (1, "evaluate.0")))


def opening_dropped(scene: Scene) -> Shown:
    run = scene.with_statistics(rounds=1)
    return shown(run.steps(scene.federation.publish(), OPENING[0], (1, "train"), (1, "evaluate.0")))


def closing_dropped(scene: Scene) -> Shown:
    """The model is the one before its head was calibrated."""
    run = scene.run(strategy={"preset": "ccvr"}, rounds=1)
    run.arrays = {"model/head.weight": np.ones((2, 2), np.float32), "method/total": np.array(90)}
    run.model = state_to_bytes(run.arrays)
    return shown(run.steps(scene.federation.publish(), *OPENING, (1, "train"), (1, "evaluate.0")))


def signed_by_nobody(scene: Scene) -> Shown:
    """The model is the one that the job began with, and a test of it."""
    roster, run = scene.federation.publish(), scene.run()
    run.phase(0, OPENING[0][1], roster, result="used-up")
    run.phase(3, "evaluate.0", roster)
    return shown(run)


def ended_before_anything(scene: Scene) -> Shown:
    run = scene.run()
    run.phase(0, OPENING[0][1], scene.federation.publish(), result="used-up")
    return shown(run, status="stopped")


def statistic_as_a_kept_model(scene: Scene) -> Shown:
    """The state between a round's statistic and its training, as the model after that round."""
    run = scene.with_statistics(rounds=1, keep=KEEP)
    run.steps(scene.federation.publish(), *OPENING, (1, "prototypes"), (1, "train"), (1, "evaluate.0"))
    return shown(run, model=run.proofs[2].next)


def earlier_state_called_the_last(scene: Scene) -> Shown:
    run = scene.honest()
    return shown(run, model=run.proofs[2].next)


def other_round_of_the_model(scene: Scene) -> Shown:
    return shown(scene.honest(), model_round=2)


def repeated(scene: Scene) -> Shown:
    """The proof of round 2 once more, as that of round 3."""
    run = scene.honest()
    run.proofs[3] = _changed(run.proofs[2], round=3, parent=run.proofs[2].next)
    return shown(run)


def exchanged(scene: Scene) -> Shown:
    run = scene.honest()
    run.phases[1], run.phases[2] = run.phases[2], run.phases[1]
    return shown(run)


def other_attempt(scene: Scene) -> Shown:
    run = scene.honest()
    run.proofs[2] = _changed(run.proofs[2], attempt=2)
    return shown(run)


def two_jobs_mixed(scene: Scene) -> Shown:
    """Both jobs ran, from one first state; the end of the second stands behind the beginning of the first."""
    return shown(_mixed(scene, renamed=False))


def other_jobs_proof_renamed(scene: Scene) -> Shown:
    return shown(_mixed(scene, renamed=True))


def abandoned_phase(scene: Scene) -> Shown:
    """Silos signed that round 3 never ends; colluders alone signed a state of it."""
    run = scene.honest()
    run.proofs[3] = _changed(run.proofs[3], signers=dict(list(run.proofs[3].signers.items())[:3]))
    run.phases[3] = run.phases[3].model_copy(update={"verified_by": 3})
    return shown(run)


def abandonments_as_signatures(scene: Scene) -> Shown:
    run = scene.honest()
    signers = {
        name: row.model_copy(update={"signature": run.abandoned(name, 3, "train")})
        for name, row in run.proofs[3].signers.items()
    }
    run.proofs[3] = _changed(run.proofs[3], signers=signers)
    return shown(run)


def borrowed_names(scene: Scene) -> Shown:
    """Colluders sign under the names of honest silos."""
    run, roster = scene.run(), scene.federation.publish()
    keys = dict.fromkeys(HONEST, scene.federation.identities[COLLUDERS[0]])
    return shown(run.whole(roster, keys=keys))


def counted_out(scene: Scene) -> Shown:
    """A round that moved the model is told as one without a sum."""
    run = scene.honest()
    lost = {"result": "used-up", "verified_by": 0, "cohort": (), "state": run.proofs[1].next}
    run.phases[2] = run.phases[2].model_copy(update=lost)
    del run.proofs[2]
    return shown(run)


def moved_and_told_as_used_up(scene: Scene) -> Shown:
    """Its proof is there, and the model called that of the round before."""
    run = scene.honest()
    run.phases[3] = run.phases[3].model_copy(update={"result": "used-up"})
    return shown(run)


def step_that_moved_nothing(scene: Scene) -> Shown:
    """Of two steps one was lost, and the job is called done."""
    run, roster = scene.run(**TWO_STEPS), scene.federation.publish()
    run.steps(roster, OPENING[0])
    run.phase(1, "train", roster, moves=False)
    run.phases[-1] = run.phases[-1].model_copy(update={"result": "used-up"})
    return shown(run.steps(roster, (2, "train"), (3, "evaluate.0")))


def comment_in_the_job(scene: Scene) -> Shown:
    """People read in the signed file what no silo was asked, and no screen showed."""
    run = scene.run()
    data = b"# every ethics board has approved this\n" + run.job.signed.spec_bytes
    run.job = scene.federation.signed(run.job.training, data)
    return shown(run.whole(scene.federation.publish()))


def put_into_a_sum(scene: Scene) -> Shown:
    roster, run = scene.federation.publish(), scene.run()
    run.whole(roster, away=(LEAVES,))
    run.phases[2] = run.phases[2].model_copy(update={"cohort": SILOS})
    run.proofs[2] = _changed(run.proofs[2], survivors=SILOS)
    return shown(run)


# statements of silos


def revoked_silo(scene: Scene) -> Shown:
    """Its key was stolen and its certificate revoked after round 1; the thief says what it likes of all."""
    rosters = [scene.federation.publish()] * 2 + [scene.federation.publish(SILOS[:-1])]
    run = scene.run().whole(*rosters)
    run.add_silo(LEAVES)
    return shown(run)


def silo_of_a_roster_of_no_phase(scene: Scene) -> Shown:
    early = scene.federation.publish()
    key = scene.federation.identities[LEAVES]
    scene.federation.renew(Role.SILO, LEAVES)
    now = scene.federation.publish()
    run = scene.run().whole(now)
    run.add_silo(LEAVES, key=key)
    run.rosters[early.version] = early
    return shown(run)


def changed_policy(scene: Scene) -> Shown:
    run = scene.honest()
    run.add_silo(LEAVES)
    run.silos[LEAVES] = run.silos[LEAVES].replace(b'"policy": "0', b'"policy": "1')
    return shown(run)


def policy_by_another_silo(scene: Scene) -> Shown:
    run = scene.honest()
    run.add_silo(LEAVES, key=scene.federation.identities[COLLUDERS[0]], policy="1" * 64)
    return shown(run)


def hidden_round_against_a_silo(scene: Scene) -> Shown:
    """All after round 1 is left out and the job called cancelled; a silo says that it took part."""
    run = scene.honest()
    run.add_silo(LEAVES)
    del run.phases[2:], run.proofs[2:]
    return shown(run, status="cancelled", model=run.proofs[-1].next)


FORGED: Mapping[str, tuple[Callable[[Scene], Shown], str]] = {
    "an old roster of colluders alone": (
        old_roster,
        r"round 0 enrollment.0: unproved: 3 of 3 named silos signed under roster 1, without clinic-d, .*"
        r"withstands 2 colluders of the job's 9 silos, 3 needed$",
    ),
    "an old roster with one honest silo": (
        old_roster_with_an_honest_silo,
        r"round 0 enrollment.0: unproved: 3 of 4 named silos signed \(not clinic-d\) under roster 1",
    ),
    "a newer roster of colluders alone": (
        newer_roster,
        r"round 3 train: unproved: 3 of 3 named silos signed under roster 2",
    ),
    "an older roster in the middle": (
        older_roster_in_between,
        r"^round 2 train: roster 1 is older than roster 2, of the phase before$",
    ),
    "retired keys under a roster before the reader's": (
        roster_of_retired_keys,
        r"^round 0 enrollment.0: roster 1 is older than roster 2, of the one that you knew before the job$",
    ),
    "a roster of another federation": (
        other_federations_roster,
        r"^rosters/1.json of round 0 enrollment.0: roster: the signature is not valid",
    ),
    "readmitted colluders alone": (readmitted_colluders, r"round 0 enrollment.0: unproved: 3 of 3"),
    "a certificate that returns without a mark": (
        returned_without_a_mark,
        r"^round 2 train: roster: version 3 lists a certificate of silo clinic-a that left in version 2",
    ),
    "the authority's old key again": (
        rotated_back,
        r"^round 1 train: roster 1 is older than roster 2, of the phase before$",
    ),
    "a draw from a shrunk roster": (shrunk_draw, r"round 1 train: unproved: 3 of 4 named silos signed"),
    "a draw of colluders alone": (draw_of_colluders, r"round 1 train: unproved: 3 of 3 named silos"),
    "another draw": (replaced_draw, r"^round 2 train: what the rounds are drawn by was replaced"),
    "a phase less": (dropped, r"^round 3 train: round 2 is missing"),
    "the last round less": (last_round_dropped, r"^round 3 evaluate.0: round 3 is missing"),
    "the end of a round less": (end_of_round_dropped, r"^round 1 evaluate.0: the end of round 1 is missing"),
    "a statistic of the opening less": (
        opening_dropped,
        r"^round 1 train: class-presence before it is missing",
    ),
    "a closing phase less": (closing_dropped, r"^round 1 evaluate.0: calibrate before it is missing"),
    "a job that nobody signed": (signed_by_nobody, r"^round 3 evaluate.0: enrollment before it is missing"),
    "a job without a state": (ended_before_anything, r"^the weakest phase is none: silos signed no phase$"),
    "a statistic as a kept model": (
        statistic_as_a_kept_model,
        r"^coordinator.json: model after round 1: not the state that silos signed last, of round 1 train",
    ),
    "an earlier state as the last": (
        earlier_state_called_the_last,
        r"^coordinator.json: model after round 3: not the state that silos signed last, of round 3 train",
    ),
    "another round as that of the model": (
        other_round_of_the_model,
        r"^coordinator.json: model after round 2: not the state that silos signed last, of round 3 train",
    ),
    "a phase twice": (repeated, r"^round 3 train: next-state of clinic-a: .*the signature is not valid"),
    "phases exchanged": (exchanged, r"^round 2 train: round 1 is missing"),
    "the proof of another attempt": (
        other_attempt,
        r"^round 2 train: next-state of clinic-a: .*the signature is not valid",
    ),
    "two jobs mixed": (two_jobs_mixed, r"^round 2 train: its proof is of another job"),
    "another job's proof under this job's id": (
        other_jobs_proof_renamed,
        r"^round 2 train: next-state of clinic-a: .*the signature is not valid",
    ),
    "the state of an abandoned phase": (
        abandoned_phase,
        r"^round 3 train: proof: expected signatures of 7 silos, got 3",
    ),
    "abandonments as signatures": (
        abandonments_as_signatures,
        r"^round 3 train: next-state of clinic-a: .*the signature is not valid",
    ),
    "colluders under honest names": (
        borrowed_names,
        r"^round 0 enrollment.0: proof: the roster does not hold clinic-d with this certificate",
    ),
    "a round told as used up": (counted_out, r"^round 3 train: it does not go on from the state before"),
    "a round that moved the model told as used up": (
        moved_and_told_as_used_up,
        r"^round 3 train: silos signed another state, and the coordinator calls it used-up",
    ),
    "a step that moved nothing": (step_that_moved_nothing, r"^round 3 evaluate.0: round 3 is missing"),
    "a comment in the signed job": (
        comment_in_the_job,
        r"^job.yaml: it: expected a job as Chorale writes it, got other bytes",
    ),
    "a silo put into a sum": (put_into_a_sum, r"^round 2 train: next-state of clinic-a: .*not valid"),
    "a revoked silo's statement": (
        revoked_silo,
        r"^silos/clinic-i.json: .*the newest roster, version 2, does not list .* after round 1 train$",
    ),
    "a statement under a roster of no phase": (
        silo_of_a_roster_of_no_phase,
        r"^silos/clinic-i.json: it is not signed by silo clinic-i: the newest roster, version 2, does",
    ),
    "a changed policy": (changed_policy, r"^silos/clinic-i.json: evidence-silo: the signature is not valid"),
    "a policy by another silo": (
        policy_by_another_silo,
        r"^silos/clinic-i.json: it is not signed by silo clinic-i",
    ),
    "rounds hidden from a silo's statement": (
        hidden_round_against_a_silo,
        r"^silos/clinic-i.json: it revealed round 2 train, which the archive does not have",
    ),
}


def _changed(proof: ProofDocument, **fields: object) -> ProofDocument:
    return parsed(ProofDocument, proof.model_copy(update=fields).model_dump(mode="json"))


def _mixed(scene: Scene, *, renamed: bool) -> Run:
    roster = scene.federation.publish()
    run, other = (scene.run(nonce=digit * 32).whole(roster) for digit in "01")
    for number in (2, 3):
        taken = other.proofs[number]
        run.proofs[number] = _changed(taken, job=run.job.digest.hex()) if renamed else taken
    return run
