"""p2pmem: shared, verifiable memory for AI agents, without a server in the middle."""

__version__ = "0.1.0"
