"""Global states by digest."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from chorale.spec.state import state_to_bytes
from coordinator.storage.checkpoints import Checkpoints
from crypto.errors import RemoteProtocolError

JOB = b"j" * 32


def state(value):
    return {"model/w": np.full(3, value, np.float32)}


@pytest.fixture
def checkpoints(tmp_path):
    return Checkpoints(tmp_path / "checkpoints")


def test_state_is_kept_under_the_digest_of_its_bytes(checkpoints):
    digest = checkpoints.put(JOB, state(1.0))
    assert digest == hashlib.sha256(checkpoints.path(JOB, digest).read_bytes()).digest()
    np.testing.assert_array_equal(checkpoints.load(JOB, digest)["model/w"], np.ones(3))
    assert checkpoints.path(JOB, digest).stat().st_size == len(state_to_bytes(state(1.0)))


def test_putting_the_same_state_twice_changes_nothing(checkpoints):
    assert checkpoints.put(JOB, state(1.0)) == checkpoints.put(JOB, state(1.0))
    assert len(list(checkpoints.path(JOB, b"").parent.iterdir())) == 1


def test_received_state_with_other_bytes_is_refused(checkpoints, tmp_path):
    received = tmp_path / "received"
    received.write_bytes(state_to_bytes(state(1.0)))
    with pytest.raises(RemoteProtocolError, match="digest is not the one in the signed job"):
        checkpoints.adopt(JOB, hashlib.sha256(b"other").digest(), received)


def test_received_state_is_taken_over(checkpoints, tmp_path):
    received = tmp_path / "received"
    data = state_to_bytes(state(2.0))
    received.write_bytes(data)
    digest = hashlib.sha256(data).digest()
    checkpoints.adopt(JOB, digest, received)
    assert checkpoints.path(JOB, digest).read_bytes() == data
    assert not received.exists()


def test_only_the_named_states_of_the_job_stay(checkpoints):
    digests = [checkpoints.put(JOB, state(float(value))) for value in range(4)]
    other = checkpoints.put(b"k" * 32, state(0.0))
    checkpoints.keep_only(JOB, digests[2:])
    assert [checkpoints.path(JOB, digest).exists() for digest in digests] == [False, False, True, True]
    assert checkpoints.path(b"k" * 32, other).exists()
