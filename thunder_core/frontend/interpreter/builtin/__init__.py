"""Functions in place of those of C that look at their caller's frame or call Python back; imported whole."""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
