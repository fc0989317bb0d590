"""PyTorch Geometric: a graph convolution network and one with attention, on a random graph."""

from __future__ import annotations

from typing import Any

import torch
from scale import SCALE
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GCNConv


class Network(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = GCNConv(128, 256), GATConv(256, 64, heads=4), GCNConv(256, 7)

    def forward(self, data: Data) -> torch.Tensor:
        x = self.first(data.x, data.edge_index).relu()
        x = torch.nn.functional.dropout(x, 0.5, self.training)
        return self.last(self.second(x, data.edge_index).relu(), data.edge_index)


def run(rank: int) -> Any:
    torch.manual_seed(0)
    nodes = 4000 * SCALE
    data = Data(torch.randn(nodes, 128), torch.randint(nodes, (2, 8 * nodes)), y=torch.randint(7, (nodes,)))
    model = Network()
    optimizer = torch.optim.Adam(model.parameters(), 0.01, weight_decay=5e-4)
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(data), data.y)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [losses, model.eval()(data), model.state_dict()]
