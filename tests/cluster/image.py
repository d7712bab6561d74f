"""The silos' image: the product's, with a distribution of the test's own as the guide adds one."""

from __future__ import annotations

import re

from tests.cluster.adaptations import ROOT
from tests.cluster.lab import Lab
from tests.cluster.lab.images import BASE, Buildah
from tests.cluster.page import PAGE
from tests.support import own_code, wheels

REPOSITORY = "chorale/silo-recorded"
IMAGE = f"localhost/{REPOSITORY}:1.0.0"
FILES = (
    "tests/__init__.py",
    "tests/cluster/__init__.py",
    "tests/cluster/recording.py",
    "tests/support/__init__.py",
    "tests/support/halting.py",
    "tests/support/one_hot.py",
    "tests/support/schedules/__init__.py",
    "tests/support/schedules/agents.py",
)


def build(lab: Lab) -> None:
    """By the Dockerfile that the guide shows, into the node's store of images."""
    folder = lab.folder / "silo-recorded"
    folder.mkdir(exist_ok=True)
    given = {name: (ROOT / name).read_text() if (ROOT / name).exists() else "" for name in FILES}
    files = {**own_code.FILES, **given}
    wheels.build(folder, name=own_code.NAME, version="1.2.0", files=files, offers=own_code.OFFERS)
    text = re.findall(r"^```dockerfile\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)[0]
    text = text.replace("docker.io/library/python", "localhost/python").replace(
        "FROM chorale/silo", "FROM localhost/chorale/silo"
    )
    (folder / "Dockerfile").write_text(text)
    buildah = Buildah(folder=lab.folder, log=lab.folder / "log" / "derived.log")
    base = buildah.read("images", "--format", "{{.Digest}}", BASE)
    options = ["--isolation", "chroot", "--network", "host", "--pull-never"]
    made = ["--build-arg", f"PYTHON_DIGEST={base}", "--tag", IMAGE]
    buildah.step("the silos' image", "bud", *options, *made, folder)
    archive = folder / "image.tar"
    buildah.push(IMAGE, archive)
    lab.load(archive)
