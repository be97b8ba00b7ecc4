"""Ledgers of two ranks in one process: they distinguish programs that differ from programs that a rank traces again."""

from __future__ import annotations

import gc
import time
import weakref
from contextlib import nullcontext
from threading import Thread

import pytest
import torch.distributed as dist

from thunder_core.backend.parallel.compiling import compiling
from thunder_core.backend.parallel.creations import count_creation
from thunder_core.backend.parallel.ledger import Ledger, RunKey
from thunder_core.backend.runtime import agreement
from thunder_core.backend.runtime.agreement import RunInGroup, compare_with_rank
from thunder_core.foundation.errors import CollectivesDiffer
from thunder_core.tracing.analysis.collectives import Collective

REDUCED, SENT = ("all_reduce",), ("broadcast",)


class Counting:
    """A group that counts collectives."""

    def __init__(self, number: int) -> None:
        self.number = number

    def _get_sequence_number_for_group(self) -> int:
        return self.number


def ledgers(store: dist.Store | None = None, number: int = 1) -> tuple[Ledger, Ledger]:
    """The ledgers of both ranks of a group, which was created a number of times."""
    store = dist.HashStore() if store is None else store
    first, second = (Ledger("group", rank, 2, store, number) for rank in range(2))
    return first, second


def test_same_programs_at_the_same_position_agree() -> None:
    first, second = ledgers()
    runs = first.begin(0, REDUCED), second.begin(0, REDUCED)
    assert first.difference(1, runs[0]) is second.difference(0, runs[1]) is None


def test_different_programs_at_the_same_position_differ_on_both_ranks() -> None:
    first, second = ledgers()
    runs = first.begin(3, REDUCED), second.begin(3, SENT)
    assert (first.difference(1, runs[0]), second.difference(0, runs[1])) == (SENT, REDUCED)


def test_program_that_was_compared_before_answers_a_question() -> None:
    """The first rank traces again while the second rank runs its compiled program."""
    first, second = ledgers()
    second.begin(0, REDUCED)
    second.note(1, REDUCED)
    second.note(2, SENT)
    run = first.begin(2, REDUCED)
    with pytest.raises(LookupError):
        first.difference(1, run)
    first.ask(1)
    second.answer(Counting(2))
    assert first.difference(1, run) == SENT
    again = first.begin(3, REDUCED)
    second.note(3, REDUCED)
    second.answer(Counting(3))
    with pytest.raises(LookupError):  # nobody has asked again
        first.difference(1, again)
    first.ask(1)
    second.answer(Counting(3))
    assert first.difference(1, again) is None


def test_rank_that_passed_the_position_without_a_program_agrees() -> None:
    """The second rank has called the collectives in eager PyTorch."""
    first, second = ledgers()
    run = first.begin(4, REDUCED)
    first.ask(1)
    second.answer(Counting(4))
    with pytest.raises(LookupError):  # it may still run a program at this position
        first.difference(1, run)
    first.ask(1)
    second.answer(Counting(5))
    assert first.difference(1, run) is None


def test_rank_that_runs_ahead_is_no_difference() -> None:
    """A rank that only sends continues before the other rank receives, which traces the program again."""
    first, second = ledgers()
    second.begin(0, SENT)
    second.begin(1, REDUCED)
    assert first.difference(1, first.begin(0, SENT)) is None
    assert first.difference(1, first.begin(1, REDUCED)) is None


def test_run_that_failed_before_its_collectives_is_no_difference() -> None:
    """Both ranks call other programs at the position at which a comparison failed."""
    first, second = ledgers()
    for ledger, lines in ((first, REDUCED), (second, SENT)):
        ledger.begin(1, lines)
    run = first.begin(1, REDUCED + SENT)
    assert run.key == RunKey(1, 1)
    with pytest.raises(LookupError):
        first.difference(1, run)
    assert second.difference(0, second.begin(1, REDUCED + SENT)) is None
    assert first.difference(1, run) is None


