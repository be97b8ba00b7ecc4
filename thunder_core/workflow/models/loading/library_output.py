"""Loading without the transformers library's own progress bars, logs and warnings."""

from __future__ import annotations

import logging as standard_logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
from transformers.utils import logging


@contextmanager
def quiet_transformers() -> Iterator[list[warnings.WarningMessage]]:
    """Silence transformers and huggingface_hub, put their settings back after; yields the warnings that were raised."""
    with ExitStack() as stack:
        stack.callback(logging.set_verbosity, logging.get_verbosity())
        logging.set_verbosity(standard_logging.CRITICAL)
        if logging.is_progress_bar_enabled():
            stack.callback(logging.enable_progress_bar)
            logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        if not are_progress_bars_disabled():
            stack.callback(_without_complaint, enable_progress_bars)
            _without_complaint(disable_progress_bars)
        caught = stack.enter_context(warnings.catch_warnings(record=True))
        warnings.simplefilter("always")
        yield caught


def _without_complaint(switch: Callable[[], object]) -> None:
    """Call a switch of huggingface_hub, which warns where an environment variable has decided already."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        switch()


def told_to_users(caught: list[warnings.WarningMessage]) -> tuple[str, ...]:
    """The first line of each distinct warning that was meant for users, not for developers."""
    told = [str(w.message).strip() for w in caught if w.category is UserWarning]
    return tuple(dict.fromkeys(text.splitlines()[0] for text in told if text))
