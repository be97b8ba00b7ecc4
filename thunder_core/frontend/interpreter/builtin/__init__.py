"""Replacements for C functions that use their caller's frame or call Python back. All modules are imported."""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
