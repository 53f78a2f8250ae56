"""A run is stopped and goes on: the axis continues, a rewritten overlap replaces."""

import metrana_sync_shim as metrana

NAME = {"project_name": "preempted", "run_name": "long-training"}

run = metrana.init(**NAME)
for step in range(100):
    metrana.log("loss", 1.0, step=step)
metrana.shutdown_logger()  # leaves the run open; close() would end it

# Later, from a checkpoint at step 80, in another process:
run = metrana.init(**NAME, resume_strategy="allow")
print("last step on the server:", metrana.get_last_step("loss"))
for step in range(80, 120):
    metrana.log("loss", 0.5, step=step)
metrana.close()

with metrana.QueryClient(project="preempted") as client:
    loss = client.series("long-training", "loss")
    print(len(loss.step), "steps; at 79:", loss.value[79], "at 80:", loss.value[80])
