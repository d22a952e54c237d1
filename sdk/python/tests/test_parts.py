"""What the SDK is made of, without a socket."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Literal

import pytest

from guest_agent_plugin import (
    Address,
    Arguments,
    BadConfig,
    Config,
    Environment,
    ErrorLog,
    Health,
    PluginError,
    StateDir,
    Trigger,
    VmEvent,
)
from guest_agent_plugin.log import setup_logging
from guest_agent_plugin.once import run_of


class Mode(Enum):
    FAST = "fast"


@dataclass
class Inner:
    at: int | None = None


@dataclass
class Settings:
    port: int
    ratio: float = 0.5
    names: list[str] = field(default_factory=list)
    inner: Inner = field(default_factory=Inner)
    by_name: dict[str, Inner] = field(default_factory=dict)
    mode: Mode = Mode.FAST
    level: Literal["low", "high"] = "low"

    def __post_init__(self) -> None:
        if self.port == 0:
            raise ValueError("port is 0")


def test_text_and_structure_decode_alike_over_defaults() -> None:
    text = '{"port":8080,"ratio":1,"names":["a"],"inner":{"at":null},"by_name":{"x":{"at":7}},"mode":"fast"}'
    structure: dict[str, Any] = {
        "port": 8080,
        "ratio": 1,
        "names": ["a"],
        "inner": {},
        "by_name": {"x": {"at": 7}},
    }
    expected = Settings(8080, 1.0, ["a"], Inner(), {"x": Inner(7)})
    assert Config(text).decode(Settings) == expected == Config(structure).decode(Settings)
    assert Config().decode(Inner) == Inner() == Config("{}").decode(Inner)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ('{"port":"hunter2"}', "port has to be a whole number"),
        ('{"port":true}', "port has to be a whole number"),
        ('{"port":1.5}', "port has to be a whole number"),
        ('{"port":1,"names":["a",7]}', "names[1] has to be a text"),
        ('{"port":1,"by_name":{"x":{"at":"hunter2"}}}', "by_name.x.at has to be a whole number"),
        ('{"port":1,"mode":"hunter2"}', "mode has to be one of 'fast'"),
        ('{"port":1,"level":"hunter2"}', "level has to be one of 'low', 'high'"),
        ('{"port":0}', "port is 0"),
        ("{}", "port is missing"),
        ('{"port":1,"prot":2}', "there is no field prot"),
        ('{\n"port":hunter2}', "not valid JSON at line 2, column 8"),
        ("[]", "the whole has to be an object"),
        ("", "not valid JSON at line 1, column 1"),
        ("[" * 100_000, "it is nested too deeply"),
    ],
)
def test_errors_of_configurations_name_the_place_and_never_a_value(config: str, says: str) -> None:
    with pytest.raises(BadConfig) as error:
        Config(config).decode(Settings, strict=True)
    assert says in str(error.value)
    assert "hunter2" not in str(error.value)


def test_secrets_are_not_printed() -> None:
    environment = Environment.read({"GUEST_AGENT_TICKET": "hunter2"})
    assert "hunter2" not in f"{Config('hunter2')} {Config({'a': 'hunter2'})!r} {environment}"
    assert repr(Config("hunter2")) == "Config(7 bytes)"
    assert environment.ticket is not None
    assert environment.ticket.reveal() == "hunter2"


@pytest.mark.parametrize(
    ("text", "event"),
    [
        ('{"Command":"VmEvent","Event":"startup"}', VmEvent.STARTUP),
        ('{"command":"VmEvent","EVENT":"shutdown"}', VmEvent.SHUTDOWN),
        ('{"Command":"VmEvent","Event":"moon","x":1}', VmEvent.OTHER),
        ('{"Command":"agent.config.getoption","Event":"x"}', None),
        ('{"Event":"startup"}', None),
        ('["VmEvent"]', None),
        ("startup", None),
        ("{", None),
    ],
)
def test_vm_events_are_told_from_configurations(text: str, event: VmEvent | None) -> None:
    assert Config(text).vm_event() is event


def test_the_agents_arguments_are_the_last_ones() -> None:
    line = "serve --protocol=http --address 1.2.3.4:80 --greeting=hi --complain --protocol unix --address=/s --errorlogfile="
    arguments = Arguments.parse(line.split())
    assert arguments.own == ["serve", "--protocol=http", "--address", "1.2.3.4:80", "--greeting=hi", "--complain"]
    assert arguments.address == Address(path="/s")
    assert arguments.error_log is None
    for short, missing in [("", "--protocol"), ("--protocol=unix --address", "--address")]:
        with pytest.raises(ValueError, match=f"^{missing} is missing"):
            Arguments.parse(short.split())


def test_only_this_machine_is_listened_to() -> None:
    assert Address.parse("tcp", "localhost:7").targets() == ["127.0.0.1:7"]
    assert Address.parse("tcp", "[::ffff:127.0.0.1]:7").targets() == ["127.0.0.1:7"]
    for both in ("[::]:7", "0.0.0.0:7", "[::ffff:0.0.0.0]:7"):
        assert Address.parse("tcp", both).targets() == ["[::1]:7", "127.0.0.1:7"]
    for far in ("10.0.0.1:7000", "[::2]:7000", "[::ffff:8.8.8.8]:7000"):
        with pytest.raises(ValueError, match=r"use 127\.0\.0\.1:7000, or better --protocol=unix"):
            Address.parse("tcp", far)
    for wrong in ("", "localhost", "localhost:99999", "example.org:80", "127.0.0.1", "::1:7", "127.0.0.1:-7"):
        with pytest.raises(ValueError, match="is not an address and a port"):
            Address.parse("tcp", wrong)
    with pytest.raises(ValueError, match="108 bytes"):
        Address.unix("/" + "x" * 107)


def test_health_remembers_what_is_wrong() -> None:
    now = 0.0
    health = Health(lambda: now)
    assert health.status().code == 0
    beat = health.expect("worker", within=60)
    health.fail("database", "cannot connect")
    now = 61.0
    status = health.status()
    assert status.code == 1
    assert status.results == ["database: cannot connect", "worker: silent for 61.0 s, expected within 60 s"]
    beat.beat()
    health.recover("database")
    assert health.status().code == 0
    now = 3600.0
    beat.end()
    assert health.status().code == 0
    for number in range(100):
        health.fail(str(number), "x" * 1000)
    assert health.status().results[32:] == ["and 68 more"]


def test_state_is_replaced_as_a_whole(tmp_path: Path) -> None:
    state = StateDir(tmp_path)
    assert state.read("count") is None
    for text in (b"first", b"second"):
        state.write("count", text)
        assert state.read("count") == text
    assert [file.name for file in tmp_path.iterdir()] == ["count"]
    assert (state / "count").stat().st_mode & 0o777 == 0o600
    state.remove("count")
    state.remove("count")
    with pytest.raises(OSError, match="folder"):
        state.write("no/such/folder", b"")


def test_the_error_log_is_bounded_and_its_entries_have_their_times(tmp_path: Path) -> None:
    path, line = tmp_path / "log", "an entry of an earlier day\n"
    path.write_text(line * ((1 << 20) // len(line) + 1))
    ErrorLog(path).append("first\nsecond line\n")
    kept = path.read_text()
    assert kept.startswith(line)
    assert len(kept) < (64 << 10) + 100
    assert kept.endswith("Z first\n    second line\n")


def test_a_run_has_its_configuration_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text('{"port":8}')
    variables = {"GUEST_AGENT_CONFIG": str(path), "GUEST_AGENT_TRIGGER": "interval", "GUEST_AGENT_STATE_DIR": "/s"}
    run = run_of(Environment.read(variables), ["--own", "--protocol=unix", "--address=/x"])
    assert (run.state.path, run.arguments) == (Path("/s"), ["--own"])
    assert run.environment.trigger is Trigger.INTERVAL
    assert run.config.decode(Settings).port == 8
    assert Environment.read({"GUEST_AGENT_TRIGGER": "moon"}).trigger is Trigger.OTHER
    with pytest.raises(PluginError, match="cannot be read"):
        run_of(Environment.read({"GUEST_AGENT_CONFIG": str(path) + "x"}), [])


def test_lines_of_the_log_have_a_level_and_no_time(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    root.handlers.clear()
    try:
        setup_logging(logging.INFO)
        logging.getLogger("mine").debug("too low")
        logging.getLogger("mine").warning("the disk is nearly full")
    finally:
        root.handlers[:] = before
        root.setLevel(level)
    assert capsys.readouterr().err == "WARNING mine: the disk is nearly full\n"
