"""What can go wrong in a story."""

from __future__ import annotations

from p2pmem_protocol.errors import OutsideError


class StoryError(OutsideError):
    """Something that had to happen did not. The text says what, and on whom."""


class InterruptedRunError(Exception):
    """Somebody pressed Ctrl-C, or told the process to end, before the run was over."""
