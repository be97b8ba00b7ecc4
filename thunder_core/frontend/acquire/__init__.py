"""From a Python call to three traces: prologue (guards, unpacking), computation, epilogue (side effects)."""
