"""Whole numbers in the notation of the command line."""

from __future__ import annotations

MAX_DIGITS = 19  # the digits of a 64-bit number; `int` raises an error for a text of more than 4,300 digits


def is_whole_number(text: str) -> bool:
    """Whether a text is a number of ASCII digits, without a sign, and of at most `MAX_DIGITS` digits."""
    return text.isascii() and text.isdecimal() and len(text) <= MAX_DIGITS
