"""The ledger: one SQLite file, the truth of a node. Everything else can be rebuilt from it."""
