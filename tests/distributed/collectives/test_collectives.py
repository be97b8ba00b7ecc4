"""Collectives on two ranks: each gives eager's result on both, or is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.distributed.collectives import differentiated, refused
from tests.distributed.collectives.collectives import CASES
from tests.distributed.ranks import Ranks

CHECKS = "tests.distributed.collectives.checks"


@pytest.mark.parametrize("name", CASES)
def test_results_equal_eagers(ranks: Ranks, name: str) -> None:
    ranks.run(CHECKS, "check_results", name)


@pytest.mark.parametrize("name", refused.CASES)
def test_refusal_names_the_function_and_the_line(ranks: Ranks, name: str) -> None:
    ranks.run(CHECKS, "check_refusal", name)


@pytest.mark.parametrize("name", refused.MADE_IN_EAGER)
def test_eager_makes_a_call_that_is_not_traced(ranks: Ranks, name: str) -> None:
    ranks.run(CHECKS, "check_call_in_eager", name)


@pytest.mark.parametrize("name", differentiated.CASES)
def test_gradients_equal_eagers(ranks: Ranks, name: str) -> None:
    ranks.run(CHECKS, "check_gradients", name)


GROUPS = """group_as_argument group_in_closure group_as_attribute source_in_group group_made_anew mesh_as_argument
    rank_that_is_not_in_the_group facts_of_groups work_from_outside
    options_as_argument reductions_of_a_class debug_level"""


@pytest.mark.parametrize("name", GROUPS.split())
def test_groups_are_guarded(ranks: Ranks, name: str) -> None:
    ranks.run("tests.distributed.collectives.groups", name)


AGREEMENT = """other_collective other_size other_reduction_and_dtype one_collective_less collective_in_backward
    late_rank rank_that_traces_again rank_that_traces_again_for_a_size_that_varies several_programs
    known_program_against_another program_in_eager_on_one_rank programs_in_a_group_made_again
    other_size_among_several other_size_of_an_uneven_part"""


@pytest.mark.parametrize("name", AGREEMENT.split())
def test_ranks_compare_their_programs(ranks: Ranks, name: str) -> None:
    ranks.run("tests.distributed.agreement.agreement", "patiently", name)


@pytest.mark.parametrize("traces_known", [False, True])
def test_rank_that_runs_a_cached_program_is_compared(ranks: Ranks, traces_known: bool) -> None:
    ranks.run("tests.distributed.agreement.agreement", "patiently", "cached_program_against_another", traces_known)


def test_programs_of_an_artifact_are_compared(ranks: Ranks, tmp_path: Path) -> None:
    ranks.run(
        "tests.distributed.agreement.agreement", "patiently", "programs_of_an_artifact", str(tmp_path / "artifact")
    )


WHOLE_PROGRAMS = """data_parallel_around_compiled_module compiled_data_parallel_is_refused
    compiled_data_parallel_runs_in_eager inference_mode data_parallel_with_a_static_graph
    data_parallel_with_views_of_buckets data_parallel_with_a_communication_hook
    fully_sharded_layers_accumulate_without_communication compiled_fully_sharded_model_runs_in_eager
    fully_sharded_layers_with_compiled_forward compiled_fully_sharded_model_is_refused whole_training_step
    sizes_that_vary state_of_an_object work_that_is_stored_by_eager work_that_is_returned_by_eager
    views_and_versions error_behind_a_collective compiled_function_within_another
    hooks_that_reduce_gradients reentrant_checkpoint batches_are_refused"""


@pytest.mark.parametrize("name", WHOLE_PROGRAMS.split())
def test_whole_programs_equal_eagers(ranks: Ranks, name: str) -> None:
    ranks.run("tests.distributed.collectives.whole_programs", name)
