"""A run without a server, and what it left on the disk delivered afterwards."""

import metrana_sync_shim as metrana

run = metrana.init(
    project_name="air-gapped",
    run_name="cluster-run",
    init_mode="offline",
    disk="spool",  # a directory that can be copied to a machine with a network
    config={"lr": 3e-4},
)
for step in range(1000):
    run.log("loss", 1.0 / (1 + step), step=step)
info = run.close()
print(info.statistics.spooled, "points are in ./spool")

# Later, wherever the directory and a server are. `metrana-async sync spool` does the same.
for report in metrana.replay_spool("spool"):
    print(report.state, report.run, report.statistics.committed)

with metrana.QueryClient(project="air-gapped") as client:
    print(len(client.series("cluster-run", "loss").step), "points are stored")
