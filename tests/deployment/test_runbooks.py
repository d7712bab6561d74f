"""Every alarm fires over a real federation, and ends when the commands of its runbook were done.

A real Prometheus evaluates the charts' rules over coordinator and silos, each rule at a pace of its own: its
longest window or `for` takes PACE_SECONDS, and all its times are shortened alike. Days stand as they are, for
certificates and rosters are made to be so old. What fires goes on to a real Alertmanager with the page's
configuration. The tests share one federation, and each may be the first of it.
"""

from __future__ import annotations

import re
import shutil
import socket
import ssl
import tarfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.request import urlopen

import numpy as np
import pytest
import yaml

from chorale.privacy.job_releases import JobReleases
from chorale.runtime.files import write_atomic
from chorale.spec.job_spec import JobSpec
from coordinator.storage.backup import note_backup
from crypto.identity.certificates import Role
from strategies.base import TOTAL
from tests.deployment import helm, prometheus
from tests.deployment.alertmanager import Receiver, notified
from tests.deployment.prometheus import Prometheus
from tests.deployment.runbooks import NAMES, PAGE, Site, runbooks
from tests.support import one_hot, programs
from tests.support.ceremony import Ceremony
from tests.support.federation import COORDINATOR, OPERATOR
from tests.support.halting import Halt
from tests.support.ports import free_ports
from tests.support.processes import run_cli, wait_until
from tests.support.schedules.machine import Clock, small_disk, unusable_clock, unusable_disk

pytestmark = [pytest.mark.timeout(300), pytest.mark.gate]

PACE_SECONDS = 6.0
# what counts several rounds without a silo
SLOWER_SECONDS = {
    "ChoraleCoordinatorDropouts": 15.0,
    "ChoraleSiloLeftOut": 15.0,
    "ChoraleCoordinatorRoundsUsedUp": 15.0,
}
PREFIX = "https://wiki.example.org/chorale/"
VALUES = {"chorale-coordinator": "ingress-values.yaml", "chorale-silo": "gpu-values.yaml"}
RUNBOOKS = runbooks()
PRIVATE = {
    "rounds": 3,
    "privacy": {"sums": {"clip_norm": 0.5, "noise_multiplier": 4.0}, "statistics_noise_multiplier": 20.0},
}
ROUNDS = 1000
# four rounds without a silo fit into SLOWER_SECONDS
QUICK = {"train_deadline_seconds": 1.0, "train_hard_cap_seconds": 2.0}
# rounds and silos that fail on purpose change cohorts far more often than policies foresee
OFTEN = {"max_cohort_changes": 10_000, "max_repeats": 100}

APPLIED = 'chorale_coordinator_rounds_total{phase="train", result="applied"}'
DISK_BYTES, SMALL = 32 << 20, "clinic-c"  # the disks of the coordinator and of that silo
VICTIMS = NAMES[2:]
NONE: Mapping[str, Halt] = {}
HALT = Halt(at={"event": "input ready", "round": 2, "phase": "train"}, sent="shares")

Scenario = Callable[["Watch"], None]
EXERCISED: set[str] = set()


