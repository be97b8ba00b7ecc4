"""An accident: a command, the exit status that it must end with, and the words of its message."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.cli.small import Result

MESSAGE = re.compile(r"^error (TH\d{4}) ", re.MULTILINE)
OURS = "TH7001"


@dataclass(frozen=True)
class World:
    """The folders of an accident: the working folder, small models and artifacts. A row may copy and change them."""

    here: Path
    llama: Path
    bert: Path
    artifact: Path
    copies: Path

    def path(self, name: str) -> Path:
        """A file of the row, next to the working folder."""
        return self.copies / name


@dataclass(frozen=True)
class Accident:
    """A command in which `{names}` are folders of the world, with the expected outcome.

    `code` is the code of the only message, or empty if the command must succeed. `says` is a part of the message or of
    the output. `arrange` creates the files that the command reads, and returns more names for the command.
    """

    name: str
    command: str
    code: str
    says: str
    arrange: Callable[[World], dict[str, object] | None] = lambda world: None
    writes: bool = False

    @property
    def status(self) -> int:
        """The exit status that belongs to the code."""
        if not self.code:
            return 0
        return {"TH13": 130, "TH70": 70}.get(self.code[:4], int(self.code[2:4]))

    def arguments(self, world: World, more: dict[str, object]) -> list[str]:
        """The command as the shell would pass it."""
        names = {"here": world.here, "llama": world.llama, "bert": world.bert, "artifact": world.artifact}
        names |= {"files": world.copies, **more}
        return [word.format(**names) for word in shlex.split(self.command)]


def assert_documented(accident: Accident, done: Result, left: list[str]) -> None:
    """Check for one message with the code, in the requested form, without a traceback or leftover files."""
    output = f"{done.err}\n{done.out}"
    assert done.status == accident.status, output
    assert "Traceback" not in output
    assert accident.says in " ".join(output.split()), output
    if not accident.code:
        return
    assert accident.code != OURS
    assert accident.writes or not left
    if "--json" in accident.command:
        error = json.loads(done.out)["error"]
        assert (error["code"], error["status"]) == (accident.code, accident.status)
        assert not MESSAGE.findall(done.err)
    else:
        assert MESSAGE.findall(done.err) == [accident.code], output
        assert not done.out
