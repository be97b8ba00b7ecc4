"""The modules that may be imported for an artifact, and the keys of an artifact's signatures."""
