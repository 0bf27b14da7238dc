"""Log lines as JSON objects, one per line, for machines that collect them."""

import datetime as dt
import json
import logging
import sys


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object: time, level, logger, message, and the traceback if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, see the class."""
        moment = dt.datetime.fromtimestamp(record.created, dt.UTC)
        line = {
            "time": moment.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def configure(level: str) -> None:
    """Send all log lines to stderr as JSON.

    Args:
        level: debug, info, warning or error; other libraries stay at warning unless it is debug.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    number = logging.getLevelNamesMapping()[level.upper()]
    logging.basicConfig(
        level=max(number, logging.WARNING) if number > logging.DEBUG else number, handlers=[handler]
    )
    logging.getLogger("gpupolicy").setLevel(number)
