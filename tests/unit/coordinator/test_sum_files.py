from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.storage.sum_files import SumFiles


@pytest.mark.parametrize(
    ("keeps_tagged", "left"), [(False, {"70-1.masked"}), (True, {"70-1.masked", "7-2.tagged"})]
)
def test_end_of_a_phase_removes_what_a_restart_left_of_its_earlier_attempt(
    keeps_tagged: bool, left: set[str], tmp_path: Path
) -> None:
    # a restart during the store of attempt 1 kept its sum, and attempt 2 removed its own alone
    for sequence, attempt in ((7, 1), (7, 2), (70, 1)):
        files = SumFiles(tmp_path, sequence=sequence, attempt=attempt)
        files.store([b"masked"], b"session")
    files.session.unlink()
    ended = SumFiles(tmp_path, sequence=7, attempt=2)
    ended.tagged.write_bytes(b"sum")

    ended.remove(keeps_tagged=keeps_tagged)

    assert {path.name for path in tmp_path.iterdir()} == left
