"""Simulated searches, with planted times and losses: the winner, the bounds and the budget."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thunder_core.workflow.benchmark.interval import Interval
from thunder_core.workflow.benchmark.statistics import speedup
from thunder_core.workflow.recipe_search.bounds import CandidateCost, misses
from thunder_core.workflow.recipe_search.halving import (
    ROUNDS,
    CandidateFinding,
    Halving,
    choose,
    leader_of,
    meets,
    possible_winners,
)
from thunder_core.workflow.report.search import SearchBounds


@dataclass(frozen=True)
class Planted:
    """A candidate with a known speed-up over eager, noise, loss and memory, and known costs of a round and a start."""

    rank: int
    speed: float
    noise: float = 0.05
    kl: float = 0.0
    top1: float = 1.0
    memory: int = 100
    start: float = 10.0
    fails: bool = False


@dataclass
class Simulation:
    """Planted candidates, measured with noise on a clock of their own."""

    bounds: SearchBounds
    budget: float
    clock: float = 0.0
    times: dict[Planted, list[float]] = field(default_factory=dict)
    calls: list[tuple[Planted, int]] = field(default_factory=list)

    def measure(self, planted: Planted, rounds: int) -> CandidateFinding:
        self.calls.append((planted, rounds))
        left = self.budget - self.clock
        assert left > 0, "no trial begins when the time has ended"
        cost = planted.start + rounds * 0.1
        self.clock += min(cost, left)  # what takes longer is ended by its limit
        if planted.fails:
            return CandidateFinding(reason="it died")
        if cost > left:
            return CandidateFinding(reason="its time ended", is_temporary=True)
        if planted.rank == 0:
            return CandidateFinding(Interval(value=1, low=1, high=1), rounds, exact=True, cost=cost_of(planted))
        noise = random.Random(repr((planted, rounds)))
        found = self.times.setdefault(planted, [])
        found += [noise.lognormvariate(0, planted.noise) / planted.speed for _ in range(rounds)]
        return CandidateFinding(speedup([1.0] * len(found), found), len(found), cost=cost_of(planted))

    def has_time(self) -> bool:
        return self.clock < self.budget


def cost_of(planted: Planted) -> CandidateCost:
    return CandidateCost(planted.kl, planted.top1, 0.0, planted.memory)


ANYTHING = SearchBounds()


def search(candidates: list[Planted], bounds: SearchBounds = ANYTHING, budget: float = 1e6):
    simulation = Simulation(bounds, budget)
    halving = Halving(candidates, simulation.measure, bounds, simulation.has_time)
    end = halving.run()
    return simulation, halving, end, choose(halving.findings, bounds)


EAGER = Planted(0, 1.0, noise=0.0)

planted_candidates = st.lists(
    st.builds(
        Planted,
        rank=st.integers(1, 6),
        speed=st.floats(0.3, 4.0),
        noise=st.sampled_from([0.005, 0.05, 0.3]),
        kl=st.sampled_from([0.0, 1e-4, 1e-3, 0.1]),
        top1=st.sampled_from([1.0, 0.999, 0.9]),
        memory=st.integers(10, 200),
        start=st.floats(1.0, 60.0),
        fails=st.booleans() | st.just(False),
    ),
    max_size=9,
    unique=True,
)
some_bounds = st.builds(
    SearchBounds,
    max_kl=st.none() | st.sampled_from([0.0, 1e-3]),
    min_top1=st.none() | st.sampled_from([0.95, 1.0]),
    max_memory=st.none() | st.integers(5, 150),
)


@settings(max_examples=500)
@given(planted_candidates, some_bounds, st.floats(0.0, 600.0))
def test_500_simulated_searches_keep_bounds_and_budget_and_prefer_the_simple(others, bounds, budget):
    simulation, halving, end, winner = search([EAGER, *others], bounds, budget)
    found = halving.findings
    assert simulation.clock <= budget + 1e-9  # of rounding
    assert end in ("decided", "out of time")
    if end == "out of time":
        assert simulation.clock == pytest.approx(budget)
    assert sum(rounds for one, rounds in simulation.calls if one in others) <= ROUNDS[-1] * len(others) + ROUNDS[
        0
    ] * len(others)
    if winner is None:
        assert not any(meets(bounds, finding) and finding.is_settled for finding in found.values())
        return
    assert not [*misses(bounds, cost_of(winner))]
    assert not winner.fails
    leader = leader_of(found, bounds)
    assert leader is not None
    assert leader is winner or found[winner].score.high >= found[leader].score.low
    for candidate, finding in found.items():
        if candidate.rank < winner.rank and meets(bounds, finding) and finding.is_settled:
            assert finding.score.high < found[leader].score.low, "a simpler candidate that cannot be told apart wins"


@settings(max_examples=100)
@given(planted_candidates.filter(lambda found: all(not result.fails and result.noise < 0.1 for result in found)))
def test_with_enough_time_the_winner_is_within_five_percent_of_the_best(others):
    _, _, end, winner = search([EAGER, *others])
    best = max(one.speed for one in (EAGER, *others))
    assert end == "decided"
    assert winner is not None
    assert winner.speed >= 0.95 * best


def test_clearly_slower_candidates_get_no_more_rounds():
    fast, near, slow = Planted(3, 2.0), Planted(2, 1.98), Planted(1, 0.5)
    simulation, *_ = search([EAGER, fast, near, slow])
    rounds = {one: sum(count for other, count in simulation.calls if other is one) for one in (fast, near, slow)}
    assert rounds[slow] == ROUNDS[0]
    assert rounds[fast] > ROUNDS[0]
    assert rounds[near] > ROUNDS[0]


def test_eager_wins_where_nothing_is_faster():
    *_, winner = search([EAGER, Planted(1, 1.0), Planted(2, 0.9)])
    assert winner is EAGER


def test_a_simpler_candidate_of_the_same_speed_wins_and_a_faster_one_does_not_lose():
    simple, same, faster = Planted(1, 1.5), Planted(2, 1.5), Planted(3, 1.8)
    assert search([EAGER, same, simple])[-1] is simple
    assert search([EAGER, same, simple, faster])[-1] is faster


def test_the_fastest_is_passed_over_where_it_loses_too_much():
    lossy, exact = Planted(2, 3.0, kl=0.1), Planted(1, 1.5)
    assert search([EAGER, lossy, exact], SearchBounds(max_kl=0.01))[-1] is exact
    assert search([EAGER, lossy, exact])[-1] is lossy


def test_no_candidate_wins_where_eager_takes_too_much_memory():
    assert search([EAGER, Planted(1, 2.0)], SearchBounds(max_memory=50))[-1] is None


def test_a_candidate_that_dies_costs_only_itself():
    dying, good = Planted(2, 9.0, fails=True), Planted(1, 1.5)
    simulation, halving, _, winner = search([EAGER, dying, good])
    assert winner is good
    assert halving.findings[dying].reason == "it died"
    assert [one for one, _ in simulation.calls].count(dying) == 1


def test_a_search_goes_on_from_what_is_known():
    candidates = [EAGER, Planted(1, 1.5), Planted(2, 2.0)]
    _, halving, _, winner = search(candidates)
    again = Simulation(SearchBounds(), 1e6)
    second = Halving(candidates, again.measure, SearchBounds(), again.has_time, halving.findings)
    assert second.run() == "decided"
    assert again.calls == []
    assert choose(second.findings, SearchBounds()) is winner


def test_an_unsettled_score_does_not_win_but_is_measured_further():
    wide = CandidateFinding(Interval(value=3, low=1.5, high=9), 10)
    found = {EAGER: CandidateFinding(Interval(value=1, low=1, high=1), exact=True), Planted(1, 3.0): wide}
    few = CandidateFinding(Interval(value=3, low=2.9, high=3.1), 5)
    assert choose(found, SearchBounds()) is EAGER
    assert choose({**found, Planted(1, 2.0): few}, SearchBounds()) is EAGER
    assert len(possible_winners(found, SearchBounds())) == 2


@pytest.mark.parametrize("value", [None, 0.2])
def test_unknown_values_meet_no_bound(value):
    assert [*misses(SearchBounds(max_kl=0.1), CandidateCost(kl=value))]
    assert not [*misses(SearchBounds(), CandidateCost(kl=value))]
