"""Keys, contents, and builders that count their runs."""

from __future__ import annotations

from pathlib import Path

from thunder_core.backend.cache import Key

FILES = {"kernel.so": bytes(range(256)) * 16, "wrapper.py": b"import nothing\n" * 40}


class Builder:
    """A builder that counts its runs."""

    def __init__(self, files: dict[str, bytes] | None = None) -> None:
        self.files = FILES if files is None else files
        self.runs = 0

    def __call__(self, folder: Path) -> None:
        self.runs += 1
        for name, content in self.files.items():
            (folder / name).write_bytes(content)


def key_of(region: str, executor: str = "inductor", **fields: str) -> Key:
    return Key(executor, {"region": region, "compiler": "g++ 12.2", "torch": "2.13.0", **fields})
