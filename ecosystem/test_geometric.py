"""torch-geometric: layers of graph networks, pooling, batches and neighbours; training follows the CPU."""

from __future__ import annotations

import copy

import pytest
import torch

geometric = pytest.importorskip("torch_geometric")

LAYERS = {
    "GCNConv": {},
    "GATConv": {"heads": 2},
    "GATv2Conv": {"heads": 2},
    "SAGEConv": {},
    "GraphConv": {},
    "TransformerConv": {"heads": 2},
    "ChebConv": {"K": 2},
    "TAGConv": {},
    "ResGatedGraphConv": {},
    "SGConv": {},
}


def graph() -> geometric.data.Data:
    drawn = torch.Generator().manual_seed(0)
    return geometric.data.Data(
        x=torch.randn(12, 8, generator=drawn, dtype=torch.float64),
        edge_index=torch.randint(0, 12, (2, 40), generator=drawn),
        y=torch.randint(0, 3, (12,), generator=drawn),
    )


def trains_alike(network: torch.nn.Module, data) -> None:
    """The same results and the same parameters after a step, in double precision so that nothing cancels."""
    found = []
    for model, device in ((network, "cpu"), (copy.deepcopy(network).to("tiny"), "tiny")):
        given = copy.copy(data).to(device)
        out = model(given)
        assert out.device.type == device
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        torch.nn.functional.cross_entropy(out, given.y).backward()
        optimizer.step()
        found.append([out.detach(), *(p.detach() for p in model.parameters())])
    for want, got in zip(*found, strict=True):
        torch.testing.assert_close(got.cpu(), want, rtol=1e-6, atol=1e-8)


class Nodes(torch.nn.Module):
    def __init__(self, kind: str, options: dict):
        super().__init__()
        self.layer = getattr(geometric.nn, kind)(8, 6, **options)
        self.last = torch.nn.LazyLinear(3)

    def forward(self, data):
        return self.last(self.layer(data.x, data.edge_index).relu())


@pytest.mark.parametrize("kind", LAYERS)
def test_a_training_step_is_the_cpus(kind):
    torch.manual_seed(0)
    network = Nodes(kind, LAYERS[kind]).double()
    network(graph())  # the last layer learns its size
    trains_alike(network, graph())


class Graphs(torch.nn.Module):
    def __init__(self, pool: str):
        super().__init__()
        layers = [torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8)]
        self.layer = geometric.nn.GINConv(torch.nn.Sequential(*layers))
        self.pool = getattr(geometric.nn, pool)
        self.last = torch.nn.Linear(8, 3)

    def forward(self, data):
        return self.last(self.pool(self.layer(data.x, data.edge_index), data.batch))


@pytest.mark.parametrize("pool", ["global_mean_pool", "global_add_pool", "global_max_pool"])
def test_batches_of_graphs(pool):
    torch.manual_seed(0)
    graphs = [graph() for _ in range(3)]
    for i, one in enumerate(graphs):
        one.x, one.y = one.x + i, torch.tensor([i])
    trains_alike(Graphs(pool).double(), geometric.data.Batch.from_data_list(graphs))


def test_functions_of_edges():
    found = []
    for device in ("cpu", "tiny"):
        data = graph().to(device)
        edges = geometric.utils.remove_self_loops(geometric.utils.to_undirected(data.edge_index))[0]
        found.append(
            [
                edges,
                geometric.utils.degree(edges[0], 12),
                geometric.utils.coalesce(torch.cat([edges, edges], 1)),
                geometric.utils.to_dense_adj(edges),
                geometric.utils.softmax(data.x[edges[0], 0], edges[1], num_nodes=12),
                geometric.utils.subgraph(torch.arange(6, device=device), edges)[0],
                geometric.utils.k_hop_subgraph(2, 2, edges)[0],
                geometric.utils.scatter(data.x[edges[0]], edges[1], dim_size=12, reduce="mean"),
            ]
        )
    for want, got in zip(*found, strict=True):
        assert got.device.type == "tiny"
        torch.testing.assert_close(got.cpu(), want)
