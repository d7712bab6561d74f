"""Flower's half of the comparison of simulations, by the interpreter of Flower's own environment.

    python simulation_side.py REQUEST.json

Its ServerApp draws as many of the SuperNodes a round and averages what their ClientApps train: the network
that Chorale's job names, on the same samples, with the same optimizer. As in a round of Chorale each client
first tests the model that it received. Prints the accuracy by round.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import nn
from torch.nn import functional

REQUEST: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())


def network() -> nn.Module:
    """cnn of chorale_models/networks/plain.py for one channel and ten classes."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2, ceil_mode=True),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2, ceil_mode=True),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(1024, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


client = ClientApp()
server = ServerApp()


@client.train()  # type: ignore[untyped-decorator]
def train(message: Message, context: Context) -> Message:
    """One client's part of a round: it tests what it received, then trains it."""
    torch.set_num_threads(1)
    samples = np.load(Path(REQUEST["folder"]) / f"{context.node_config['partition-id']}.npz")
    features, labels, tested, expected = (
        torch.from_numpy(samples[name]) for name in ("features", "labels", "tested", "expected")
    )
    model = network()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    model.eval()
    with torch.no_grad():
        correct = int((model(tested).argmax(1) == expected).sum()) if len(tested) else 0
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=REQUEST["rate"], momentum=REQUEST["momentum"])
    for _ in range(REQUEST["epochs"]):
        for batch in torch.split(torch.randperm(len(labels)), REQUEST["batch"]):
            optimizer.zero_grad()
            torch.autograd.backward(functional.cross_entropy(model(features[batch]), labels[batch]))
            optimizer.step()
    metrics = {"num-examples": len(labels), "correct": correct, "tested": len(tested)}
    content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord(metrics)}
    return Message(content=RecordDict(content), reply_to=message)


@server.main()  # type: ignore[untyped-decorator]
def serve(grid: Grid, context: Context) -> None:
    strategy = FedAvg(
        fraction_train=REQUEST["fraction"],
        fraction_evaluate=0.0,
        # the fraction is of those that have connected when a round begins
        min_train_nodes=round(REQUEST["fraction"] * REQUEST["silos"]),
        min_available_nodes=REQUEST["silos"],
        train_metrics_aggr_fn=summed,
    )
    result = strategy.start(grid, ArrayRecord(network().state_dict()), num_rounds=REQUEST["rounds"])
    rounds = sorted(result.train_metrics_clientapp.items())
    print(json.dumps([each["correct"] / each["tested"] for _, each in rounds]), flush=True)


def summed(replies: list[RecordDict], weighted_by: str) -> MetricRecord:
    """Over all samples that were tested."""
    return MetricRecord(
        {name: sum(reply["metrics"][name] for reply in replies) for name in ("correct", "tested")}
    )


if __name__ == "__main__":
    run_simulation(
        server,
        client,
        num_supernodes=REQUEST["silos"],
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            # a Ray of its own: without an address Ray joins one that somebody runs here
            "init_args": {"address": "local", "num_cpus": REQUEST["workers"], "include_dashboard": False},
        },
    )
