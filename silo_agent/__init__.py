"""The silo's side: its data, its policy and its ledger decide what leaves."""
