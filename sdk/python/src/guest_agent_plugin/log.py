"""Lines with a level on standard error, which the agent keeps: `guest-agent logs NAME` shows them with their times."""

from __future__ import annotations

import logging
import sys


def setup_logging(level: int | str = logging.INFO) -> None:
    """Make `logging` write to standard error, from this level on; call it again to change the level.

    `run` calls it. Lines hold no secrets.
    """
    root = logging.getLogger()
    root.setLevel(level)
    if not root.handlers:
        handler = logging.StreamHandler(sys.stderr)
        # Without a time: the agent keeps that of every line.
        handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        root.addHandler(handler)
