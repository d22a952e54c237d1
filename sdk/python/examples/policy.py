#!/usr/bin/env python3
"""An admission plugin: it admits the plugins that are its arguments, and denies all others.

[admission]
command = ["/usr/bin/python3", "/usr/lib/guest-agent/policy.py", "backup", "metrics"]
"""

from __future__ import annotations

import logging
import sys

from guest_agent_plugin.admission import Check, Denial, run


async def judge(check: Check) -> None:
    """Returning admits, an exception denies."""
    (revision,) = await check.metadata("revision")
    if check.package not in sys.argv[1:]:
        raise Denial(f"{check.package} is not on the list")
    await check.log(logging.INFO, f"{check.package} {revision.value.decode()} is on the list")


if __name__ == "__main__":
    run("policy 1.0", judge)