class FailingStore(dist.HashStore):
    """A store that fails as often as `failures` says."""

    failures = 0

    def set(self, key: str, value: str) -> None:
        if self.failures:
            self.failures -= 1
            raise RuntimeError("the connection is lost")
        super().set(key, value)


@pytest.mark.parametrize("is_first_run", [True, False], ids=["begin", "answer"])
def test_run_that_the_store_refused_is_published_with_the_next_answer(is_first_run: bool) -> None:
    first, second = ledgers()
    second.store = store = FailingStore()
    first.store = store
    run = first.begin(0, REDUCED)
    store.failures = 1
    if is_first_run:
        with pytest.raises(RuntimeError, match="connection"):
            second.begin(0, SENT)
    else:
        second.note(0, SENT)
        store.failures = 0
        first.ask(1)
        store.failures = 1
        with pytest.raises(RuntimeError, match="connection"):
            second.answer(Counting(0))
    first.ask(1)
    second.answer(Counting(0))
    assert first.difference(1, run) == SENT


def test_reported_error_is_raised_by_a_rank_that_waits() -> None:
    store = dist.HashStore()
    first = Ledger("group", 0, 3, store)
    run = first.begin(1, REDUCED)
    Ledger("group", 2, 3, store).report(run, "collective 1 differs")
    with pytest.raises(CollectivesDiffer, match="collective 1 differs"):
        compare_with_rank(RunInGroup(first, run, [Collective("all_reduce", "group", (), 0)]), 1)


def test_rank_that_has_not_arrived_gives_no_answer() -> None:
    first, _ = ledgers()
    with pytest.raises(LookupError):
        first.difference(1, first.begin(0, REDUCED))


def test_group_made_again_does_not_read_what_was_published_before() -> None:
    store = dist.HashStore()
    for ledger in ledgers(store):
        ledger.begin(0, REDUCED)
    first, second = ledgers(store, 2)
    run = first.begin(0, SENT)
    with pytest.raises(LookupError):
        first.difference(1, run)
    assert second.difference(0, second.begin(0, SENT)) is None
    assert first.difference(1, run) is None


def test_creations_are_counted_by_size() -> None:
    """A rank that was not in a smaller group with this name has the count of the other ranks."""
    store = dist.HashStore()
    assert [count_creation(store, rank, 2) for rank in (0, 1, 0, 1)] == [1, 1, 2, 2]
    assert [count_creation(store, rank, 3) for rank in range(3)] == [1, 1, 1]


class OfTwo(Counting):
    """A group that says that it has two ranks."""

    def __init__(self) -> None:
        super().__init__(0)

    def size(self) -> int:
        return 2

    def rank(self) -> int:
        return 0

    @property
    def group_name(self) -> str:
        return "group"


class Failing(dist.Store):
    """A store whose network is down."""

    def add(self, key: str, amount: int) -> int:
        raise dist.DistNetworkError("connection reset")


def use(monkeypatch: pytest.MonkeyPatch, store: dist.Store) -> None:
    """Let all groups have a store."""
    monkeypatch.setattr(dist.distributed_c10d, "_get_process_group_store", lambda group: store)  # type: ignore[attr-defined]


def test_ledger_goes_with_its_group(monkeypatch: pytest.MonkeyPatch) -> None:
    group = OfTwo()
    use(monkeypatch, dist.HashStore())
    ledger = agreement.ledger_of(group)
    assert ledger is not None
    assert agreement.ledger_of(group) is ledger
    reference = weakref.ref(ledger)
    del group, ledger
    gc.collect()
    assert reference() is None


def test_error_of_the_network_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    group = OfTwo()
    use(monkeypatch, Failing())
    with pytest.raises(RuntimeError, match="connection reset"):
        agreement.ledger_of(group)


def test_store_without_methods_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    group = OfTwo()
    use(monkeypatch, dist.Store())
    assert agreement.ledger_of(group) is None


