"""The demo's plan and folder: what it refuses before anything starts, and what it may replace."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from chorale.spec.settings_file import check_values
from cli.demo.plan import Plan, digits_plan, job_plan
from cli.demo.processes import run_commands
from cli.demo.setup import clean_folder, write_coordinator, write_job, write_silo
from cli.given_data import DataOptions
from client.submission import read_spec
from coordinator.settings import CoordinatorSettings
from crypto.errors import ConfigError
from silo_agent.disclosure.policy.policy import load_policy
from silo_agent.settings import SiloSettings
from tests.unit.cli.conftest import Calls, Desk


def _plan(out: Path, **changes: Any) -> Plan:
    asked = {"silos": 4, "rounds": None, "strategy": "fedavg", "drop": 0, "seed": 1, "out": out}
    return digits_plan(**{**asked, **changes})


@pytest.mark.parametrize(
    ("silos", "largest"), [(3, 0), (4, 1), (5, 1), (6, 1), (7, 2), (9, 2), (10, 3), (20, 6)]
)
def test_drop_is_allowed_up_to_what_a_sum_can_lose(tmp_path: Path, silos: int, largest: int) -> None:
    plan = _plan(tmp_path, silos=silos, drop=largest)
    assert len(plan.doomed) == largest
    with pytest.raises(ConfigError, match=f"--drop: expected 0 to {largest}, as {silos} silos must keep"):
        _plan(tmp_path, silos=silos, drop=largest + 1)


def test_negative_drop_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--drop: .* got -1"):
        _plan(tmp_path, drop=-1)


def test_folder_of_an_earlier_demo_is_replaced_and_strangers_files_are_not(tmp_path: Path) -> None:
    plan = _plan(tmp_path / "out")
    with clean_folder(plan):
        (plan.parties / "old").write_text("old")
        (plan.out / "report.json").write_text("old")
    (plan.out / "notes.txt").write_text("mine")
    with clean_folder(plan):
        assert list(plan.parties.iterdir()) == []
        assert not (plan.out / "report.json").exists()
        assert (plan.out / "notes.txt").read_text() == "mine"


def test_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(ConfigError, match="holds files that no demo wrote"), clean_folder(_plan(tmp_path)):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with (
        pytest.raises(ConfigError, match="is a file, expected a folder"),
        clean_folder(_plan(tmp_path / "out")),
    ):
        pass


def test_two_demos_do_not_share_a_folder(tmp_path: Path) -> None:
    plan = _plan(tmp_path / "out")
    with (
        clean_folder(plan),
        pytest.raises(ConfigError, match="another demo is running"),
        clean_folder(plan),
    ):
        pass


@pytest.mark.parametrize("epsilon", [0.0, -1.0, float("nan"), float("inf"), 10.5])
def test_epsilon_that_no_policy_gives_is_refused(epsilon: float, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^--epsilon: expected more than 0 and at most 10, .* got "):
        _plan(tmp_path, dp="records", epsilon=epsilon)


def test_epsilon_without_privacy_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="^--epsilon: expected --dp records or --dp sums with it"):
        _plan(tmp_path, epsilon=4.0)


def test_method_that_cannot_be_private_is_refused_before_anything_starts(tmp_path: Path) -> None:
    _plan(tmp_path, dp="records", noise="silo", strategy="fedexp")
    with pytest.raises(
        ConfigError, match="^--dp: .*the lengths of the silos' own updates, and silos make none"
    ):
        _plan(tmp_path, dp="records", strategy="fedexp")
    _plan(tmp_path, dp="sums", strategy="fedcsd")  # whose logits the demo clips
    with pytest.raises(ConfigError, match="^--dp: .*sums the length of the silo's update"):
        _plan(tmp_path, dp="sums", strategy="fedexp")


@pytest.mark.parametrize(("dp", "default"), [("records", 8.0), ("sums", 4.0)])
def test_private_plan_gives_job_and_policy_the_same_epsilon(dp: str, default: float, tmp_path: Path) -> None:
    for asked, budget in ((None, default), (2.5, 2.5)):
        plan = _plan(tmp_path / "out", dp=dp, epsilon=asked)
        with clean_folder(plan):
            write_silo(plan, "silo-1", coordinator="127.0.0.1:1")
            spec = read_spec(write_job(plan))
            policy = load_policy(plan.folder("silo-1") / "policy.yaml").privacy
        assert (policy.epsilon, policy.required) == (budget, True)
        assert spec.privacy is not None
        assert (spec.privacy.epsilon, spec.privacy.delta) == (budget, policy.delta)
        assert (spec.privacy.records is not None, spec.privacy.sums is not None) == (
            dp == "records",
            dp == "sums",
        )


def test_noise_is_in_the_sum_unless_it_is_asked_of_each_silo(tmp_path: Path) -> None:
    shared, own = _plan(tmp_path, dp="records"), _plan(tmp_path, dp="records", noise="silo", rounds=3)
    assert (shared.count, own.count, _plan(tmp_path, dp="records", steps=20).count) == (
        "50 steps",
        "3 rounds",
        "20 steps",
    )
    assert shared.job["privacy"]["records"]["noise"] == "sum"
    assert "noise" not in own.job["privacy"]["records"]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"dp": "records", "rounds": 3}, "--rounds: silos that share their noise count steps"),
        ({"dp": "records", "noise": "silo", "steps": 3}, "--steps: expected --dp records with it"),
        ({"steps": 3}, "--steps: expected --dp records with it"),
        ({"dp": "sums", "noise": "sum"}, "--noise: expected --dp records with it, got sums"),
        ({"noise": "silo"}, "--noise: expected --dp records with it, got neither"),
    ],
)
def test_options_of_another_way_are_refused(asked: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"^{message}"):
        _plan(tmp_path, **asked)


def test_plan_without_privacy_leaves_the_policy_as_it_is(tmp_path: Path) -> None:
    plan = _plan(tmp_path / "out")
    with clean_folder(plan):
        write_silo(plan, "silo-1", coordinator="127.0.0.1:1")
        assert read_spec(write_job(plan)).privacy is None
        assert not load_policy(plan.folder("silo-1") / "policy.yaml").privacy.required


def test_written_files_are_what_the_parties_accept(tmp_path: Path) -> None:
    plan = _plan(tmp_path / "out", drop=1)
    with clean_folder(plan):
        hub = yaml.safe_load(write_coordinator(plan).read_text())
        silo = yaml.safe_load(write_silo(plan, "silo-2", coordinator="127.0.0.1:1").read_text())
        spec = read_spec(write_job(plan))
    check_values(CoordinatorSettings, hub, source="hub")
    checked = check_values(SiloSettings, silo, source="silo")
    assert checked.data.partition is not None
    assert (checked.data.partition.index, checked.data.partition.silos) == (1, 4)
    assert (spec.silos, spec.rounds) == (("silo-1", "silo-2", "silo-3", "silo-4"), 10)


def test_party_of_the_demo_takes_no_code_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "crypto").mkdir()
    (tmp_path / "crypto" / "__init__.py").write_text("raise SystemExit('foreign code ran')\n")
    monkeypatch.chdir(tmp_path)
    assert run_commands([["--version"]])[0].startswith("chorale ")


def test_a_job_file_is_run_by_silos_that_its_options_name(desk: Desk, chorale: Calls) -> None:
    for options, message in {
        ("--rounds", "3"): "--rounds: cannot be combined with --job .*job.yaml",
        ("--dp", "sums"): "--dp: cannot be combined with --job .*job.yaml",
        ("--drop", "1"): "--drop: expected 0 to 0, as 3 silos must keep the 3",
        (
            "--alpha",
            "1",
            "--partition",
            "iid",
        ): "--alpha: not allowed with --partition iid, only",
    }.items():
        ended = chorale("demo", "--job", desk.job(), "--out", desk.folder / "out", *options)
        assert (ended.code, bool(re.search(message, ended.err))) == (2, True), ended.err
    taken = chorale("demo", "--job", desk.job(silos=["hub", "a", "b"]), "--out", desk.folder / "out")
    assert "silos: hub is the name of another party of the demo" in taken.err
    alone = chorale("demo", "--partition", "iid", "--out", desk.folder / "out")
    assert "--partition: needs --job FILE" in alone.err
    strict = desk.write("strict.yaml", {"federation": "test", "max_rounds": 3})
    refused = chorale("demo", "--job", desk.job(rounds=4), "--policy", strict, "--out", desk.folder / "out")
    assert (refused.code, "expected at most 3, got 4 rounds" in refused.err) == (3, True)
    assert not (desk.folder / "out").exists(), "nothing was started"


def test_data_that_cannot_be_cut_are_told_before_anything_starts(desk: Desk, chorale: Calls) -> None:
    """Six programs were started, and the cut's mistake stood in the log of a silo."""
    pytest.importorskip("torch", reason="reads digits: needs the extra silo")
    out, file = desk.folder / "out", desk.job(silos=["a", "b", "c", "d"])
    cut = ("--partition", "shards")
    ended, simulated = chorale("demo", "--job", file, "--out", out, *cut), chorale("simulate", file, *cut)
    assert (ended.code, out.exists()) == (2, False)
    assert "4 silos x 2 shards cannot be shared evenly by 10 classes" in ended.err
    assert ended.err == simulated.err


