"""Errors, options, files on disk and plug-ins. No module here needs PyTorch."""
