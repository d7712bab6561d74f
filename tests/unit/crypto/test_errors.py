from __future__ import annotations

import pytest

from crypto.errors import (
    BudgetExhausted,
    ChoraleError,
    ConfigError,
    LocalProtocolError,
    PolicyRefusal,
    ProtocolError,
    QuantizationError,
    Refusal,
    RemoteProtocolError,
)


@pytest.mark.parametrize(
    "kind",
    [ConfigError, QuantizationError, BudgetExhausted, PolicyRefusal, LocalProtocolError, RemoteProtocolError],
)
def test_every_error_is_of_one_family(kind: type[ChoraleError]) -> None:
    assert issubclass(kind, ChoraleError)
    assert str(kind("round 3: too few")) == "round 3: too few"


def test_blame_is_part_of_the_type() -> None:
    assert issubclass(LocalProtocolError, ProtocolError)
    assert issubclass(RemoteProtocolError, ProtocolError)
    assert not issubclass(PolicyRefusal, ProtocolError)


def test_refusals_carry_a_code_of_the_closed_list() -> None:
    assert PolicyRefusal("no").code is Refusal.POLICY
    assert PolicyRefusal("no", code=Refusal.OVERLAPPING_COHORT).code is Refusal.OVERLAPPING_COHORT
    assert RemoteProtocolError("no").code is Refusal.MALFORMED
    assert RemoteProtocolError("no", code=Refusal.ROSTER).code is Refusal.ROSTER
    assert all(code.value.replace("-", "").isalpha() for code in Refusal)
