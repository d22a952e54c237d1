"""Runs what is asynchronous, with a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

# Nothing here takes this long unless it is broken.
PATIENCE = 60.0


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, PATIENCE))
