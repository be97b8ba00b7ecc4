"""The base classes with which packages extend Thunder: transforms, lookasides, traits and requirements."""
