import asyncio

import metrana_async as metrana


async def main() -> None:
    async with metrana.init(project_name="cartpole", config={"lr": 3e-4}) as run:
        for step in range(1000):
            await run.log("train/loss", 1 / (step + 1), step=step)
        await run.flush()  # from here on every point is durable on the server

    async with metrana.QueryClient(project="cartpole") as client:
        loss = await client.series(run.name, "train/loss")
        print(len(loss.step), "points")


asyncio.run(main())
