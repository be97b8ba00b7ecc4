"""The page of exit statuses and error codes matches `thunder_core/foundation/errors/`."""

from __future__ import annotations

from docs.errors import PAGE, branches, render
from thunder_core.foundation.errors import ThunderError, all_errors

STATUSES = {1, 2, 3, 4, 5, 6, 7, 8, 70, 130}


def test_the_page_is_fresh() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(), "run `make docs`"


def test_the_page_has_every_status_and_every_code() -> None:
    page = render()
    assert {branch.status for branch in branches()} == STATUSES
    assert all(f"| {status} |" in page for status in STATUSES)
    assert all(f"### {leaf.code} {leaf.__name__}\n" in page for leaf in all_errors())


def test_a_code_belongs_to_its_status_and_to_one_error() -> None:
    leaves = list(all_errors())
    assert len({leaf.code for leaf in leaves}) == len(leaves) > 20
    # The first two digits are the status; 130, which has three, is written as 13.
    assert all(leaf.code[2:4] == f"{leaf.status:02}"[:2] for leaf in leaves)


def test_every_leaf_explains_itself() -> None:
    assert all(len((leaf.__doc__ or "").strip()) > 30 and leaf.__doc__ != ThunderError.__doc__ for leaf in all_errors())
