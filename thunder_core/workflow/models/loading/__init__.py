"""Load models from a folder, a config or a class."""
