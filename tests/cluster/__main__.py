"""`python -m tests.cluster`: the guide from top to bottom, and the faults between its sections."""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from itertools import groupby

from tests.cluster import image
from tests.cluster.lab import Lab
from tests.cluster.lab.images import make_images
from tests.cluster.lab.kubernetes import build
from tests.cluster.lab.lab import default_folder
from tests.cluster.page import PAGE, steps
from tests.cluster.report import Report
from tests.cluster.sections import AROUND
from tests.cluster.walk import Walk


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", action="store_true", help="leave the cluster up where a check fails")
    parser.add_argument("--resume", metavar="SECTION", help="go on there, with the cluster that --keep left")
    given = parser.parse_args()
    report, lab = Report(), Lab(default_folder())
    lab.reserve()
    sections = [
        (section, list(shown))
        for section, shown in groupby(steps(PAGE.read_text()), lambda step: step.section)
    ]
    if given.resume:
        names = [section for section, _ in sections]
        sections = sections[names.index(given.resume) :]
    else:
        start(lab, report)
    with ExitStack() as stack:
        stack.callback(lab.down)
        walk = Walk(lab, report, silo_image=image.REPOSITORY, is_resumed=bool(given.resume))
        stack.callback(walk.close)
        try:
            for section, shown in sections:
                report.say(f"== {section}")
                with AROUND[section](walk):
                    for step in shown:
                        walk.do(step)
        except BaseException:
            report.say(walk.diagnosis())
            if given.keep:
                stack.pop_all()
            raise
    report.say(f"cluster-test: {report.checks} checks passed on Kubernetes {lab.version}")
    return 0


def start(lab: Lab, report: Report) -> None:
    """An empty cluster with the images of this tree."""
    build(lab.folder)
    make_images(lab.folder)
    report.say(f"starting Kubernetes {lab.version} in {lab.folder}")
    with report.progress("starting Kubernetes"):
        lab.down()
        lab.wipe()
        lab.up()
    with report.progress("the silos' image"):
        image.build(lab)


if __name__ == "__main__":
    sys.exit(main())
