"""Shows the examples of docstrings as code in the API reference: an extension of griffe, which reads docstrings."""

from __future__ import annotations

import re
from typing import Any

import griffe

# The lines of an example: a prompt, and the following lines up to an empty line.
EXAMPLE = re.compile(r"^>>> .*(?:\n(?!\s*$).*)*", re.MULTILINE)


class Doctests(griffe.Extension):
    """Puts each example of a docstring into a block of code."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of an object."""
        if obj.docstring is not None:
            obj.docstring.value = EXAMPLE.sub(lambda match: f"```pycon\n{match[0]}\n```", obj.docstring.value)
