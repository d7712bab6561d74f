"""Which files are a distribution's, and that nothing else runs in their name: real wheels, by pip."""

from __future__ import annotations

import os
import py_compile
import shutil
import sys
from collections.abc import Callable, Iterator
from importlib.machinery import PathFinder
from pathlib import Path

import pytest

from chorale.runtime import distributions
from chorale.runtime.distributions import MODELS, installed, load
from crypto.errors import ConfigError
from tests.support import wheels

NAME, PACKAGE = "own-code", "own_code_of_tests"
PINNED = f"{NAME}==1.0.0"
FILES = {
    f"{PACKAGE}/__init__.py": f"from {PACKAGE}.nets import answer\n",
    f"{PACKAGE}/nets.py": "def answer():\n    return 42\n",
    f"{PACKAGE}/table.txt": "a table\n",
}
OFFERS = {
    MODELS: {"net": f"{PACKAGE}.nets:answer", "foreign": "json:loads", "missing": f"{PACKAGE}.nets:none"}
}


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the distribution installed, and the project that it was built from beside it."""
    folder = tmp_path_factory.mktemp("wheels")
    wheels.install(wheels.build(folder, name=NAME, files=FILES, offers=OFFERS), folder / "site")
    return folder


@pytest.fixture
def site(pristine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of it on Python's path; what a test loads of it is forgotten."""
    copy = tmp_path / "site"
    shutil.copytree(pristine / "site", copy)
    monkeypatch.syspath_prepend(str(copy))
    yield copy
    for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
        del sys.modules[name]
    distributions._owners.clear()
    distributions._running.clear()


def test_the_digest_covers_files_and_entry_points_and_nothing_of_the_machine(site: Path) -> None:
    found = installed(PINNED)
    assert set(found.digests) == set(FILES)
    (site / "elsewhere").mkdir()
    os.utime((site / PACKAGE / "nets.py"), (1, 1))
    cache = site / PACKAGE / "__pycache__"
    cache.mkdir(exist_ok=True)
    (cache / "nets.cpython-311.pyc").write_bytes(b"stale")
    assert installed(PINNED).sha256 == found.sha256
    metadata = next(site.glob("*.dist-info")) / "entry_points.txt"
    metadata.write_text(metadata.read_text().replace("json:loads", "json:dumps"))
    assert installed(PINNED).sha256 != found.sha256


def test_a_distribution_with_one_byte_changed_is_refused_with_both_digests(site: Path) -> None:
    pinned = installed(PINNED).sha256
    (site / PACKAGE / "table.txt").write_text("a Table\n")
    with pytest.raises(ConfigError) as refused:
        load(PINNED, group=MODELS, name="net", sha256=pinned)
    assert str(refused.value) == (
        f"{PINNED}: expected files of SHA-256 {pinned}, as the job pins, got {installed(PINNED).sha256}"
    )
    assert PACKAGE not in sys.modules  # nothing of it ran


def _drop_in(site: Path) -> None:
    (site / PACKAGE / "extra.py").write_text("")


def _link(site: Path) -> None:
    moved = site / "moved.py"
    (site / PACKAGE / "nets.py").rename(moved)
    (site / PACKAGE / "nets.py").symlink_to(moved)


def _linked_folder(site: Path) -> None:
    (site / PACKAGE / "more").symlink_to(site)


def _lose(site: Path) -> None:
    (site / PACKAGE / "nets.py").unlink()


def _twice(site: Path) -> None:
    other = site.parent / "other"
    other.mkdir()
    shutil.copytree(site, other, dirs_exist_ok=True)
    sys.path.append(str(other))  # the fixture's monkeypatch restores it


def _twice_in_one_folder(site: Path) -> None:
    """Another spelling of the name, with entry points of its own: which of the two is read is chance."""
    shutil.copytree(next(site.glob("*.dist-info")), site / "Own.Code-1.0.0.dist-info")


def _list(site: Path, path: str) -> None:
    (site / path).write_text("")
    record = next(site.glob("*.dist-info")) / "RECORD"
    record.write_text(f"{record.read_text()}{path},,\n")


SPOILED: list[tuple[str, Callable[[Path], None]]] = [
    (r"extra\.py lies in its package and is none of its files", _drop_in),
    (r"nets\.py is missing or a link, expected a file", _link),
    (r"more lies in its package and is none of its files", _linked_folder),
    (r"nets\.py is missing or a link, expected a file", _lose),
    (r"is installed twice, in .*site.* and .*other|in .*other.* and .*site", _twice),
    (r"own-code is installed twice, in .*site and .*site$", _twice_in_one_folder),
    (r"own\.pth runs at every start of Python", lambda site: _list(site, "own.pth")),
    (r"fast\.pyc is a compiled module without its source", lambda site: _list(site, "fast.pyc")),
    (r"differ in upper and lower case alone", lambda site: _list(site, f"{PACKAGE}/NETS.py")),
    (r"shared has no __init__\.py: others could add modules", lambda site: _shared(site)),
]


def _shared(site: Path) -> None:
    (site / "shared").mkdir()
    _list(site, "shared/part.py")


