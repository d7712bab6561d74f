"""`chorale silo show`, `approve` and `reject`: what a person is told of a job, and what the answer does."""

from __future__ import annotations

import io
import json
import sys
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from chorale.job import Job, SignedJob
from chorale.privacy.accountant import epsilon
from chorale.privacy.job_releases import JobReleases
from chorale.spec.job_spec import JobSpec
from chorale.spec.state import state_digest, state_to_bytes
from cli.silo.screen import MAX_COLUMNS
from crypto.errors import PolicyRefusal
from silo_agent.disclosure.ledger.ledger import Ledger
from silo_agent.disclosure.ledger.reveals import Decision
from silo_agent.disclosure.policy.policy import Policy
from silo_agent.rounds import first_state
from silo_agent.settings import load_silo_settings
from simulation.engine import unsigned_job
from tests.unit.cli.conftest import Calls, Desk, Ended

WARNING = "it has no noise, so its sums can hold single training records"
STATE = {"model/weight": np.zeros(1, np.float32)}
RECORDS = {"clip_norm": 1.0, "noise_multiplier": 2.0, "sample_rate": 0.1}
STRICT = {"shared_noise": 0.01}
GIVEN = {"federation": "test", "initial_state": "given"}  # a policy for jobs that start from STATE


def offered(desk: Desk, *, operator: str = "olga", **changes: Any) -> Job:
    """A job that the silo's ledger holds. It starts from STATE, which nobody draws."""
    path = desk.job(**{"not_after": "2099-12-31T00:00:00Z"} | changes)
    unsigned = unsigned_job(JobSpec.from_yaml(path.read_bytes(), source=path.name), STATE)
    job = Job(spec=unsigned.spec, signed=unsigned.signed, operator=operator)
    recorded(desk, job)
    return job


def drawn(desk: Desk, **changes: Any) -> Job:
    """The same, started from what every silo draws from the job."""
    path = desk.job(**{"not_after": "2099-12-31T00:00:00Z"} | changes)
    spec = JobSpec.from_yaml(path.read_bytes(), source=path.name).filled(nonce="5" * 32, initial_state=None)
    state = first_state.drawn_arrays(spec, spec.base(), max_bytes=1 << 30)
    spec = spec.filled(nonce=spec.nonce, initial_state=state_digest(state_to_bytes(state)))
    signed = SignedJob(spec_bytes=spec.to_yaml(), signature=b"", operator_certificate=b"")
    job = Job(spec=spec, signed=signed, operator="olga")
    recorded(desk, job)
    return job


def recorded(desk: Desk, job: Job) -> None:
    (desk.folder / "silo-0").mkdir(exist_ok=True)
    with closing(Ledger(desk.folder / "silo-0" / "ledger.sqlite")) as ledger:
        ledger.record_job(job, is_approved=False)


def decision_of(desk: Desk, job: Job) -> Decision | None:
    with closing(Ledger(desk.folder / "silo-0" / "ledger.sqlite")) as ledger:
        return ledger.decision(job.digest)


def lines_of(ended: Ended, label: str) -> str:
    """What stands behind a label of the screen, on one line."""
    lines, is_in = [], False
    for line in ended.out.splitlines():
        is_in = line.startswith(f"{label} ") or (is_in and line.startswith(" " * 12))
        if is_in:
            lines.append(line[12:])
    return " ".join(lines)


