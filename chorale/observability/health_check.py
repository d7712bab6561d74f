"""Is the process of this container alive? `python -m chorale.observability.health_check DIRECTORY`, without
a shell.

Asks /livez at the address that coordinator and agent write to endpoint.json in their directory.
Kubernetes asks /livez itself and does not need it.
"""

from __future__ import annotations

import http.client
import json
import sys
from pathlib import Path

TIMEOUT_SECONDS = 5.0
USAGE = 2


def failure(directory: Path) -> str | None:
    """Why the process that writes to this directory is not alive, or None if it is."""
    path = directory / "endpoint.json"
    try:
        address = json.loads(path.read_bytes())["metrics"]
        if not isinstance(address, str):  # null where metrics_listen is
            return f"{path}: names no address of /livez"
        # not urllib, which would ask a proxy of the environment
        connection = http.client.HTTPConnection(address, timeout=TIMEOUT_SECONDS)
        connection.request("GET", "/livez")
        status = connection.getresponse().status
        connection.close()
    except (OSError, ValueError, KeyError, TypeError, http.client.HTTPException) as error:
        return f"{path}: {type(error).__name__}: {error}"
    return None if status == http.HTTPStatus.OK else f"{address}: /livez answered {status}"


def main(arguments: list[str]) -> int:
    """Exit code: 0 alive, 1 not, 2 called with anything but one directory."""
    if len(arguments) != 1:
        sys.stderr.write("chorale: error: health_check: expected one argument, a directory\n")
        return USAGE
    reason = failure(Path(arguments[0]))
    if reason is None:
        return 0
    sys.stderr.write(f"chorale: error: {reason}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
