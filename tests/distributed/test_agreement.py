"""Ledgers of two ranks in one process: they tell programs that differ from programs that a rank traces again."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch.distributed as dist

from thunder_core.backend.runtime import agreement
from thunder_core.backend.runtime.agreement import Ledger, require_same
from thunder_core.foundation.errors import CollectivesDiffer
from thunder_core.tracing.analysis.collectives import Collective

REDUCED, SENT, GATHERED = "f\nall_reduce", "g\nbroadcast", "h\nall_gather"


def ledgers(store: dist.Store | None = None) -> tuple[Ledger, Ledger]:
    """The ledgers of both ranks of a group."""
    store = dist.HashStore() if store is None else store
    first, second = (Ledger("group", rank, 2, store) for rank in range(2))
    return first, second


def run_on_both(ranks: tuple[Ledger, Ledger], text: str, run: int, other_run: int | None = None) -> None:
    """Both ranks publish a program, and find no difference."""
    entries = [ledger.publish(text, count) for ledger, count in zip(ranks, (run, other_run or run), strict=True)]
    assert [ledger.find(1 - ledger.rank, entry) for ledger, entry in zip(ranks, entries, strict=True)] == [None, None]


def test_program_that_is_traced_again_differs_from_another_at_the_same_run() -> None:
    first, second = ranks = ledgers()
    run_on_both(ranks, REDUCED, 1)
    again, other = first.publish(REDUCED, 3), second.publish(SENT, 3)
    assert first.find(1, again) == (other, True)
    assert second.find(0, other) == (again, False)


def test_known_program_at_the_same_run_is_an_error_at_the_deadline() -> None:
    first, second = ranks = ledgers()
    run_on_both(ranks, REDUCED, 1)
    first.publish(REDUCED, 2)
    other = second.publish(SENT, 2)
    with pytest.raises(CollectivesDiffer, match="`broadcast` on rank 1 and `all_reduce` on rank 0"):
        require_same(second, 0, other, [Collective("broadcast", "group", (), 0)], deadline=0)


def test_programs_that_both_ranks_know_are_no_difference_at_the_deadline() -> None:
    """The counts of runs are misaligned, because one rank ran more programs without collectives of its own."""
    first, second = ranks = ledgers()
    run_on_both(ranks, REDUCED, 1)
    run_on_both(ranks, SENT, 2)
    first.publish(SENT, 5)
    require_same(second, 0, second.publish(REDUCED, 5), [Collective("all_reduce", "group", (), 0)], deadline=0)


def test_program_that_is_traced_again_before_another_is_passed_over() -> None:
    first, second = ranks = ledgers()
    run_on_both(ranks, REDUCED, 1)
    again = first.publish(REDUCED, 2)
    assert first.find(1, again) is None
    run_on_both(ranks, SENT, 3)
    assert second.find(0, second.publish(REDUCED, 4)) is None


def test_both_trace_known_programs_again_and_differ() -> None:
    first, second = ranks = ledgers()
    run_on_both(ranks, REDUCED, 1)
    run_on_both(ranks, SENT, 2)
    again, other = first.publish(REDUCED, 5), second.publish(SENT, 5)
    assert first.find(1, again) == (other, False)
    assert second.find(0, other) == (again, False)


def test_rank_that_ran_something_in_eager_is_no_difference() -> None:
    first, second = ranks = ledgers()
    run_on_both(ranks, REDUCED, 1)
    assert second.find(0, second.publish(REDUCED, 2)) is None  # the first rank runs it in eager
    sent = first.publish(SENT, 2)
    finding = first.find(1, sent)
    assert finding is not None
    assert not finding.is_certain
    assert second.find(0, second.publish(SENT, 3)) is None
    assert first.find(1, sent) is None
    run_on_both(ranks, GATHERED, 3, 4)
    assert first.offsets[1] == 1
    assert second.offsets[0] == -1


def test_rank_that_runs_ahead_is_no_difference() -> None:
    """A rank that only sends goes on before the other receives, which traces the program again."""
    first, second = ranks = ledgers()
    run_on_both(ranks, SENT, 1)
    second.publish(REDUCED, 3)
    assert first.find(1, first.publish(SENT, 2)) is None
    assert first.find(1, first.publish(REDUCED, 3)) is None


def test_rank_that_has_not_come_tells_nothing() -> None:
    first, _ = ledgers()
    with pytest.raises(LookupError):
        first.find(1, first.publish(REDUCED, 1))


def test_group_made_again_does_not_read_what_was_published_before() -> None:
    store = dist.HashStore()
    run_on_both(ledgers(store), REDUCED, 1)
    first, second = ledgers(store)
    sent = first.publish(SENT, 1)
    with pytest.raises(LookupError):
        first.find(1, sent)
    assert second.find(0, second.publish(SENT, 1)) is None
    assert first.find(1, sent) is None


class OfTwo:
    """A group that says that it has two ranks."""

    def size(self) -> int:
        return 2

    def rank(self) -> int:
        return 0


class Failing(dist.Store):
    """A store whose network is down."""

    def add(self, key: str, amount: int) -> int:
        raise dist.DistNetworkError("connection reset")


def use(monkeypatch: pytest.MonkeyPatch, group: OfTwo, store: dist.Store) -> None:
    """Let all names stand for a group with a store."""
    reference = weakref.ref(group)
    monkeypatch.setattr(agreement, "registered_group", lambda name: reference())
    monkeypatch.setattr(dist.distributed_c10d, "_get_process_group_store", lambda group: store)  # type: ignore[attr-defined]


def test_ledger_goes_with_its_group(monkeypatch: pytest.MonkeyPatch) -> None:
    group = OfTwo()
    use(monkeypatch, group, dist.HashStore())
    ledger = agreement.ledger_of("group")
    assert ledger is not None
    assert agreement.ledger_of("group") is ledger
    reference = weakref.ref(ledger)
    del group, ledger
    gc.collect()
    assert reference() is None


def test_error_of_the_network_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    group = OfTwo()
    use(monkeypatch, group, Failing())
    with pytest.raises(RuntimeError, match="connection reset"):
        agreement.ledger_of("group")


def test_store_without_methods_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    group = OfTwo()
    use(monkeypatch, group, dist.Store())
    assert agreement.ledger_of("group") is None
