"""Run `./build` first, then `python3 -m unittest`."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "package" / "lib"))

from guest_agent_plugin.testing import Refusal, Tested  # noqa: E402

from main import Greeter  # noqa: E402


class TestGreeter(unittest.IsolatedAsyncioTestCase):
    async def test_it_greets(self) -> None:
        async with Tested(Greeter()) as tested:
            await tested.start({"greeting": "salut"})
            self.assertEqual(list((await tested.ask("you")).results), ["salut, you"])
            with self.assertRaises(Refusal):
                await tested.apply({"greeting": "two\nlines"})


if __name__ == "__main__":
    unittest.main()
