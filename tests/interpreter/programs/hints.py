"""The message of an error with CPython's suggestions for a misspelled name."""

# The programs are odd on purpose.
# ruff: noqa: F401

import asyncio
import collections
import contextlib
import enum
import functools
import itertools
import operator
import sys
import traceback
import types
import warnings
from dataclasses import dataclass, field


def hinted(call):
    """The error of a call as the traceback module shows it, and its attributes for hints."""
    try:
        return call()
    except Exception as error:
        about = type(getattr(error, "obj", None)).__name__
        names = (getattr(error, "name", None), getattr(error, "name_from", None), getattr(error, "path", None))
        return about, names, traceback.format_exception_only(error)
