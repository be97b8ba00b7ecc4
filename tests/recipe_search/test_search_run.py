"""A search with planted trials: the winner, the stored results, and the errors."""

from __future__ import annotations

import pytest

from tests.recipe_search.samples import CANDIDATES, EAGER, FUSED, QUANTIZED, Planted, facts, search_of
from thunder_core.foundation.errors import (
    BadOption,
    BoundMissed,
    ModelRaises,
    NotFinite,
    OutOfMemory,
    OutOfTolerance,
    SearchOutOfTime,
    WrongInputs,
)
from thunder_core.workflow.recipe_search.bounds import CandidateCost, misses
from thunder_core.workflow.recipe_search.trial_facts import TrialFacts, TrialRefusal
from thunder_core.workflow.report.number_format import TIMES
from thunder_core.workflow.report.search import SearchBounds


def test_the_fastest_wins_and_the_report_has_every_candidate(tmp_path):
    trials = Planted()
    run = search_of(tmp_path, trials)
    run.run()
    report = run.report()
    assert (report.winner, report.end) == ("default + int8", "decided")
    assert trials.names == [candidate.name for candidate in CANDIDATES]
    assert [(row.number, row.state) for row in report.candidates][-1] == (5, "not applicable")
    assert report.candidates[-1].reason == "no GPU"
    assert {row.name for row in report.candidates if row.is_on_front} == {"default", "default + int8"}
    assert f"wins with 2.00{TIMES} [" in report.why
    assert f"the next one within the bounds is default (1.50{TIMES})" in report.why
    assert report.call == "call 1 x 8"


@pytest.mark.parametrize(
    ("objective", "bounds", "winner"),
    [
        ("latency", {"max_kl": 0.001}, "default"),
        ("throughput", {"min_top1": 1.0}, "default + int8"),
        ("memory", {}, "default + int8"),
        ("memory", {"max_kl": 0.001}, "eager"),
        ("size", {"max_kl": 0.02}, "default + int8"),
        ("latency", {"max_memory": 150}, "default + int8"),
    ],
)
def test_the_winner_by_objective_and_bounds(tmp_path, objective, bounds, winner):
    run = search_of(tmp_path, Planted(), objective=objective, bounds=SearchBounds(**bounds))
    run.run()
    report = run.report()
    assert report.winner == winner
    assert report.best is not None
    assert report.best.is_within


def test_a_second_search_tries_nothing_again_and_a_fresh_one_everything(tmp_path):
    search_of(tmp_path, Planted()).run()
    again = search_of(tmp_path, trials := Planted())
    again.run()
    assert trials.names == []
    assert again.report().kept == len(CANDIDATES)
    fresh = search_of(tmp_path, trials := Planted(), fresh=True)
    fresh.run()
    assert len(trials.names) == len(CANDIDATES)


def test_a_search_goes_on_after_it_was_killed(tmp_path):
    class Killed(BaseException):
        pass

    with pytest.raises(Killed):
        search_of(tmp_path, Planted(**{"default_+_int8": Killed()})).run()
    run = search_of(tmp_path, trials := Planted())
    run.run()
    assert trials.names == ["default + int8", "default without fusion"]
    assert run.report().winner == "default + int8"


def test_a_damaged_file_counts_as_none(tmp_path):
    search_of(tmp_path, Planted()).run()
    for file in tmp_path.iterdir():
        file.write_text(file.read_text()[:40])
    search_of(tmp_path, trials := Planted()).run()
    assert len(trials.names) == len(CANDIDATES)


def test_lasting_refusals_are_kept_and_passing_ones_are_tried_again(tmp_path):
    lasting = TrialRefusal(reason="TH0401 it differs")
    passing = TrialRefusal(reason="its process was killed by SIGKILL", is_temporary=True)
    run = search_of(tmp_path, Planted(**{"default": lasting, "default_+_int8": passing}))
    run.run()
    report = run.report()
    assert report.winner == "default without fusion"
    states = {row.name: (row.state, row.reason) for row in report.candidates}
    assert states["default"] == ("refused", "TH0401 it differs")
    assert states["default + int8"] == ("refused", "its process was killed by SIGKILL")
    again = search_of(tmp_path, trials := Planted())
    again.run()
    assert trials.names == ["default + int8"]


def test_interrupted_with_something_measured_ends_with_the_best_so_far(tmp_path):
    run = search_of(tmp_path, Planted(**{"default_+_int8": KeyboardInterrupt()}))
    run.run()
    report = run.report()
    assert (report.winner, report.end) == ("default", "interrupted")
    assert "Ctrl-C ended the search" in report.why


