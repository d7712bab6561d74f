"""The entry point: what loads, what is printed, which code a command ends with."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest

from cli import main
from cli.errors import ExitCode, failure_of
from client.errors import peer_error, with_hint
from crypto.errors import (
    BudgetExhausted,
    ChoraleError,
    ConfigError,
    LocalProtocolError,
    PolicyRefusal,
    RemoteProtocolError,
)
from tests.support.processes import REPOSITORY, environment
from tests.unit.cli.conftest import Calls

HEAVY = ("torch", "grpc", "sqlite3", "sklearn", "numpy")


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_help_and_version_import_nothing_heavy(option: str) -> None:
    code = (
        "import sys; from cli.main import run; code = run(sys.argv[1:]);"
        f"print([name for name in {HEAVY} if name in sys.modules], code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, option],
        cwd=REPOSITORY,
        env=environment({}),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "[] 0"


def test_help_names_every_command(chorale: Calls) -> None:
    ended = chorale("--help")
    assert ended.code == 0
    for name in main.COMMANDS:
        assert f"\n  {name}" in ended.out


@pytest.mark.parametrize("name", main.COMMANDS)
def test_every_command_of_the_table_loads(name: str, chorale: Calls) -> None:
    ended = chorale(name, "--help")
    assert (ended.code, ended.err) == (0, "")


def test_command_is_missing(chorale: Calls) -> None:
    ended = chorale()
    assert ended.code == ExitCode.USAGE
    assert ended.err.endswith("chorale: error: a command is missing\n")


class _RpcError(Exception):
    """Looks like what grpc raises."""

    def __init__(self, status: str, details: str) -> None:
        super().__init__(details)
        self._status, self._details = status, details

    def code(self) -> object:
        import grpc

        return getattr(grpc.StatusCode, self._status)

    def details(self) -> str:
        return self._details


def _rpc_error(status: str, details: str = "why\nthat was") -> Exception:
    import grpc

    return type("Error", (_RpcError, grpc.RpcError), {})(status, details)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("x"), 2),
        (click.UsageError("X."), 2),
        (PolicyRefusal("x"), 3),
        (BudgetExhausted("x"), 3),
        (RemoteProtocolError("x"), 4),
        (LocalProtocolError("x"), 1),
        (ChoraleError("x"), 1),
        (OSError(98, "Address already in use"), 1),
        (click.Abort(), 130),
        (KeyboardInterrupt(), 130),
        (SystemExit(0), 0),
        (SystemExit("x"), 1),
    ],
)
def test_exit_code_of_error(error: BaseException, code: int) -> None:
    assert failure_of(error).code == code


@pytest.mark.parametrize(
    ("status", "code"),
    [
        ("PERMISSION_DENIED", 4),
        ("UNAUTHENTICATED", 4),
        ("FAILED_PRECONDITION", 4),
        ("INVALID_ARGUMENT", 4),
        ("ALREADY_EXISTS", 4),
        ("UNAVAILABLE", 1),
        ("INTERNAL", 1),
    ],
)
def test_exit_code_of_what_the_coordinator_answered(status: str, code: int) -> None:
    failure = failure_of(peer_error(_rpc_error(status)))
    assert failure.code == code
    assert "why that was" in failure.message


def test_what_the_coordinator_answered_moves_no_cursor() -> None:
    failure = failure_of(peer_error(_rpc_error("NOT_FOUND", "\x1b[2J")))
    assert failure.message == r"coordinator refused: \x1b[2J"


def test_no_error_moves_a_cursor() -> None:
    """A peer's words stand in errors of every kind: of a roster, an archive, a coordinator's greeting."""
    error = with_hint(RemoteProtocolError("coordinator refused: \x1b[1A\x1b[2Kdone\u202e"), "ask \x9b2J")
    failure = failure_of(error)
    assert failure.message == r"coordinator refused: \x1b[1A\x1b[2Kdone\u202e"
    assert failure.hint == r"ask \x9b2J"
    assert failure_of(RemoteProtocolError("café: no\nsuch file")).message == "café: no such file"


def test_hint_of_an_error_comes_from_its_notes() -> None:
    assert failure_of(with_hint(ConfigError("x"), "do this")).hint == "do this"


def test_bug_ends_in_one_line_that_says_where_the_traceback_is() -> None:
    failure = failure_of(ZeroDivisionError("inside"))
    path = Path(failure.message.rpartition(" ")[2])
    assert failure.code == ExitCode.FAILED
    assert "\n" not in failure.message
    assert "ZeroDivisionError: inside" in path.read_text()
    path.unlink()


def test_bug_names_the_line_that_it_is_in() -> None:
    # in a container that restarts again and again nobody can read the file with the traceback
    with pytest.raises(ZeroDivisionError) as raised:
        raise ZeroDivisionError("inside")
    failure = failure_of(raised.value)
    line = raised.tb.tb_lineno
    assert failure.message.startswith(f"internal error: ZeroDivisionError at {__file__}:{line}: ")
    assert "inside" not in failure.message  # it may hold values
    Path(failure.message.rpartition(" ")[2]).unlink()


def test_bug_shows_its_traceback_when_debugging(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CHORALE_DEBUG", "1")
    assert failure_of(ZeroDivisionError("inside")).message == "internal error: ZeroDivisionError"
    assert "ZeroDivisionError: inside" in capsys.readouterr().err
