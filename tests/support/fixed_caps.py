"""`python -m tests.support.fixed_caps <chorale arguments>`: the product, whose stages wait as long as the
settings say and no longer, whatever they move."""

from __future__ import annotations

from typing import Any

from chorale.transport import tls
from coordinator.jobs.deadlines import StageLimits


def install() -> None:
    """In both places that ask how long a stage may take."""
    from coordinator.jobs import attempt_runner, statements

    def fixed(floor: StageLimits, **_: Any) -> StageLimits:
        return floor

    for module in (attempt_runner, statements):
        vars(module)["following_work"] = fixed


if __name__ == "__main__":
    tls.restrict_to_tls13()
    install()
    from cli.main import main

    main()
