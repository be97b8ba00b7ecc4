"""Accidents with an artifact: files that are missing, changed, too many, or of another type."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.accidents.accident import Accident, World
from tests.artifact.damages import manifest_of, reseal
from thunder_core.foundation.storage.digest import digest_of
from thunder_core.workflow.artifact.format.manifest import ToleranceFacts
from thunder_core.workflow.artifact.trust.keys import new_key_pair

Change = Callable[[Path], object]


def in_copy(change: Change) -> Callable[[World], None]:
    """Change a copy of the artifact."""

    def arrange(world: World) -> None:
        change(Path(shutil.copytree(world.artifact, world.path("copy.thunder"))))

    return arrange


def with_key(arrange: Callable[[World], None]) -> Callable[[World], None]:
    """Make a key pair, then arrange the rest."""

    def arrange_both(world: World) -> None:
        new_key_pair(world.path("team"))
        arrange(world)

    return arrange_both


def first(folder: Path, pattern: str) -> Path:
    """The first file that matches a pattern."""
    return sorted(folder.glob(pattern))[0]


def flip_bit(pattern: str) -> Change:
    """Flip a bit in the middle of a file."""

    def change(folder: Path) -> None:
        path = first(folder, pattern)
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)

    return change


def replace_content(pattern: str, make: Callable[[Path], object]) -> Change:
    """Replace the content of a file."""

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
    ("a flipped bit in a program", flip_bit("traces/0/computation-*.py"), "does not match its digest"),
    ("a flipped bit in the guards", flip_bit("traces/0/prologue-*.py"), "does not match its digest"),
    ("a flipped bit in the report", flip_bit("report.html"), "does not match its digest"),
    ("a flipped bit in the example", flip_bit("example.safetensors"), "does not match its digest"),
    ("a flipped bit in the manifest", flip_bit("manifest.json"), ""),
    ("no program", replace_content("traces/0/computation-*.py", lambda path: None), "is missing"),
    ("no report", replace_content("report.md", lambda path: None), "is missing"),
    ("a program that is a folder", replace_content("traces/0/computation-*.py", Path.mkdir), "is not a plain file"),
    ("a program that is a pipe", replace_content("traces/0/computation-*.py", os.mkfifo), "is not a plain file"),
    (
        "a program that is a link",
        replace_content("traces/0/prologue-*.py", lambda path: path.symlink_to("/etc/passwd")),
        "link",
    ),
    ("an empty program", replace_content("traces/0/computation-*.py", Path.touch), "has 0 bytes"),
    ("an empty manifest", replace_content("manifest.json", Path.touch), ""),
    ("a manifest that is text", replace_content("manifest.json", lambda path: path.write_text("hello")), ""),
)


def wrong(folder: Path) -> None:
    """Scale the first result of the program in an artifact that allows any error and has valid digests."""
    path = first(folder, "traces/0/computation-*-free-after-last-use.py")
    path.write_text(re.sub(r"^    return \((\w+),", r"    \1 = \1 * 1.5\n\g<0>", path.read_text(), flags=re.MULTILINE))
    files = dict(manifest_of(folder).files)
    name, content = path.relative_to(folder).as_posix(), path.read_bytes()
    files[name] = files[name].model_copy(update={"size": len(content), "digest": digest_of(content)})
    reseal(folder, files=files, tolerance=ToleranceFacts(times_eager=1e300, floor=1e300, kl=1e300, top1=0.0))


def loose(folder: Path) -> None:
    """Allow any error and change nothing else."""
    reseal(folder, tolerance=ToleranceFacts(times_eager=1e300, floor=1e300, kl=1e300, top1=0.0))


NO_ARTIFACTS: tuple[tuple[str, Change], ...] = (
    ("no manifest", replace_content("manifest.json", lambda path: None)),
    ("a manifest that is a folder", replace_content("manifest.json", Path.mkdir)),
    ("a manifest that is a pipe", replace_content("manifest.json", os.mkfifo)),
)


def rows() -> Iterator[Accident]:
    """The messages of `verify` for each change, and of the commands that use the artifact."""
    for name, change, says in CHANGES:
        yield Accident(f"verify: {name}", "verify {files}/copy.thunder", "TH0602", says, in_copy(change))
    for name, change, says in CHANGES[:4]:
        yield Accident(
            f"sign: {name}", "sign {files}/copy.thunder --key {files}/team", "TH0602", says, with_key(in_copy(change))
        )
    for name, change, says in CHANGES[4:14:3]:
        yield Accident(f"validate: {name}", "validate {files}/copy.thunder", "TH0602", says, in_copy(change))
        yield Accident(f"bench: {name}", "bench {files}/copy.thunder", "TH0602", says, in_copy(change))
        yield Accident(f"debug: {name}", "debug {files}/copy.thunder", "TH0602", says, in_copy(change))
    validate = "validate {files}/copy.thunder --validate-inputs 1"
    yield Accident("validate: a wrong line", validate, "TH0401", "differs from the float64 reference", in_copy(wrong))
    tolerance = "tolerance times_eager=2 floor=4e-06"
    yield Accident("validate: any error is allowed", validate, "", tolerance, in_copy(loose))
    tolerance = "tolerance times_eager=3 floor=4e-06"
    yield Accident("validate: a tolerance of one's own", f"{validate} --tolerance 3", "", tolerance, in_copy(loose))
    for name, change in NO_ARTIFACTS:
        for command in ("verify", "validate"):
            yield Accident(f"{command}: {name}", f"{command} {{files}}/copy.thunder", "TH0601", "", in_copy(change))


ARTIFACTS = tuple(rows())