@pytest.mark.parametrize(("expected", "spoil"), SPOILED, ids=[row[0][:18] for row in SPOILED])
def test_files_that_could_run_uncompared_are_refused(
    expected: str, spoil: Callable[[Path], None], site: Path
) -> None:
    spoil(site)
    with pytest.raises(ConfigError, match=expected):
        installed(PINNED)


def test_a_lost_file_is_missed_where_a_package_has_replaced_the_finder(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """importlib_metadata, which many packages import, leaves missing files out of a distribution's."""
    kind = pytest.importorskip("importlib_metadata").MetadataPathFinder
    others = [each for each in sys.meta_path if not isinstance(each, kind)]
    monkeypatch.setattr(PathFinder, "find_distributions", lambda *_: iter(()), raising=False)
    monkeypatch.setattr(sys, "meta_path", [kind(), *others])
    installed(PINNED)
    _lose(site)
    with pytest.raises(ConfigError, match=r"nets\.py is missing or a link, expected a file"):
        installed(PINNED)


def test_absent_and_other_versions_are_named(site: Path) -> None:
    with pytest.raises(ConfigError, match=rf"{NAME}==2.0: the version that is installed here is 1.0.0$"):
        installed(f"{NAME}==2.0")
    with pytest.raises(ConfigError, match=r"absent==1.0: no distribution absent is installed here$"):
        installed("absent==1.0")


def test_an_editable_install_is_refused(
    pristine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels.install(pristine / f"{NAME}-1.0.0", tmp_path / "edited", "--no-build-isolation", "--editable")
    monkeypatch.syspath_prepend(str(tmp_path / "edited"))
    with pytest.raises(ConfigError, match=r"an editable install has no files of its own to compare"):
        installed(PINNED)


def test_modules_come_from_compared_files_whatever_else_python_would_find(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder of the same name before it on the path, and a compiled cache that looks current."""
    shadow = site.parent / "shadow"
    (shadow / PACKAGE).mkdir(parents=True)
    (shadow / PACKAGE / "__init__.py").write_text("raise SystemExit('shadowed')")
    monkeypatch.syspath_prepend(str(shadow))
    source = site / PACKAGE / "nets.py"
    before = source.stat()
    source.write_text(source.read_text().replace("42", "66"))  # as long, and as old
    os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns))
    py_compile.compile(str(source))
    source.write_text(source.read_text().replace("66", "42"))
    os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns))
    answer = load(PINNED, group=MODELS, name="net", sha256=installed(PINNED).sha256)
    assert callable(answer)
    assert answer() == 42
    assert sys.modules[PACKAGE].__file__ == str((site / PACKAGE / "__init__.py").resolve())


def test_a_module_that_changes_after_the_comparison_does_not_run(site: Path) -> None:
    (site / PACKAGE / "__init__.py").write_text("")
    pinned = installed(PINNED).sha256
    with pytest.raises(ConfigError, match="has no entry point gone, it has foreign, missing, net"):
        load(PINNED, group=MODELS, name="gone", sha256=pinned)
    (site / PACKAGE / "nets.py").write_text("def answer():\n    return 43\n")
    with pytest.raises(
        ConfigError, match=r"cannot be loaded: ImportError: .*nets\.py changed since it was compared"
    ):
        load(PINNED, group=MODELS, name="net", sha256=pinned)
    with pytest.raises(ConfigError, match=r"this process runs .* with other files: restart it"):
        load(PINNED, group=MODELS, name="net", sha256=installed(PINNED).sha256)


def test_a_package_that_was_imported_before_is_refused(site: Path) -> None:
    __import__(PACKAGE)
    with pytest.raises(ConfigError, match="was imported before its files were compared"):
        load(PINNED, group=MODELS, name="net")


def test_a_module_named_as_one_of_another_distribution_is_refused(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chorale imports some dependencies at their first use: it got the distribution's module instead."""
    other = site.parent / "later"
    wheels.install(wheels.build(site.parent, name="later", files={"late_of_tests/__init__.py": ""}), other)
    _list(site, "late_of_tests.py")
    load(PINNED, group=MODELS, name="net")  # alone it has the name
    distributions._owners.clear()
    distributions._running.clear()
    for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
        del sys.modules[name]
    monkeypatch.syspath_prepend(str(other))
    with pytest.raises(ConfigError, match=r"its module late_of_tests has the name of one of later, which is"):
        load(PINNED, group=MODELS, name="net")


def test_a_folder_that_is_on_the_path_twice_is_one(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = site.parent / "link"
    link.symlink_to(site)
    monkeypatch.syspath_prepend(str(link))
    assert installed(PINNED).root == site.resolve()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("foreign", "entry point foreign names json, which is not its own module"),
        ("missing", "nets:none cannot be loaded: AttributeError: module .* has no attribute 'none'"),
        ("other", "group chorale.models has no entry point other, it has foreign, missing, net"),
    ],
)
def test_entry_points_that_lead_nowhere_are_told(name: str, expected: str, site: Path) -> None:
    with pytest.raises(ConfigError, match=expected):
        load(PINNED, group=MODELS, name=name)
