"""The limit, ours and the peer in one table, from what several benchmarks of one run measured.

The limit of a step is the CPU of the key streams that it needs, drawn in one thread and left at that; of a
vector, the bytes of its words; of a transfer and a round's wall time, a bare program that moves the same
bytes; of a round's CPU, such a program with the messages of the stages, and the secure sum in one process, or
the work on its vectors' bytes alone, in native code.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bench.report.results import Result

NAME = "side-by-side"
NEEDED = frozenset({"peers", "secagg-16", "secagg-32", "stream", "round-4", "round-10", "native-floor"})
HEAD = "| | the limit | Chorale | Flower's SecAgg+ |\n|---|---|---|---|"


def is_whole(results: Sequence[Result]) -> bool:
    """Whether everything that has a line was measured in this run."""
    return {result.benchmark.name for result in results if result.is_measured} >= NEEDED


def table(results: Sequence[Result]) -> str:
    """Markdown; a line for each figure whose limit was measured in this run, empty if there is none."""
    printed = {result.benchmark.name: result.printed for result in results if result.is_measured}
    lines = [*_peer_lines(printed), *_stream_lines(printed), *_round_lines(printed)]
    return "\n".join([HEAD, *lines]) if lines else ""


def _peer_lines(printed: Mapping[str, Any]) -> Iterator[str]:
    for session in printed.get("peers", {}).get("sessions", ()):
        silos, lost, word, length = (session[key] for key in ("silos", "dropped", "word", "length"))
        secagg = printed.get(f"secagg-{word}")
        if secagg is None:
            continue
        stream_seconds = secagg["keystream_cpu_seconds"] / secagg["silos"] * length / secagg["length"]
        ours, theirs = session["chorale"], session["flower"]
        which = f"n = {silos}, w = {word}"
        yield _line(
            f"silo: encode and mask, CPU, {which}",
            *(
                _milliseconds(seconds)
                for seconds in (
                    silos * stream_seconds,
                    ours["silo_mask_cpu_seconds"],
                    theirs["silo_mask_cpu_seconds"],
                )
            ),
        )
        yield _line(
            f"coordinator: unmask, {lost} lost, CPU, {which}",
            *(
                _milliseconds(seconds)
                for seconds in (
                    (silos - lost) * (1 + lost) * stream_seconds,
                    ours["coordinator_unmask_cpu_seconds"],
                    theirs["coordinator_unmask_cpu_seconds"],
                )
            ),
        )
        yield _line(
            f"masked vector, {which}",
            *(
                _megabytes(size)
                for size in (word // 8 * length, ours["vector_bytes"], theirs["vector_bytes"])
            ),
        )


def _stream_lines(printed: Mapping[str, Any]) -> Iterator[str]:
    stream = printed.get("stream")
    if stream is None:
        return
    for way in ("upload", "download"):
        rates = (stream[f"bare_{way}_bytes_per_second"], stream[f"{way}_bytes_per_second"])
        yield _line(f"{way} under mutual TLS", *(f"{_megabytes(rate)}/s" for rate in rates), "-")


def _round_lines(printed: Mapping[str, Any]) -> Iterator[str]:
    for name in ("round-4", "round-10"):
        if name in printed:
            one = printed[name]
            for of, limit in (("wall", one["plain_wall_seconds"]), ("CPU", one["limit_cpu_seconds"])):
                times = (limit, one[f"round_{of.lower()}_seconds"])
                what = f"a round of {one['silos']} silos over processes, {of}"
                yield _line(what, *(_milliseconds(seconds) for seconds in times), "-")
    native = printed.get("native-floor")
    if native is not None and "round-10" in printed:
        times = (native["native_cpu_seconds"], printed["round-10"]["round_cpu_seconds"])
        what = "the same round, CPU, limit of native code"
        yield _line(what, *(_milliseconds(seconds) for seconds in times), "-")


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:,.1f} ms" if seconds < 1 else f"{seconds:,.2f} s"


def _megabytes(size: float) -> str:
    return f"{size / 1e6:,.1f} MB"
