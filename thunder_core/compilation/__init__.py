"""`jit`, graphs of TorchDynamo, function transforms, and the memory of a program."""
