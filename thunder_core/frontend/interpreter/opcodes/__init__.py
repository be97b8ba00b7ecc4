"""The handlers of all opcodes, one file a family; the folder is imported whole."""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
