"""python -m tests.cluster.lab build | images | up | k COMMAND... | down | built

`built` ends with 0 where `up` may start one. The folder is CHORALE_LAB, by default chorale-cluster in the
user's cache.
"""

from __future__ import annotations

import os
import sys

from tests.cluster.lab import Lab
from tests.cluster.lab.images import make_images
from tests.cluster.lab.kubernetes import build
from tests.cluster.lab.lab import default_folder


def main(words: list[str]) -> int:
    lab = Lab(default_folder())
    match words:
        case ["build"]:
            build(lab.folder)
        case ["built"]:
            return 0 if lab.is_built else 1
        case ["images"]:
            make_images(lab.folder)
        case ["up"]:
            lab.up()
        case ["k", *command] if command:
            os.execvp("nsenter", lab.command(*command))
        case ["down"]:
            lab.down()
        case _:
            sys.stderr.write(__doc__ or "")
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
