"""Adapters of PEFT: find the base model, and apply the adapter to it."""
