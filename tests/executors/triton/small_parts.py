"""Small blocks of keys, with which the attention of a token has several parts for a small cache."""

from __future__ import annotations

import pytest

from thunder_executors.triton.attention import combination, decode_attention

COMBINED_BY = ("the last thread block combines", "a second kernel combines")


def use_small_parts(monkeypatch: pytest.MonkeyPatch, thread_blocks: int, combined_by: str) -> None:
    """Use blocks of 16 keys and few thread blocks, so that a small cache has several parts with several blocks."""
    monkeypatch.setattr(decode_attention, "MAX_KEYS", 16)
    monkeypatch.setattr(decode_attention, "THREAD_BLOCKS", thread_blocks)
    monkeypatch.setattr(combination, "ELEMENTS", 128)
    if combined_by == COMBINED_BY[1]:
        monkeypatch.setattr(decode_attention, "MAX_BYTES_OF_LAST_BLOCK", 0)
