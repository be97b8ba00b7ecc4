"""Graph layers and small graph networks of torch_geometric, on random graphs of several sizes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import Linear, ReLU, Sequential

from tests.zoo.shelves import Subject

WIDTH, EDGE_WIDTH, RELATIONS, PLACE = 8, 4, 3, 3
NODES = (12, 9, 16)
EDGES_OF_A_NODE = 4
VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def layers(first: int, last: int = WIDTH) -> Sequential:
    """Return a network of two linear layers, which graph layers take as an argument."""
    return Sequential(Linear(first, WIDTH), ReLU(), Linear(WIDTH, last))


BOTH = (WIDTH, WIDTH)  # the widths of a layer's input and output
DEGREES = torch.tensor([0, 1, 3, 5, 4, 2])
# Each layer with the names of optional arguments that it is called with.
LAYERS: Mapping[str, tuple[Callable[[Any], torch.nn.Module], str]] = {
    "GCNConv": (lambda nn: nn.GCNConv(*BOTH), "edge_weight"),
    "GCNConv cached": (lambda nn: nn.GCNConv(*BOTH, cached=True), ""),
    "ChebConv": (lambda nn: nn.ChebConv(*BOTH, K=3), ""),
    "SAGEConv": (lambda nn: nn.SAGEConv(*BOTH), ""),
    "SAGEConv max": (lambda nn: nn.SAGEConv(*BOTH, aggr="max"), ""),
    "SAGEConv lstm": (lambda nn: nn.SAGEConv(*BOTH, aggr="lstm"), "sorted"),
    "GraphConv": (lambda nn: nn.GraphConv(*BOTH), "edge_weight"),
    "GatedGraphConv": (lambda nn: nn.GatedGraphConv(WIDTH, num_layers=2), ""),
    "ResGatedGraphConv": (lambda nn: nn.ResGatedGraphConv(*BOTH), ""),
    "GATConv": (lambda nn: nn.GATConv(*BOTH, heads=2), ""),
    "GATConv edges": (lambda nn: nn.GATConv(*BOTH, edge_dim=EDGE_WIDTH), "edge_attr"),
    "GATv2Conv": (lambda nn: nn.GATv2Conv(*BOTH, heads=2, edge_dim=EDGE_WIDTH), "edge_attr"),
    "TransformerConv": (lambda nn: nn.TransformerConv(*BOTH, heads=2, edge_dim=EDGE_WIDTH), "edge_attr"),
    "AGNNConv": (lambda nn: nn.AGNNConv(), ""),
    "TAGConv": (lambda nn: nn.TAGConv(*BOTH), ""),
    "GINConv": (lambda nn: nn.GINConv(layers(WIDTH), train_eps=True), ""),
    "GINEConv": (lambda nn: nn.GINEConv(layers(WIDTH), edge_dim=EDGE_WIDTH), "edge_attr"),
    "ARMAConv": (lambda nn: nn.ARMAConv(*BOTH, num_stacks=2, num_layers=2), ""),
    "SGConv": (lambda nn: nn.SGConv(*BOTH, K=2), ""),
    "SSGConv": (lambda nn: nn.SSGConv(*BOTH, alpha=0.1, K=2), ""),
    "APPNP": (lambda nn: nn.APPNP(K=3, alpha=0.1), ""),
    "MFConv": (lambda nn: nn.MFConv(*BOTH, max_degree=4), ""),
    "RGCNConv": (lambda nn: nn.RGCNConv(*BOTH, RELATIONS), "edge_type"),
    "RGCNConv bases": (lambda nn: nn.RGCNConv(*BOTH, RELATIONS, num_bases=2), "edge_type"),
    "FastRGCNConv": (lambda nn: nn.FastRGCNConv(*BOTH, RELATIONS), "edge_type"),
    "RGATConv": (lambda nn: nn.RGATConv(*BOTH, RELATIONS), "edge_type"),
    "DNAConv": (lambda nn: nn.DNAConv(WIDTH), "history"),
    "PointNetConv": (lambda nn: nn.PointNetConv(layers(WIDTH + PLACE)), "x"),
    "GMMConv": (lambda nn: nn.GMMConv(*BOTH, dim=EDGE_WIDTH, kernel_size=2), "edge_attr"),
    "NNConv": (lambda nn: nn.NNConv(*BOTH, layers(EDGE_WIDTH, WIDTH * WIDTH)), "edge_attr"),
    "CGConv": (lambda nn: nn.CGConv(WIDTH, dim=EDGE_WIDTH, batch_norm=True), "edge_attr"),
    "EdgeConv": (lambda nn: nn.EdgeConv(layers(2 * WIDTH)), ""),
    "PPFConv": (lambda nn: nn.PPFConv(layers(WIDTH + 4)), "x normal"),
    "FeaStConv": (lambda nn: nn.FeaStConv(*BOTH, heads=2), ""),
    "PointTransformerConv": (lambda nn: nn.PointTransformerConv(*BOTH), ""),
    "HypergraphConv": (lambda nn: nn.HypergraphConv(*BOTH), "hyperedge_index"),
    "LEConv": (lambda nn: nn.LEConv(*BOTH), ""),
    "PNAConv": (
        lambda nn: nn.PNAConv(*BOTH, ["mean", "max", "std"], ["identity", "amplification"], deg=DEGREES),
        "",
    ),
    "ClusterGCNConv": (lambda nn: nn.ClusterGCNConv(*BOTH), ""),
    "GENConv": (lambda nn: nn.GENConv(*BOTH, learn_t=True), ""),
    "GENConv powermean": (lambda nn: nn.GENConv(*BOTH, aggr="powermean", learn_p=True), ""),
    "GCN2Conv": (lambda nn: nn.GCN2Conv(WIDTH, alpha=0.1), "x_0"),
    "WLConvContinuous": (lambda nn: nn.WLConvContinuous(), ""),
    "FiLMConv": (lambda nn: nn.FiLMConv(*BOTH, num_relations=RELATIONS), "edge_type"),
    "SuperGATConv": (lambda nn: nn.SuperGATConv(*BOTH, heads=2), ""),
    "FAConv": (lambda nn: nn.FAConv(WIDTH), "x_0"),
    "EGConv": (lambda nn: nn.EGConv(*BOTH, num_heads=2), ""),
    "PDNConv": (lambda nn: nn.PDNConv(*BOTH, edge_dim=EDGE_WIDTH, hidden_channels=WIDTH), "edge_attr"),
    "GeneralConv": (lambda nn: nn.GeneralConv(*BOTH, attention=True, heads=2), ""),
    "LGConv": (lambda nn: nn.LGConv(), ""),
    "PointGNNConv": (
        lambda nn: nn.PointGNNConv(layers(WIDTH, PLACE), layers(WIDTH + PLACE), layers(WIDTH)),
        "",
    ),
    "GPSConv": (lambda nn: nn.GPSConv(WIDTH, nn.GCNConv(*BOTH), heads=2), ""),
    "AntiSymmetricConv": (lambda nn: nn.AntiSymmetricConv(WIDTH), ""),
    "DirGNNConv": (lambda nn: nn.DirGNNConv(nn.SAGEConv(*BOTH)), ""),
    "MixHopConv": (lambda nn: nn.MixHopConv(*BOTH), ""),
    "GraphNorm": (lambda nn: nn.GraphNorm(WIDTH), "batch"),
    "SAGPooling": (lambda nn: nn.SAGPooling(WIDTH, ratio=0.5), "batch"),
    "TopKPooling": (lambda nn: nn.TopKPooling(WIDTH, ratio=0.5), "batch"),
    "JumpingKnowledge network": (lambda nn: nn.GCN(WIDTH, WIDTH, 3, jk="lstm"), ""),
    "GCN": (lambda nn: nn.GCN(WIDTH, WIDTH, 2, norm="batch"), ""),
    "GraphSAGE": (lambda nn: nn.GraphSAGE(WIDTH, WIDTH, 2), ""),
    "GIN": (lambda nn: nn.GIN(WIDTH, WIDTH, 2), ""),
    "GAT": (lambda nn: nn.GAT(WIDTH, WIDTH, 2, v2=True, heads=2), ""),
    "PNA": (
        lambda nn: nn.PNA(WIDTH, WIDTH, 2, aggregators=["mean", "min"], scalers=["attenuation"], deg=DEGREES),
        "",
    ),
    "EdgeCNN": (lambda nn: nn.EdgeCNN(WIDTH, WIDTH, 2), ""),
}


def types() -> list[str]:
    """The names of the layers and networks."""
    return list(LAYERS)


def subject(name: str) -> Subject:
    """Return the layer with random weights, and its inputs, which are random graphs."""
    from torch_geometric import nn

    torch.manual_seed(0)
    build, optional = LAYERS[name]
    model = build(nn)
    parameters = inspect.signature(model.forward).parameters
    names = [
        key for key, parameter in parameters.items() if parameter.default is parameter.empty or key in optional.split()
    ]
    names = [key for key in names if parameters[key].kind not in VARIADIC]
    is_sorted = "sorted" in optional

    def inputs(nodes: int) -> dict[str, Any]:
        graph = random_graph(nodes, is_sorted=is_sorted)
        graph["x"] = graph["history"] if "history" in optional else graph["x"]
        return {key: graph[key] for key in names}

    return Subject(model, inputs, NODES[:1] if "cached" in name else NODES)


def random_graph(nodes: int, *, is_sorted: bool) -> dict[str, torch.Tensor]:
    """Return a random graph: the tensors that layers take, by the names of their arguments."""
    generator = torch.Generator().manual_seed(nodes)
    edges = nodes * EDGES_OF_A_NODE

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    def numbers(below: int, *shape: int) -> torch.Tensor:
        return torch.randint(below, shape, generator=generator)

    index = numbers(nodes, 2, edges)
    index = index[:, index[1].argsort(stable=True)] if is_sorted else index
    return {
        "x": normal(nodes, WIDTH),
        "x_0": normal(nodes, WIDTH),
        "history": normal(nodes, 2, WIDTH),
        "edge_index": index,
        "hyperedge_index": torch.stack([index[0], index[1] % 5]),
        "edge_weight": normal(edges).abs(),
        "edge_attr": normal(edges, EDGE_WIDTH),
        "edge_type": numbers(RELATIONS, edges),
        "pos": normal(nodes, PLACE),
        "normal": torch.nn.functional.normalize(normal(nodes, PLACE), dim=-1),
        "batch": (torch.arange(nodes) >= nodes // 2).long(),
    }
