"""A rank that fails ends the command on all ranks, with its error, and leaves no artifact."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.distributed.commands.faults import FAULTS
from tests.distributed.ranks import Ranks
from thunder_core.foundation.errors import RankFailed
from thunder_core.workflow.artifact.format.read import open_artifact

MODULE = "tests.distributed.commands.faults"


@pytest.mark.parametrize("kind", FAULTS)
def test_failing_rank_ends_all_ranks(kind: str, tmp_path: Path) -> None:
    ranks = Ranks()
    with pytest.raises(AssertionError, match="a process ended"):
        ranks.run(MODULE, "end_with_the_error_of", kind, str(tmp_path))
    told = json.loads((tmp_path / "told.json").read_text())
    assert told["status"] == RankFailed.status
    assert FAULTS[kind].printed in " ".join(told["err"].split())
    assert told["out"] == ""
    assert told["seconds"] < 60
    left = {path.name for path in tmp_path.iterdir()} - {"model", "told.json"}
    assert "artifact" not in left
    assert not left or "killed while writing" in kind  # a folder with another name, which the process cannot remove


def test_artifact_is_complete_if_a_rank_ends_while_it_is_written(tmp_path: Path) -> None:
    ranks = Ranks()
    with pytest.raises(AssertionError, match=r"^rank 1: a process ended$"):
        ranks.run(MODULE, "killed_after_the_last_command", str(tmp_path))
    assert open_artifact(tmp_path / "artifact").manifest.programs


def test_error_that_interrupts_a_rank_leaves_the_ranks_at_the_same_collective(ranks: Ranks) -> None:
    ranks.run(MODULE, "interrupted_while_it_receives")
