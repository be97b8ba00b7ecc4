"""A rank that fails ends the command on all ranks, with its error, and leaves no artifact."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.distributed.commands import FAILURES
from tests.distributed.ranks import Ranks
from thunder_core.foundation.errors import RankFailed


@pytest.mark.parametrize("kind", FAILURES)
def test_failing_rank_ends_all_ranks(kind: str, tmp_path: Path) -> None:
    ranks = Ranks()
    with pytest.raises(AssertionError, match="a process ended"):
        ranks.run("tests.distributed.commands", "ends_with_the_error_of", kind, str(tmp_path))
    told = json.loads((tmp_path / "told.json").read_text())
    assert told["status"] == RankFailed.status
    assert FAILURES[kind][1] in " ".join(told["err"].split())
    assert told["out"] == ""
    assert told["seconds"] < 60
    assert {path.name for path in tmp_path.iterdir()} == {"model", "told.json"}
