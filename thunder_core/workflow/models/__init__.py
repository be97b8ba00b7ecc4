"""Getting a Hugging Face model in: where it lies, whether it is sound, and example inputs for it."""
