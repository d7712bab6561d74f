"""The images of deploy/ without an engine: their text, their builders' steps, and what starts from them."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import stat
import subprocess
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from cli.errors import ExitCode
from tests.deployment import helm
from tests.deployment.dockerfile import Dockerfile, parsed, read
from tests.deployment.image import CODE, STATE, Image, build, context, empty, listing, run_step

DEPLOY = helm.ROOT / "deploy"
GUIDE = (helm.ROOT / "docs" / "deploy-kubernetes.md").read_text()
NAMES = ("coordinator", "silo")
FILES = {name: DEPLOY / f"{name}.Dockerfile" for name in NAMES}
INDEX = "https://pypi.org/simple"  # a build argument; links that pip is configured with serve as well
SECRET = re.compile(r"secret|password|passwd|token|credential|api_?key|BEGIN [A-Z ]*PRIVATE", re.IGNORECASE)
POLL_SECONDS = 0.05
TRAINING = """
import silo_agent.training.loop.local_training, silo_agent.training.machine.torchvision_compat
from crypto.fixed_point.compiled import transform
assert transform() is not None
"""

both = pytest.mark.parametrize("name", NAMES)


def dockerfile(name: str) -> Dockerfile:
    return read(FILES[name])


# what the text says


def test_there_are_two_images() -> None:
    assert {file.name for file in DEPLOY.glob("*.Dockerfile")} == {f"{name}.Dockerfile" for name in NAMES}


@both
def test_base_is_pinned_by_a_digest_that_has_no_default(name: str) -> None:
    file = dockerfile(name)
    before = {argument: value for each in file.before for argument, value in each.pairs.items()}
    assert before["PYTHON_DIGEST"] == ""
    assert "@" not in before["PYTHON_IMAGE"]
    for stage in file.stages:
        assert stage[0].text.partition(" AS ")[0] == "${PYTHON_IMAGE}@${PYTHON_DIGEST}"
    assert "imagetools inspect" in FILES[name].read_text()  # how it is filled


@both
def test_base_is_a_python_that_the_product_runs_on(name: str) -> None:
    image = dockerfile(name).before[0].pairs["PYTHON_IMAGE"]
    found = re.search(r"python:(3\.\d+)-slim", image)
    assert found is not None
    lowest = tomllib.loads((helm.ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    assert lowest.startswith(f">={found.group(1)},")  # which .ci tests


@both
def test_last_stage_runs_nothing_and_copies_the_environment_in_layers_and_an_empty_folder(name: str) -> None:
    """Our own code last: with torch in one layer, each fix was 1.1 GB for every institution."""
    file = dockerfile(name)
    assert len(file.stages) == 2
    assert file.stages[0][0].text.endswith(" AS build")
    assert file.stage(-1, "RUN") == []
    layers = [*(["/opt/torch"] if name == "silo" else []), CODE, "/opt/own"]
    assert [each.text for each in file.stage(-1, "COPY")] == [
        *(f"--from=build {layer} {CODE}" for layer in layers),
        f"--from=build --chown=10001:10001 /state {STATE}",
    ]


@both
def test_user_is_a_number_and_that_of_the_chart(name: str) -> None:
    file = dockerfile(name)
    (user,) = file.stage(-1, "USER")
    uid, gid = user.text.split(":")
    assert (int(uid), int(gid)) == (10001, 10001)
    values = yaml.safe_load((helm.CHARTS / f"chorale-{name}" / "values.yaml").read_text())
    assert (values["podSecurityContext"]["runAsUser"], values["podSecurityContext"]["runAsGroup"]) == (
        int(uid),
        int(gid),
    )
    order = [each.word for each in file.stages[-1]]
    assert order.index("USER") < order.index("ENTRYPOINT")


@both
def test_what_runs_is_in_exec_form(name: str) -> None:
    file = dockerfile(name)
    assert [each.exec_form for each in file.stage(-1, "ENTRYPOINT")] == [["chorale"]]
    assert [each.exec_form for each in file.stage(-1, "CMD")] == [["--help"]]
    assert health_check(file) == ["python", "-m", "chorale.observability.health_check", f"{STATE}/state"]
    assert not any(each.word == "SHELL" for each in file.every)


def health_check(file: Dockerfile) -> list[str]:
    (check,) = file.stage(-1, "HEALTHCHECK")
    _, _, command = check.text.partition("CMD ")
    found: list[str] = json.loads(command)
    return found


@both
def test_health_check_asks_the_folder_that_the_chart_sets(name: str) -> None:
    chart = f"chorale-{name}"
    shape = next(values for each, values in helm.SHAPES if each == chart)
    (settings,) = [
        each
        for each in helm.rendered(chart, shape)
        if each["kind"] == "ConfigMap" and f"{name}.yaml" in each["data"]
    ]
    directory = yaml.safe_load(settings["data"][f"{name}.yaml"])["directory"]
    assert directory == health_check(dockerfile(name))[-1]


@both
def test_nothing_is_fetched_but_by_pip_and_as_wheels(name: str) -> None:
    file = dockerfile(name)
    assert not any(each.word in ("ADD", "ONBUILD", "VOLUME", "EXPOSE") for each in file.every)
    for step in file.stage(0, "RUN"):
        assert not re.search(r"\b(curl|wget|apt|apt-get|git|sh|bash)\b|[|;&`]|://", step.text), step.text
        if " install " in step.text and "--no-deps --no-index" not in step.text:
            pinned = "--require-hashes -r deploy/" in step.text or "-c constraints.txt " in step.text
            assert pinned, step.text
            assert "--only-binary :all:" in step.text


@both
def test_every_outside_source_is_an_argument_without_a_default_of_ours(name: str) -> None:
    """Behind a mirror the Dockerfiles had to be edited: only the index of torch was an argument."""
    file = dockerfile(name)
    given = {"PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX", "PIP_CERT"}
    in_builder = file.pairs(0, "ARG")
    assert given <= {argument for argument, value in in_builder.items() if value == ""}
    order = [each.word for each in file.stages[0]]
    assert order.index("RUN") > max(place for place, word in enumerate(order) if word == "ARG")
    assert not given & set(file.pairs(-1, "ARG"))  # an address with a login stays in the builder's stage


@both
def test_no_secret_and_no_setting_of_ours_is_in_an_image(name: str) -> None:
    file = dockerfile(name)
    assert not SECRET.search(FILES[name].read_text())
    set_names = file.pairs(-1, "ENV")
    # the product sets the ciphers itself; CHORALE_ variables would be read as settings
    assert not [each for each in set_names if each.startswith(("GRPC_", "CHORALE_"))]
    assert set_names["PATH"] == f"{CODE}/bin:$PATH"
    assert (set_names["HOME"], set_names["PYTHONDONTWRITEBYTECODE"]) == ("/tmp", "1")
    assert (set_names.get("NUMBA_CACHE_DIR") == "/tmp/numba") == (name == "silo")


@both
def test_labels_say_what_an_image_is(name: str) -> None:
    prefix = "org.opencontainers.image."
    file = dockerfile(name)
    labels = file.pairs(-1, "LABEL")
    project = tomllib.loads((helm.ROOT / "pyproject.toml").read_text())["project"]
    assert labels[f"{prefix}title"] == f"chorale-{name}"
    assert labels[f"{prefix}version"] == project["version"]
    assert labels[f"{prefix}licenses"] == project["license"]
    assert labels[f"{prefix}base.digest"] == "${PYTHON_DIGEST}"
    assert {f"{prefix}{each}" for each in ("description", "revision", "base.name")} <= set(labels)
    used = {each for value in labels.values() for each in re.findall(r"\$\{(\w+)\}", value)}
    assert used <= set(file.pairs(-1, "ARG"))  # otherwise they are empty


def test_silo_differs_by_its_lock_and_its_torch_alone() -> None:
    def lines(name: str) -> list[str]:
        return [_words(f"{each.word} {each.text}") for each in dockerfile(name).every]

    install = "RUN python -m pip --python /opt/chorale/bin/python install --only-binary :all:"
    index = '--index-url "${TORCH_INDEX_URL}"'
    torch = f"{install} -c constraints.txt --prefix /opt/torch {index} torch torchvision"
    assert torch in lines("silo")
    torch_layer = "COPY --from=build /opt/torch /opt/chorale"
    same = [
        line.replace("requirements-silo", "requirements-coordinator")
        .replace(" NUMBA_CACHE_DIR=/tmp/numba", "")
        .rstrip()
        for line in lines("silo")
        if line not in (torch, torch_layer) and not line.startswith(("ARG TORCH_INDEX_URL", "LABEL"))
    ]
    assert same == [line for line in lines("coordinator") if not line.startswith("LABEL")]


def _words(line: str) -> str:
    return " ".join(line.split())


def test_build_gets_what_is_installed_and_nothing_else() -> None:
    found = {str(each.relative_to(helm.ROOT)) for each in context()}
    kept = subprocess.run(["git", "ls-files"], cwd=helm.ROOT, capture_output=True, text=True, check=True)
    packages = tomllib.loads((helm.ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    folders = {each.split(".")[0] for each in packages["find"]["include"]}
    plain = {"LICENSE", "README.md", "constraints.txt", "pyproject.toml"}
    plain |= {f"deploy/requirements-{name}.txt" for name in ("build", *NAMES)}
    wanted = {path for path in kept.stdout.splitlines() if path.split("/")[0] in folders} | plain
    assert wanted <= found
    others = {path for path in found - plain if path.split("/")[0] not in folders}
    assert {path.rpartition("/")[0] for path in others} == {"deploy/mirror"}


@both
def test_build_commands_name_files_and_arguments_that_are_there(name: str) -> None:
    comment = re.findall(r"^#   (docker .*)$", FILES[name].read_text(), re.MULTILINE)
    guide = [line for line in re.findall(r"^(?:\$ )?(docker .*)$", GUIDE, re.MULTILINE) if name in line]
    assert len(guide) >= 1
    builds = [shlex.split(line) for line in [*comment, *guide] if line.startswith("docker build ")]
    declared = {each for line in dockerfile(name).every if line.word == "ARG" for each in line.pairs}
    version = tomllib.loads((helm.ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert len(builds) == 1 + len(guide)
    for command in builds:
        assert command[command.index("-f") + 1] == f"deploy/{name}.Dockerfile"
        assert command[-1] == "."
        given = [after for before, after in pairwise(command) if before == "--build-arg"]
        assert "PYTHON_DIGEST=sha256:..." in given  # to be filled; as it stands no engine takes it
        assert {each.partition("=")[0] for each in given} <= declared
        assert command[command.index("-t") + 1].startswith(f"chorale/{name}:{version}")


def test_reader_of_dockerfiles_joins_lines_and_refuses_what_it_does_not_know() -> None:
    file = parsed('# x\nARG A=1\nFROM a AS b\nRUN one \\\n# between\n    two\nfrom c\nCMD ["d"]\n')
    assert [each.text for each in file.stages[0]] == ["a AS b", "one two"]
    assert file.stage(-1, "CMD")[0].exec_form == ["d"]
    assert file.before[0].pairs == {"A": "1"}
    with pytest.raises(ValueError, match="heredoc"):
        parsed("FROM a\nRUN <<EOF\nrm\nEOF\n")


# what the steps make


@pytest.fixture(scope="module")
def roots() -> Iterator[Callable[[], Path]]:
    """Makes folders that another user may enter, unlike pytest's own."""
    made: list[Path] = []

    def make() -> Path:
        made.append(Path(tempfile.mkdtemp(prefix="chorale-image-")))
        return made[-1]

    yield make
    for folder in made:
        subprocess.run(["chmod", "-R", "u+w", folder], check=False)
        shutil.rmtree(folder, ignore_errors=True)


