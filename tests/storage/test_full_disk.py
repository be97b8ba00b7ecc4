"""The error for a file system that is full."""

from __future__ import annotations

import errno
import resource
from pathlib import Path

import pytest
import torch

import thunder_core as thunder
from thunder_core.foundation.errors import OutOfDisk
from thunder_core.foundation.storage.full_disk import fullness


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_is_reported_with_advice(number: int) -> None:
    full = fullness(OSError(number, "no"))
    assert full is not None
    assert full.what
    assert full.fix


def test_other_errors_are_not_taken_for_a_full_disk() -> None:
    assert fullness(OSError(errno.EACCES, "no")) is None
    assert fullness(RuntimeError("No space left on device")) is None
    assert fullness(FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")) is not None


def test_a_limit_of_file_sizes_leaves_nothing_half_written(tmp_path: Path) -> None:
    compiled = thunder.jit(torch.nn.Linear(64, 64))
    compiled(torch.ones(1, 64))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, hard))
    try:
        with pytest.raises(OutOfDisk, match="would exceed this process's limit") as caught:
            thunder.save(compiled, tmp_path / "artifact", include_weights=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "ulimit -f" in caught.value.fix
    assert list(tmp_path.iterdir()) == []
