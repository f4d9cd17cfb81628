"""Durable asynchronous jobs on trio and SQLite."""
