"""``python -m metrana_async.cli`` is ``metrana-async``."""

from __future__ import annotations

import sys

from metrana_async.cli import main

if __name__ == "__main__":
    sys.exit(main())
