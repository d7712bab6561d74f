"""Files of others that pages load: the bytes that npm has, each with its licence."""

from __future__ import annotations

import hashlib
import re

from web.shared.serving import static_folder

VENDOR = static_folder() / "vendor"


def test_vendored_files_are_those_of_the_table() -> None:
    table = (VENDOR / "README.md").read_text()
    digests = dict(re.findall(r"^\| `([^`]+)` .* `([0-9a-f]{64})` \|$", table, re.MULTILINE))
    there = {path.name for path in VENDOR.iterdir() if path.suffix in (".js", ".css")}
    assert there == set(digests)
    assert {name: hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() for name in there} == digests
    for name in there:
        assert (VENDOR / f"{name.partition('.')[0]}.LICENSE").is_file()


def test_pages_load_nothing_from_elsewhere() -> None:
    root = static_folder().parents[1]
    texts = [path.read_text() for path in root.rglob("*.html")]
    assert len(texts) > 5
    for text in texts:
        assert not re.search(r"(src|href|action)=[\"'](https?:)?//", text)
