"""Layouts in memory: what is recorded of tensors is what runs, and gradients are eager's whatever the strides are."""
