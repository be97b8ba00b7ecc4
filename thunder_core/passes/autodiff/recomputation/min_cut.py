"""Minimum cuts of networks, by SciPy's maximum flow."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow


def sink_side_of_min_cut(
    edges: Sequence[tuple[int, int, int]], size: int, source: int, sink: int, *, most: int
) -> set[int]:
    """Return the nodes on the sink side of the minimum cut nearest to the sink, of the nodes 0 to `size` - 1.

    Edges are (from, to, capacity); the capacities of parallel edges add up, to at most `most`.
    """
    rows, columns, capacities = zip(*edges, strict=True)
    network = csr_array(coo_array((np.array(capacities, dtype=np.int32), (rows, columns)), shape=(size, size)))
    network.data = np.minimum(network.data, most)
    flow = maximum_flow(network, source, sink).flow
    residual = csr_array(csr_array(network - flow).T)
    residual.eliminate_zeros()
    return set(breadth_first_order(residual, sink, return_predecessors=False).tolist())
