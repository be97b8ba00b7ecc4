"""About five hundred ways to damage an entry: each has a name and a function that changes its folder."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from thunder_core.backend.cache.manifest import EntryManifest
from thunder_core.foundation.storage.manifest import FileFacts

Damage = Callable[[Path], object]
Change = Callable[[bytes, int], bytes]
FILES = ("manifest.json", "kernel.so", "wrapper.py")
MANIFEST = "manifest.json"
POSITIONS = 32  # of each type of change, spread evenly over each file


def flip(content: bytes, place: int) -> bytes:
    return content[:place] + bytes([content[place] ^ (1 << place % 8)]) + content[place + 1 :]


def cut(content: bytes, place: int) -> bytes:
    return content[:place]


def drop_one(content: bytes, place: int) -> bytes:
    return content[:place] + content[place + 1 :]


def insert_one(content: bytes, place: int) -> bytes:
    return content[:place] + b"\0" + content[place:]


def other_block(content: bytes, place: int) -> bytes:
    """Replace a block by bytes of the same length, like a disk that has lost a block."""
    block = content[place : place + 64]
    return content[:place] + bytes(255 - byte for byte in block) + content[place + 64 :]


CHANGES: tuple[Change, ...] = (flip, cut, drop_one, insert_one, other_block)


def damages() -> Iterator[tuple[str, Damage]]:
    """Every damage with its name."""
    for name in FILES:
        for change in CHANGES:
            for number in range(POSITIONS):
                yield f"{change.__name__} {name} {number}", changed(name, change, number / POSITIONS)
        for kind, damage in OF_A_FILE.items():
            yield f"{kind} {name}", lambda folder, damage=damage, name=name: damage(folder / name)
    yield from OF_THE_FOLDER.items()
    for number, text in enumerate(NO_MANIFESTS):
        yield f"no manifest {number}", lambda folder, text=text: (folder / MANIFEST).write_bytes(text)
    for kind, changes in RESEALED.items():
        yield f"a manifest with {kind}", lambda folder, changes=changes: reseal(folder, **changes)


def changed(name: str, change: Change, share: float) -> Damage:
    def damage(folder: Path) -> None:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(change(content, int(len(content) * share)))

    return damage


def reseal(folder: Path, **changes: object) -> None:
    """Change the manifest and update its digest."""
    manifest = EntryManifest.model_validate_json((folder / MANIFEST).read_bytes())
    sealed = manifest.model_copy(update=changes).with_own_digest()
    (folder / MANIFEST).write_bytes(sealed.to_bytes())


def become_link(path: Path) -> None:
    outside = path.parents[3] / "outside"
    path.rename(outside)
    path.symlink_to(outside)


def become_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def become_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def grow(path: Path) -> None:
    os.truncate(path, 10 << 30)  # without a block on the disk


def move_away(folder: Path) -> None:
    folder.rename(folder.parents[2] / "outside")


def swap_files(folder: Path) -> None:
    first, second, other = folder / "kernel.so", folder / "wrapper.py", folder.parents[2] / "outside"
    first.rename(other)
    second.rename(first)
    other.rename(second)


def take_from_neighbour(folder: Path, name: str) -> None:
    """Copy complete files of another undamaged entry."""
    (neighbour,) = (entry for entry in folder.parent.iterdir() if entry != folder)
    (folder / name).write_bytes((neighbour / name).read_bytes())


def swap_with_neighbour(folder: Path) -> None:
    (neighbour,) = (other for other in folder.parent.iterdir() if other != folder)
    outside = folder.parents[2] / "outside"
    folder.rename(outside)
    neighbour.rename(folder)
    outside.rename(neighbour)


def another_key(folder: Path) -> None:
    swap_with_neighbour(folder)
    manifest = EntryManifest.model_validate_json((folder / MANIFEST).read_bytes())
    reseal(folder, fields={**manifest.fields, "compiler": "another"})


def twice(folder: Path) -> None:
    """JSON with a repeated key, of which readers choose different ones."""
    text = (folder / MANIFEST).read_text()
    (folder / MANIFEST).write_text(text.replace('"label"', '"label": "mine",\n "label"', 1))


def unknown(folder: Path) -> None:
    content = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps({**content, "colour": "red"}))


FACTS = FileFacts(size=4, digest="00" * 32)
OF_A_FILE: dict[str, Callable[[Path], object]] = {
    "remove": Path.unlink,
    "empty": lambda path: path.write_bytes(b""),
    "append to": lambda path: path.write_bytes(path.read_bytes() + b"\n"),
    "zero": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "link": become_link,
    "link to itself": lambda path: (path.unlink(), path.symlink_to(path)),
    "hard link": lambda path: os.link(path, path.parents[3] / "outside"),
    "make a folder of": become_folder,
    "make a pipe of": become_pipe,
    "10 GB in place of": grow,
    "upper case": lambda path: path.rename(path.with_name(path.name.upper())),
}
OF_THE_FOLDER: dict[str, Damage] = {
    "one file more": lambda folder: (folder / "more.so").write_bytes(b""),
    "one hidden file more": lambda folder: (folder / ".more").write_bytes(b""),
    "one folder more": lambda folder: (folder / "__pycache__").mkdir(),
    "one broken link more": lambda folder: (folder / "more.so").symlink_to("nowhere"),
    "nothing in it": lambda folder: [path.unlink() for path in folder.iterdir()],
    "a link": lambda folder: (move_away(folder), folder.symlink_to(folder.parents[2] / "outside")),
    "a file": lambda folder: (move_away(folder), folder.write_bytes(b"")),
    "a pipe": lambda folder: (move_away(folder), os.mkfifo(folder)),
    "writable by all": lambda folder: folder.chmod(0o777),
    "writable by the group": lambda folder: folder.chmod(0o770),
    "files swapped": swap_files,
    "a neighbour's kernel": lambda folder: take_from_neighbour(folder, "kernel.so"),
    "a neighbour's manifest": lambda folder: take_from_neighbour(folder, MANIFEST),
    "swapped with a neighbour": swap_with_neighbour,
    "another key, sealed": another_key,
    "a key of the manifest twice": twice,
    "an unknown key": unknown,
}
NO_MANIFESTS = (
    *(b"{}", b"[]", b"null", b"1", b'"schema_version"', b"\xff\xfe{\x00}\x00", b'{"schema_version": 1}'),
    *(b'{"schema_version": "1"}', b'{"schema_version": true}', b'{"schema_version": 1e0}', b'{"schema_version": NaN}'),
    *(
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"schema_version": ' + b"1" * 5_000 + b"}",
        b'{"schema_version": "\\ud800"}',
    ),
)
RESEALED: dict[str, dict[str, object]] = {
    "a newer schema": {"schema_version": 3},
    "an older schema": {"schema_version": 0},
    "another executor": {"executor": "triton"},
    "other fields": {"fields": {"region": "another"}},
    "no files": {"files": {}},
    **{
        f"a file {name!r}": {"files": {name: FACTS}}
        for name in ("../outside", "..", ".", "", "/etc/hostname", "a/b", "kernel.so/", "\0", "kernel.so")
    },
    "a size below nothing": {"files": {"kernel.so": FACTS.model_copy(update={"size": -1})}},
    "a size beyond everything": {"files": {"kernel.so": FACTS.model_copy(update={"size": 1 << 80})}},
}
