"""The policies and data settings that a running agent holds, and what it takes of their files while it runs.

A file that allows no more than before is taken by itself, whole. One that allows more, lacks a field that it
had, or cannot be read keeps new phases waiting until a person confirms it, changes it back, or restarts the
agent. Changed data settings are taken once no phase runs: the data sets are closed, compared with their
accounts and opened again. A record in the agent's folder says what it holds.
Source: docs/operations.md, "Change a policy".
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from pydantic import ValidationError

from chorale.observability.logs import get_logger
from chorale.runtime.audit import AuditLog, is_in_use
from chorale.runtime.files import read_limited, write_atomic
from chorale.spec.settings_file import MAX_BYTES, check_whole, settings_of
from crypto.errors import ConfigError, PolicyRefusal, Refusal
from silo_agent.disclosure.policy.policy import Policy, read_policy
from silo_agent.disclosure.policy.tightening import loosened
from silo_agent.settings import ENV_PREFIX, SiloSettings

TAKEN_EVENT = "policy_taken"  # audit entry: a data set's policy, and whether it tightened or was confirmed
OPENED_EVENT = "data_sets_opened"  # audit entry: under changed data settings, with the file's SHA-256

log = get_logger("silo_agent.in_force")


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldPolicy:
    """digest: SHA-256 of the file. policy: with the overrides of the agent's environment."""

    digest: bytes
    policy: Policy

    @classmethod
    def read(cls, path: Path, *, federation: str) -> Self:
        """Raises ConfigError, also for a policy of another federation."""
        digest, policy = read_policy(path)
        if policy.federation != federation:
            raise ConfigError(f"{path}: federation: expected {federation}, got {policy.federation}")
        return cls(digest=digest, policy=policy)


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What an agent holds, by data set, and why new phases wait. It is what the record says.

    config, config_digest: the settings file that it read last; None where it was given none. later: fields of
    it that the agent takes at its next start.
    """

    policies: Mapping[str, HeldPolicy]
    waits: tuple[str, ...] = ()
    config: Path | None = None
    config_digest: bytes = b""
    later: tuple[str, ...] = ()

    def looser(self, settings: SiloSettings) -> tuple[dict[str, HeldPolicy], tuple[str, ...]]:
        """Policies whose files changed, by data set, and why the files as they are now are not taken."""
        changed, why = dict[str, HeldPolicy](), list[str]()
        for data_set in settings.data_sets:
            path, held = settings.policy_of(data_set), self.policies.get(data_set.name)
            if held is None:
                why.append(f"data set {data_set.name}: it takes a restart")
                continue
            try:
                found = HeldPolicy.read(path, federation=settings.federation)
                _check_delta(path, found.policy, held.policy)
            except ConfigError as error:
                why.append(str(error))
                continue
            if found.digest != held.digest:
                changed[data_set.name] = found
                why += [f"{path}: {each}" for each in loosened(held.policy, found.policy)]
        return changed, tuple(dict.fromkeys(why))

    def unread(self) -> tuple[str, ...]:
        """That the settings file is not what the agent read last."""
        if self.config is None:
            return ()
        if hashlib.sha256(read_limited(self.config, MAX_BYTES)).digest() == self.config_digest:
            return ()
        return (f"{self.config}: it changed since the agent read it",)

    def to_json(self) -> bytes:
        policies = {
            name: {
                "sha256": each.digest.hex(),
                "fields": each.policy.model_dump(mode="json", exclude_unset=True),
            }
            for name, each in self.policies.items()
        }
        record = {
            "policies": policies,
            "waits": self.waits,
            "config": None if self.config is None else str(self.config),
            "config_sha256": self.config_digest.hex(),
            "later": self.later,
        }
        return json.dumps(record, indent=2).encode() + b"\n"

    @classmethod
    def of_running(cls, settings: SiloSettings) -> Held | None:
        """Of the agent that runs on these settings; None where none does. Raises ConfigError."""
        path = settings.in_force_path
        if not is_in_use(settings.audit_path) or not path.exists():
            return None
        try:
            record = json.loads(read_limited(path, 100 * MAX_BYTES))
            policies = {
                name: HeldPolicy(
                    digest=bytes.fromhex(each["sha256"]), policy=Policy.model_validate(each["fields"])
                )
                for name, each in record["policies"].items()
            }
            return cls(
                policies=policies,
                waits=tuple(record["waits"]),
                config=None if record["config"] is None else Path(record["config"]),
                config_digest=bytes.fromhex(record["config_sha256"]),
                later=tuple(record["later"]),
            )
        except (ValueError, KeyError, TypeError, AttributeError, ValidationError) as error:
            raise ConfigError(f"{path}: it is no record of an agent: {type(error).__name__}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Due:
    """Data settings that wait until no phase runs, with the digest of their file."""

    digest: bytes
    settings: SiloSettings
    later: tuple[str, ...]


class InForce:
    """Of one agent that runs.

    take: puts another policy of a data set in force. config: the settings file; None: it is not read again.
    is_idle: whether no phase runs. open_again: closes and opens the data sets; raises ConfigError. `version`
    changes with all that is taken or keeps new phases waiting.
    """

    def __init__(
        self,
        settings: SiloSettings,
        policies: Mapping[str, HeldPolicy],
        *,
        take: Callable[[str, Policy], None],
        audit: AuditLog,
        config: Path | None = None,
        is_idle: Callable[[], bool] = lambda: False,
        open_again: Callable[[SiloSettings], Awaitable[None]] | None = None,
    ) -> None:
        self.version = 0
        self._settings = settings
        self._held = Held(policies=dict(policies))
        if config is not None:
            self._held = replace(
                self._held, config=config.absolute(), config_digest=_digest_of(settings, config)
            )
        self._is_idle, self._open_again = is_idle, open_again
        self._due: _Due | None = None
        self._failed: tuple[bytes, str] | None = None  # a file that could not be taken, and why
        self._opening: asyncio.Task[None] | None = None
        self._take = take
        self._audit = audit
        settings.confirmed_path.unlink(missing_ok=True)  # what is there is in force since this start
        self._record()

    def check(self) -> None:
        """Raises PolicyRefusal(code=SETTINGS) while the files are not what is in force."""
        self.look()
        if self._held.waits:
            raise PolicyRefusal(
                f"settings: {'; '.join(self._held.waits)}; new phases wait until the file is changed back, "
                "`chorale silo reload --confirm`, or a restart",
                code=Refusal.SETTINGS,
            )

    def look(self) -> None:
        """Read the files, and take what allows no more or was confirmed. While data sets are opened again
        nothing is: they would have the former policies, and new phases would not wait."""
        if self._opening is not None:
            return
        before, confirmed = self._held, self._confirmed()
        changed, waits = before.looser(self._settings)
        if changed and (not waits or {each.digest for each in changed.values()} <= confirmed):
            for name, found in changed.items():
                self._take(name, found.policy)
                why = "confirmed" if waits else "tightened"
                self._audit.append(TAKEN_EVENT, data_set=name, policy=found.digest.hex(), why=why)
                log.warning("policy taken", data_set=name, sha256=found.digest.hex(), why=why)
            self._held = replace(before, policies={**before.policies, **changed})
            _, waits = self._held.looser(self._settings)
        waits += self._of_config()
        self._held = replace(self._held, waits=waits)
        if waits != before.waits:
            log.error("new phases wait", why="; ".join(waits)) if waits else log.info("new phases go on")
        if self._held != before:
            self.version += 1
            self._record()
        if self._due is not None and self._is_idle():
            self._opening = asyncio.get_running_loop().create_task(self._take_data(self._due))

    def _of_config(self) -> tuple[str, ...]:
        """Why the settings file as it is now keeps new phases waiting; what is due of it is noted."""
        path, held = self._held.config, self._settings
        self._due = None
        if path is None:
            return ()
        try:
            data = read_limited(path, MAX_BYTES)
            digest = hashlib.sha256(data).digest()
            if digest == self._held.config_digest:
                return ()
            check_whole(data, source=str(path))
            now = settings_of(SiloSettings, data, source=str(path), env_prefix=ENV_PREFIX)
        except ConfigError as error:
            return (str(error),)
        if self._failed is not None and self._failed[0] == digest:
            return (f"{path}: {self._failed[1]}",)
        if _bounds(now) != _bounds(held):
            return (f"{path}: data sets, their policy files, accounts or units changed: it takes a restart",)
        fields = (name for name in SiloSettings.model_fields if name != "data")
        later = tuple(name for name in fields if getattr(now, name) != getattr(held, name))
        if now.data != held.data:
            settings = held.model_copy(update={"data": now.data})
            self._due = _Due(digest=digest, settings=settings, later=later)
            return (f"{path}: data settings changed: data sets are opened again once no phase runs",)
        self._held = replace(self._held, config_digest=digest, later=later)
        if later:
            log.warning("settings that the next start takes", fields=", ".join(later))
        return ()

    async def _take_data(self, due: _Due) -> None:
        assert self._open_again is not None
        try:
            await self._open_again(due.settings)
        except Exception as error:
            log.exception("data sets not opened again")
            self._failed = (due.digest, str(error))
        else:
            self._settings = due.settings
            self._held = replace(self._held, config_digest=due.digest, later=due.later)
            self._audit.append(OPENED_EVENT, settings=due.digest.hex())
            log.warning("data sets opened again", sha256=due.digest.hex())
        finally:
            self._opening = None
        self.look()

    def _confirmed(self) -> frozenset[bytes]:
        """Digests of the files that a person confirmed, once."""
        path = self._settings.confirmed_path
        if not path.exists():
            return frozenset()
        text = read_limited(path, MAX_BYTES)
        path.unlink()
        try:
            return frozenset(bytes.fromhex(line) for line in text.decode().split())
        except ValueError:
            log.error("confirmation not read", path=str(path))
            return frozenset()

    def _record(self) -> None:
        write_atomic(self._settings.in_force_path, self._held.to_json())


def _digest_of(settings: SiloSettings, config: Path) -> bytes:
    """Of the file that gave these settings; none of one that was changed since they were read."""
    data = read_limited(config, MAX_BYTES)
    try:
        now = settings_of(SiloSettings, data, source=str(config), env_prefix=ENV_PREFIX)
    except ConfigError:
        return b""
    is_same = now.data == settings.data and _bounds(now) == _bounds(settings)
    return hashlib.sha256(data).digest() if is_same else b""


def _check_delta(path: Path, found: Policy, held: Policy) -> None:
    if found.privacy.delta != held.privacy.delta:
        raise ConfigError(
            f"{path}: privacy.delta: expected {held.privacy.delta:g}, at which all that was spent is valued, "
            f"got {found.privacy.delta:g}"
        )


def confirm(settings: SiloSettings, digests: frozenset[bytes]) -> None:
    """Have the running agent take files of these digests, whatever they allow."""
    write_atomic(settings.confirmed_path, "\n".join(sorted(each.hex() for each in digests)).encode())


def not_in_force(settings: SiloSettings) -> tuple[str, ...]:
    """Why the running agent does not take the files as they are; nothing where none runs."""
    held = Held.of_running(settings)
    if held is None:
        return ()
    return tuple(f"not in force: {each}" for each in (*held.looser(settings)[1], *held.unread()))


def _bounds(settings: SiloSettings) -> dict[str, tuple[Path, str, bool]]:
    """What bounds each data set: its policy, its account, and whether a record is all rows of a unit."""
    return {
        each.name: (settings.policy_of(each), each.account, each.unit is None) for each in settings.data_sets
    }
