"""Flower's half of the comparison: one round of SecAgg+ by its own workflow and client mod.

Runs under the peer's interpreter and imports nothing of ours: `python flower_side.py WORK.json` prints one
JSON object, a list of measurements. The workflow's stages and the mod are called as in a run; only the
network between them is replaced, and functions are wrapped to take their CPU time.
"""

# n = silos, L = values of each

from __future__ import annotations

import copy
import functools
import json
import logging
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.common import Code, FitIns, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.common.secure_aggregation.secaggplus_constants import (
    RECORD_KEY_CONFIGS,
    RECORD_KEY_STATE,
    Key,
    Stage,
)
from flwr.compat.common import recorddict_compat as compat
from flwr.server.compat.legacy_context import LegacyContext
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD
from flwr.server.workflow.constant import Key as WorkflowKey
from flwr.server.workflow.secure_aggregation import secaggplus_workflow as workflow
from flwr.supercore.task_identity import TaskIdentity
from numpy.typing import NDArray

# its package gives the function of this name, so the module is asked for by path
mod = import_module("flwr.client.mod.secure_aggregation.secaggplus_mod")

WEIGHT = 1000  # every silo's num_examples and max_weight: all weigh the same

STAGES = ("setup_stage", "share_keys_stage", "collect_masked_vectors_stage", "unmask_stage")
SETUP_STEPS = ("keys", "shares", "agreement", "answer")
# functions of the client mod whose time is not that of encoding and masking
AGREEMENT = (
    "decrypt",
    "generate_shared_key",
    "share_keys_plaintext_separate",
    "bytes_to_private_key",
    "bytes_to_public_key",
)


class Stopwatch:
    """CPU seconds of steps, each without the steps inside it."""

    def __init__(self) -> None:
        self.cpu_seconds: defaultdict[str, float] = defaultdict(float)
        self._inner_seconds = [0.0]  # of each step under way: what the steps inside it took

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        start = time.process_time()
        self._inner_seconds.append(0.0)
        yield
        taken = time.process_time() - start
        self.cpu_seconds[name] += taken - self._inner_seconds.pop()
        self._inner_seconds[-1] += taken

    def wrap(self, module: ModuleType, function_name: str, step: str) -> None:
        """Take the time of every call that the module makes of one of its functions."""
        function = getattr(module, function_name)

        @functools.wraps(function)
        def timed(*positional: Any, **named: Any) -> Any:
            with self.step(step):
                return function(*positional, **named)

        setattr(module, function_name, timed)


class Proxy:
    def __init__(self, node_id: int) -> None:
        self.node_id = node_id


class EveryNode:
    """The strategy and the client manager of one round that samples every node."""

    def __init__(self, nodes: int) -> None:
        self._nodes = nodes
        self._mean_L: NDArray[np.float64] = np.zeros(0)

    def configure_fit(self, *_: Any) -> list[tuple[Proxy, FitIns]]:
        return [(Proxy(node_id), FitIns(_no_model(), {})) for node_id in range(1, self._nodes + 1)]

    def aggregate_fit(
        self, _: int, results: list[tuple[Proxy, FitRes]], failures: list[Any]
    ) -> tuple[None, dict[str, Any]]:
        (self._mean_L,) = parameters_to_ndarrays(results[0][1].parameters)
        return None, {}

    def max_abs_error(self, values_nL: NDArray[np.float32]) -> float:
        """Of the mean that came out, times the silos, against the sum of these inputs."""
        exact_L = values_nL.sum(axis=0, dtype=np.float64)
        return float(np.max(np.abs(self._mean_L * len(values_nL) - exact_L)))

    def num_available(self) -> int:
        return self._nodes


class Wire:
    """A grid that hands each message to its node's client mod; the dropped answer in two stages only.

    sent: what node 1 answered, stage by stage. Nodes 1 to `staying` stay.
    """

    def __init__(self, values_nL: NDArray[np.float32], staying: int, watch: Stopwatch) -> None:
        self.values_nL = values_nL
        self.staying = staying
        self.watch = watch
        self.nodes: dict[int, Context] = {}
        self.sent: list[ConfigRecord] = []

    def continued(self, nodes: dict[int, Context]) -> Wire:
        """Another wire to these nodes, after what was sent on this one."""
        wire = Wire(self.values_nL, self.staying, self.watch)
        wire.nodes, wire.sent = nodes, list(self.sent)
        return wire

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None) -> list[Message]:
        with self.watch.step("wire"):
            return [answer for message in messages for answer in self._answers(message)]

    def _answers(self, message: Message) -> list[Message]:
        node_id = message.metadata.dst_node_id
        stage = message.content.config_records[RECORD_KEY_CONFIGS][Key.STAGE]
        if node_id <= self.staying:
            return [self._answer(message)]
        if stage not in (Stage.SETUP, Stage.SHARE_KEYS):
            return []
        counted = dict(self.watch.cpu_seconds)
        answer = self._answer(message)
        self.watch.cpu_seconds.update({step: counted.get(step, 0.0) for step in self.watch.cpu_seconds})
        return [answer]

    def _answer(self, message: Message) -> Message:
        node_id = message.metadata.dst_node_id
        context = self.nodes.setdefault(node_id, Context(1, node_id, {}, RecordDict(), {}))
        # the workflow gives every node the same record and the mod pops from it: a network would copy
        content = RecordDict(dict(message.content))
        content[RECORD_KEY_CONFIGS] = ConfigRecord(dict(message.content.config_records[RECORD_KEY_CONFIGS]))
        copied = Message(content, dst_node_id=node_id, message_type=message.metadata.message_type)
        answer = mod.secaggplus_mod(copied, context, self._train)
        if node_id == 1:
            self.sent.append(answer.content.config_records[RECORD_KEY_CONFIGS])
        return answer

    def _train(self, message: Message, context: Context) -> Message:
        values_L = np.array(self.values_nL[context.node_id - 1])
        result = FitRes(Status(Code.OK, ""), ndarrays_to_parameters([values_L]), WEIGHT, {})
        return Message(compat.fitres_to_recorddict(result, keep_input=False), reply_to=message)


