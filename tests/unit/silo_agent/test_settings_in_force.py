"""What a running agent takes of a changed policy, and what it answers until a person confirms the rest."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from chorale.runtime.audit import read_entries
from crypto.errors import ConfigError, PolicyRefusal
from silo_agent.disclosure.policy.policy import Policy, load_policy, read_policy
from silo_agent.disclosure.policy.tightening import Tightens, loosened
from silo_agent.in_force import TAKEN_EVENT, HeldPolicy, InForce, confirm
from silo_agent.settings import SiloSettings
from tests.support.agents import Agent, write_policy
from tests.unit.silo_agent.enrolled import MakeHub, enrolled

OPEN = {"federation": "test", "approval": "automatic", "initial_state": "given"}
CLASS_SUMS = {"strategy": {"preset": "fedcsd"}, "classes": 4}

# field, what is held, a value that allows less, one that allows more or cannot be compared
ORDERS: list[tuple[str, Any, Any, Any]] = [
    ("federation", "test", None, "other"),
    ("approval", "automatic", "manual", None),
    ("approval", "manual", None, "automatic"),
    ("required_approvals", 1, 2, None),
    ("operators", ["olga", "otto"], ["olga"], ["olga", "eve"]),
    ("allowed_quantities", ["delta", "weight"], ["delta"], None),
    ("class_statistics", "allow", "refuse", None),
    ("class_statistics", "refuse", None, "allow"),
    ("shared_sums", "allow", "refuse", None),
    ("local_state", "refuse", None, "allow"),
    ("initial_state", "given", "computed", None),
    ("initial_state", ["a" * 64, "b" * 64], ["a" * 64], "given"),
    ("initial_state", "computed", None, ["a" * 64]),
    ("distributions", ["models"], ["models==1.0"], ["models", "others"]),
    ("min_class_holders", 3, 4, None),
    ("min_class_holders", None, None, 3),
    ("min_silos", 4, 5, 3),
    ("max_rounds", 5, 4, 6),
    ("max_cohort_changes", 5, 4, 6),
    ("max_data_refusals", 5, 4, 6),
    ("max_repeats", 2, 1, 3),
    ("assumed_colluders", 2, 3, 1),
    ("drawn_rounds", "with_statistics", "refuse", None),
    ("drawn_rounds", "allow", "refuse", "with_statistics"),
    ("count_granularity", 10, 20, 15),
    ("max_step_ratio", 3.0, 2.0, 4.0),
    ("constant_work_records", None, 100, 1 << 18),
    ("constant_work_records", 100, None, 200),
    ("constant_work_records", 100, None, 50),
    ("max_roster_age_days", 7.0, 6.0, 8.0),
    ("privacy.epsilon", 5.0, 4.0, 6.0),
    ("privacy.delta", 1e-5, None, 1e-6),
    ("privacy.required", False, True, None),
    ("privacy.partial_jobs", "allow", "refuse", None),
    ("privacy.shared_noise", "allow", 20.0, None),
    ("privacy.shared_noise", 5.0, 4.0, 6.0),
    ("privacy.shared_noise", 5.0, "refuse", "allow"),
    ("privacy.shared_noise", "refuse", None, 5.0),
    ("analyses.exact", "allow", "refuse", None),
    ("analyses.exact", "refuse", None, "allow"),
    ("analyses.most", 2, 1, 3),
    ("analyses.min_cell", 20, 30, 10),
    ("analyses.measurements", {"a": ["age"]}, {}, {"a": None}),
    ("require_purpose", False, True, None),
    ("require_purpose", True, None, False),
    ("inputs", {"a": ["x0..x3"], "b": None}, {"a": ["x1", "x2"]}, {"a": ["x1"], "b": None, "c": []}),
    ("inputs", None, {"a": None}, None),
    ("labels", {"a": ["ill"]}, {"a": []}, {"a": None}),
    ("labels", {"a": ["ill"]}, {}, {"a": ["hiv"]}),
]


def leaves(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, list[Any]]]:
    for name, field in model.model_fields.items():
        part = field.annotation
        if isinstance(part, type) and issubclass(part, BaseModel):
            yield from leaves(part, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", field.metadata


def test_each_field_of_a_policy_declares_which_values_allow_less() -> None:
    """A field without an order would keep every change waiting, and nobody would know why."""
    declared = {
        name: [each for each in marks if isinstance(each, Tightens)] for name, marks in leaves(Policy)
    }
    assert [name for name, marks in declared.items() if len(marks) != 1] == []
    assert {name for name, *_ in ORDERS} == set(declared)


@pytest.mark.parametrize(("field", "held", "less", "more"), ORDERS)
def test_a_field_is_compared_by_its_own_order(field: str, held: Any, less: Any, more: Any) -> None:
    def looser(value: Any) -> list[str]:
        return [each.partition(":")[0] for each in loosened(policy(field, held), policy(field, value))]

    assert looser(held) == []
    if less is not None:
        assert looser(less) == []
    if more is not None or (held is not None and less is None):
        assert looser(more) == [field]


def policy(field: str, value: Any) -> Policy:
    *outer, name = field.split(".")
    given: dict[str, Any] = {name: value}
    values = {"federation": "test"} | ({outer[0]: given} if outer else given)
    return Policy.model_validate(values)


async def test_a_policy_that_tightened_holds_for_the_next_phase_without_a_restart(make_hub: MakeHub) -> None:
    """The next job ran to its end with this silo's class sums, and the doctor found no problem."""
    hub = make_hub(**CLASS_SUMS)
    agent = hub.add("silo-0", class_statistics="allow")
    await agent.answer("advert", task=hub.begin(0, "enrollment.0").task)
    rewrite(agent, class_statistics="refuse")
    agent.tell(task=hub.begin(0, "class-presence.0").task)
    assert await refusal(agent) == ("policy", "class_statistics")
    assert taken(agent) == ["data tightened"]


