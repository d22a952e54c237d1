"""Admission plugins, with an agent that asks them in this process."""

from __future__ import annotations

import asyncio
import logging

import grpc
import pytest
from helpers import run

from guest_agent_plugin import PluginError
from guest_agent_plugin.admission import Check, Denial, serve
from guest_agent_plugin.testing import Question, ask


async def judge(check: Check) -> None:
    match check.package:
        case "good":
            (revision,) = await check.metadata("revision")
            await check.log(logging.WARNING, f"revision {revision.value.decode()} of {check.sha256}")
        case "bad":
            raise Denial("bad is not on the list")
        case "mistaken":
            raise Denial("a denial all the same", grpc.StatusCode.OK)
        case _:
            raise ZeroDivisionError("over it")


def test_a_judge_admits_denies_and_fails() -> None:
    async def main() -> None:
        good = Question("good", "abc", {"revision": "7", "other": "x"})
        verdicts = await ask(judge, good, Question("bad"), Question("mistaken"), Question("broken"))
        assert verdicts.by_package == {
            "good": "",
            "bad": "PERMISSION_DENIED: bad is not on the list",
            "mistaken": "UNKNOWN: a denial all the same",
            "broken": "INTERNAL: the admission plugin failed over it",
        }
        assert verdicts.log == ["warning: revision 7 of abc"]

    run(main())


@pytest.mark.parametrize(
    "line", ["", "hunter2\n", '{"port":70000,"ticket":"hunter2"}\n', '{"port":1}\n', "[]\n", "hunter2" * 20_000]
)
def test_without_a_handshake_there_is_an_error_that_quotes_nothing(line: str) -> None:
    async def main() -> None:
        stream = asyncio.StreamReader(limit=64 * 1024)
        stream.feed_data(line.encode())
        stream.feed_eof()
        with pytest.raises(PluginError, match="no handshake") as error:
            await serve(stream, "1", judge)
        assert "hunter2" not in str(error.value)

    run(main())
