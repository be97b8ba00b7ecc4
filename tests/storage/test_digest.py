"""Digests are BLAKE3, equal for bytes and for files, with and without threads."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from thunder_core.foundation.storage import digest
from thunder_core.foundation.storage.digest import digest_for, digest_of, digest_of_file

EMPTY = "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"  # of no bytes, from BLAKE3's test vectors


def test_digest_is_blake3() -> None:
    assert digest_of(b"") == EMPTY
    assert digest_of(b"a") != digest_of(b"b")


@pytest.mark.parametrize("size", [0, 1, 1000, 1024, 1025, 5000])
def test_a_file_has_the_digest_of_its_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(digest, "BLOCK", 1024)
    content = bytes(number % 251 for number in range(size))
    (tmp_path / "file").write_bytes(content)
    assert digest_of_file(tmp_path / "file") == digest_of(content)


def test_many_bytes_have_the_same_digest_by_threads_also_in_a_forked_child(monkeypatch: pytest.MonkeyPatch) -> None:
    content = bytes(range(256)) * 64
    expected = digest_of(content)
    monkeypatch.setattr(digest, "MIN_THREADED_SIZE", 1)
    assert digest_for(len(content)).update(content).hexdigest() == expected
    child = os.fork()
    if not child:
        os._exit(digest_for(len(content)).update(content).hexdigest() != expected)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