async def test_what_a_policy_forbids_since_a_phase_began_is_neither_spent_nor_signed(
    make_hub: MakeHub,
) -> None:
    hub = await enrolled(make_hub)
    masking, signing = hub.agents["silo-0"], hub.agents["silo-1"]
    exchange = hub.begin(1, "train")
    await hub.until_shared(exchange)
    envelopes = exchange.close_share()
    rewrite(masking, operators=["nobody"])
    masking.tell(envelopes=envelopes["silo-0"])
    assert await refusal(masking) == ("policy", "operators")
    assert all(kind != "train" for kind, _ in masking.budget.spent_inputs(hub.job.digest))
    for name in hub.names[1:]:
        hub.agents[name].tell(envelopes=envelopes[name])
        await hub.agents[name].uploaded()
        exchange.session.on_masked(name)
    rewrite(signing, operators=["nobody"])
    survivors = exchange.close_masked()
    signing.tell(survivors=survivors)
    assert await refusal(signing) == ("policy", "operators")
    assert signing.reveals.recorded(hub.job.digest, 1, "train") is None


async def test_a_phase_that_was_signed_is_answered_under_a_tighter_policy(make_hub: MakeHub) -> None:
    hub = await enrolled(make_hub)
    exchange = hub.begin(1, "train")
    await hub.until_signed(exchange)
    for agent in hub.agents.values():
        rewrite(agent, operators=["nobody"])
    assert (await hub.unmask(exchange))["weight"] == pytest.approx(1.0)
    await hub.agree(exchange)


LOOSER = {
    "more rounds": (OPEN | {"max_rounds": 9}, "max_rounds: 5 became 9"),
    "a field less": ({"federation": "test", "max_rounds": 5}, "approval: it is not there any more"),
    "no number": (OPEN | {"max_rounds": "many"}, "max_rounds: .*got 'many'"),
    "another federation": (
        OPEN | {"federation": "east", "max_rounds": 5},
        "federation: expected test, got east",
    ),
}


@pytest.mark.parametrize(("fields", "words"), LOOSER.values(), ids=LOOSER)
async def test_a_policy_that_may_allow_more_keeps_new_phases_waiting_until_it_is_changed_back(
    make_hub: MakeHub, fields: Mapping[str, Any], words: str
) -> None:
    agent = make_hub().add("silo-0", max_rounds=5)
    write_policy(agent.folder / "policy.yaml", fields)
    agent.tell(task=agent.hub.begin(0, "enrollment.0").task)
    assert await refusal(agent) == ("settings", "")
    assert re.search(words, "; ".join(json.loads((agent.folder / "in-force.json").read_bytes())["waits"]))
    agent.handler.poll()
    assert agent.is_silent()  # it waits, and is not refused again and again
    rewrite(agent, max_rounds=5)
    agent.handler.poll()
    await agent.answer("advert")


async def test_what_a_person_confirmed_is_taken_once(make_hub: MakeHub) -> None:
    agent = make_hub().add("silo-0", max_rounds=5)
    path = agent.folder / "policy.yaml"
    rewrite(agent, max_rounds=9)
    agent.tell(task=agent.hub.begin(0, "enrollment.0").task)
    assert await refusal(agent) == ("settings", "")
    confirm(agent.settings, frozenset({bytes(32)}))  # of another file
    agent.handler.poll()
    assert agent.is_silent()
    confirm(agent.settings, frozenset({read_policy(path)[0]}))
    agent.handler.poll()
    await agent.answer("advert")
    for rounds in (5, 9):  # the confirmation does not stand for a second time
        rewrite(agent, max_rounds=rounds)
        agent.handler.poll()
    agent.tell(task=agent.hub.begin(0, "enrollment.0", attempt=2).task)
    assert await refusal(agent) == ("settings", "")