def test_interrupted_with_nothing_measured_is_interrupted(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        search_of(tmp_path, Planted(default=KeyboardInterrupt())).run()


def test_an_error_of_eager_is_raised_unchanged(tmp_path):
    refusal = TrialRefusal(reason="TH0403 NaN", code="TH0403", fix="mend it", status=4)
    with pytest.raises(NotFinite, match="NaN") as caught:
        search_of(tmp_path, Planted(eager=refusal)).run()
    assert caught.value.fix == "mend it"


def test_a_death_of_eager_says_what_happened(tmp_path):
    refusal = TrialRefusal(reason="its process was killed by SIGKILL", is_temporary=True)
    with pytest.raises(OutOfMemory, match="killed by SIGKILL"):
        search_of(tmp_path, Planted(eager=refusal)).run()


def test_an_error_of_the_model_in_eager_is_named(tmp_path):
    refusal = TrialRefusal(reason="ValueError: no such size", is_temporary=True, is_raised=True)
    with pytest.raises(ModelRaises, match="ValueError: no such size"):
        search_of(tmp_path, Planted(eager=refusal)).run()


def test_no_time_at_all_is_said(tmp_path):
    refusal = TrialRefusal(reason="it was not done", is_temporary=True, timed_out=True)
    with pytest.raises(SearchOutOfTime, match="before a candidate was measured"):
        search_of(tmp_path, Planted(eager=refusal), budget=0.0).run()


def test_no_time_for_others_than_eager_is_said(tmp_path):
    late = TrialRefusal(reason="it was not done", is_temporary=True, timed_out=True)
    run = search_of(tmp_path, Planted(default=late), budget=1e-9)
    run.results[EAGER] = facts(EAGER)
    run.run()
    with pytest.raises(SearchOutOfTime) as caught:
        run.report()
    assert caught.value.report.winner == "eager"  # type: ignore[attr-defined]


def test_a_bound_that_nobody_meets_names_the_nearest_and_by_how_much(tmp_path):
    run = search_of(tmp_path, Planted(), bounds=SearchBounds(max_memory=80))
    run.run()
    with pytest.raises(BoundMissed, match=r"nearest is default \+ int8: its memory is 100 B.*1.25. as much") as caught:
        run.report()
    assert caught.value.status == 4
    assert len(caught.value.report.candidates) == 5  # type: ignore[attr-defined]


def test_a_bound_of_logits_is_refused_for_a_model_without_any(tmp_path):
    without = facts(EAGER, kl=None, top1=None, has_logits=False)
    with pytest.raises(BadOption, match="--max-kl is for models with logits"):
        search_of(tmp_path, Planted(eager=without), bounds=SearchBounds(max_kl=0.1)).run()


def test_a_winner_that_fails_when_written_loses_to_the_next(tmp_path):
    run = search_of(tmp_path, Planted())
    run.run()
    assert run.winner is QUANTIZED
    run.refuse(QUANTIZED, OutOfTolerance("it differs", fix="none"))
    assert run.winner is FUSED
    assert "TH0401" in next(row.reason for row in run.report().candidates if row.name == QUANTIZED.name)


def test_later_trials_leave_the_same_layers_in_float_and_add_rounds(tmp_path):
    near = facts(FUSED, eager=(0.01, 0.02) * 5, candidate_times=(0.006, 0.0105) * 5)
    also = facts(QUANTIZED, eager=(0.01, 0.02) * 5, candidate_times=(0.0058, 0.0109) * 5, skipped=("lm_head",))
    run = search_of(tmp_path, trials := Planted(default=near, **{"default_+_int8": also}))
    run.run()
    later = [task for task in trials.tasks if task.candidate is QUANTIZED and not task.first]
    assert later
    assert {order.skipped for order in later} == {("lm_head",)}
    row = next(row for row in run.report().candidates if row.name == QUANTIZED.name)
    assert row.rounds == 10 * (1 + len(later))
    assert row.reason == "kept in float: lm_head"


def test_observers_hear_who_is_tried_and_who_leads(tmp_path):
    class Observer:
        def __init__(self):
            self.heard = []

        def begin_trial(self, name, position, leader, seconds_left):
            self.heard.append(f"{name} {position[0]}/{position[1]} {leader and leader.name}")

        def end_trial(self, row, leader, seconds_left):
            assert seconds_left <= 1000
            self.heard.append(f"{row.name} {row.state}, {leader and leader.name} leads")

    observer = Observer()
    search_of(tmp_path, Planted(), observer=observer).run()
    assert observer.heard[:4] == [
        "eager 1/4 None",
        "eager measured, eager leads",
        "default 2/4 eager",
        "default measured, default leads",
    ]


def test_a_faster_candidate_with_a_wide_interval_is_not_called_indistinguishable(tmp_path):
    scattered = facts(QUANTIZED, 20, candidate_times=(0.002,) * 11 + (0.02,) * 9)
    run = search_of(tmp_path, Planted(**{"default_+_int8": scattered}))
    run.run()
    report = run.report()
    assert report.winner == "default"
    assert "default + int8 (" in report.why
    assert "has a speed that varies too much" in report.why
    assert "distinguishable" not in report.why


def test_candidates_after_an_interruption_are_not_called_out_of_time(tmp_path):
    run = search_of(tmp_path, Planted(**{"default_+_int8": KeyboardInterrupt()}))
    run.run()
    reasons = {row.name: row.reason for row in run.report().candidates}
    assert reasons["default without fusion"] == "the search ended before its trial"


def test_nan_misses_a_bound_by_more_than_any_number():
    (missed,) = misses(SearchBounds(max_kl=0.1), CandidateCost(kl=float("nan")))
    assert missed.factor == float("inf")
    assert missed.words == "its KL divergence is nan nats, and at most 0.1 nats is allowed"


def test_an_error_of_eager_is_not_stored(tmp_path):
    refusal = TrialRefusal(reason="TH0213 wrong inputs", code="TH0213", fix="correct the inputs", status=2)
    with pytest.raises(WrongInputs):
        search_of(tmp_path, Planted(eager=refusal)).run()
    again = search_of(tmp_path, trials := Planted())
    again.run()
    assert "eager" in trials.names


def test_results_stored_by_thunder_0_2_0_are_read() -> None:
    before = {"eager": (0.2, 0.2), "ours": (0.1, 0.1), "asked": 2, "took": 3.0}
    now = {"eager": (0.2, 0.2), "candidate_times": (0.1, 0.1), "requested_rounds": 2, "first_trial_seconds": 3.0}
    assert TrialFacts.model_validate(before) == TrialFacts.model_validate(now)
    assert TrialFacts.model_validate(before).model_dump().keys() >= now.keys()
