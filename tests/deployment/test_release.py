"""A release is the same bytes wherever it is built, and says what it holds; who changes it is found out."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packaging.requirements import Requirement

from tests.deployment import helm
from tests.support import programs
from tools.release import archives, build, contents, licences, locks, statement, vulnerabilities
from tools.release.components import PYPI, Component
from tools.release.errors import ReleaseError
from tools.release.verify import verify

VERSION = "1.0.0"
WHEEL = f"chorale-{VERSION}-py3-none-any.whl"
SITE = "opt/chorale/lib/python3.11/site-packages"
DPKG = "Package: libssl3\nStatus: install ok installed\nArchitecture: amd64\nVersion: 3.0.17-1\n\n"
IMAGE_MEDIA = ("application/vnd.oci.image.config.v1+json", "application/vnd.oci.image.layer.v1.tar+gzip")


class SmallImages:
    """Builds images of the wheel's files and two packages' metadata: what a release reads of images."""

    def build(self, source: Path, name: str, out: Path, *, commit: build.Commit, version: str) -> str:
        with zipfile.ZipFile(out.parent / WHEEL) as wheel:
            files = {f"{SITE}/{each}": wheel.read(each) for each in wheel.namelist()}
        files[f"{SITE}/click-8.5.1.dist-info/METADATA"] = b"Name: click\nVersion: 8.5.1\nLicense: MIT\n\n"
        files["var/lib/dpkg/status"] = DPKG.encode()
        files["usr/share/doc/libssl3/copyright"] = b"Files: *\nLicense: Apache-2.0\n"
        return write_image(out, files, epoch=commit.epoch)


def write_image(out: Path, files: dict[str, bytes], *, epoch: int) -> str:
    raw = io.BytesIO()
    with (
        gzip.GzipFile("", "wb", fileobj=raw, mtime=epoch) as packed,
        tarfile.open(fileobj=packed, mode="w") as tar,
    ):
        for path, data in files.items():
            entry = tarfile.TarInfo(path)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    layer, layout = out.with_name("layer"), out.with_name("layout")
    layer.write_bytes(raw.getvalue())
    digest = archives.write_layout(layout, config=b"{}", layer=layer, media=IMAGE_MEDIA, name=VERSION)
    archives.pack(layout, out, epoch=epoch)
    layer.unlink()
    shutil.rmtree(layout)
    return digest


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the keys `ours` and `other`, without passwords, whose derivation takes seconds."""
    folder = tmp_path_factory.mktemp("keys")
    for name in ("ours", "other"):
        pair = ["-p", str(folder / f"{name}.pub"), "-s", str(folder / f"{name}.key")]
        subprocess.run([programs.needed("minisign"), "-G", "-W", *pair], capture_output=True, check=True)
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, keys: Path) -> Path:
    """A signed release with small images."""
    work, out = tmp_path_factory.mktemp("work"), tmp_path_factory.mktemp("release")
    commit = build.commit_of(contents.ROOT, "HEAD")
    contents.make(work, out, commit, engine=SmallImages(), helm=str(helm.installed()))
    state_and_sign(out, keys / "ours.key", commit=commit)
    return out


@pytest.fixture
def release(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "release")


def state_and_sign(out: Path, key: Path, *, commit: build.Commit | None = None) -> None:
    """As `make release` ends; again, after a change by somebody who holds the key."""
    commit = commit or build.commit_of(contents.ROOT, "HEAD")
    for name in (statement.PROVENANCE, statement.SUMS, statement.SIGNATURE):
        (out / name).unlink(missing_ok=True)
    url = "https://user:word@mirror.example.org/simple"
    arguments = {"PYTHON_DIGEST": "sha256:" + "a" * 64, "PIP_INDEX_URL": url}
    contents.state(
        out, version=VERSION, commit=commit, builder="urn:test", arguments=arguments, tools={"helm": "v3"}
    )
    sum_and_sign(out, key, commit)


def sum_and_sign(out: Path, key: Path, commit: build.Commit) -> None:
    for name in (statement.SUMS, statement.SIGNATURE):
        (out / name).unlink(missing_ok=True)
    (out / statement.SUMS).write_text(statement.sums(out))
    said = statement.comment(version=VERSION, commit=commit.sha)
    statement.sign(out, key, said=said, password="")


