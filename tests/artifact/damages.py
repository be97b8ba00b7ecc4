"""About two thousand ways to damage an artifact: each has a name and a function that changes a copy."""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.cache.damages import CHANGES, NO_MANIFESTS, become_folder, become_pipe, flip, grow
from thunder_core.foundation.storage.digest import digest_of
from thunder_core.foundation.storage.manifest import FileFacts
from thunder_core.workflow.artifact.format.manifest import SCHEMA_VERSION, WEIGHTS, Manifest

Damage = Callable[[Path], object]
MANIFEST = "manifest.json"
POSITIONS = 24  # of each type of change, spread evenly over each file
FLIPS = 60  # additional single bits at random positions of each file

# One file of each type, by a glob pattern.
KINDS = {
    "manifest": MANIFEST,
    "program": "traces/0/computation-*-free-after-last-use.py",
    "backward": "traces/1/backward-*-free-after-last-use.py",
    "tail": "traces/1/tail-*.py",
    "guards": "traces/0/prologue-*.py",
    "lines": "traces/0/computation-00-*.json",
    "region": "kernels/*.py",
    "kernel": "kernels/*.so",
    "weights": WEIGHTS,
    "example": "example.safetensors",
}


def only(folder: Path, pattern: str) -> Path:
    (path,) = folder.glob(pattern)
    return path


def groups() -> Iterator[tuple[str, dict[str, Damage]]]:
    """Every damage by name, in groups of one type."""
    for kind, pattern in KINDS.items():
        for change in CHANGES:
            places = (number / POSITIONS for number in range(POSITIONS))
            yield f"{change.__name__} {kind}", {f"at {place:.3f}": changed(pattern, change, place) for place in places}
        draw = random.Random(kind)
        yield f"any bit of {kind}", {f"{n}": changed(pattern, flip, draw.random()) for n in range(FLIPS)}
        yield f"whole {kind}", {name: of_a_file(pattern, damage) for name, damage in OF_A_FILE.items()}
        if kind != "manifest":
            yield f"foreign {kind}", {"a neighbour's": from_neighbour(pattern)}
    pairs = itertools.combinations(KINDS, 2)
    yield "swapped", {f"{one} and {other}": swapped(KINDS[one], KINDS[other]) for one, other in pairs}
    yield "links", {name: linked(name) for name in ("traces", "traces/0", "traces/1", "kernels", "weights")}
    yield "no manifest", {str(n): written(text) for n, text in enumerate((*NO_MANIFESTS, *BOMBS))}
    yield "resealed", {name: sealed(changes) for name, changes in RESEALED.items()}
    yield "crafted weights", {name: craft_weights(content) for name, content in CRAFTED.items()}
    yield "paths", {name: list_in_manifest(name) for name in PATHS}


def changed(pattern: str, change: Callable[[bytes, int], bytes], share: float) -> Damage:
    def damage(folder: Path) -> None:
        path = only(folder, pattern)
        content = path.read_bytes()
        path.write_bytes(change(content, int(len(content) * share)))

    return damage


def of_a_file(pattern: str, damage: Callable[[Path], object]) -> Damage:
    return lambda folder: damage(only(folder, pattern))


def outside(folder: Path) -> Path:
    return folder.parent / "outside"


def link(path: Path) -> None:
    elsewhere = outside(next(parent for parent in path.parents if parent.suffix == ".thunder"))
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


OF_A_FILE: dict[str, Callable[[Path], object]] = {
    "removed": Path.unlink,
    "emptied": lambda path: path.write_bytes(b""),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"\n"),
    "twice": lambda path: path.write_bytes(path.read_bytes() * 2),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "a link": link,
    "a link to itself": lambda path: (path.unlink(), path.symlink_to(path)),
    "a folder": become_folder,
    "a pipe": become_pipe,
    "10 GB": grow,
    "upper case": lambda path: path.rename(path.with_name(path.name.upper())),
}


def from_neighbour(pattern: str) -> Damage:
    """Copy a complete file from another undamaged artifact."""
    return lambda folder: only(folder, pattern).write_bytes(
        only(folder.parent / "neighbour.thunder", pattern).read_bytes()
    )


def swapped(one: str, other: str) -> Damage:
    def damage(folder: Path) -> None:
        first, second = only(folder, one), only(folder, other)
        first.rename(outside(folder))
        second.rename(first)
        outside(folder).rename(second)

    return damage


def linked(name: str) -> Damage:
    def damage(folder: Path) -> None:
        (folder / name).rename(outside(folder))
        (folder / name).symlink_to(outside(folder))

    return damage


def written(text: bytes) -> Damage:
    return lambda folder: (folder / MANIFEST).write_bytes(text)


# Content that would take long to read, or much memory. All of it has a known schema version.
BOMBS = (
    b'{\n "schema_version": %d,\n "x": ' % SCHEMA_VERSION + b"[" * 1_000_000,
    b'{\n "schema_version": %d,\n "x": "' % SCHEMA_VERSION + b"a" * 10_000_000 + b'"\n}\n',
    b'{\n "schema_version": %d,\n "x": ' % SCHEMA_VERSION + b"9" * 1_000_000 + b"\n}\n",
    b'{\n "schema_version": ' + b"9" * 1_000_000 + b"\n}\n",
    b'{\n "schema_version": %d,\n "x": ' % (SCHEMA_VERSION + 1) + b"[" * 1_000_000,
)


