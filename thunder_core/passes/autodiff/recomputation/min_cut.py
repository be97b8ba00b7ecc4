"""Minimum cuts of networks, by SciPy's maximum flow."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow


def sink_side_of_min_cut(
    edges: Sequence[tuple[int, int, int]], size: int, source: int, sink: int, *, max_capacity: int
) -> set[int]:
    """Return the nodes on the sink side of a minimum cut. Of several minimum cuts, the nearest to the sink is taken.

    The nodes are the numbers from 0 to `size` - 1. An edge is (from, to, capacity). The capacities of parallel edges
    are added, up to `max_capacity`.
    """
    rows, columns, capacities = zip(*edges, strict=True)
    network = csr_array(coo_array((np.array(capacities, dtype=np.int32), (rows, columns)), shape=(size, size)))
    network.data = np.minimum(network.data, max_capacity)
    flow = maximum_flow(network, source, sink).flow
    residual = csr_array(csr_array(network - flow).T)
    residual.eliminate_zeros()
    return set(breadth_first_order(residual, sink, return_predecessors=False).tolist())
