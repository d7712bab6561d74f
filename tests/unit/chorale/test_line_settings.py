"""Which way a silo or an operator dials: proxies, their logins, and what is dialed past them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from chorale.spec.settings_file import load_settings
from crypto.errors import ConfigError
from silo_agent.settings import SiloSettings

EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "silo.yaml"
PASSWORD = "p%40:ss wörd/"


def load(folder: Path, **fields: Any) -> SiloSettings:
    path = folder / "silo.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(EXAMPLE.read_text()) | fields))
    return load_settings(SiloSettings, path, "CHORALE_NONE_")


def login_file(folder: Path, text: str | bytes, *, mode: int = 0o600) -> Path:
    path = folder / "login"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    path.chmod(mode)
    return path


def test_a_proxy_is_given_as_host_and_port_alone(tmp_path: Path) -> None:
    for proxy in ("http://out:3128", "out"):
        with pytest.raises(ConfigError, match=f"proxy: expected host:port.*, got '{proxy}'"):
            load(tmp_path, proxy=proxy)
    with pytest.raises(ConfigError, match=r"proxy: expected host:port.*, got one with a login$"):
        load(tmp_path, proxy="olga:secret@out:3128")


def test_a_login_is_read_from_its_file_and_shown_nowhere(tmp_path: Path) -> None:
    settings = load(
        tmp_path, proxy="out:3128", proxy_credentials=str(login_file(tmp_path, f"olga:{PASSWORD}\n"))
    )
    proxy = settings.route().proxy
    assert proxy is not None
    assert proxy.login == ("olga", PASSWORD)
    assert proxy.uri == "http://olga:p%2540%3Ass%20w%C3%B6rd%2F@out:3128"
    assert "olga" not in f"{proxy!r} {settings.route()!r} {settings!r}"


ONE_LINE = "expected one line, username:password(, in UTF-8)?$"


@pytest.mark.parametrize(
    ("text", "mode", "message"),
    [
        *(
            (text, 0o600, ONE_LINE)
            for text in ("", "olga", ":word", "olga:two\nlines", b"olga:\xff", "olga:\x00")
        ),
        ("olga:word", 0o644, ".* run chmod 600 .*/login"),
    ],
)
def test_a_file_without_a_login_of_ones_own_is_named_and_not_shown(
    tmp_path: Path, text: str | bytes, mode: int, message: str
) -> None:
    path = login_file(tmp_path, text, mode=mode)
    with pytest.raises(ConfigError, match=rf"^{path}: {message}"):
        load(tmp_path, proxy="out:3128", proxy_credentials=str(path)).route()


def test_a_login_without_a_proxy_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="proxy_credentials: needs proxy"):
        load(tmp_path, proxy_credentials="login")


@pytest.mark.parametrize(
    ("coordinator", "no_proxy", "is_past"),
    [
        ("hub.example.org:1", ["hub.example.org"], True),
        ("HUB.example.org:1", ["Example.org"], True),
        ("hub.example.org:1", [".example.org"], True),
        ("example.org:1", [".example.org"], False),
        ("badexample.org:1", ["example.org"], False),
        ("hub.example.org:1", ["hub"], False),
        ("10.1.2.3:1", ["10.1.0.0/16"], True),
        ("10.2.2.3:1", ["10.1.0.0/16", "10.2.2.4"], False),
        ("10.1.2.3:1", ["10.1.2.3"], True),
        ("[2001:db8::7]:1", ["2001:db8::/32"], True),
        ("[2001:db8::7]:1", ["0.0.0.0/0"], False),
        ("10.example.org:1", ["10.0.0.0/8"], False),
        ("hub.example.org:1", [], False),
    ],
)
def test_no_proxy_lists_what_is_dialed_past_it(
    tmp_path: Path, coordinator: str, no_proxy: list[str], is_past: bool
) -> None:
    settings = load(tmp_path, coordinator=coordinator, proxy="out:3128", no_proxy=no_proxy)
    assert (settings.route().proxy is None) == is_past


@pytest.mark.parametrize("entry", ["*", "hub:443", "http://hub", "10.1.2.300", "10.0.0.0/33", "", 7])
def test_no_proxy_takes_hosts_suffixes_addresses_and_cidrs_alone(tmp_path: Path, entry: Any) -> None:
    with pytest.raises(ConfigError, match="no_proxy.*: expected a host name, .suffix, an address or a CIDR"):
        load(tmp_path, proxy="out:3128", no_proxy=[entry])
