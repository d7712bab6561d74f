"""Hooks of the site, which mkdocs.yml names: pages as GitHub shows them, and those made from the code."""

from __future__ import annotations

import posixpath
import re
from typing import Any

from mkdocs.structure.files import File
from pymdownx.slugs import slugify

from tools.reference.pages import SITE

LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?!https?://|#)([^)#\s]+)(#[^)\s]*)?\)")
ITEM = re.compile(r"(- |\d+\. )")
FENCE = "```"


def on_config(config: Any) -> Any:
    """Headings have the anchors that GitHub gives them, which the pages link to."""
    config.mdx_configs["toc"]["slugify"] = slugify(case="lower")
    return config


def on_files(files: Any, *, config: Any) -> Any:
    """Pages that are made from the code, beside those of docs/."""
    for path, page in SITE.items():
        files.append(File.generated(config, path, content=page()))
    return files


def on_page_markdown(markdown: str, *, page: Any, files: Any, **_: Any) -> str:
    """Links lead to files of the site; what the repository alone holds is named, not linked."""

    def named(match: re.Match[str]) -> str:
        text, target, _ = match.groups()
        folder = posixpath.dirname(page.file.src_uri)
        found = files.get_file_from_path(posixpath.normpath(posixpath.join(folder, target)))
        return match.group() if found is not None else text

    return LINK.sub(named, in_fours(markdown))


def in_fours(markdown: str) -> str:
    """What stands in an item of a list is indented by four spaces, where the pages have as many as its mark
    takes: MkDocs reads it as a part of the item by four alone."""
    lines: list[str] = []
    widths: list[int] = []  # of the marks of the items that a line stands in
    is_code = False
    for line in markdown.split("\n"):
        text = line.lstrip(" ")
        left, depth = len(line) - len(text), 0
        if is_code:
            left, depth = max(left - sum(widths), 0), len(widths)
        elif text:
            while depth < len(widths) and left >= widths[depth]:
                left, depth = left - widths[depth], depth + 1
            del widths[depth:]
            if (mark := ITEM.match(text)) is not None:
                widths.append(len(mark.group()))
        if text.startswith(FENCE):
            is_code = not is_code
        lines.append("    " * depth + " " * left + text if text else "")
    return "\n".join(lines)