@pytest.mark.parametrize(
    ("privacy", "is_warned"),
    [
        (None, True),
        ({"records": RECORDS, "statistics_noise_multiplier": 4.0}, False),
    ],
)
def test_silo_is_told_what_sums_without_noise_can_hold(
    desk: Desk, chorale: Calls, privacy: dict[str, Any] | None, is_warned: bool
) -> None:
    pytest.importorskip("torch", reason="a silo draws the weights")
    job, config = drawn(desk, privacy=privacy), desk.silo()
    shown = chorale("silo", "show", "--config", config, job.id)
    approved = chorale("silo", "approve", "--config", config, job.id, "--yes")
    assert f"{job.id}: digits by olga is approved" in approved.out
    for ended in (shown, approved):
        assert ended.code == 0, ended.err
        assert lines_of(ended, "noise").startswith(WARNING) == is_warned
        assert ("records in one silo: epsilon" in lines_of(ended, "noise")) != is_warned
        plain = "this job uses none of it: nothing bounds what its sums tell"
        assert (plain in lines_of(ended, "budget")) == is_warned
        assert "data set data: a record is one row; where one person has several" in lines_of(ended, "reads")
        drawn_here = "computed from the job, the same as this silo draws; 4,810 parameters"
        assert lines_of(ended, "weights") == drawn_here


def test_silo_is_told_the_classes_of_a_job_and_what_they_are_called_here(desk: Desk, chorale: Calls) -> None:
    own = {"labels": {"krank": "ill"}, "drop": ["not known"]}
    config = desk.silo(data={"format": "image-folder", "path": str(desk.folder), **own})
    shown = chorale("silo", "show", "--config", config, offered(desk, classes=["well", "ill"]).id)
    assert shown.code == 0, shown.err
    assert lines_of(shown, "classes") == "2: well, ill"
    assert lines_of(shown, "here") == 'by this silo\'s settings krank is ill, "not known" is left out'
    shown = chorale("silo", "show", "--config", desk.silo(), offered(desk).id)
    assert (lines_of(shown, "classes"), lines_of(shown, "here")) == ("", "")


@pytest.mark.parametrize(("delta", "unit"), [(1e-4, None), (1e-5, "patient")])
def test_silo_is_told_what_its_ledger_will_be_charged_beside_what_the_job_promises(
    desk: Desk, chorale: Calls, delta: float, unit: str | None
) -> None:
    """A job of 5.985 at its own delta was charged 7.203 at the policy's, which nobody had been told before.
    What several records of one person cost was told where all rows of a patient are one record."""
    pytest.importorskip("torch", reason="a silo draws the weights")
    job = drawn(desk, privacy={"records": RECORDS, "statistics_noise_multiplier": 4.0, "delta": delta})
    data = {"format": "csv", "path": str(desk.folder / "ward.csv"), "unit": unit}
    shown = chorale("silo", "show", "--config", desk.silo(data=data), job.id)
    plan = JobReleases(job.spec, first_state.drawn_arrays(job.spec, b"", max_bytes=1 << 20)).planned()
    charged = epsilon(plan, 1e-5, sides_are_fixed=False)  # no account yet says that none ever changed
    own = f" (it promises {epsilon(plan, delta):.4g} at its own delta {delta:g})"
    assert lines_of(shown, "budget") == (
        f"epsilon 10 of 10 left at delta 1e-05 this job costs {charged:.4g} at this delta{own}; "
        f"with what was spent or reserved: {charged:.4g} of 10"
    )
    assert ("records in one silo" in lines_of(shown, "noise")) == (unit is None)


