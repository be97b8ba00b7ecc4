"""The ranks of parallel training: the first one decides, and the others do what it asks for."""
