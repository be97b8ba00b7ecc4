"""Recording torch operations, at the level of the user and at the level of aten, on tensors without data."""
