"""What everything stands on: errors, options, files on disk, plug-ins; none of it needs PyTorch."""
