"""An Alertmanager of the test's own, and the receiver that it notifies."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import yaml

from tests.deployment.servers import serving
from tests.support.processes import wait_until

Notification = dict[str, Any]


@dataclass(slots=True, kw_only=True)
class Receiver:
    """Every alert that was notified: its receiver, status, labels and annotations."""

    alerts: list[Notification] = field(default_factory=list)

    def wait(self, alert: str, status: str) -> Notification:
        """The first notification of an alert, `firing` or `resolved`."""

        def found() -> list[Notification]:
            return [
                each
                for each in self.alerts
                if (each["labels"]["alertname"], each["status"]) == (alert, status)
            ]

        wait_until(lambda: bool(found()), f"{alert} to be notified as {status}")
        return found()[0]


@contextmanager
def notified(folder: Path, configuration: dict[str, Any]) -> Iterator[tuple[str, Receiver]]:
    """A server with that configuration, whose webhooks all lead here: its address, and what it has sent."""
    received = Receiver()
    with _listening(received) as port:
        for each in configuration["receivers"]:
            for hook in each["webhook_configs"]:
                hook["url"] = f"http://127.0.0.1:{port}/{each['name']}"
        path = folder / "alertmanager.yml"
        path.write_text(yaml.safe_dump(configuration))
        options = (f"--config.file={path}", f"--storage.path={folder / 'alertmanager'}")
        alone = "--cluster.listen-address="
        with serving("prometheus-alertmanager", *options, alone, log=folder / "alertmanager.log") as address:
            yield address, received


@contextmanager
def _listening(received: Receiver) -> Iterator[int]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            sent = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            received.alerts += [{**each, "receiver": sent["receiver"]} for each in sent["alerts"]]
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
