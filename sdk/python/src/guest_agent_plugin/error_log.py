"""The file to which a plugin writes its fatal errors and tracebacks; the agent puts its last lines into crash events."""

from __future__ import annotations

import os
from datetime import datetime, timezone
from pathlib import Path

# Beyond this size only the newest entries are kept. A plugin that fails at every health check would fill the disk.
_MAX_FILE = 1 << 20
# So much is kept: more than the agent shows in an event.
_KEPT = 64 << 10
_MAX_ENTRY = 16 << 10


class ErrorLog:
    """An error log at a path. It is opened for every entry, so it can be rotated at any time."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def append(self, text: str) -> None:
        """Add an entry: the time and the text, cut at 16 KiB. Further lines of the text are indented."""
        now = datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        cut = text.encode(errors="replace")[:_MAX_ENTRY].decode(errors="ignore").rstrip()
        entry = f"{now} " + cut.replace("\n", "\n    ") + "\n"
        descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            size = os.fstat(descriptor).st_size
            if size > _MAX_FILE:
                kept = os.pread(descriptor, _KEPT, size - _KEPT)
                os.ftruncate(descriptor, 0)
                os.write(descriptor, kept[kept.find(b"\n") + 1 :])
            # One write: entries of several threads do not mix.
            os.write(descriptor, entry.encode())
        finally:
            os.close(descriptor)
