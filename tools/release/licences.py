"""Which licences a release may hold, and what its components say of theirs.

A distribution of Python whose licence is not in ALLOWED, or cannot be read, ends the release. Packages of
Debian are of the base, which is pinned beside the release: what they say is listed and not judged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from license_expression import ExpressionError, get_spdx_licensing

from tools.release.components import DEB, PYPI, Component
from tools.release.errors import ReleaseError

# each may be given away beside Apache-2.0; MPL-2.0 (certifi) asks for the source of its own files alone
ALLOWED = frozenset(
    {"0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC0-1.0", "LLVM-exception", "MIT"}
    | {"MIT-0", "MIT-CMU", "MPL-2.0", "PSF-2.0", "Zlib"}
)
# what distributions write that is no SPDX expression, where it means one
STATED = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache 2.0": "Apache-2.0",
    "License :: OSI Approved :: Apache Software License": "Apache-2.0",
    "License :: OSI Approved :: MIT License": "MIT",
}
# they say "BSD" alone: as their LICENSE files read
READ = {
    "jinja2": "BSD-3-Clause",
    "mpmath": "BSD-3-Clause",
    "numba": "BSD-2-Clause",
    "scipy": "BSD-3-Clause",
    "sympy": "BSD-3-Clause",
    "torchvision": "BSD-3-Clause",
}
_SPDX = get_spdx_licensing()


def expression_of(component: Component) -> str:
    """The licence of a distribution of Python, in SPDX's words. Raises ReleaseError for one that is unknown
    or not allowed."""
    texts = (READ.get(component.name), *(STATED.get(each, each) for each in component.stated))
    for text in filter(None, texts):
        try:
            found = _SPDX.parse(text, validate=True, strict=True)
        except ExpressionError:
            continue
        if odd := sorted(set(_SPDX.license_keys(found)) - ALLOWED):
            raise ReleaseError(f"licences: {component.name} {component.version}: {odd[0]} is not allowed")
        return str(found)
    said = ", ".join(component.stated)[:80] or "nothing"
    raise ReleaseError(f"licences: {component.name} {component.version}: no known licence, it says {said}")


def report(parts: Mapping[str, Iterable[Component]]) -> str:
    """One line a component, by what holds it. Raises ReleaseError."""
    lines = ["Licences of what the release holds, as each package states it.", ""]
    for part, components in sorted(parts.items()):
        lines.append(f"{part}:")
        for each in sorted(components):
            said = expression_of(each) if each.kind == PYPI else "; ".join(each.stated) or "see its copyright"
            where = "Debian, " if each.kind == DEB else ""
            lines.append(f"  {each.name} {each.version}: {where}{said}")
        lines.append("")
    return "\n".join(lines)
