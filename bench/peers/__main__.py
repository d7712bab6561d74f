"""python -m bench.peers: the comparison with the one peer there is."""

import sys

from bench.peers.flower import main

sys.exit(main())
