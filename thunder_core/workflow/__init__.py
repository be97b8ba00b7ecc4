"""From a model to a validated artifact: models, validation, benchmarks, reports, and the work of the commands."""