def test_a_job_file_and_its_silos_are_what_the_parties_accept(desk: Desk) -> None:
    digits = {"format": "digits", "name": "ward", "policy": "of-the-hospital.yaml"}
    files = []
    for place, name in enumerate(("north", "south", "west")):
        cut = {"kind": "iid", "silos": 3, "index": place}
        values = {
            "name": name,
            "data": [{**digits, "partition": cut}],
            "torch_threads": 2,
            "policy": "p.yaml",
        }
        files.append(desk.write(f"{name}.yaml", values))
    options = DataOptions(
        data="digits",
        path=None,
        partition="iid",
        alpha=0.5,
        shards_per_silo=2,
        min_samples=2,
        split_seed=0,
        silo_files=tuple(files),
    )
    file = desk.job(data="ward", nonce="0" * 32, privacy={"epsilon": 2.0, "sums": {"clip_norm": 1.0}})
    plan = job_plan(file, options, silos=None, policy=None, init=None, drop=0, out=desk.folder / "out")
    assert (plan.names, plan.federation, plan.is_private) == (["north", "south", "west"], "test", True)
    with clean_folder(plan):
        silo = yaml.safe_load(write_silo(plan, "south", coordinator="127.0.0.1:1").read_text())
        spec = read_spec(write_job(plan))
        policy = load_policy(plan.folder("south") / "policy.yaml")
    checked = check_values(SiloSettings, silo, source="silo")
    assert (checked.data_sets[0].name, checked.torch_threads, checked.name) == ("ward", 2, "south")
    assert checked.policy_of(checked.data_sets[0]) == plan.folder("south") / "policy.yaml"
    assert (spec.silos, spec.nonce) == (("north", "south", "west"), None)
    policy.check_job(spec, operator="you")
