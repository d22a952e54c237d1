"""The directory that belongs to a plugin alone."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path


class StateDir:
    """A directory that survives restarts and upgrades and goes with a removal."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    def read(self, name: str) -> bytes | None:
        """Read a file; None where there is none."""
        try:
            return (self.path / name).read_bytes()
        except FileNotFoundError:
            return None

    def write(self, name: str, data: bytes) -> None:
        """Replace a file so that nobody ever reads half of it, also after a crash of the machine.

        It writes beside, syncs and renames. Only the owner can read the file.
        """
        target = self.path / name
        descriptor, beside = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)  # with mode 0600
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(beside, target)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(beside)
            raise
        folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def remove(self, name: str) -> None:
        """Delete a file; a file that is not there is no error."""
        (self.path / name).unlink(missing_ok=True)

    def __repr__(self) -> str:
        return f"StateDir({str(self.path)!r})"
