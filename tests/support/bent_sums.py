"""`python -m tests.support.bent_sums <chorale arguments>`: a coordinator that adds one to every sum."""

from __future__ import annotations

from chorale.transport import tls


def install() -> None:
    from coordinator.jobs.aggregate import MaskedSum

    add = MaskedSum.add

    def bent(self: MaskedSum, upload: memoryview) -> None:
        add(self, upload)
        words = self._sums[min(self._sums)]
        words[:1] += words.dtype.type(1)

    MaskedSum.add = bent  # type: ignore[method-assign]


if __name__ == "__main__":
    tls.restrict_to_tls13()
    install()
    from cli.main import main

    main()
