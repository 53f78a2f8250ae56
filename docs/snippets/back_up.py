"""Back up a store while its server runs."""

import os
from pathlib import Path

from metrana_async.server.store.sqlite.backup import back_up

made = back_up(Path(os.environ["METRANA_DATA_DIR"]), Path("monday"))
print(f"{made.runs_count} runs, {made.nbytes} bytes in {made.database}")
