"""From a model to a validated artifact: loading, validation, benchmark, report, and the commands' work."""
