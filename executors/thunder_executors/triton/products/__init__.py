"""Linear layers on CUDA: kernels, the division of sums among thread blocks, and the choice by measurement."""
