"""Changes of classes and functions between calls: what prologues check by versions of types."""
