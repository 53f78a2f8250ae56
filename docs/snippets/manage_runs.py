"""A run is renamed, annotated, archived and at last deleted, from any process."""

import metrana_sync_shim as metrana

with metrana.init(project_name="tidy", run_name="tmp-17"):
    metrana.log("loss", 0.5)

with metrana.QueryClient(project="tidy") as client:
    run = client.rename_run("tmp-17", "baseline")
    client.set_notes(run, "first that converged")
    client.tag_run(run, add=["baseline"], remove=["draft"])
    client.archive_run(run)
    print([r.name for r in client.runs(where="archived = true")])

    run = client.run("baseline")
    print(run.state, run.exception_type, run.duration_s >= 0, run.warnings, run.lost)
    client.delete_run(run)