def test_silo_is_told_both_promises_of_a_private_job_and_its_policy_holds_them(
    desk: Desk, chorale: Calls
) -> None:
    """It was asked to approve noise that rests on other silos, and no number said what that means. It could
    approve a job that its policy then refused, and was told "is approved"."""
    pytest.importorskip("torch", reason="a silo draws the weights")
    records = {**RECORDS, "noise_multiplier": 10.0, "noise": "sum"}
    privacy = {"records": records, "statistics_noise_multiplier": 40.0}
    job = drawn(desk, privacy=privacy, steps=3, spare_steps=2, rounds=5, model={"name": "mlp", "hidden": []})
    config = desk.silo()
    # The list told rounds, which count the spare steps and which the job does not have.
    waiting = chorale("silo", "approve", "--config", config)
    assert f"{job.id}  digits  3 steps  by olga" in waiting.out
    accepts = {"shared_noise": "allow"}
    desk.write("policy.yaml", {"federation": "test", "privacy": STRICT})
    refused = chorale("silo", "approve", "--config", config, job.id, "--yes")
    assert refused.code == 3
    field = "privacy.shared_noise"
    assert f"refuses it by {field}" in lines_of(refused, "policy")
    assert "this silo would refuse it although it is approved: expected at most epsilon 0.01" in refused.err
    assert "is approved" not in refused.out
    assert decision_of(desk, job) is Decision.OFFERED

    desk.write("policy.yaml", {"federation": "test", "privacy": accepts})
    approved = chorale("silo", "approve", "--config", config, job.id, "--yes")
    assert approved.code == 0, approved.err
    alone = JobReleases(
        job.spec, first_state.drawn_arrays(job.spec, b"", max_bytes=1 << 20), honest=1
    ).promised_epsilon()
    assert f"if all other silos collude with it: epsilon {alone:.4g}" in lines_of(approved, "noise")
    assert decision_of(desk, job) is Decision.APPROVED


def test_approve_names_every_rule_that_refuses_and_show_lists_them(desk: Desk, chorale: Calls) -> None:
    """Approved, and then refused at its first phase by one rule after the other."""
    job, config = offered(desk, rounds=30, strategy={"preset": "feddw"}), desk.silo()
    desk.write("policy.yaml", {"federation": "test", "max_rounds": 20, "operators": ["somebody-else"]})
    ended = chorale("silo", "approve", "--config", config, job.id, "--yes")
    assert ended.code == 3
    for field in ("operators", "max_rounds", "class_statistics", "initial_state"):
        assert f"[{field}]" in ended.err
        assert f"refuses it by {field}: " in lines_of(ended, "policy")
    # nobody else is told of it, so the operator waited for an approval that could not come
    assert "the operator sees only that it waits" in ended.err
    assert f"chorale silo reject {job.id} --reason TEXT" in ended.err
    assert decision_of(desk, job) is Decision.OFFERED
    shown = json.loads(chorale("silo", "show", "--config", config, job.id, "--json").out)
    assert {each["field"] for each in shown["refusals"]} == {
        *("operators", "max_rounds", "class_statistics", "initial_state")
    }


def test_job_whose_time_is_over_is_not_approved(desk: Desk, chorale: Calls) -> None:
    job, config = offered(desk, not_after="2026-01-01T00:00:00Z"), desk.silo()
    desk.write("policy.yaml", GIVEN)
    ended = chorale("silo", "approve", "--config", config, job.id, "--yes")
    assert ended.code == 3
    assert "not_after: 2026-01-01T00:00:00+00:00 has passed [job-invalid]" in ended.err


def test_job_that_is_over_waits_for_nobody(desk: Desk, chorale: Calls) -> None:
    """`approve` listed jobs that had ended long ago, and said `is approved` of one."""
    desk.write("policy.yaml", GIVEN)
    open_job, over = offered(desk), offered(desk, name="over")
    late = offered(desk, name="late", not_after="2026-01-01T00:00:00Z")
    config = desk.silo()
    with closing(Ledger(desk.folder / "silo-0" / "ledger.sqlite")) as ledger:
        ledger.note_over(over.digest)

    def waiting(command: str) -> list[str]:
        return [line.split()[0] for line in chorale("silo", command, "--config", config).out.splitlines()]

    assert waiting("approve") == waiting("show") == [open_job.id]
    listed = json.loads(chorale("silo", "approve", "--config", config, "--json").out)["jobs"]
    assert [each["job"] for each in listed] == [open_job.digest.hex()]
    line = f"{over.id}  over  "
    assert line in chorale("silo", "ledger", "--config", config).out, "of a job that nobody decided"
    approved = chorale("silo", "approve", "--config", config, over.id, "--yes")
    assert (approved.code, decision_of(desk, over)) == (2, Decision.OFFERED)
    assert f"job {over.id}: it is over, says the coordinator" in approved.err
    assert "over: over (says the coordinator), nobody decided here" in approved.out
    rejected = chorale("silo", "reject", "--config", config, over.id, "--reason", "no")
    assert (rejected.code, decision_of(desk, over)) == (2, Decision.OFFERED)
    assert "it is over, says the coordinator, and not approved here" in rejected.err
    assert late.id not in waiting("show")
    ledger = chorale("silo", "ledger", "--config", config).out  # it said "offered" of a job that is over
    decisions = {line.split("  ")[0]: line.split("  ")[1].strip() for line in ledger.splitlines()[1:4]}
    assert decisions == {open_job.id: "offered", over.id: "over", late.id: "offered"}


