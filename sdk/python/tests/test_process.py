"""A plugin as a process of its own, as the agent launches it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from helpers import PATIENCE

ROOT = Path(__file__).resolve().parents[1]


def launch(*arguments: str) -> subprocess.Popen[str]:
    program = [sys.executable, str(ROOT / "examples" / "counter.py"), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.Popen(program, env=environment, stderr=subprocess.PIPE, text=True)  # noqa: S603 - our own


def test_sigterm_ends_it_with_code_0_and_its_socket_goes(tmp_path: Path) -> None:
    socket = tmp_path / "s"
    plugin = launch("--protocol=unix", f"--address={socket}", f"--errorlogfile={tmp_path / 'log'}")
    deadline = time.monotonic() + PATIENCE
    while not socket.exists() and plugin.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    # The handlers of signals are there soon after the socket.
    while plugin.poll() is None and time.monotonic() < deadline and not handles_sigterm(plugin.pid):
        time.sleep(0.01)
    plugin.send_signal(signal.SIGTERM)
    _, said = plugin.communicate(timeout=PATIENCE)
    assert (plugin.returncode, said) == (0, "INFO counter: stopped, cleanup: False\n")
    assert not socket.exists()
    assert not (tmp_path / "log").exists()


def handles_sigterm(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    (caught,) = (line.split()[1] for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(caught, 16) & (1 << (signal.SIGTERM - 1)))


def test_a_wrong_address_is_in_the_error_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    plugin = launch("--protocol=tcp", "--address=10.0.0.1:7", f"--errorlogfile={log}")
    _, said = plugin.communicate(timeout=PATIENCE)
    assert plugin.returncode == 1
    assert "error: 10.0.0.1:7 can be reached from other machines" in said
    assert "error: 10.0.0.1:7 can be reached from other machines" in log.read_text()
