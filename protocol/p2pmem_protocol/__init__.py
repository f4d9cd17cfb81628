"""What p2pmem peers agree on: bytes in, values out. No IO, no clock, no randomness of its own."""