def add_to_index(index: Path, name: str, version: str, *requires: str) -> None:
    """A distribution of nothing but its metadata."""
    folder, about = index / name, f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Dist: {each}" for each in requires]
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr(f"{about}/METADATA", "\n".join(lines) + "\n")
        file.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{about}/RECORD", f"{about}/METADATA,,\n{about}/WHEEL,,\n{about}/RECORD,,\n")
    links = (f'<a href="{each.name}">{each.name}</a>' for each in sorted(folder.glob("*.whl")))
    (folder / "index.html").write_text(f"<!DOCTYPE html><body>{' '.join(links)}</body>")


def test_gpu_build_takes_from_torchs_index_what_its_torch_requires_and_the_lock_lacks(
    roots: Callable[[], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch came without CUDA's packages: an image for GPUs could not import it."""
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    file, versions = dockerfile("silo"), pinned()
    add_to_index(tmp_path, "torch", f"{versions['torch']}+cu130", "filelock", "nvidia-cublas==13.1")
    add_to_index(tmp_path, "torchvision", f"{versions['torchvision']}+cu130", "torch")
    add_to_index(tmp_path, "nvidia-cublas", "13.1")
    add_to_index(tmp_path, "filelock", versions["filelock"])
    image = empty(file, roots())
    shutil.copy(helm.ROOT / "constraints.txt", image.folder("/src"))
    steps = [each for each in file.stage(0, "RUN") if "-m venv" in each.text or "torchvision" in each.text]
    *venvs, torch = steps
    for step in venvs:
        run_step(image, step, {})
    site = next(image.folder(CODE).glob("lib/python3*/site-packages"))
    shutil.unpack_archive(next((tmp_path / "filelock").glob("*.whl")), site, format="zip")  # of the lock
    run_step(image, torch, {"TORCH_INDEX_URL": tmp_path.as_uri()})
    found = {each.name.partition("-")[0] for each in image.folder("/opt/torch").rglob("*.dist-info")}
    assert found == {"torch", "torchvision", "nvidia_cublas"}


@pytest.fixture(scope="module")
def coordinator(roots: Callable[[], Path]) -> Image:
    return build(dockerfile("coordinator"), roots(), {})


def check_entry_point(image: Image, party: str) -> None:
    """Help and a missing settings file, in read-only code that stays as it was."""
    before = listing(image.folder(CODE))
    writable = [path for path, (mode, _) in before.items() if mode & 0o222 and not stat.S_ISLNK(mode)]
    assert writable == []
    done = image.run("chorale", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "Run the coordinator." in done.stdout
    done = image.run("chorale", party, "run", "--config", "/tmp/none.yaml")
    assert done.returncode == ExitCode.USAGE
    assert "chorale: error: " in done.stderr
    assert "none.yaml" in done.stderr
    assert "Traceback" not in done.stderr
    assert listing(image.folder(CODE)) == before


def installed(image: Image) -> dict[str, str]:
    code = "import importlib.metadata as m; print({d.name: d.version for d in m.distributions()})"
    done = image.run("python", "-c", code)
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = yaml.safe_load(done.stdout)
    return {re.sub(r"[-_.]+", "-", each).lower(): version for each, version in found.items()}


def pinned() -> dict[str, str]:
    lines = (helm.ROOT / "constraints.txt").read_text().splitlines()
    pairs = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {re.sub(r"[-_.]+", "-", each).lower(): version for each, version in pairs}


@pytest.mark.timeout(300)
@pytest.mark.soak
def test_coordinator_starts_as_the_image_starts_it(coordinator: Image) -> None:
    check_entry_point(coordinator, "coordinator")
    found = installed(coordinator)
    assert "chorale" in found
    assert {"torch", "numba", "opacus", "pip"} & set(found) == set()
    # no package came in that constraints.txt does not pin
    assert {each: pinned().get(each) for each in found if each != "chorale"} == {
        each: version for each, version in found.items() if each != "chorale"
    }


@pytest.mark.timeout(300)
@pytest.mark.soak
def test_health_check_follows_a_coordinator_of_the_image(coordinator: Image) -> None:
    make_federation(coordinator)
    check = health_check(coordinator.dockerfile)
    assert coordinator.run(*check).returncode == 1
    process = coordinator.start(["chorale", "coordinator", "run", "--config", "/tmp/coordinator.yaml"])
    try:
        endpoint = coordinator.folder(STATE) / "state" / "endpoint.json"
        deadline = time.monotonic() + 60
        while not endpoint.exists():
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < deadline, "no endpoint after a minute"
            time.sleep(POLL_SECONDS)
        done = coordinator.run(*check)
        assert (done.returncode, done.stderr) == (0, "")
    finally:
        process.terminate()
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    done = coordinator.run(*check)
    assert done.returncode == 1
    assert "ConnectionRefusedError" in done.stderr


def make_federation(image: Image) -> None:
    """Authority, coordinator and roster, by the image's own commands, and settings below /tmp."""
    commands = (
        "authority init --federation heart --directory /tmp/authority",
        "coordinator csr --name hub --federation heart --host 127.0.0.1 --out /tmp/hub",
        "silo csr --name clinic-a --federation heart --out /tmp/clinic-a",
        "silo csr --name clinic-b --federation heart --out /tmp/clinic-b",
        "silo csr --name clinic-c --federation heart --out /tmp/clinic-c",
        "authority sign /tmp/hub/hub.csr /tmp/clinic-a/clinic-a.csr /tmp/clinic-b/clinic-b.csr"
        " /tmp/clinic-c/clinic-c.csr --directory /tmp/authority",
        "authority roster /tmp/hub /tmp/clinic-a /tmp/clinic-b /tmp/clinic-c --directory /tmp/authority"
        " --out /tmp/roster.json",
    )
    for command in commands:
        done = image.run("chorale", *command.split())
        assert done.returncode == 0, f"{command}: {done.stderr}"
    tmp = image.folder("/tmp")
    settings = {
        "federation": "heart",
        "listen": "127.0.0.1:0",
        "identity": {"certificate": f"{tmp}/hub/hub.crt", "key": f"{tmp}/hub/hub.key"},
        "authority": f"{tmp}/authority/authority.crt",
        "roster": f"{tmp}/roster.json",
        "directory": str(image.folder(f"{STATE}/state")),
    }
    (tmp / "coordinator.yaml").write_text(yaml.safe_dump(settings))
    (tmp / "coordinator.yaml").chmod(0o644)


@pytest.mark.soak
def test_silo_starts_as_the_image_starts_it(roots: Callable[[], Path]) -> None:
    silo = build(dockerfile("silo"), roots(), {"TORCH_INDEX_URL": INDEX})
    check_entry_point(silo, "silo")
    assert {"torch", "torchvision", "opacus", "numba"} <= set(installed(silo))
    # what training loads finds its folders, and compiled loops are kept where one may write
    done = silo.run("python", "-W", "ignore", "-c", TRAINING)
    assert done.returncode == 0, done.stderr
    assert list(silo.folder("/tmp/numba").rglob("*.nbc"))
