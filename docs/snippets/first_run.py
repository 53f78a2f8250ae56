import metrana_sync_shim as metrana

with metrana.init(project_name="cartpole", config={"lr": 3e-4, "seed": 0}) as run:
    for step in range(1000):
        metrana.log({"train/loss": 1 / (step + 1), "train/lr": 3e-4}, step=step)

with metrana.QueryClient(project="cartpole") as client:
    loss = client.series(run.name, "train/loss")
    print(loss.step[-3:], loss.value[-3:])  # every point, as numpy columns