@pytest.mark.parametrize(
    ("own", "other", "same"),
    [
        ("all_reduce sum float64 ? bytes", "all_reduce sum float64 40 bytes", True),
        ("all_reduce sum float64 32 bytes", "all_reduce sum float64 ? bytes", True),
        ("all_reduce sum float64 32 bytes", "all_reduce sum float64 40 bytes", False),
        ("all_reduce sum float64 ? bytes", "all_reduce max float64 40 bytes", False),
        ("all_reduce_coalesced ? bytes", "all_reduce_coalesced ? bytes 8 bytes", False),
    ],
)
def test_sizes_that_vary_are_not_compared(own: str, other: str, same: bool) -> None:
    first, second = ledgers()
    runs = first.begin(0, (own,)), second.begin(0, (other,))
    assert first.difference(1, runs[0]) == (None if same else (other,))
    assert second.difference(0, runs[1]) == (None if same else (own,))


def test_run_is_published_after_a_write_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = ledgers()
    second.note(0, REDUCED)
    run = first.begin(0, REDUCED)
    first.ask(1)
    store = second.store
    monkeypatch.setattr(second, "store", Unwritable(store))
    with pytest.raises(dist.DistNetworkError):
        second.answer(Counting(0))
    monkeypatch.setattr(second, "store", store)
    second.answer(Counting(0))
    assert first.difference(1, run) is None


class Unwritable:
    """A store that can be read, but fails to write."""

    def __init__(self, store: dist.Store) -> None:
        self.check, self.get = store.check, store.get

    def set(self, key: str, value: str) -> None:
        raise dist.DistNetworkError("connection reset")


def test_group_whose_store_fails_leaves_other_groups_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = ledgers()
    _, broken = ledgers()
    first.ask(1)
    broken.store = Failing()
    groups = Counting(1), Counting(3)
    known = weakref.WeakKeyDictionary(zip(groups, (broken, second), strict=True))
    monkeypatch.setattr(agreement, "_ledgers", known)
    agreement.answer_all()
    assert first.position_of(1) == 3


def test_kept_program_is_noted_in_a_group_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    group = OfTwo()
    use(monkeypatch, dist.HashStore())
    monkeypatch.setattr(agreement, "registered_group", lambda name: group)
    agreement.note_run({"group": agreement.GroupCollectives([], REDUCED)})
    ledger = agreement.ledger_of(group)
    assert ledger is not None
    assert list(ledger.unpublished) == [(0, 0, REDUCED)]


def test_all_ranks_are_queried_before_waiting_for_any(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreement, "WAIT_SECONDS", 0.3)
    store = dist.HashStore()
    ledger = Ledger("group", 0, 4, store)
    agreement.compare([RunInGroup(ledger, ledger.begin(0, REDUCED), [])])
    assert ledger.store.check([f"{rank}/asked" for rank in (1, 2, 3)])


@pytest.mark.parametrize("waits", ["[]", "[1]"])
def test_rank_that_compiles_is_waited_for(waits: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that waits in a collective while it compiles may wait for this rank."""
    for name, seconds in (("WAIT_SECONDS", 0.3), ("QUESTION_PAUSE", 0.05), ("LONGEST_PAUSE", 0.01)):
        monkeypatch.setattr(agreement, name, seconds)
    first, second = ledgers()

    def compile_slowly() -> None:
        with compiling():
            for _ in range(70):
                second.answer(Counting(0), lambda: waits)
                time.sleep(0.01)
        second.begin(0, SENT)

    thread = Thread(target=compile_slowly)
    thread.start()
    run = RunInGroup(first, first.begin(0, REDUCED), [Collective("all_reduce", "group", (), 0)])
    with pytest.raises(CollectivesDiffer, match="`broadcast`") if waits == "[]" else nullcontext():
        agreement.compare([run])
    thread.join()
