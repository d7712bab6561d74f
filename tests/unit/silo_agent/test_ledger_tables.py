"""Each table of the ledger stands in the module that writes it."""

from __future__ import annotations

import re
from pathlib import Path

from chorale.observability import audit_head
from silo_agent.disclosure.ledger import ledger

FOLDER = Path(ledger.__file__).parent
WRITES = re.compile(r"\b(?:INSERT INTO|UPDATE|DELETE FROM)\s+([a-z_]+)")
CREATES = re.compile(r"CREATE TABLE ([a-z_]+)")
# what people said to a job is a column of it
ALSO = {("decisions.py", "jobs")}


def test_a_table_stands_in_the_module_that_alone_writes_it() -> None:
    of_both_parties = Path(audit_head.__file__)
    texts = {path.name: path.read_text() for path in (*FOLDER.glob("*.py"), of_both_parties)}
    home = {table: name for name, text in texts.items() for table in CREATES.findall(text)}
    writes = {(name, table) for name, text in texts.items() for table in WRITES.findall(text)}
    assert len(home) == sum(len(CREATES.findall(each)) for each in texts.values())  # each stands once
    assert {table for _, table in writes} <= home.keys()
    assert {(name, table) for name, table in writes if home[table] != name} == ALSO
    made = {table for migration in ledger.MIGRATIONS for text in migration for table in CREATES.findall(text)}
    assert made == home.keys()
