"""A rank that fails ends the command on all ranks, with its error, and leaves no artifact."""

from __future__ import annotations

import json
from pathlib import Path
from unittest import mock

import pytest

from tests.distributed.commands.faults import FAULTS
from tests.distributed.ranks import Ranks
from thunder_cli import failure
from thunder_cli.main import main
from thunder_core.foundation.errors import BadOption, RankFailed
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


@pytest.mark.parametrize("rank", [0, 1])
def test_first_rank_reports_an_error_in_the_options_before_torchrun_ends_it(
    rank: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": rank}
    facts = {**place, "MASTER_ADDR": "localhost", "MASTER_PORT": 0, failure.TORCHRUN_VARIABLE: "none"}
    for name, value in facts.items():
        monkeypatch.setenv(name, str(value))
    with mock.patch("thunder_cli.failure.time.sleep") as sleep:
        assert main(["optimize", "--recipe", "fsdp", "--train", "--set", "bucket_cap_mb=-3"]) == BadOption.status
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("error TH0201 recipe fsdp does not accept bucket_cap_mb='-3'")
    assert sleep.mock_calls == ([] if rank == 0 else [mock.call(failure.FIRST_RANK_SECONDS)])
    assert (len(lines) > 1) == (rank == 0)
