"""Commands whose output does not fit on the disk end with status 7. Earlier files stay, and no new ones are left."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

import thunder_core
from tests.artifact.tiny import build

EARLIER = "an earlier file"


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """Let no file of this process become larger than `size` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize(
    ("arguments", "output"),
    [
        (("inspect-trace", "tiny.thunder", "-o", "trace.py"), "trace.py"),
        (("verify", "tiny.thunder", "--junit", "checks.xml"), "checks.xml"),
        (("sign", "tiny.thunder", "--key", "team"), "tiny.thunder/manifest.json.sig"),
        (("keys", "trust", "team.pub"), "config/trusted_keys"),
        (("keys", "new", "other"), None),
        (("recipes", "new", "careful-llama"), None),
    ],
)
def test_a_full_disk_leaves_no_partial_file(thunder, here, monkeypatch, arguments, output):
    monkeypatch.setenv("THUNDER_CONFIG_DIR", str(here / "config"))
    compiled = thunder_core.jit(build())
    compiled(torch.ones(3, 4))
    thunder_core.save(compiled, here / "tiny.thunder")
    (here / "config").mkdir(mode=0o700)
    assert thunder("keys", "new", "team").status == 0
    if output is not None and output.endswith((".py", ".xml")):
        (here / output).write_text(EARLIER)
    before = contents(here)
    with room_for(16):
        done = thunder(*arguments)
    assert (done.status, "TH0701" in done.err) == (7, True)
    assert contents(here) == before


def contents(folder: Path) -> dict[Path, bytes]:
    """Return the content of each file of a folder."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
