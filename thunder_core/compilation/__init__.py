"""From a function to a compiled one: `jit`, TorchDynamo's graphs, function transforms, memory of a program."""
