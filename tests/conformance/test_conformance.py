"""A fast part of the conformance suite; `python -m tests.conformance` runs the whole suite."""

import pytest

from tests.conformance.known import known_failures
from tests.conformance.modules import FAST, MODULES
from tests.conformance.runner import compare


@pytest.mark.parametrize("module", FAST)
def test_module_of_the_standard_library_passes_as_natively(module):
    result = compare(module)
    assert result.native
    assert result.failures.keys() == {name for name in known_failures() if f".{module}." in name}


@pytest.mark.parametrize("version", [(3, 11), (3, 12), (3, 13)], ids=str)
def test_every_known_failure_has_a_reason(version):
    known = known_failures(version)
    assert all(reason for reason in known.values())
    assert {name.split(".")[1] for name in known} <= set(MODULES)
    assert len(known) <= 17, "the list can only shrink"
