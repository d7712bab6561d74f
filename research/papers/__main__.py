"""Every table and figure of the five papers, and what no job can say: `python -m research.papers`.

`--table "FedCSD, Table III"` shows its numbers, the paper's beside ours; with `--row` and `--column` it
prints that number's job file, below the command that runs it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.options import Parser, ended
from research.accuracy.book import Book
from research.papers import words
from research.papers.catalog import TABLES, summary
from research.papers.simulated import job_file
from research.papers.suite import NAME

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "build" / "bench" / "accuracy"


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 2 for a table, row or column that there is not."""
    parser = Parser("papers", __doc__, package="research")
    parser.add_argument("--json", action="store_true", help="all of it, with every job, for a program")
    parser.add_argument("--table", help="a table's name, such as 'FedCSD, Table III'")
    parser.add_argument("--row", help="with --table and --column: print that number's job file")
    parser.add_argument("--column", help="with --table and --row")
    parser.add_argument("--out", type=Path, default=OUT, help="folder of the finished runs")
    options = parser.parse_args(arguments)
    if (options.row is None) != (options.column is None) or (options.row and not options.table):
        parser.error("--row: expected with --table and --column")
    if options.json:
        print(json.dumps(summary()))
    elif options.table is None:
        print(words.terminal_text())
    else:
        table = next((each for each in TABLES if each.name == options.table), None)
        if table is None or not table.cells:
            names = "; ".join(each.name for each in TABLES if each.cells)
            parser.error(f"--table: expected one of {names}; got {options.table}")
        if options.row is None:
            with Book(options.out / f"{NAME}.jsonl") as book:
                print(words.compared(table, book))
            return 0
        of_row = {each.column: each for each in table.cells if each.row == options.row}
        if not of_row:
            parser.error(f"--row: expected one of {'; '.join(table.methods)}; got {options.row}")
        if options.column not in of_row:
            columns = "; ".join(of_row)
            parser.error(f"--column: of {options.row} expected one of {columns}; got {options.column}")
        sys.stdout.buffer.write(job_file(of_row[options.column]))
    return 0


if __name__ == "__main__":
    sys.exit(ended(main))
