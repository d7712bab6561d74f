"""The committed stubs are what proto/ says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STUBS = ROOT / "chorale" / "v1"


def generate(out: Path) -> dict[str, bytes]:
    """What `make proto` would write."""
    protos = sorted(path.relative_to(ROOT / "proto") for path in (ROOT / "proto").rglob("*.proto"))
    kinds = ("python_out", "grpc_python_out", "mypy_out", "mypy_grpc_out")
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I", ".", *(f"--{kind}={out}" for kind in kinds)]
    plugins = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(
        [*command, *map(str, protos)],
        cwd=ROOT / "proto",
        env=os.environ | {"PATH": plugins},
        check=True,
        capture_output=True,
    )
    return {path.name: path.read_bytes() for path in (out / "chorale" / "v1").iterdir()}


def test_stubs_are_those_of_the_protocol_files(tmp_path: Path) -> None:
    committed = {path.name: path.read_bytes() for path in STUBS.glob("*_pb2*.py*")}
    generated = generate(tmp_path)
    assert sorted(committed) == sorted(generated), "run `make proto`"
    stale = [name for name in sorted(generated) if committed[name] != generated[name]]
    assert stale == [], "run `make proto`"


def test_proto_holds_no_python() -> None:
    assert list((ROOT / "proto").rglob("*.py")) == []
