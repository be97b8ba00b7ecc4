"""Libraries print nothing over the output of a command, and slow steps are announced before they start."""

from __future__ import annotations

import logging

import huggingface_hub
import pytest
from huggingface_hub import constants

from thunder_cli.library_output import LOGGING_LIBRARIES, quiet_libraries


@pytest.mark.parametrize("name", LOGGING_LIBRARIES)
def test_a_library_that_is_imported_within_stays_quiet(name, caplog):
    logger, child = logging.getLogger(name), logging.getLogger(f"{name}.somewhere.within")
    before = logger.level
    with quiet_libraries(debug=False):
        logger.setLevel(logging.DEBUG)  # like the library does when it is imported
        child.warning("retrying")
        assert not child.isEnabledFor(logging.ERROR)
    assert caplog.records == []
    assert logger.level == before
    logger.setLevel(logging.INFO)
    assert logger.level == logging.INFO
    logger.setLevel(before)


def test_a_nested_hush_is_undone_in_order():
    logger = logging.getLogger(LOGGING_LIBRARIES[0])
    before = logger.level
    with quiet_libraries(debug=False), quiet_libraries(debug=False):
        pass
    assert logger.level == before


@pytest.mark.parametrize("command", ["optimize", "bench", "inspect-trace"])
def test_lookup_on_the_hub_is_announced_before_it_happens(thunder, monkeypatch, command):
    def download(*_, **__):
        raise huggingface_hub.errors.LocalEntryNotFoundError("no network")

    monkeypatch.setattr(constants, "is_offline_mode", lambda: False)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    done = thunder(command, "acme/nothing")
    assert done.status == 2
    assert "looking up acme/nothing on the Hugging Face Hub" in done.err.partition("error TH0204")[0]
    monkeypatch.setattr(constants, "is_offline_mode", lambda: True)
    assert "asking" not in thunder(command, "acme/nothing").err