def test_approval_that_waits_holds_under_the_policy_that_was_seen(desk: Desk, chorale: Calls) -> None:
    """The first of two people approved under a policy that no longer held when the second one did."""
    job, config = offered(desk), desk.silo()
    two = {**GIVEN, "required_approvals": 2}

    def approve(name: str) -> Ended:
        return chorale("silo", "approve", "--config", config, job.id, "--yes", "--by", name)

    desk.write("policy.yaml", two)
    assert approve("Ann").code == 0
    desk.write("policy.yaml", {**two, "max_cohort_changes": 3})
    second = approve("Bo")
    taken_back = "the approval of Ann is taken back: the policy file has changed since"
    assert taken_back in lines_of(second, "said")
    assert f"{job.id}: {taken_back}" in second.out
    assert f"{job.id}: digits by olga has the approval of Bo and waits for another person's" in second.out
    assert decision_of(desk, job) is Decision.OFFERED

    desk.write("policy.yaml", {**two, "operators": ["otto"]})
    refused = approve("Cy")
    assert refused.code == 3
    assert "or reject the job; the approval of Bo is taken back" in refused.err
    desk.write("policy.yaml", {**two, "max_cohort_changes": 3})  # as Bo saw it
    for name, decision in (("Cy", Decision.OFFERED), ("Di", Decision.APPROVED)):
        assert approve(name).code == 0
        assert decision_of(desk, job) is decision


def test_decisions_are_told_to_programs(desk: Desk, chorale: Calls) -> None:
    """A script read `is approved` out of a sentence."""
    job, config = offered(desk), desk.silo()
    desk.write("policy.yaml", {**GIVEN, "required_approvals": 2})

    def facts_of(command: str, *more: str) -> dict[str, Any]:
        ended = chorale("silo", command, "--config", config, job.id, "--json", *more)
        assert ended.code == 0, ended.err
        facts: dict[str, Any] = json.loads(ended.out)
        return facts

    first = facts_of("approve", "--yes", "--by", "Ann")
    assert (first["job"], first["decision"], first["by"]) == (job.digest.hex(), "offered", "Ann")
    assert first["missing_approvals"] == 1
    listed = json.loads(chorale("silo", "show", "--config", config, "--json").out)["jobs"]
    assert [each["approved_by"] for each in listed] == [["Ann"]]
    second = facts_of("approve", "--yes", "--by", "Bo", "--more-cohort-changes", "2")
    assert (second["decision"], second["missing_approvals"]) == ("approved", 0)
    assert (second["more_cohort_changes"], second["more_data_refusals"]) == (2, 0)
    no = facts_of("reject", "--by", "Cy", "--reason", "not before May")
    assert (no["decision"], no["by"], no["reason"]) == ("rejected", "Cy", "not before May")


