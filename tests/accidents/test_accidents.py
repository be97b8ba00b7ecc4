"""Accidents of users and operators: each ends in the status that the errors page documents, with one message."""

from __future__ import annotations

import itertools

import pytest

from tests.accidents.accident import Accident, World, assert_documented
from tests.accidents.arguments import ARGUMENTS
from tests.accidents.artifacts import ARTIFACTS
from tests.accidents.data import DATA
from tests.accidents.models import MODELS
from tests.accidents.own_parts import OWN_PARTS
from tests.cli.conftest import Thunder

TABLE: tuple[Accident, ...] = (*OWN_PARTS, *ARGUMENTS, *DATA, *MODELS, *ARTIFACTS)


@pytest.mark.parametrize("accident", TABLE, ids=[accident.name for accident in TABLE])
def test_accident_ends_in_its_documented_status(accident: Accident, world: World, thunder: Thunder):
    more = accident.arrange(world) or {}
    before = {path.name for path in world.here.iterdir()}
    done = thunder(*accident.arguments(world, more))
    assert_documented(accident, done, sorted({path.name for path in world.here.iterdir()} - before))


def test_accidents_have_distinct_names_and_arrangements():
    names = [accident.name for accident in TABLE]
    assert len(set(names)) == len(names)
    for first, second in itertools.combinations(TABLE, 2):
        assert (first.command, first.arrange) != (second.command, second.arrange), (first.name, second.name)
