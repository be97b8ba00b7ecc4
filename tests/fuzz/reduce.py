"""Cuts a program that differs down to the lines that make it differ."""

from tests.fuzz.oracle import difference


def reduced(text: str) -> str:
    """The shortest program found by leaving out ever smaller runs of lines that still differs."""
    lines = text.splitlines()
    size = len(lines) // 2
    while size:
        start = 0
        while start < len(lines):
            shorter = lines[:start] + lines[start + size :]
            if _differs("\n".join(shorter)):
                lines = shorter
            else:
                start += 1
        size //= 2
    return "\n".join(lines) + "\n"


def _differs(text: str) -> bool:
    """Whether a text is a program that does otherwise inside."""
    try:
        return difference(text) is not None
    except SyntaxError:
        return False
