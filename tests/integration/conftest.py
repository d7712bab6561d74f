"""A coordinator that a test bends, and agents that dial it, shared by the tests of a module."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.support.rogue import Rogue


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def four(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rogue]:
    """t = 3: one silo may be lost."""
    policy = {"max_cohort_changes": 50}  # for the tests in which a silo is late
    async with Rogue(tmp_path_factory.mktemp("four"), policy=policy, rounds=500) as rogue:
        await rogue.start()
        yield rogue