def exercises(*alarms: str) -> Callable[[Scenario], Scenario]:
    """The test sees these alarms fire, does their runbooks, and sees them end."""
    EXERCISED.update(alarms)
    return lambda test: test


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    site: Site
    prometheus: Prometheus
    receiver: Receiver

    def fires(self, alarm: str, labels: str = "") -> None:
        """Until it fires, and what its runbook asks of Prometheus has an answer."""
        self.prometheus.wait(f'ALERTS{{alertname="{alarm}", alertstate="firing"{labels}}}')
        for query in RUNBOOKS[alarm].queries:
            assert self.prometheus.ask(query), query

    def ends(self, alarm: str, labels: str = "") -> None:
        """Not because the process that it was about is gone."""
        absent = f'absent(ALERTS{{alertname="{alarm}", alertstate="firing"{labels}}})'
        self.prometheus.wait(f"{absent} and on() sum(up) == {len(NAMES) + 1}")

    def is_quiet(self, *alarms: str) -> bool:
        return not self.prometheus.ask(f'ALERTS{{alertname=~"{"|".join(alarms)}", alertstate="firing"}}')

    def do(self, alarm: str, *, at: tuple[str, ...] = ()) -> str:
        """Every command of its runbook in turn; what they printed.

        at: silos at which the commands for one are done.
        """
        said = []
        for command in RUNBOOKS[alarm].commands:
            everywhere = [command.replace("clinic-a", name) for name in at] if "clinic-a" in command else []
            said += [self.site.do(each) for each in everywhere or [command]]
        return "\n".join(said)

    def offer(self, **fields: Any) -> None:
        """A job of many rounds, in the place of the one before."""
        if self.site.job_id:
            self.end_job()
        self.site.offer(**{"rounds": ROUNDS, **fields})

    def end_job(self) -> None:
        done = self.site.cli("job", "cancel", self.site.job_id)
        assert done.returncode == 0 or "it has ended" in done.stderr, done.stderr

    def restart_silos(self, *, halts: Mapping[str, Halt] = NONE, **policy: Any) -> None:
        """With another policy; halts: where silos stop themselves."""
        self.site.policy.update(policy)
        for name in NAMES:
            self.site.services[name].stop()
        self.prometheus.wait("chorale_coordinator_connected_silos == 0")
        for name in NAMES:
            self.site.launch(name, halts.get(name))
        self.prometheus.wait(f"chorale_coordinator_connected_silos == {len(NAMES)}")

    def renew(self) -> None:
        """Until the coordinator uses a newer roster."""
        before = self.prometheus.value("chorale_coordinator_roster_version") or 0.0
        self.do("ChoraleCoordinatorRosterExpiring")
        self.prometheus.wait(f"chorale_coordinator_roster_version > {before}")

    def applied(self) -> float:
        return self.prometheus.value(APPLIED) or 0.0

    def wait_rounds(self, count: int = 1) -> None:
        """Until so many more rounds were applied than now."""
        self.prometheus.wait(f"{APPLIED} >= {self.applied() + count}")

    def wait_log(self, name: str, text: str) -> None:
        service = self.site.services[name]
        wait_until(lambda: text in service.log.read_text(), f"{name} to log {text}", detail=service.tail)


def targets(metrics: dict[str, str]) -> dict[str, list[prometheus.Rules]]:
    """As the Prometheus Operator would label them."""
    return {
        "chorale": [
            {"targets": [address], "labels": {"namespace": "heart", "pod": f"{name}-0"}}
            for name, address in metrics.items()
        ]
    }


def rule_file(chart: str, folder: Path) -> Path:
    spec = helm.one(helm.rendered(chart, VALUES[chart]), "PrometheusRule")["spec"]
    path = folder / f"{chart}.yaml"
    path.write_text(yaml.safe_dump(prometheus.paced(spec, seconds=PACE_SECONDS, others=SLOWER_SECONDS)))
    return path


def alertmanager_configuration() -> dict[str, Any]:
    """The page's, without its waits."""
    (text,) = re.findall(r"`alertmanager\.yml`.*?```yaml\n(.*?)```", PAGE, re.DOTALL)
    found: dict[str, Any] = yaml.safe_load(text)
    found["route"].update(group_wait="0s", group_interval="1s")
    return found


@contextmanager
def impostor(ceremony: Ceremony) -> Iterator[str]:
    """Something that listens, with a coordinator's certificate of that authority: its address."""
    ceremony.enroll(Role.COORDINATOR, COORDINATOR)
    files = [ceremony.path_of(Role.COORDINATOR, COORDINATOR, ending) for ending in ("crt", "key")]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*files)
    context.set_alpn_protocols(["h2"])

    def answer() -> None:
        with suppress(OSError):  # the listener was closed
            while True:
                accepted, _ = listener.accept()
                with suppress(OSError), accepted, context.wrap_socket(accepted, server_side=True) as line:
                    line.recv(1)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = Thread(target=answer)
        thread.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def cost(spec: JobSpec) -> float:
    """Epsilon of a job over all silos, whose plan is bought as a whole."""
    state = {"model/votes": np.zeros(len(NAMES), np.float32), TOTAL: np.array(one_hot.SAMPLES * len(NAMES))}
    return JobReleases(spec, state).epsilon()


