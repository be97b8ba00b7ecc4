"""A sample of the random programs over sizes and numbers; `make fuzz` runs more."""

from __future__ import annotations

import random
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.symbolic.random_programs import case, differences, reduce_case
from thunder_core.foundation.errors import SymbolicAttemptWarning
from thunder_core.tracing.capture.symbolic.sizes import SymbolicSizes


@settings(max_examples=max(16, settings.default.max_examples // 8), database=None)
@given(seed=st.integers(0, 2**32))
def test_random_programs_equal_eager_at_all_sizes(seed: int) -> None:
    tried = case(random.Random(seed))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", SymbolicAttemptWarning)
        message, _ = differences(tried)
        assert not message, (message, reduce_case(tried))


def test_program_without_its_constraints_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SymbolicSizes, "guards", lambda self: iter(()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert any(differences(case(random.Random(seed)))[0] for seed in range(40))
