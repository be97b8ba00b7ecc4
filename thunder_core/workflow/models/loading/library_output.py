"""Suppress the progress bars, logs and warnings of the transformers library."""

from __future__ import annotations

import logging as standard_logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
from transformers.utils import logging


@contextmanager
def quiet_transformers() -> Iterator[list[warnings.WarningMessage]]:
    """Silence transformers and huggingface_hub during the block; yield the list of warnings in the block."""
    with ExitStack() as stack:
        stack.callback(logging.set_verbosity, logging.get_verbosity())
        logging.set_verbosity(standard_logging.CRITICAL)
        if logging.is_progress_bar_enabled():
            stack.callback(logging.enable_progress_bar)
            logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        if not are_progress_bars_disabled():
            stack.callback(_without_warnings, enable_progress_bars)
            _without_warnings(disable_progress_bars)
        caught = stack.enter_context(warnings.catch_warnings(record=True))
        warnings.simplefilter("always")
        yield caught


def _without_warnings(switch: Callable[[], object]) -> None:
    """Switch the progress bars of huggingface_hub by calling `switch`, without the library's warning about it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        switch()


def messages_for_users(caught: list[warnings.WarningMessage]) -> tuple[str, ...]:
    """Return the first line of each distinct warning for users, without warnings for developers."""
    messages = [str(warning.message).strip() for warning in caught if warning.category is UserWarning]
    return tuple(dict.fromkeys(text.splitlines()[0] for text in messages if text))
