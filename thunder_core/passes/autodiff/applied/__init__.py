"""Functions of autograd as operations of a trace: copies of the objects that they get, and connected results."""
