"""Accidents with an artifact: files that are missing, changed, too many, or of another kind."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.accidents.accident import Accident, World

Change = Callable[[Path], object]


def in_copy(change: Change) -> Callable[[World], None]:
    """A changed copy of the artifact."""

    def arrange(world: World) -> None:
        change(Path(shutil.copytree(world.artifact, world.path("copy.thunder"))))

    return arrange


def first(folder: Path, pattern: str) -> Path:
    """The first file of a pattern."""
    return sorted(folder.glob(pattern))[0]


def flipped(pattern: str) -> Change:
    """Flip a bit in the middle of a file."""

    def change(folder: Path) -> None:
        path = first(folder, pattern)
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)

    return change


def replaced(pattern: str, make: Callable[[Path], object]) -> Change:
    """Put something else in the place of a file."""

    def change(folder: Path) -> None:
        path = first(folder, pattern)
        path.unlink()
        make(path)

    return change


CHANGES: tuple[tuple[str, Change, str], ...] = (
    ("a file more", lambda folder: (folder / "notes.txt").write_text("x"), "the manifest does not list notes.txt"),
    ("a file more within", lambda folder: (folder / "traces/0/x.py").write_text("x"), "does not list traces/0/x.py"),
    ("a link more", lambda folder: (folder / "link").symlink_to("report.md"), "the manifest does not list link"),
    ("a link to a folder", lambda folder: (folder / "link").symlink_to("traces"), "the manifest does not list link"),
    ("a flipped bit in a program", flipped("traces/0/computation-*.py"), "has another digest"),
    ("a flipped bit in the guards", flipped("traces/0/prologue-*.py"), "has another digest"),
    ("a flipped bit in the report", flipped("report.html"), "has another digest"),
    ("a flipped bit in the example", flipped("example.safetensors"), "has another digest"),
    ("a flipped bit in the manifest", flipped("manifest.json"), ""),
    ("no program", replaced("traces/0/computation-*.py", lambda path: None), "is missing"),
    ("no report", replaced("report.md", lambda path: None), "is missing"),
    ("a program that is a folder", replaced("traces/0/computation-*.py", Path.mkdir), "is not a plain file"),
    ("a program that is a pipe", replaced("traces/0/computation-*.py", os.mkfifo), "is not a plain file"),
    (
        "a program that is a link",
        replaced("traces/0/prologue-*.py", lambda path: path.symlink_to("/etc/passwd")),
        "link",
    ),
    ("an empty program", replaced("traces/0/computation-*.py", Path.touch), "has 0 bytes"),
    ("an empty manifest", replaced("manifest.json", Path.touch), ""),
    ("a manifest that is text", replaced("manifest.json", lambda path: path.write_text("hello")), ""),
)
NO_ARTIFACTS: tuple[tuple[str, Change], ...] = (
    ("no manifest", replaced("manifest.json", lambda path: None)),
    ("a manifest that is a folder", replaced("manifest.json", Path.mkdir)),
    ("a manifest that is a pipe", replaced("manifest.json", os.mkfifo)),
)


def rows() -> Iterator[Accident]:
    """What `verify` says of each change, and what others say that are asked to use the artifact."""
    for name, change, says in CHANGES:
        yield Accident(f"verify: {name}", "verify {files}/copy.thunder", "TH0602", says, in_copy(change))
    for name, change, says in CHANGES[4:14:3]:
        yield Accident(f"validate: {name}", "validate {files}/copy.thunder", "TH0602", says, in_copy(change))
        yield Accident(f"bench: {name}", "bench {files}/copy.thunder", "TH0602", says, in_copy(change))
        yield Accident(f"debug: {name}", "debug {files}/copy.thunder", "TH0602", says, in_copy(change))
    for name, change in NO_ARTIFACTS:
        for command in ("verify", "validate"):
            yield Accident(f"{command}: {name}", f"{command} {{files}}/copy.thunder", "TH0601", "", in_copy(change))


ARTIFACTS = tuple(rows())