def test_approve_asks_at_a_terminal_and_needs_yes_without_one(
    desk: Desk, chorale: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, config = offered(desk), desk.silo()
    desk.write("policy.yaml", GIVEN)

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    def answered(stdin: io.StringIO) -> Ended:
        monkeypatch.setattr(sys, "stdin", stdin)
        return chorale("silo", "approve", "--config", config, job.id)

    unasked = answered(io.StringIO("y\n"))
    assert (unasked.code, decision_of(desk, job)) == (2, Decision.OFFERED)
    assert "--yes: expected it without a terminal" in unasked.err
    declined = answered(Terminal("n\n"))
    assert (declined.code, decision_of(desk, job)) == (1, Decision.OFFERED)
    assert f"{job.id}: nothing was decided" in declined.err
    assert answered(Terminal("y\n")).code == 0
    assert decision_of(desk, job) is Decision.APPROVED


def test_policy_of_two_people_takes_two_names(desk: Desk, chorale: Calls) -> None:
    job, config = offered(desk), desk.silo()
    desk.write("policy.yaml", {**GIVEN, "required_approvals": 2})

    def approve(*more: str) -> Ended:
        return chorale("silo", "approve", "--config", config, job.id, "--yes", *more)

    assert "--by: expected the name of who approves: the policy wants 2 people" in approve().err
    first = approve("--by", "Ann Lee")
    assert f"{job.id}: digits by olga has the approval of Ann Lee and waits for another person's" in first.out
    assert decision_of(desk, job) is Decision.OFFERED
    listed = chorale("silo", "approve", "--config", config)
    assert "approved by Ann Lee" in listed.out
    same = approve("--by", " ann  LEE ")
    assert (same.code, decision_of(desk, job)) == (2, Decision.OFFERED)
    assert "ann LEE approved this job already" in same.err
    assert "digits: waits for approval by 2 people, 1 approved" in same.out
    assert f"{job.id}: digits by olga is approved" in approve("--by", "Bo Chen").out
    assert decision_of(desk, job) is Decision.APPROVED
    said = lines_of(chorale("silo", "show", "--config", config, job.id), "said")
    assert said.startswith("Bo Chen approved it ")
    assert " Ann Lee approved it " in said


def test_rejection_is_kept_with_its_reason_and_name(desk: Desk, chorale: Calls) -> None:
    """The ledger could say no, and no command did."""
    job, config = offered(desk), desk.silo()

    def reject(reason: str, *more: str) -> Ended:
        return chorale("silo", "reject", "--config", config, job.id, "--reason", reason, *more)

    for wrong in ("", "  ", "x" * 201, "two\nlines", "\x1b[2Jgone", "\u202etxt"):
        ended = reject(wrong)
        assert (ended.code, decision_of(desk, job)) == (2, Decision.OFFERED), wrong
        assert "--reason: expected 1 to 200 printable characters" in ended.err
    assert (
        "--by: expected 1 to 64 printable characters on one line, got '\\x07'\n"
        in reject("no", "--by", "\x07").err
    )
    assert "got '\\u3164'" in reject("no", "--by", "\u3164").err  # a name that nobody sees
    # as Python reads "für" where the locale is POSIX's: its length was blamed
    assert (
        "got '\\udcc3' of another encoding than this terminal's locale" in reject("f\udcc3\udcbcr dich").err
    )
    ended = reject("no consent for this cohort", "--by", "Ann Lee")
    assert f"{job.id}: digits by olga is rejected" in ended.out
    assert decision_of(desk, job) is Decision.REJECTED
    shown = json.loads(chorale("silo", "show", "--config", config, job.id, "--json").out)
    (said,) = shown["decisions"]
    assert (said["by"], said["decision"], said["reason"]) == (
        *("Ann Lee", "rejected", "no consent for this cohort"),
    )


def test_changes_are_told_since_the_last_job_of_this_operator_that_was_approved(
    desk: Desk, chorale: Calls
) -> None:
    config = desk.silo()
    desk.write("policy.yaml", GIVEN)
    first = offered(desk, name="first")
    last = offered(desk, name="last", training={"learning_rate": 0.2})
    rejected = offered(desk, name="rejected", training={"learning_rate": 0.3})
    other = offered(desk, name="other", operator="otto", training={"learning_rate": 0.4})
    shown = chorale("silo", "show", "--config", config, first.id)
    assert "no other job of olga was approved here" in lines_of(shown, "changed")
    for job in (first, last, other):
        assert chorale("silo", "approve", "--config", config, job.id, "--yes").code == 0
    assert chorale("silo", "reject", "--config", config, rejected.id, "--reason", "no").code == 0

    new = offered(desk, name="new", classes=7, training={"learning_rate": 0.2})
    changes = lines_of(chorale("silo", "show", "--config", config, new.id), "changed")
    assert changes.startswith(f"2 fields since {last.id}, the last of olga that was approved here: ")
    assert 'name: "last" -> "new"' in changes
    assert "classes: 10 -> 7" in changes


@pytest.mark.parametrize("columns", [MAX_COLUMNS, 80, 40])
def test_hostile_job_of_every_kind_is_shown_whole_and_writes_no_control_codes(
    desk: Desk, chorale: Calls, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    """On a terminal of 80 columns some lines began with the operator's text."""
    monkeypatch.setenv("COLUMNS", str(columns))
    config = desk.silo()
    desk.write("policy.yaml", {**GIVEN, "distributions": ["x"]})
    silos = [f"a-silo-of-a-long-name-{place}" for place in range(199)]
    sums = [
        {"name": f"sum_of_a_long_name_{place}", "bound": 1.0, "per_record": 1.0, "is_by_class": True}
        for place in range(60)
    ]
    evil = {f"\x1b[2J\u202e{place}": "\x1b[31mapproved\n" * 50 for place in range(60)}
    before = offered(desk, name="before", silos=["silo-0", *silos])
    with closing(Ledger(desk.folder / "silo-0" / "ledger.sqlite")) as ledger:
        ledger.decisions().approve(before.digest, by="ann")
    code = [{"distribution": f"{each}==1.0", "sha256": "0" * 64} for each in ("m", "t", "u", "v")]
    job = offered(
        desk,
        silos=["silo-0", *silos],
        fraction=0.02,
        rounds=100_000,
        strategy={
            "preset": "fedavg",
            "loss": {"name": "l", "from": "u==1.0", "is_mean": True, "options": dict(evil)},
            "regularizer": {"name": "r", "from": "v==1.0", "is_mean": True, "options": dict(evil)},
        },
        model={"name": "m", "from": "m==1.0", "options": dict(evil)},
        task={
            "name": "t",
            "from": "t==1.0",
            "options": dict(evil),
            "sums": sums,
            "ratios": {},
            "is_mean": True,
            "target": {"shape": [], "is_whole": True, "low": 0, "high": 9},
        },
        code=code,
        training={"learning_rate": 99.0},
    )
    with closing(Ledger(desk.folder / "silo-0" / "ledger.sqlite")) as ledger:
        for _ in range(9):
            ledger.decisions().reject(job.digest, by="ann", reason="\u202e" * 200)
    ended = chorale("silo", "show", "--config", config, job.id)
    assert ended.code == 0, ended.err
    lines = ended.out.splitlines()
    assert max(map(len, lines)) <= columns
    assert all(line.isprintable() for line in lines)
    assert [line.split()[0] for line in lines if line[:1].strip()] == [
        *("job", "asked", "purpose", "reference", "reads", "inputs", "label", "noise", "budget"),
        *("method", "code", "weights", "policy", "changed", "said", "the"),
    ]
    for name in (*silos, *(each["name"] for each in sums)):  # six of 40 silos were named
        assert name in "".join(ended.out.split())
    assert r"\u001b[2J\u202e0" in ended.out
    output = chorale("silo", "show", "--config", config, job.id, "--json").out
    assert output.isascii()
    names = {each["name"] for phase in json.loads(output)["phases"] for each in phase["quantities"]}
    assert {each["name"] for each in sums} <= names


def test_every_distribution_and_every_part_is_named(
    desk: Desk, chorale: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of several distributions was shown, and a custom method was `custom`."""
    monkeypatch.setenv("COLUMNS", str(MAX_COLUMNS))
    config = desk.silo()
    desk.write("policy.yaml", GIVEN)
    names = ["a-models", "b-tasks", "c-losses", "d-penalties"]
    parts = {"features": "unit", "server_update": "fedexp", "statistic": None}
    task = {"sums": [], "ratios": {}, "is_mean": True}
    target = {"shape": [], "is_whole": True, "low": 0, "high": 9}
    job = offered(
        desk,
        strategy={
            "parts": parts,
            "loss": {"name": "hinge", "from": "c-losses==3.0", "is_mean": True},
            "regularizer": {"name": "ridge", "from": "d-penalties==4.0", "is_mean": True},
        },
        model={"name": "unet", "from": "a-models==1.0", "options": {"wide": "w" * 500}},
        task={"name": "dice", "from": "b-tasks==2.0", "target": target, **task},
        code=[
            {"distribution": f"{name}=={place}.0", "sha256": f"{place}" * 64}
            for place, name in enumerate(names, start=1)
        ],
    )
    shown = chorale("silo", "show", "--config", config, job.id)
    assert shown.code == 0, shown.err
    lines = [line[12:] for line in shown.out.splitlines()]
    for place, name in enumerate(names, start=1):
        (line,) = [line for line in lines if line.startswith(f"{name}=={place}.0, not Chorale's")]
        assert f"sha256:{str(place) * 12}, makes " in line
    code = json.loads(chorale("silo", "show", "--config", config, job.id, "--json").out)["code"]
    assert [each["difference"].partition(":")[0] for each in code] == [
        f"{name}=={place}.0" for place, name in enumerate(names, start=1)
    ]
    assert "features: unit" in shown.out
    assert "server_update: fedexp" in shown.out


def test_json_holds_no_number_that_is_none(desk: Desk, chorale: Calls) -> None:
    """Infinity is no JSON."""
    pytest.importorskip("torch", reason="a silo draws the weights")
    privacy = {"records": RECORDS, "statistics_noise_multiplier": 0.05}
    job, config = drawn(desk, privacy=privacy), desk.silo()
    out = chorale("silo", "show", "--config", config, job.id, "--json").out

    def no_number(word: str) -> None:
        pytest.fail(f"{word} is no JSON")

    shown = json.loads(out, parse_constant=no_number)
    assert shown["promise"]["epsilon_if_all_others_collude"] is None
    assert shown["job_digest"] == job.digest.hex()


def test_silo_is_told_whose_code_a_job_runs(desk: Desk, chorale: Calls) -> None:
    own = {"name": "net", "from": "hospital-models==1.2.0", "options": {"width": 32}}
    pinned = [{"distribution": "hospital-models==1.2.0", "sha256": "ab" * 32}]
    job, config = offered(desk, model=own, code=pinned), desk.silo()
    shown = chorale("silo", "show", "--config", config, job.id)
    beginning = "hospital-models==1.2.0, not Chorale's, sha256:abababababab, makes model net; not as here: "
    assert lines_of(shown, "code").startswith(beginning)
    assert json.loads(chorale("silo", "show", "--config", config, job.id, "--json").out)["code"][0][
        "options"
    ] == '{"width": 32}'  # fmt: skip
    refused = chorale("silo", "approve", "--config", config, job.id, "--yes")
    assert refused.code == 3
    assert "[distributions]" in refused.err
    assert "[code]" in refused.err


def test_code_of_a_job_does_not_run_before_it_is_approved(
    desk: Desk, chorale: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Listing the jobs imported their distributions and called a model with an operator's options."""
    own = {"name": "net", "from": "hospital-models==1.2.0", "options": {"weights": "https://attacker/x"}}
    job, config = offered(desk, model=own), desk.silo()
    desk.write("policy.yaml", {**GIVEN, "distributions": ["hospital-models"]})
    made: list[JobSpec] = []
    monkeypatch.setattr("silo_agent.approval.reading.drawn_arrays", lambda spec, *_, **__: made.append(spec))
    assert chorale("silo", "approve", "--config", config).code == 0
    ended = chorale("silo", "approve", "--config", config, job.id, "--yes")
    assert ended.code == 0, ended.err
    assert lines_of(ended, "weights") == "not known yet: its own code makes them, at its first phase"
    assert made == []


def test_a_job_whose_model_cannot_be_made_is_shown_all_the_same(
    desk: Desk, chorale: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TypeError left, and no institution could list its jobs until the operator's job was gone."""

    def fails(*_: object, **__: object) -> None:
        raise TypeError("unexpected keyword argument")

    monkeypatch.setattr("silo_agent.approval.reading.drawn_arrays", fails)
    job, config = offered(desk), desk.silo()
    assert job.id in chorale("silo", "approve", "--config", config).out
    ended = chorale("silo", "show", "--config", config, job.id)
    assert ended.code == 0, ended.err
    assert lines_of(ended, "weights").startswith("given, sha256:")
    assert "drawing them fails with TypeError" in lines_of(ended, "weights")
    assert "delta" in ended.out


def test_institution_grants_a_job_more_data_refusals(desk: Desk, chorale: Calls) -> None:
    job, config = offered(desk), desk.silo()
    desk.write("policy.yaml", {**GIVEN, "max_data_refusals": 0})
    with closing(Ledger(desk.folder / "silo-0" / "ledger.sqlite")) as ledger:
        policy = Policy(federation="test", max_data_refusals=0)
        (data_set,) = [each.name for each in load_silo_settings(config).data_sets]
        refusals = ledger.data_refusals(policy=policy, data_set=data_set)
        ledger.decisions().approve(job.digest, by="ann")
        refusals.record(job.digest, suspends=True)
        with pytest.raises(PolicyRefusal, match="max_data_refusals"):
            refusals.check(job.digest)
        without = chorale("silo", "approve", "--config", config, job.id, "--yes")
        assert "[max_data_refusals]" in without.err
        grant = ("--more-data-refusals", "2", "--yes")
        ended = chorale("silo", "approve", "--config", config, job.id, *grant)
        assert f"{job.id}: 2 more data refusals on data set {data_set}" in ended.out
        assert refusals.check(job.digest) == 0
    alone = chorale("silo", "approve", "--config", config, "--more-data-refusals", "2")
    assert "--more-data-refusals: expected JOB with it" in alone.err


@pytest.mark.parametrize(
    ("own", "said"),
    [
        (None, "0 to 10 of 10 are sent, of the classes that 3 of 3 silos hold (min_class_holders by default"),
        (2, "0 to 10 of 10 are sent, of the classes that 2 of 3 silos hold (min_class_holders), known"),
    ],
)
def test_silo_show_says_which_class_rows_it_sends(
    desk: Desk, chorale: Calls, own: int | None, said: str
) -> None:
    job, config = offered(desk, strategy={"preset": "feddw"}), desk.silo()
    desk.write("policy.yaml", GIVEN | {"class_statistics": "allow", "min_class_holders": own})
    assert lines_of(chorale("silo", "show", "--config", config, job.id), "class rows").startswith(said)


def test_silo_show_names_a_policy_that_no_class_can_meet(desk: Desk, chorale: Calls) -> None:
    job, config = offered(desk, strategy={"preset": "fedproto"}), desk.silo()
    desk.write("policy.yaml", GIVEN | {"class_statistics": "allow", "min_class_holders": 4})
    screen = chorale("silo", "show", "--config", config, job.id)
    refused = "refuses it by min_class_holders: expected class rows of at least 1 of 10 classes, got 0"
    assert refused in lines_of(screen, "policy")
