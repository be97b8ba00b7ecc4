"""Looking at traces: which there are, what each step changed, and any of them as text, from a process or from disk.

Only `live` and `plain` need PyTorch; the rest reads listings, so that an artifact can be inspected without it.
"""
