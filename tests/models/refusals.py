"""Damaged folders, and the error that loading them raises, for the tests of loading."""

from __future__ import annotations

import json

import pytest

from thunder_core.workflow.models.loading import load
from thunder_core.workflow.models.loading.load import load_model
from thunder_core.workflow.models.request.request import ModelRequest

INDEX = "model.safetensors.index.json"


def heavy(*_args, **_kwargs):
    """Stand where weights are read or a model is built."""
    pytest.fail("something heavy was done before the checks")


def refusal(model, kind, *, early=True, **options):
    """The error of loading: exactly of that class, in one line, with a fix, and before the heavy work."""
    with pytest.raises(kind) as raised, pytest.MonkeyPatch.context() as patch:
        if early:
            patch.setattr(load, "read_model", heavy)
            patch.setattr(load, "build_random", heavy)
        load_model(ModelRequest(model=str(model), **options))
    assert type(raised.value) is kind
    assert raised.value.fix
    assert "\n" not in raised.value.what
    return raised.value


def edit_config(folder, **changes):
    """Set entries of a folder's config; None takes one out."""
    path = folder / "config.json"
    content = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))
