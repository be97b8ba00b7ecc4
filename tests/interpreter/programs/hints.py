"""The message of an error with CPython's suggestions for a misspelled name."""

import traceback


def hinted(call):
    """The error of a call as the traceback module shows it, and its attributes for hints."""
    try:
        return call()
    except Exception as error:
        about = type(getattr(error, "obj", None)).__name__
        names = (getattr(error, "name", None), getattr(error, "name_from", None), getattr(error, "path", None))
        return about, names, traceback.format_exception_only(error)