def test_release_is_verified_by_a_python_that_has_nothing_installed(release: Path, keys: Path) -> None:
    command = [sys.executable, "-I", "-S", "-c", "import sys; sys.path.insert(0, '.'); sys.argv.pop(0)\n"]
    command[-1] += (
        "import runpy; runpy.run_module('tools.release.verify', run_name='__main__', alter_sys=True)"
    )
    done = subprocess.run(
        [*command, "verify", str(release), "--key", str(keys / "ours.pub")],
        cwd=contents.ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(
        r"chorale: chorale 1\.0\.0, commit [0-9a-f]{12}: 19 files fit, signed by ours\.pub\n", done.stdout
    )


def change_byte(folder: Path) -> None:
    path = folder / "chorale-silo-1.0.0.tgz"
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)


def swap_signature(folder: Path) -> None:
    """One of the same key, over another file."""
    other = folder / "digests.json.minisig"
    shutil.copy(folder.parent / "earlier.minisig", folder / statement.SIGNATURE)
    assert not other.exists()


def edit_provenance(folder: Path) -> None:
    path = folder / statement.PROVENANCE
    path.write_text(path.read_text().replace("urn:test", "urn:trusted"))


CHANGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "changed byte": (change_byte, r"chorale-silo-1\.0\.0\.tgz: SHA-256 is [0-9a-f]{64}, SHA256SUMS says"),
    "removed file": (lambda f: (f / WHEEL).unlink(), rf"{WHEEL}: missing, SHA256SUMS lists it"),
    "added file": (
        lambda f: (f / "install.sh").write_text("true\n"),
        r"install\.sh: in the folder, SHA256SUMS does not list it",
    ),
    "link": (
        lambda f: (
            (f / "licences.txt").rename(f.parent / "l"),
            (f / "licences.txt").symlink_to(f.parent / "l"),
        ),
        r"licences\.txt: expected a file",
    ),
    "swapped signature": (swap_signature, r"SHA256SUMS\.minisig: not a signature of SHA256SUMS by ours\.pub"),
    "no signature": (lambda f: (f / statement.SIGNATURE).unlink(), "missing, the release is not signed"),
    "edited provenance": (edit_provenance, r"provenance\.json: SHA-256 is"),
    "edited sums": (
        lambda f: (f / statement.SUMS).write_text((f / statement.SUMS).read_text() + "\n"),
        "not a signature of SHA256SUMS",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_release_changed_without_the_key_is_found_out(release: Path, keys: Path, change: str) -> None:
    other = release.parent / "earlier"
    other.mkdir()
    (other / statement.SUMS).write_text("0" * 64 + "  earlier.whl\n")
    statement.sign(other, keys / "ours.key", said="chorale 0.0.9", password="")
    shutil.copy(other / statement.SIGNATURE, release.parent / "earlier.minisig")
    apply, sentence = CHANGES[change]
    apply(release)
    with pytest.raises(ReleaseError, match=sentence):
        verify(release, keys / "ours.pub")


def test_another_key_is_refused(release: Path, keys: Path) -> None:
    with pytest.raises(ReleaseError, match=r"not a signature of SHA256SUMS by other\.pub"):
        verify(release, keys / "other.pub")


@pytest.mark.soak
def test_key_with_a_password_signs_for_who_knows_it(release: Path, tmp_path: Path) -> None:
    pair = ["-p", str(tmp_path / "locked.pub"), "-s", str(tmp_path / "locked.key")]
    command = [programs.needed("minisign"), "-G", *pair]
    subprocess.run(command, input="pass\npass\n", text=True, capture_output=True, check=True)
    with pytest.raises(ReleaseError, match=r"locked\.key: not signed: Wrong password"):
        statement.sign(release, tmp_path / "locked.key", said="chorale", password="guess")
    statement.sign(release, tmp_path / "locked.key", said="chorale", password="pass")
    assert statement.check_signature(release, tmp_path / "locked.pub") == "chorale"


def edit_json(path: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    found = json.loads(path.read_text())
    edit(found)
    path.write_bytes(archives.as_json(found))


def drop_component(folder: Path) -> None:
    edit_json(folder / "chorale-silo-1.0.0.image.cdx.json", lambda bill: bill["components"].pop())


def invent_component(folder: Path) -> None:
    def add(bill: dict[str, object]) -> None:
        components = bill["components"]
        assert isinstance(components, list)
        components.append({**components[0], "name": "left-pad"})

    edit_json(folder / "chorale-coordinator-1.0.0.image.cdx.json", add)


def other_software(folder: Path) -> None:
    """An image whose Chorale has one more line, with its own digest everywhere."""
    archive = folder / "chorale-silo-1.0.0.image.oci.tar"
    files = archives.Layout(archive).files(lambda path: True)
    files[f"{SITE}/crypto/prg.py"] += b"# open\n"
    digest = write_image(archive, files, epoch=0)
    edit_json(folder / "digests.json", lambda found: found["images"].update(silo=digest))
    repin(folder, digest)


def repin(folder: Path, digest: str) -> None:
    """The silo's chart with another image."""
    packed = folder / "chorale-silo-1.0.0.tgz"
    source = folder.parent / "chart"
    with tarfile.open(packed) as tar:
        tar.extractall(source, filter="data")
    values = source / "chorale-silo" / "values.yaml"
    values.write_text(re.sub(r"^  digest: .*$", '  digest: ""', values.read_text(), flags=re.MULTILINE))
    (folder / "chorale-silo-1.0.0.chart.oci.tar").unlink()
    _, chart = build.chart(
        source / "chorale-silo", folder, helm=str(helm.installed()), image_digest=digest, epoch=0
    )
    edit_json(
        folder / "digests.json",
        lambda found: found["charts"].update({"chorale-silo-1.0.0": chart}),
    )


INSIDE: dict[str, tuple[Callable[[Path], object], str]] = {
    "bill lacks": (
        drop_component,
        r"silo-1\.0\.0\.image\.cdx\.json: it leaves out the image's .* \((deb|pypi)\)",
    ),
    "bill invents": (invent_component, r"coordinator-1\.0\.0\.image\.cdx\.json: the image has no left-pad"),
    "other software": (other_software, r"image\.oci\.tar: its Chorale has other files than chorale-1\.0\.0"),
    "other image": (
        lambda f: repin(f, "sha256:" + "b" * 64),
        r"silo-1\.0\.0\.tgz: it installs the image sha256:b+, expected sha256:",
    ),
    "other digests": (
        lambda f: edit_json(f / "digests.json", lambda found: found.update(software="c" * 64)),
        r"whl: its files have SHA-256 [0-9a-f]{64}, digests\.json says c+",
    ),
}


@pytest.mark.parametrize("change", INSIDE)
def test_signature_over_parts_that_do_not_fit_is_not_enough(release: Path, keys: Path, change: str) -> None:
    """The key is used on a folder in which somebody changed one part before."""
    apply, sentence = INSIDE[change]
    apply(release)
    state_and_sign(release, keys / "ours.key")
    with pytest.raises(ReleaseError, match=sentence):
        verify(release, keys / "ours.pub")


def test_provenance_that_names_other_files_is_refused_under_a_good_signature(
    release: Path, keys: Path
) -> None:
    path = release / statement.PROVENANCE
    edit_json(path, lambda found: found["subject"][0]["digest"].update(sha256="d" * 64))
    sum_and_sign(release, keys / "ours.key", build.commit_of(contents.ROOT, "HEAD"))
    with pytest.raises(ReleaseError, match=r"provenance\.json: chorale-.*: SHA256SUMS says otherwise"):
        verify(release, keys / "ours.pub")


def test_signature_of_another_commit_is_refused(release: Path, keys: Path) -> None:
    sum_and_sign(release, keys / "ours.key", build.Commit(sha="e" * 40, epoch=0))
    with pytest.raises(ReleaseError, match="it is of chorale 1.0.0 e{40}, provenance.json of another"):
        verify(release, keys / "ours.pub")


def test_statement_of_a_release(made: Path) -> None:
    """Bills fit CycloneDX's own schema, have what they should, and no login is told."""
    for name in ("chorale-1.0.0", "chorale-silo-1.0.0.image"):
        text = (made / f"{name}.cdx.json").read_text()
        assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    bill = {each["purl"]: each for each in json.loads(text)["components"]}
    assert bill["pkg:deb/debian/libssl3@3.0.17-1?arch=amd64"]["licenses"] == [
        {"license": {"name": "Apache-2.0"}}
    ]
    assert bill["pkg:pypi/click@8.5.1"]["licenses"] == [{"license": {"id": "MIT"}}]
    wheel = json.loads((made / "chorale-1.0.0.cdx.json").read_text())["components"]
    assert all(each["hashes"] and each["licenses"] for each in wheel)
    about = json.loads((made / statement.PROVENANCE).read_text())
    parameters = about["predicate"]["buildDefinition"]["externalParameters"]["buildArguments"]
    assert parameters["PIP_INDEX_URL"] == "https://mirror.example.org/simple"
    assert about["predicate"]["buildDefinition"]["internalParameters"] == {"tools": {"helm": "v3"}}
    assert "libssl3 3.0.17-1: Debian, Apache-2.0" in (made / "licences.txt").read_text()


@pytest.mark.gate
@pytest.mark.timeout(300)
def test_two_builds_of_a_commit_are_the_same_bytes(tmp_path: Path) -> None:
    """Other folder, named by a relative path, umask, locale, time zone and hash seed."""
    lists = []
    for number, (umask, settings) in enumerate(
        [
            (0o022, {}),
            (0o077, {"LC_ALL": "C", "TZ": "Asia/Tokyo", "PYTHONHASHSEED": "7", "LANG": "de_DE.UTF-8"}),
        ]
    ):
        out = tmp_path / f"{number}" / "release"
        command = [sys.executable, "-m", "tools.release", "--no-images", "--helm", str(helm.installed())]
        done = subprocess.run(
            [*command, "--out", str(out) if number == 0 else os.path.relpath(out, contents.ROOT)],
            cwd=contents.ROOT,
            env={**os.environ, **settings},
            preexec_fn=lambda umask=umask: os.umask(umask),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "not signed: no --key was given" in done.stdout
        lists.append({path.name: path.read_bytes() for path in out.iterdir()})
    assert [name for name in lists[0] if lists[0][name] != lists[1].get(name)] == []
    assert len(lists[0]) == len(lists[1]) == 16
    verify(out, None)


# what goes into it


def test_locks_are_what_the_images_need_and_no_more() -> None:
    """Of pyproject.toml's extras, what they require in turn, at the versions of constraints.txt."""
    texts = {name: locks.lock_of(name).read_text() for name in ("build", *locks.EXTRAS)}
    locks.check(texts, (contents.ROOT / "constraints.txt").read_text())
    for name, extras in locks.EXTRAS.items():
        left_out = locks.OF_TORCHS_INDEX if name == "silo" else ()
        expected = set(closure("chorale", frozenset(extras))) - {"chorale", *left_out}
        assert set(locks.pins(texts[name])) == expected
    stale = texts["silo"].replace("click==", "click==9.")
    with pytest.raises(ReleaseError, match=r"requirements-silo\.txt: click is 9\..*: make locks"):
        locks.check({"silo": stale}, (contents.ROOT / "constraints.txt").read_text())


def closure(
    name: str, extras: frozenset[str], seen: set[tuple[str, frozenset[str]]] | None = None
) -> Iterator[str]:
    """What an installed distribution requires on Linux and the images' Python, in turn."""
    seen = set() if seen is None else seen
    if (name, extras) in seen:
        return
    seen.add((name, extras))
    yield name
    place = {
        "python_version": locks.PYTHON,
        "python_full_version": f"{locks.PYTHON}.0",
        "sys_platform": "linux",
    }
    for line in metadata.requires(name) or ():
        found = Requirement(line)
        marker = found.marker
        if marker is None or any(marker.evaluate({**place, "extra": each}) for each in ("", *extras)):
            yield from closure(locks.normalized(found.name), frozenset(found.extras), seen)


@pytest.mark.parametrize(
    ("stated", "sentence"),
    [
        (("AGPL-3.0-only",), "licences: odd 1.0: AGPL-3.0-only is not allowed"),
        (("MIT OR GPL-2.0-only",), "licences: odd 1.0: GPL-2.0-only is not allowed"),
        (("Ask us",), "licences: odd 1.0: no known licence, it says Ask us"),
        ((), "licences: odd 1.0: no known licence, it says nothing"),
    ],
)
def test_licence_that_nobody_has_allowed_ends_a_release(stated: tuple[str, ...], sentence: str) -> None:
    odd = Component(kind=PYPI, name="odd", version="1.0", stated=stated)
    with pytest.raises(ReleaseError, match=sentence):
        licences.report({"wheel": [odd]})


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        ('{"dependencies": [{"name": "click", "skip_reason": "not found on PyPI"}]}', 0),
        ("", 1),
        ("no JSON", 0),
    ],
)
def test_audit_that_asked_nobody_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, status: int
) -> None:
    """pip-audit itself then prints "No known vulnerabilities found"."""
    script = tmp_path / "pip-audit"
    script.write_text(f"#!/bin/sh\necho No known vulnerabilities found >&2\necho '{answer}'\nexit {status}\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    said = vulnerabilities.report([tmp_path / "lock.txt"])
    assert "\nnot checked: source unreachable" in said
    assert "0 vulnerabilities" not in said


def test_files_of_an_image_are_those_that_its_last_layer_leaves(tmp_path: Path) -> None:
    """A package that a later layer removes is in no bill of materials."""
    out = tmp_path / "image.tar"
    files = {"a/kept": b"1", "a/gone": b"2", "b/old": b"3", "top": b"4", "c/below": b"6"}
    write_image(out, files, epoch=0)
    below = archives.Layout(out).files(lambda _: True)
    upper = {"a/.wh.gone": b"", "b/new": b"5", "b/.wh..wh..opq": b"", ".wh.top": b"", "c": b"7"}
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        for path, data in upper.items():
            entry = tarfile.TarInfo(f"./{path}")
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    raw.seek(0)
    with tarfile.open(fileobj=raw) as tar:
        archives.apply_layer(below, tar, lambda _: True)
    assert below == {"a/kept": b"1", "b/new": b"5", "c": b"7"}


def pushed_image(folder: Path, container: str, *, day: str) -> Path:
    """What buildah writes to a folder: with the container that it built in, and the day."""
    folder.mkdir()
    settings: dict[str, Any] = {"Hostname": container[:12], "Healthcheck": {"Test": ["CMD", "true"]}}
    config: dict[str, Any] = {
        "created": f"{day}T00:00:00Z",
        "container": container,
        "parent": container,
        "config": settings,
    }
    config["history"] = [{"created_by": "COPY", "comment": f"FROM {container[:12]}"}]
    blobs = {"config": json.dumps({**config, "container_config": settings}).encode(), "layer": b"layer"}
    described = {}
    for name, data in blobs.items():
        digest = hashlib.sha256(data).hexdigest()
        (folder / digest).write_bytes(data)
        described[name] = {"mediaType": name, "size": len(data), "digest": f"sha256:{digest}"}
    manifest = {"mediaType": "docker", "config": described["config"], "layers": [described["layer"]] * 2}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def test_image_has_its_health_check_and_nothing_of_the_container_that_it_was_built_in(tmp_path: Path) -> None:
    digests = set()
    for number, (container, day) in enumerate([("a" * 64, "2026-01-01"), ("b" * 64, "2026-01-02")]):
        layout, out = tmp_path / f"layout-{number}", tmp_path / f"{number}.tar"
        pushed = pushed_image(tmp_path / f"pushed-{number}", container, day=day)
        archives.layout_of_image(pushed, layout, name=VERSION, epoch=60)
        archives.pack(layout, out, epoch=60)
        found = archives.Layout(out)
        digests.add(found.digest)
        config = json.loads((layout / "blobs" / found.config.replace(":", "/")).read_text())
        settings = {"Healthcheck": {"Test": ["CMD", "true"]}}
        steps = [{"created_by": "COPY"}]
        assert config == {"created": "1970-01-01T00:01:00Z", "config": settings, "history": steps}
    assert len(digests) == 1


@pytest.mark.parametrize("kind", ["file", "link"])
@pytest.mark.parametrize("entry", ["", ".", None])
def test_a_minisign_that_came_with_the_release_is_not_run(
    release: Path, keys: Path, tmp_path: Path, kind: str, entry: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an entry of PATH that is empty or a dot, it was run and said that the release was signed."""
    ran, said = tmp_path / "ran", f"chorale {VERSION} forged"
    program = tmp_path / "program" if kind == "link" else release / "minisign"
    program.write_text(f"#!/bin/sh\ntouch {ran}\necho {said}\n")
    program.chmod(0o755)
    if kind == "link":
        (release / "minisign").symlink_to(program)
    if entry is not None:
        monkeypatch.setenv("PATH", os.pathsep.join([entry, os.environ["PATH"]]))
    monkeypatch.chdir(tmp_path)

    assert statement.check_signature(release, keys / "ours.pub").startswith(f"chorale {VERSION}")
    assert not ran.exists()
    monkeypatch.chdir(release)
    if entry is None:
        assert statement.check_signature(release, keys / "ours.pub").startswith(f"chorale {VERSION}")
    else:
        with pytest.raises(ReleaseError, match="in the release's own folder; it is not run"):
            statement.check_signature(release, keys / "ours.pub")
    assert not ran.exists()