@pytest.fixture(scope="module")
def watch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watch]:
    """A coordinator and four silos that attend, and who watches them. No job yet."""
    if reason := unusable_clock() or unusable_disk():
        programs.missing(reason)
    folder = tmp_path_factory.mktemp("watched")
    rules = [rule_file(chart, folder) for chart in helm.NAMES]
    processes = (COORDINATOR, *NAMES)
    ports = free_ports(len(processes))
    metrics = {name: f"127.0.0.1:{port}" for name, port in zip(processes, ports, strict=True)}
    settings = {"stage_deadline_seconds": 5.0, "reconnect_grace_seconds": 1.0}
    policy = {"privacy": {}, **OFTEN}
    with (
        ExitStack() as disks,
        notified(folder, alertmanager_configuration()) as (address, receiver),
        prometheus.running(folder, targets=targets(metrics), rules=rules, alertmanager=address) as server,
        Site(folder=folder, metrics=metrics, coordinator=settings, policy=policy) as site,
    ):
        for name in (COORDINATOR, SMALL):
            disks.enter_context(small_disk(folder / name, size_bytes=DISK_BYTES))
        site.policy["privacy"]["epsilon"] = 1.05 * cost(site.job_spec(**PRIVATE))
        site.start_coordinator()
        for name in NAMES:
            site.launch(name)
        site.wait_connected()
        yield Watch(site=site, prometheus=server, receiver=receiver)


def test_every_target_is_up_and_every_rule_is_evaluated(watch: Watch) -> None:
    watch.prometheus.wait(f"sum(up) == {len(NAMES) + 1}")
    watch.prometheus.wait("count(ALERTS) > 0")
    rules = watch.prometheus.rules()
    assert [(each["name"], each["lastError"]) for each in rules if each["health"] != "ok"] == []
    assert {each["name"] for each in rules} == set(RUNBOOKS)


