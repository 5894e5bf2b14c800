"""`python -m density_softmax.cli.attended ...`: the command line, until its standard input ends.

Whoever starts a command so, and holds the other end of its input, cannot leave it behind: not
even if killed. A grid starts its cells so.
"""

from __future__ import annotations

import os
import threading

from density_softmax.cli.main import main


def stop_with_input() -> None:
    """End this process when its standard input does; checkpoints are never half written."""
    while os.read(0, 1024):
        pass
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=stop_with_input, daemon=True).start()
    main()
