"""What every test shares: how hard Hypothesis tries, and an environment without settings of ours."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile

import hypothesis
import pytest

from chorale.transport.tls import restrict_to_tls13
from tests.support.soak import SOAK, SOAK_EXAMPLES

restrict_to_tls13()  # before any test imports grpc

hypothesis.settings.register_profile("default", deadline=None, print_blob=True)
hypothesis.settings.register_profile(SOAK, deadline=None, print_blob=True, max_examples=SOAK_EXAMPLES)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


# files whose every test is one of `make test-gates`
GATES = ("*_gates.py", "test_bench_*.py")

# nor does a test depend on the width of a terminal, which xdist says to its workers
for _variable in [name for name in os.environ if name.startswith("CHORALE_") or name in ("COLUMNS", "LINES")]:
    del os.environ[_variable]
# nor on what an earlier run computed (chorale/privacy/remembered.py)
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="chorale-tests-")
atexit.register(shutil.rmtree, os.environ["XDG_CACHE_HOME"], ignore_errors=True)


@pytest.hookimpl(tryfirst=True)  # before what was not asked for is left out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if any(item.path.match(pattern) for pattern in GATES):
            item.add_marker(pytest.mark.gate)