def manifest_of(folder: Path) -> Manifest:
    return Manifest.model_validate_json((folder / MANIFEST).read_bytes())


def reseal(folder: Path, **changes: object) -> None:
    """Change the manifest and update its digest."""
    (folder / MANIFEST).write_bytes(manifest_of(folder).model_copy(update=changes).with_own_digest().to_bytes())


def sealed(changes: dict[str, object]) -> Damage:
    return lambda folder: reseal(folder, **changes)


RESEALED: dict[str, dict[str, object]] = {
    "a newer schema": {"schema_version": SCHEMA_VERSION + 1},
    "an older schema": {"schema_version": SCHEMA_VERSION - 1},
    "a schema of no version": {"schema_version": 0},
    "another PyTorch": {"torch": "1.13.1"},
    "another machine": {"machine": "Linux riscv64 cpython-311"},
    "another Python": {"machine": "Linux x86_64 cpython-399"},
    "another model": {"fingerprint": "0" * 64},
    "other code": {"code": {"tests.artifact.marked": "0" * 64}},
    "code that is not here": {"code": {"no_such_module_anywhere": "0" * 64}},
    "no files": {"files": {}},
    "a key that is not known": {"compiler": None},
}


def list_in_manifest(name: str) -> Damage:
    def damage(folder: Path) -> None:
        outside(folder).write_bytes(b"")
        facts = FileFacts(size=0, digest=digest_of(b""))
        reseal(folder, files={**manifest_of(folder).files, name: facts})

    return damage


PATHS = (
    *("../outside", "traces/../../outside", "..", ".", "", "/etc/hostname", "traces", "traces/0/", "no/such/file"),
    *("\0", "a\0b", "..\\outside", "kernels/../../outside", "//etc/hostname", "a" * 5000, "ä/../b"),
)


def craft_weights(content: bytes) -> Damage:
    """Replace the weights by invalid weights with the right digest in the manifest."""

    def damage(folder: Path) -> None:
        (folder / WEIGHTS).write_bytes(content)
        facts = FileFacts(size=len(content), digest=digest_of(content))
        reseal(folder, files={**manifest_of(folder).files, WEIGHTS: facts})

    return damage


def tensors(header: object, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def entry(**changes: object) -> dict[str, object]:
    return {"inner.weight": {"dtype": "F32", "shape": [4, 4], "data_offsets": [0, 64], **changes}}


CRAFTED: dict[str, bytes] = {
    "nothing": b"",
    "half a prefix": b"\0\0\0",
    "a header beyond the end": tensors(b"{}", length=1 << 62),
    "a header that is no JSON": tensors(b"\xff" * 64),
    "a header that nests": tensors(b"[" * 100_000),
    "a header that is a list": tensors([]),
    "a header without tensors": tensors({}),
    "a tensor of exabytes": tensors(entry(shape=[1 << 40, 1 << 20], data_offsets=[0, 1 << 62])),
    "a tensor below nothing": tensors(entry(shape=[-4, -4]), bytes(64)),
    "a tensor beyond the end": tensors(entry(), bytes(63)),
    "bytes behind the end": tensors(entry(), bytes(65)),
    "a tensor that overlaps": tensors({**entry(), "inner.bias": entry()["inner.weight"]}, bytes(64)),
    "a gap": tensors(entry(data_offsets=[8, 72]), bytes(72)),
    "an unknown dtype": tensors(entry(dtype="OBJECT"), bytes(64)),
    "no dtype": tensors({"inner.weight": {}}, bytes(64)),
    "offsets that are words": tensors(entry(data_offsets=["0", "64"]), bytes(64)),
    "shape that is a word": tensors(entry(shape="44"), bytes(64)),
    "a pickle": b"\x80\x04\x95" + bytes(100),
    "a zip": b"PK\x03\x04" + bytes(100),
}


def restore(sound: Path, folder: Path) -> None:
    """Make a folder equal to an undamaged one again, whatever the damage was."""
    discard(outside(folder))
    mend(sound, folder)


def mend(sound: Path, folder: Path) -> None:
    """Restore the files of a folder whose type, size or modification time differs from the undamaged folder."""
    if folder.is_symlink() or not folder.is_dir():
        discard(folder)
        shutil.copytree(sound, folder)
        return
    for path in folder.iterdir():
        if not (sound / path.name).exists():
            discard(path)
    for path in sound.iterdir():
        copy = folder / path.name
        if path.is_dir():
            mend(path, copy)
        elif not os.path.lexists(copy) or facts_of(copy) != facts_of(path):
            discard(copy)
            shutil.copy2(path, copy)


def facts_of(path: Path) -> tuple[int, int, int]:
    """The mode, size and modification time of a file, which may not be a regular file."""
    found = path.lstat()
    return found.st_mode, found.st_size, found.st_mtime_ns


def discard(path: Path) -> None:
    """Remove the file, link or folder at a path, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