async def test_a_policy_cut_at_any_byte_is_not_taken(make_hub: MakeHub, tmp_path: Path) -> None:
    """It is valid YAML with looser defaults; cut inside its last line it is even a tighter one."""
    agent = make_hub().add("silo-0")
    path = agent.folder / "policy.yaml"
    whole = path.read_bytes() + b""
    longer = (
        whole.removesuffix(b"...\n") + b"operators:\n- ops\n- otto\nmax_rounds: 1000\nmin_silos: 3\n...\n"
    )
    for end in range(len(longer) - 1):
        cut = tmp_path / "cut.yaml"
        cut.write_bytes(longer[:end])
        os.replace(cut, path)
        with pytest.raises(ConfigError, match=r"policy\.yaml: expected `\.\.\.` as its last line"):
            load_policy(path)
        agent.handler.poll()
    assert not [
        entry for entry in read_entries(agent.folder / "audit.jsonl") if entry["event"] == TAKEN_EVENT
    ]
    path.write_bytes(longer)
    await agent.answer("advert", task=agent.hub.begin(0, "enrollment.0").task)


async def test_changed_data_settings_are_taken_when_no_phase_runs(tmp_path: Path, make_hub: MakeHub) -> None:
    agent = make_hub().add("silo-0")
    path, opened, idle = tmp_path / "silo.yaml", list[SiloSettings](), [False]
    may_end = asyncio.Event()
    may_end.set()

    def write(*, whole: bool = True, **fields: Any) -> None:
        written = agent.settings.model_dump(mode="json", exclude_unset=True) | fields
        path.write_text(yaml.safe_dump(written, explicit_end=whole))

    async def open_again(settings: SiloSettings) -> None:
        opened.append(settings)
        await may_end.wait()
        if settings.data_sets[0].holdout == 0.9:
            raise ConfigError("units: another key")

    write()
    policies = {"data": HeldPolicy.read(agent.settings.policy, federation="test")}
    files = InForce(
        agent.settings,
        policies,
        take=agent.data_sets.take,
        audit=agent.audit,
        config=path,
        is_idle=lambda: idle[0],
        open_again=open_again,
    )

    async def waits() -> str:
        for _ in range(5):
            await asyncio.sleep(0)
        try:
            files.check()
        except PolicyRefusal as refused:
            return f"{refused.code}: {refused}"
        return ""

    write(torch_threads=2)  # at the next start, and nobody waits for it
    assert (await waits(), "torch_threads" in (agent.folder / "in-force.json").read_text()) == ("", True)
    write(data={"format": "digits", "holdout": 0.5}, whole=False)
    assert re.match("settings: settings: .*expected `...` as its last line", await waits())
    write(data={"format": "digits", "holdout": 0.5})
    assert "opened again once no phase runs" in await waits()
    assert opened == []
    idle[0] = True
    assert await waits() != ""
    assert await waits() == ""
    assert [each.data_sets[0].holdout for each in opened] == [0.5]
    write(data={"format": "digits", "holdout": 0.9})
    await waits()
    assert "units: another key" in await waits()
    for changed in ([{"format": "digits"}, {"format": "digits", "name": "more"}], {"account": "new"}):
        write(data=changed if isinstance(changed, list) else {"format": "digits", **changed})
        assert "it takes a restart" in await waits()  # a new account would have a whole budget
    write(data={"format": "digits", "holdout": 0.5})
    assert await waits() == ""
    may_end.clear()  # it takes its time, and all is written meanwhile
    write(data={"format": "digits", "holdout": 0.4})
    assert await waits() != ""
    write(data={"format": "digits", "holdout": 0.5})
    rewrite(agent, max_rounds=7)
    assert (await waits() != "", taken(agent)) == (True, [])  # phases went on, and a policy was lost
    may_end.set()
    await waits()
    assert (await waits(), taken(agent)) == ("", ["data tightened"])
    assert [each.data_sets[0].holdout for each in opened[-2:]] == [0.4, 0.5]


async def test_data_settings_that_changed_while_the_agent_started_are_taken(
    tmp_path: Path, make_hub: MakeHub
) -> None:
    """Their file was digested after it was read: what was written in between seemed to be in force."""
    agent, path = make_hub().add("silo-0"), tmp_path / "silo.yaml"
    written = agent.settings.model_dump(mode="json", exclude_unset=True)
    path.write_text(
        yaml.safe_dump(written | {"data": {"format": "digits", "holdout": 0.5}}, explicit_end=True)
    )
    policies = {"data": HeldPolicy.read(agent.settings.policy, federation="test")}
    files = InForce(agent.settings, policies, take=agent.data_sets.take, audit=agent.audit, config=path)
    with pytest.raises(PolicyRefusal, match="data settings changed"):
        files.check()


def rewrite(agent: Agent, **fields: Any) -> None:
    write_policy(agent.folder / "policy.yaml", OPEN | fields)


def taken(agent: Agent) -> list[str]:
    entries = read_entries(agent.folder / "audit.jsonl")
    return [f"{each['data_set']} {each['why']}" for each in entries if each["event"] == TAKEN_EVENT]


async def refusal(agent: Agent) -> tuple[str, str]:
    refused = await agent.answer("refused")
    return refused.code, refused.rule
