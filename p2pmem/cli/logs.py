"""Log lines of `p2pmem run`: time, level, event, and what the event is about as `name=value`."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Final

LEVELS: Final = ("debug", "info", "warning", "error")
CHATTY: Final = ("httpx", "httpcore", "apscheduler", "p2pmem.api.hypercorn")
_ORDINARY: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class LineFormatter(logging.Formatter):
    """One record, one line; a traceback follows where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        more = {name: value for name, value in vars(record).items() if name not in _ORDINARY}
        pairs = "".join(f" {name}={json.dumps(value, default=str)}" for name, value in more.items())
        message = record.getMessage().replace("\n", "\\n")
        line = f"{time} {record.levelname.lower()} {message}{pairs}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def log_to_stderr(level: str) -> None:
    """Our own events from `level` on; libraries, which tell of each request and each timer, from warnings on. All of it
    where the level is debug; otherwise few lines about peers (`few_lines.py`)."""
    from p2pmem.cli.few_lines import FewLines  # the network, which no other command needs for its log

    handler = logging.StreamHandler()
    handler.setFormatter(LineFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    if level != "debug":
        handler.addFilter(FewLines())
        for library in CHATTY:
            logging.getLogger(library).setLevel(logging.WARNING)
