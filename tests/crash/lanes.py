"""A client's side of a lane: what it sealed, what was acknowledged, and what must be stored."""

from __future__ import annotations

from metrana_async.errors import ConnectError
from metrana_async.wire.acks import BatchStatus
from tests.crash.servers import Server, Unanswered
from tests.unit.server.ingest.helpers import TestWriter, env_steps, rows, segments, standard

ROWS, GRID = 3, 4
POINTS = 2 * ROWS + GRID


class Client:
    """One writer with one lane; keeps what is not acknowledged and sends it again, as it was."""

    def __init__(self, server: Server, number: int = 1) -> None:
        name = f"w{number}"
        self.server = server
        self.auto, self.merge, self.grid = f"{name}/auto", f"{name}/merge", f"{name}/grid"
        self.writer = TestWriter(
            server,
            number,
            series=(standard(self.auto), standard(self.merge, is_merge=True), env_steps(self.grid)),
            envs=("a",),
        )
        self.frames: list[bytes] = []
        self.acked = 0
        self.duplicates = 0
        self.credits: list[int] = []
        self.ended: Exception | None = None

    def open(self) -> None:
        """Join, or join again; the server may know more batches than it told, never fewer."""
        known = self.writer.open().acked.get(0, 0)
        assert known >= self.acked, f"{self.acked} batches were acknowledged, {known} are known"

    def log(self) -> None:
        """Seal one batch; each point's value tells where it belongs."""
        k = len(self.frames)
        base = [float(ROWS * k + i) for i in range(ROWS)]
        self.frames.append(
            self.writer.seal(
                rows([None] * ROWS, base),
                rows([ROWS * k + i for i in range(ROWS)], base, series=1),
                segments([(0, 0, k, 0, [float(GRID * k + i) for i in range(GRID)])], series=2),
            )
        )

    def send(self) -> None:
        """Send what is not acknowledged, up to 16 batches a request.

        Raises:
            Unanswered: the server went away.
            MetranaError: it refused.
        """
        while self.acked < len(self.frames):
            sent = self.frames[self.acked : self.acked + 16]
            reply = self.writer.deliver(self.writer.pages + b"".join(sent))
            for one in reply.replies:
                assert one.status in (BatchStatus.STORED, BatchStatus.DUPLICATE), one
                self.duplicates += one.status is BatchStatus.DUPLICATE
            assert reply.acked[0] == self.acked + len(sent)
            self.acked = reply.acked[0]
            self.credits.append(reply.credit_bytes)

    def try_to(self, *steps) -> bool:
        """Whether the server lived through these."""
        try:
            for step in steps:
                step()
        except (Unanswered, ConnectError):
            return False
        return True

    def check(self) -> None:
        """Every acknowledged batch is there as it was sent, none twice, and the ledger balances."""
        stored = self.writer.open().acked.get(0, 0)
        assert stored >= self.acked
        line = [(i, float(i)) for i in range(ROWS * stored)]
        with self.server.reader() as reader:
            if stored:
                series = reader.series("run", self.auto)
                found = list(zip(series.step.tolist(), series.value.tolist(), strict=True))
                assert found == line
                merged = reader.merged("run", self.merge)
                assert merged.step.tolist() == [step for step, _ in line]
                assert set(merged.count.tolist()) == {1}
                grid = reader.env_series("run", self.grid, env_id="a", episode=0)
                assert grid.env_step.tolist() == list(range(GRID * stored))
                assert grid.value.tolist() == [float(i) for i in range(GRID * stored)]
            ledger = reader.ledger("run")
        assert ledger.difference == 0
        self.visible = ledger.visible


def check_all(*clients: Client) -> None:
    """Check each client, and that the run holds their points and no others."""
    for client in clients:
        client.check()
    stored = sum(client.writer.open().acked.get(0, 0) for client in clients)
    assert clients[0].visible == POINTS * stored