def main() -> None:
    """Read a request and print a list of measurements, one for each word size.

    The request: values, a .npy file of n rows; dropped, threshold, bound; and modes, whose target_range
    and word are those of quantization and modulus.
    """
    request = json.loads(Path(sys.argv[1]).read_text())
    logging.getLogger("flwr").setLevel(logging.ERROR)
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1  # else no message can be made
    print(json.dumps(measure(request, _watched_functions())))


def measure(request: dict[str, Any], watch: Stopwatch) -> list[dict[str, Any]]:
    """One set-up, and from it one round per mode, since keys and shares do not depend on the words."""
    values_nL = np.load(request["values"], mmap_mode="r")
    silos = len(values_nL)
    flow = workflow.SecAggPlusWorkflow(
        num_shares=1.0,  # as a fraction of the silos: all are neighbors, as with us
        reconstruction_threshold=request["threshold"],
        max_weight=float(WEIGHT),
        clipping_range=request["bound"],
    )
    wire = Wire(values_nL, silos - request["dropped"], watch)
    state, strategy = workflow.WorkflowState(), EveryNode(silos)
    _run(flow, STAGES[:2], wire, _context(strategy), state, watch)
    shared = dict(watch.cpu_seconds)
    measured = []
    for mode in request["modes"]:
        watch.cpu_seconds.clear()
        watch.cpu_seconds.update(shared)
        measured.append(_measure_mode(flow, mode, copy.deepcopy((wire.nodes, state)), wire, strategy))
    return measured


def _measure_mode(
    flow: Any, mode: dict[str, int], start: Any, wire: Wire, strategy: EveryNode
) -> dict[str, Any]:
    """Masked vectors and unmasking: seconds are means of the silos that stayed, but for the coordinator's."""
    nodes, state = start
    state.quantization_range, state.mod_range = mode["target_range"], 1 << mode["word"]
    for context in nodes.values():
        held = context.state.config_records[RECORD_KEY_STATE]
        held[Key.TARGET_RANGE], held[Key.MOD_RANGE] = state.quantization_range, state.mod_range
    used = wire.continued(nodes)
    _run(flow, STAGES[2:], used, _context(strategy), state, used.watch)
    cpu, staying = used.watch.cpu_seconds, used.staying
    return {
        "word": mode["word"],
        "silo_setup_cpu_seconds": sum(cpu[step] for step in SETUP_STEPS) / staying,
        "silo_mask_cpu_seconds": cpu["mask"] / staying,
        "coordinator_unmask_cpu_seconds": cpu[STAGES[-1]],
        "coordinator_decode_cpu_seconds": cpu["decode"],
        "coordinator_other_cpu_seconds": sum(cpu[stage] for stage in STAGES[:-1]),
        "vector_bytes": _sent_bytes(record.get(Key.MASKED_PARAMETERS, []) for record in used.sent),
        "sent_bytes": _sent_bytes(value for record in used.sent for value in record.values()),
        "max_abs_error": strategy.max_abs_error(used.values_nL[:staying]),
    }


def _run(flow: Any, stages: Iterable[str], wire: Wire, context: Any, state: Any, watch: Stopwatch) -> None:
    """These stages of the workflow in turn, the coordinator's part of each timed under its name."""
    for stage in stages:
        with watch.step(stage):
            is_done = getattr(flow, stage)(wire, context, state)
        if not is_done:
            sys.exit(f"flower: {stage} failed")


def _context(strategy: EveryNode) -> Any:
    context = LegacyContext(Context(1, 0, {}, RecordDict(), {}), strategy=strategy, client_manager=strategy)
    context.state.config_records[MAIN_CONFIGS_RECORD] = ConfigRecord({WorkflowKey.CURRENT_ROUND: 1})
    context.state.array_records[MAIN_PARAMS_RECORD] = compat.parameters_to_arrayrecord(_no_model(), True)
    return context


def _no_model() -> Any:
    """Nothing to download: that is no part of this comparison."""
    return ndarrays_to_parameters([])


def _watched_functions() -> Stopwatch:
    watch = Stopwatch()
    for name in AGREEMENT:
        watch.wrap(mod, name, "agreement")
    watch.wrap(mod, "_setup", "keys")
    watch.wrap(mod, "_share_keys", "shares")
    watch.wrap(mod, "_collect_masked_vectors", "mask")
    watch.wrap(mod, "parameters_to_ndarrays", "read")  # our silo has its arrays already
    watch.wrap(mod, "_unmask", "answer")
    watch.wrap(workflow, "dequantize", "decode")
    watch.wrap(workflow, "ndarrays_to_parameters", "strategy")
    return watch


def _sent_bytes(values: Iterable[Any]) -> int:
    """Bytes of keys, ciphertexts, shares and arrays; node ids are left out."""
    parts = [part for value in values for part in (value if isinstance(value, list) else [value])]
    return sum(len(part) for part in parts if isinstance(part, bytes))


if __name__ == "__main__":
    main()
