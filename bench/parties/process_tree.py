"""What a program and all that it starts take: memory that is shared counts once."""

from __future__ import annotations

import psutil

from bench.parties.processes import Watch

LOOK_SECONDS = 1.0  # a look reads the page tables of all of them


class ProcessTree(Watch):
    """A process and its descendants. most_bytes: the largest sum of their proportional set sizes so far.

    A page that n processes map counts as 1/n in each, also one of a file and of shared memory (proc(5),
    smaps_rollup). cpu_seconds: of all of them, each as it was last seen.
    """

    def __init__(self, pid: int) -> None:
        super().__init__(every_seconds=LOOK_SECONDS)
        self._root = psutil.Process(pid)
        self._cpu: dict[tuple[int, float], float] = {}
        self.most_bytes = 0

    @property
    def cpu_seconds(self) -> float:
        return sum(self._cpu.values())

    def look(self) -> None:
        total = 0
        try:
            processes = [self._root, *self._root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return
        for process in processes:
            try:
                total += process.memory_full_info().pss
                spent = process.cpu_times()
                self._cpu[process.pid, process.create_time()] = spent.user + spent.system
            except psutil.Error:  # it has just ended
                continue
        self.most_bytes = max(self.most_bytes, total)