def test_both_sides_serve_metrics_that_promtool_accepts(watch: Watch) -> None:
    for name in (COORDINATOR, NAMES[0]):
        with urlopen(f"http://{watch.site.metrics[name]}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        assert "# HELP chorale_" in text
        assert prometheus.check("metrics", text=text) == ""


@exercises("ChoraleCoordinatorCertificateExpiring", "ChoraleSiloCertificateExpiring")
def test_certificates_are_signed_again_before_they_expire(watch: Watch) -> None:
    for alarm, pod in (
        ("ChoraleCoordinatorCertificateExpiring", "hub"),
        ("ChoraleSiloCertificateExpiring", "clinic-a"),
    ):
        labels = f', pod="{pod}-0"'
        watch.fires(alarm, labels)
        watch.do(alarm)
        watch.ends(alarm, labels)
    watch.prometheus.wait("sum(chorale_silo_connected) == 4")
    assert not watch.is_quiet("ChoraleSiloCertificateExpiring")  # the others' are as old as they were


@pytest.mark.soak
@exercises("ChoraleCoordinatorCredentialsRefused", "ChoraleSiloCredentialsRefused")
def test_files_of_another_member_are_refused_until_the_right_ones_are_there(watch: Watch) -> None:
    ceremony = watch.site.ceremony
    other = ceremony.path_of(Role.OPERATOR, OPERATOR, "crt").read_bytes()
    for alarm, role, name in (
        ("ChoraleCoordinatorCredentialsRefused", Role.COORDINATOR, COORDINATOR),
        ("ChoraleSiloCredentialsRefused", Role.SILO, NAMES[0]),
    ):
        write_atomic(ceremony.path_of(role, name, "crt"), other)
        watch.fires(alarm, f', pod="{name}-0"')
        assert "certificate files refused" in watch.do(alarm)
        watch.ends(alarm)


@exercises("ChoraleCoordinatorTwoAgents")
def test_a_second_agent_of_a_silo_is_named_until_it_is_stopped(watch: Watch) -> None:
    watch.site.start_copy("clinic-b", "copy")
    watch.fires("ChoraleCoordinatorTwoAgents", ', silo="clinic-b"')
    watch.do("ChoraleCoordinatorTwoAgents")
    for name in ("copy", "clinic-b"):
        watch.wait_log(name, "two agents use")
        watch.site.services[name].stop()
    del watch.site.services["copy"]
    watch.site.launch("clinic-b")
    watch.prometheus.wait(f"chorale_coordinator_connected_silos == {len(NAMES)}")
    watch.ends("ChoraleCoordinatorTwoAgents")


@exercises("ChoraleCoordinatorRosterRefused")
def test_a_roster_from_before_is_refused_and_signed_again(watch: Watch) -> None:
    watch.renew()
    watch.site.apply_roster(watch.site.first_roster)
    watch.fires("ChoraleCoordinatorRosterRefused")
    assert "roster file not taken over" in watch.do("ChoraleCoordinatorRosterRefused")
    watch.ends("ChoraleCoordinatorRosterRefused")


@exercises("ChoraleCoordinatorRosterTooOld", "ChoraleCoordinatorRosterExpiring", "ChoraleSiloDistrustsPeers")
def test_an_old_roster_is_signed_again(watch: Watch) -> None:
    """Signed eight days ago: silos refuse it."""
    clock = Clock(watch.site.folder / "authority.clock")
    clock.set(-8 * 86_400)
    renew = ("authority", "renew", "--directory", "authority", "--out", "roster.json", "--valid-days", "12")
    done = run_cli(*renew, folder=watch.site.folder, extra_env=clock.environment)
    assert done.returncode == 0, done.stderr
    watch.site.apply_roster((watch.site.folder / "roster.json").read_bytes())

    for alarm in ("ChoraleCoordinatorRosterTooOld", "ChoraleCoordinatorRosterExpiring"):
        watch.fires(alarm)
    watch.fires("ChoraleSiloDistrustsPeers", ', reason="roster"')
    said = watch.do("ChoraleSiloDistrustsPeers")
    assert "8 days old, at most 7 allowed" in said
    watch.do("ChoraleCoordinatorRosterTooOld")

    for alarm in ("ChoraleCoordinatorRosterTooOld", "ChoraleCoordinatorRosterExpiring"):
        watch.ends(alarm)
    watch.ends("ChoraleSiloDistrustsPeers")


@pytest.mark.soak
@exercises("ChoraleCoordinatorCheckpointTooOld", "ChoraleCoordinatorRoundStalled", "ChoraleSiloRejectsJobs")
def test_a_job_that_nobody_approved_is_paused_and_then_approved(watch: Watch) -> None:
    watch.restart_silos(approval="manual")
    watch.offer()
    for alarm in ("ChoraleCoordinatorCheckpointTooOld", "ChoraleCoordinatorRoundStalled"):
        watch.fires(alarm)
    watch.fires("ChoraleSiloRejectsJobs", ', reason="job-not-approved"')

    assert watch.site.job_id in watch.do("ChoraleCoordinatorCheckpointTooOld")
    watch.ends("ChoraleCoordinatorCheckpointTooOld")
    resumed = watch.site.cli("job", "resume", watch.site.job_id)
    assert resumed.returncode == 0, resumed.stderr
    watch.fires("ChoraleCoordinatorRoundStalled")
    said = watch.do("ChoraleSiloRejectsJobs")
    assert "job-not-approved" in said
    assert f"{watch.site.job_id}: one-hot by {OPERATOR} is approved" in said
    watch.do("ChoraleCoordinatorRoundStalled", at=NAMES[1:])

    watch.ends("ChoraleCoordinatorRoundStalled")
    watch.ends("ChoraleSiloRejectsJobs")
    watch.wait_rounds()
    watch.restart_silos(approval="automatic")


# what a silo that is gone is no reason for
UNRELATED = ("ChoraleCoordinatorRefusesCalls", "ChoraleSiloDistrustsPeers", "ChoraleSiloRefusesSum")
GONE = ("ChoraleSiloDown", "ChoraleCoordinatorSilosMissing", "ChoraleCoordinatorCohortBelowThreshold")


@pytest.mark.soak
@exercises(*GONE)
def test_silos_that_do_not_start_are_named_and_come_back(watch: Watch) -> None:
    """Two go between their shares and their vectors, the others after them; their settings have a mistake."""
    watch.restart_silos(halts=dict.fromkeys(VICTIMS, HALT))
    watch.offer(train_deadline_seconds=5.0, train_hard_cap_seconds=5.0)
    for name in VICTIMS:
        watch.site.services[name].wait_halted()
    assert watch.is_quiet(*GONE, *UNRELATED)
    before = watch.applied()
    for name in VICTIMS:
        watch.site.services[name].kill()
    watch.fires("ChoraleCoordinatorCohortBelowThreshold")
    assert watch.site.job_id in watch.do("ChoraleCoordinatorCohortBelowThreshold")
    for name in NAMES:
        watch.site.services[name].kill()
    watch.site.silo = {"lowest_roster_version": -1}
    for name in NAMES:
        watch.site.launch(name)

    for alarm in GONE[:2]:
        watch.fires(alarm)
    assert watch.site.job_id in watch.do("ChoraleCoordinatorSilosMissing")
    watch.site.silo = {}
    said = watch.do("ChoraleSiloDown", at=NAMES)
    assert "clinic-a  CrashLoopBackOff" in said
    assert "lowest_roster_version" in said

    for alarm in GONE:
        watch.ends(alarm)
    assert watch.applied() > before
    assert watch.is_quiet(*UNRELATED)


@exercises("ChoraleCoordinatorDown", "ChoraleSiloDisconnected")
def test_a_coordinator_that_does_not_start_is_notified_and_comes_back(watch: Watch) -> None:
    """Its roster is one from before."""
    watch.renew()
    watch.offer()
    watch.site.hub.kill()
    watch.site.apply_roster(watch.site.first_roster)
    with pytest.raises(AssertionError, match="expected at least"):
        watch.site.start_coordinator()

    watch.fires("ChoraleCoordinatorDown")
    watch.fires("ChoraleSiloDisconnected")
    notification = watch.receiver.wait("ChoraleCoordinatorDown", "firing")
    assert notification["labels"]["severity"] == "critical"
    assert notification["annotations"]["runbook_url"] == f"{PREFIX}docs/operations.md#choralecoordinatordown"
    assert "not connected" in watch.do("ChoraleSiloDisconnected")
    said = watch.do("ChoraleCoordinatorDown")
    assert "hub  CrashLoopBackOff" in said
    assert "which was in use before" in said

    for alarm in ("ChoraleCoordinatorDown", "ChoraleSiloDisconnected"):
        watch.ends(alarm)
        watch.receiver.wait(alarm, "resolved")
    watch.wait_rounds()


@pytest.mark.soak
@exercises("ChoraleCoordinatorSiloOverdue")
def test_a_round_that_stands_still_for_silos_is_skipped(watch: Watch) -> None:
    """Two of four sign who is in the sum, and are silent from then on."""
    signed = Halt(at={"event": "input ready", "round": 2, "phase": "train"}, sent="consistency")
    watch.restart_silos(halts=dict.fromkeys(VICTIMS, signed))
    watch.offer()
    for name in VICTIMS:
        watch.fires("ChoraleCoordinatorSiloOverdue", f', silo="{name}"')
    assert f"an answer of {', '.join(VICTIMS)}" in watch.do("ChoraleCoordinatorSiloOverdue")
    watch.wait_log(COORDINATOR, "round given up for a silo")
    watch.end_job()
    for name in VICTIMS:
        watch.site.services[name].kill()
        watch.site.launch(name)
    watch.ends("ChoraleCoordinatorSiloOverdue")


@pytest.mark.soak
@exercises("ChoraleCoordinatorDropouts", "ChoraleSiloLeftOut")
def test_a_silo_that_is_too_slow_is_seen_on_both_sides(watch: Watch) -> None:
    watch.offer(**QUICK)
    watch.wait_rounds()
    with watch.site.slow("clinic-d"):
        watch.fires("ChoraleCoordinatorDropouts", ', silo="clinic-d"')
        watch.fires("ChoraleSiloLeftOut", ', pod="clinic-d-0"')
        assert "hard_cap_seconds" in watch.do("ChoraleCoordinatorDropouts")
        assert "clinic-d (waiting" in watch.do("ChoraleSiloLeftOut")

    watch.ends("ChoraleCoordinatorDropouts")
    watch.ends("ChoraleSiloLeftOut")
    watch.prometheus.wait('chorale_coordinator_cohort_size{phase="train"} == 4')


@pytest.mark.soak
@exercises("ChoraleCoordinatorRoundsUsedUp", "ChoraleSiloClipsValues")
def test_a_job_that_cannot_succeed_or_is_cut_is_submitted_again(watch: Watch) -> None:
    """First more of the data is wanted than the silos have that are in time, then updates are cut."""
    watch.offer(min_weight=0.9, max_attempts=1, **QUICK)
    watch.wait_rounds()
    with watch.site.slow("clinic-d"):
        watch.fires("ChoraleCoordinatorRoundsUsedUp")
        assert '"reason": "min-weight"' in watch.do("ChoraleCoordinatorRoundsUsedUp")

    watch.offer(update_bound=0.001)
    watch.fires("ChoraleSiloClipsValues")
    watch.ends("ChoraleCoordinatorRoundsUsedUp")
    watch.do("ChoraleSiloClipsValues")
    watch.offer()
    watch.wait_rounds(2)
    watch.ends("ChoraleSiloClipsValues")


@exercises("ChoraleCoordinatorRefusesCalls")
def test_an_operator_with_a_new_certificate_is_let_in_once_it_is_listed(watch: Watch) -> None:
    site = watch.site
    for command in (
        "chorale operator csr --name olga --federation heart --out olga-2",
        "chorale authority sign olga-2/olga.csr --directory authority",
    ):
        site.do(command)
    for ending in ("crt", "key"):
        content = (site.folder / f"{OPERATOR}-2" / f"{OPERATOR}.{ending}").read_bytes()
        write_atomic(site.ceremony.path_of(Role.OPERATOR, OPERATOR, ending), content)
    for _ in range(8):
        assert "does not list this certificate" in site.cli("job", "list").stderr

    watch.fires("ChoraleCoordinatorRefusesCalls", ', role="operator"')
    assert "call refused" in watch.do("ChoraleCoordinatorRefusesCalls")

    wait_until(lambda: site.cli("job", "list").returncode == 0, "the operator to be let in")
    watch.ends("ChoraleCoordinatorRefusesCalls")


@exercises("ChoraleSiloDistrustsCoordinator")
def test_somebody_else_at_the_coordinators_address_is_told(watch: Watch, tmp_path: Path) -> None:
    """With a certificate of another authority that says the same."""
    name = "clinic-d"
    watch.site.services[name].stop()
    with impostor(Ceremony(folder=tmp_path, federation="heart")) as address:
        watch.site.launch(name, address=address)
        watch.fires("ChoraleSiloDistrustsCoordinator", f', pod="{name}-0", reason="other-authority"')
        assert "another authority signed it" in watch.do("ChoraleSiloDistrustsCoordinator")
    watch.ends("ChoraleSiloDistrustsCoordinator")
    watch.prometheus.wait(f"sum(chorale_silo_connected) == {len(NAMES)}")


@exercises("ChoraleSiloClockSkew")
def test_a_clock_that_is_off_is_seen_before_the_agent_ends(watch: Watch) -> None:
    watch.site.clock.set(90)
    watch.fires("ChoraleSiloClockSkew", ', pod="clinic-b-0"')
    assert "clock differs from the coordinator's" in watch.do("ChoraleSiloClockSkew")
    watch.site.clock.set(0)
    watch.ends("ChoraleSiloClockSkew")


@pytest.mark.soak
@exercises("ChoraleSiloBudgetNearlySpent")
def test_a_budget_that_is_nearly_spent_is_shown_and_raised(watch: Watch) -> None:
    watch.offer(**PRIVATE)
    watch.fires("ChoraleSiloBudgetNearlySpent", ', pod="clinic-a-0"')
    watch.site.policy["privacy"]["epsilon"] *= 2
    said = watch.do("ChoraleSiloBudgetNearlySpent", at=NAMES)
    assert re.search("data set clinic-a-data: epsilon [0-9.]+ of [0-9.]+ spent", said)
    watch.ends("ChoraleSiloBudgetNearlySpent")


@pytest.mark.soak
@exercises("ChoraleSiloRefusesSum")
def test_a_false_sum_is_refused_until_its_cause_is_found(watch: Watch) -> None:
    """By a coordinator that adds one to a word of every sum."""
    watch.offer()
    watch.wait_rounds()
    site = watch.site
    site.hub.stop()
    site.coordinator_module = "tests.support.bent_sums"
    site.start_coordinator()
    watch.fires("ChoraleSiloRefusesSum", ', pod="clinic-a-0"')
    site.hub.stop()
    site.coordinator_module = "cli.main"
    site.start_coordinator()
    said = watch.do("ChoraleSiloRefusesSum", at=NAMES)
    assert '"code": "sum"' in said
    assert re.search("is approved|it is over, says the coordinator", said)
    watch.offer()  # where too few silos were left for the first, it has ended
    watch.wait_rounds()
    watch.ends("ChoraleSiloRefusesSum")


@exercises("ChoraleCoordinatorBackupTooOld")
def test_backups_that_are_made_no_more_are_seen_until_one_is(watch: Watch) -> None:
    note_backup(watch.site.folder / COORDINATOR, datetime.now(UTC) - timedelta(days=3))
    watch.fires("ChoraleCoordinatorBackupTooOld")
    watch.do("ChoraleCoordinatorBackupTooOld")
    assert tarfile.is_tarfile(watch.site.folder / "hub.tar")
    watch.ends("ChoraleCoordinatorBackupTooOld")


@pytest.mark.soak
@exercises("ChoraleCoordinatorDiskNearlyFull", "ChoraleSiloDiskNearlyFull")
def test_a_disk_that_is_nearly_full_is_seen_until_there_is_room(watch: Watch) -> None:
    for alarm, name in (
        ("ChoraleCoordinatorDiskNearlyFull", COORDINATOR),
        ("ChoraleSiloDiskNearlyFull", SMALL),
    ):
        ballast = watch.site.folder / name / "replaced"
        ballast.write_bytes(bytes(DISK_BYTES * 19 // 20 - shutil.disk_usage(ballast.parent).used))
        watch.fires(alarm, f', pod="{name}-0"')
        assert str(ballast.parent) in watch.do(alarm)
        ballast.unlink()
        watch.ends(alarm)


def test_every_alarm_has_a_runbook_and_every_runbook_an_alarm_and_a_test() -> None:
    alarms = [
        rule["alert"]
        for chart in helm.NAMES
        for group in yaml.safe_load((helm.CHARTS / chart / "files" / "alerts.yaml").read_text())["groups"]
        for rule in group["rules"]
    ]
    assert list(RUNBOOKS) == alarms
    assert set(alarms) == EXERCISED


@pytest.mark.parametrize("alarm", RUNBOOKS)
def test_a_runbook_says_what_is_meant_where_to_look_what_to_do_and_when_it_ends(alarm: str) -> None:
    said = re.findall(r"\*\*(Means|Look|Do|Ends)", RUNBOOKS[alarm].text)
    assert said == ["Means", "Look", "Do", "Ends"]
