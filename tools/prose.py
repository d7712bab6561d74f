"""Idioms of our own that a stranger has to read twice, in pages, docstrings, messages and test names.

`python -m tools.prose` prints each place and ends with 1 where there is one; `make lint` runs it.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

# what stands there -> what to write
IDIOMS = {
    r"\bwhoever\b": "who, or the noun",
    r"\bof before\b": "former, earlier",
    r"\banew\b": "again",
    r"\b(told|tells|tell) apart\b": "distinguished",
    r"\bhold(s)? against\b": "count against",
    r"\bmend(s|ed)?\b": "repair",
    r"\bputs? up with\b": "accept",
    r"\bhas news\b": "knows more",
    r"\b(kept|keeps) out\b": "excluded",
    r"\bsitting out\b": "excluded",
    r"\bwhat is said\b": "the noun",
    r"\bis said to be\b": "the word",
    r"\bexpected none with": "not allowed with, needs",
    r"\bnobody can say\b": "not known",
    r"\ball told\b": "in all",
}
ANY = re.compile("|".join(f"(?:{each})" for each in IDIOMS), re.IGNORECASE)
SUFFIXES = {".py", ".md", ".html", ".yaml"}
NAMED_IN = {"tools/prose.py", "tests/unit/test_habits.py"}


def found(text: str) -> list[tuple[int, str]]:
    """Lines with an idiom, from 1, and the idiom. Underscores count as spaces: names are prose, too."""
    lines = enumerate(text.splitlines(), start=1)
    return [(number, match[0]) for number, line in lines for match in ANY.finditer(line.replace("_", " "))]


def main() -> int:
    root = Path(__file__).resolve().parents[1]
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, check=True, text=True)
    places = 0
    for name in filter(None, listed.stdout.split("\0")):
        path = root / name
        if path.suffix not in SUFFIXES or not path.is_file() or name in NAMED_IN:
            continue
        for number, idiom in found(path.read_text()):
            plain = next(plain for each, plain in IDIOMS.items() if re.search(each, idiom, re.IGNORECASE))
            print(f"{name}:{number}: {idiom!r}: write {plain}")
            places += 1
    return min(places, 1)


if __name__ == "__main__":
    sys.exit(main())
