"""`python -m tests.host`: docs/deploy-one-machine.md from top to bottom on a machine with systemd."""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from itertools import groupby
from pathlib import Path

from tests.cluster.page import steps
from tests.cluster.report import Report
from tests.host.checks import AFTER
from tests.host.machine import Machine
from tests.host.walk import Walk

PAGE = Path(__file__).parents[2] / "docs" / "deploy-one-machine.md"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", action="store_true", help="wait for Enter where a check fails")
    given = parser.parse_args()
    report, machine = Report(), Machine()
    with ExitStack() as stack:
        stack.callback(machine.down)
        with report.progress("starting systemd"):
            machine.up()
        walk = Walk(machine, report)
        try:
            for section, shown in groupby(steps(PAGE.read_text()), lambda step: step.section):
                report.say(f"== {section}")
                for step in shown:
                    walk.do(step.text)
                for check in AFTER.get(section, ()):
                    check(walk)
        except BaseException:
            report.say(machine.run("journalctl --no-pager --lines=60", check=False))
            if given.keep:
                input(f"the machine: {machine.command_line}")
            raise
    report.say(f"host-test: {report.checks} checks passed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
