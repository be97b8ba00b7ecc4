"""From traces to callables: generated code, specializations and their cache, and compiled modules."""
