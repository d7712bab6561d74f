"""`python -m tests.host`: docs/deploy-one-machine.md from top to bottom on machines with systemd."""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import ExitStack

from tests.cluster.report import Report
from tests.host.checks import AFTER, BEFORE
from tests.host.page import WHO
from tests.host.walk import Walk


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", action="store_true", help="wait for Enter where a check fails")
    given = parser.parse_args()
    report, began = Report(), time.monotonic()
    with ExitStack() as stack:
        walk = Walk(report, stack)
        try:
            for section in WHO:
                for check in BEFORE.get(section, ()):
                    check(walk)
                walk.section(section)
                for check in AFTER.get(section, ()):
                    check(walk)
        except BaseException:
            report.say(walk.diagnosis())
            if given.keep:
                lines = (f"{name}: {machine.command_line}" for name, machine in walk.machines.items())
                input("\n".join(("the machines:", *lines)))
            raise
    minutes = (time.monotonic() - began) / 60
    report.say(f"host-test: {report.checks} checks passed in {minutes:.1f} minutes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
