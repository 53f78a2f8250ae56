"""A small sweep, then: which runs were good, and what do their curves look like?"""

import metrana_sync_shim as metrana
from metrana_sync_shim import F

for lr in (1e-2, 1e-3, 1e-4):
    with metrana.init(project_name="sweep", run_name=f"lr-{lr:g}", config={"lr": lr}):
        metrana.log("train/loss", [1.0, 0.5, 100 * lr])
        if lr < 1e-3:
            metrana.add_tags(["small"])

with metrana.QueryClient(project="sweep") as client:
    # As text, or built in Python; both say the same.
    client.runs(where="config.lr < 5e-3 and state = 'finished'")
    good = client.runs(where=(F.config.lr < 5e-3) & (F.state == "finished"))
    print([run.name for run in good])

    best = client.runs(order_by="summary.train/loss.last", limit=1)
    print("best:", best[0].name, best[0].config)

    table = client.series_summaries(good, ["train/loss"])
    for run, last, least in zip(table.run, table.last, table.min, strict=True):
        print(table.runs[run], last, least)

    # A long series, every point, in memory that does not grow with it.
    for batch in client.scan("lr-0.01", "train/loss", batch_rows=2):
        print(batch.step, batch.value)
