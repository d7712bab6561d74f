"""pip, with lines that say what it is at: `python -m tools.install -c constraints.txt torch`.

torch alone takes minutes to load and to unpack, and pip's own bar is seen on a terminal alone.
"""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence

TOLD = (
    "Downloading ",
    "Using cached ",
    "Building ",
    "Installing ",
)  # how pip's lines begin that are passed on
LIST = "collected packages: "
QUIET_SECONDS = 10.0  # after so long without a line, one says what takes its time
WIDTH = 100


def follow(
    command: Sequence[str], *, say: Callable[[str], None], quiet_seconds: float = QUIET_SECONDS
) -> int:
    """Run a command to its end; its exit code. What it writes to stderr is not touched."""
    lines: queue.Queue[str | None] = queue.Queue()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        threading.Thread(target=_read, args=(process, lines), daemon=True).start()
        start, last = time.monotonic(), "starting pip"
        while True:
            try:
                line = lines.get(timeout=quiet_seconds)
            except queue.Empty:
                say(f"  {time.monotonic() - start:.0f} s: still {last[:1].lower()}{last[1:]}")
                continue
            if line is None:
                return process.wait()
            if line.lstrip().startswith(TOLD):
                last = _short(line)
                say(f"  {last}")


def _read(process: subprocess.Popen[str], lines: queue.Queue[str | None]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        lines.put(line)
    lines.put(None)


def _short(line: str) -> str:
    """`Downloading https://host/torch-2.13.0-cp311.whl (188.0 MB)` without where it comes from, and of a list
    of packages how many they are."""
    verb, _, rest = line.strip().partition(" ")
    if rest.startswith(LIST):
        return f"{verb} {rest.count(',') + 1} packages"
    shortened = (
        f"{verb} {rest.rpartition('/')[2]}" if "://" in rest or rest.startswith("/") else f"{verb} {rest}"
    )
    return shortened if len(shortened) <= WIDTH else f"{shortened[: WIDTH - 3]}..."


def main(arguments: list[str]) -> int:
    print(f"installing {' '.join(_packages(arguments))}", flush=True)
    pip = [sys.executable, "-m", "pip", "install", "--progress-bar", "off", *arguments]
    return follow(pip, say=lambda line: print(line, flush=True))


def _packages(arguments: list[str]) -> list[str]:
    """What is installed, of all arguments; no address, which may hold a login."""
    valued = {index + 1 for index, each in enumerate(arguments) if each in ("-c", "-r")}
    names = [each for index, each in enumerate(arguments) if index not in valued and not each.startswith("-")]
    return [each for each in names if "://" not in each]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
