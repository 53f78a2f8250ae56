"""Everything a network can do to a request: afterwards every point is stored exactly once."""

from __future__ import annotations

import random
import shutil
import socket
import ssl
import subprocess
import threading
from collections import Counter
from pathlib import Path

import pytest

import metrana_sync_shim as metrana
from metrana_async import settling
from metrana_async.delivery import sender
from metrana_async.errors import WaitTimeoutError
from metrana_async.transport import http
from metrana_async.wire.acks import BatchStatus, decode_reply
from tests.fault import proxy as faults
from tests.fault.conftest import Site
from tests.fault.points import POINTS, log_item
from tests.fault.proxy import ChaosProxy, SynHole
from tests.interop.life import eventually

pytestmark = pytest.mark.e2e

ITEMS = 40


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests are given up after 1.5 s instead of 30."""
    monkeypatch.setattr(sender, "REQUEST_TIMEOUT_S", 1.5)


def log(run: metrana.Run, start: int, count: int = ITEMS) -> int:
    """Log items; returns where the next ones start."""
    for k in range(start, start + count):
        log_item(run, k)
    return start + count


def finish(site: Site, run: metrana.Run, items: int) -> metrana.CloseInfo:
    """Heal was before this: close, and find every item once and nothing left over."""
    # A flush is content with the disk while a request of the outage is still waited for.
    eventually(lambda: run.flush(20).spooled == 0, "the server has everything")
    info = run.close(30)
    statistics = info.statistics
    assert (info.is_complete, statistics.losses) == (True, {}), info
    assert statistics.is_balanced
    assert statistics.accepted == POINTS * items
    site.find().check_whole(items)
    site.check_empty()
    return info


def statuses(proxy: ChaosProxy) -> list[BatchStatus]:
    """What the server said of every batch that reached it."""
    taken = [answer for answer in proxy.answers if answer.startswith(b"HTTP/1.1 200")]
    bodies = [answer.partition(b"\r\n\r\n")[2] for answer in taken]
    return [one.status for body in bodies for one in decode_reply(body).replies]


ONE_REQUEST = [
    pytest.param(faults.cut_before_answer, True, id="cut", marks=pytest.mark.fault_row("C8")),
    pytest.param(
        faults.keep_alive_race, False, id="keep-alive race", marks=pytest.mark.fault_row("C7")
    ),
    pytest.param(
        faults.reset_mid_request, False, id="rst in request", marks=pytest.mark.fault_row("C6")
    ),
    pytest.param(
        faults.reset_mid_answer, True, id="rst in answer", marks=pytest.mark.fault_row("C6")
    ),
    pytest.param(faults.html, False, id="html", marks=pytest.mark.fault_row("C9")),
    pytest.param(faults.garbage, True, id="garbage", marks=pytest.mark.fault_row("C9")),
    pytest.param(faults.no_http, False, id="not http", marks=pytest.mark.fault_row("C9")),
    pytest.param(faults.wrong_length, True, id="length", marks=pytest.mark.fault_row("C9")),
    pytest.param(
        faults.of_the_one_before, False, id="answer before", marks=pytest.mark.fault_row("C10")
    ),
    pytest.param(
        faults.answered_twice, None, id="answered twice", marks=pytest.mark.fault_row("C10")
    ),
    pytest.param(faults.twice, None, id="delivered twice", marks=pytest.mark.fault_row("C11")),
    pytest.param(faults.raced, None, id="raced copies", marks=pytest.mark.fault_row("C12")),
    pytest.param(faults.proxy_refuses, False, id="407", marks=pytest.mark.fault_row("C21")),
    pytest.param(faults.bad_gateway, False, id="502", marks=pytest.mark.fault_row("C21")),
    pytest.param(faults.rewriting, False, id="rewritten", marks=pytest.mark.fault_row("C21")),
]


@pytest.mark.parametrize(("fault", "is_stored_twice"), ONE_REQUEST)
def test_requests_that_meet_a_fault_are_sent_again(
    site: Site, proxy: ChaosProxy, fault: faults.Fault, is_stored_twice: bool | None
) -> None:
    """Three requests in a row meet it, logging goes on; the same bytes are stored once."""
    run = site.init(proxy.url)
    items = log(run, 0)
    run.flush(20)
    before = len(proxy.requests)
    proxy.inject(fault, times=3)
    items = log(run, items)
    eventually(lambda: proxy.fired.total() >= 1, "the fault met a request")
    items = log(run, items)
    run.flush(20)
    items = log(run, items)
    run.flush(20)
    assert proxy.fired.total() == 3 or fault in (faults.twice, faults.raced, faults.answered_twice)
    info = finish(site, run, items)
    assert info.statistics.send_errors >= (0 if is_stored_twice is None else 3)
    answered = statuses(proxy)
    if is_stored_twice:
        assert BatchStatus.DUPLICATE in answered, "nothing was sent again"
    # Where nothing of it arrived there is nothing to be a duplicate of.
    if is_stored_twice is False and fault is not faults.rewriting:
        assert BatchStatus.DUPLICATE not in answered
    assert len(proxy.requests) > before


@pytest.mark.parametrize(
    "fault",
    [
        *[
            pytest.param(faults.Refused(*refusal), marks=pytest.mark.fault_row("D6"))
            for refusal in (
                (500,),
                (502,),
                (503,),
                (503, "unavailable", "1"),
                (429, "rate_limited"),
                (429, "rate_limited", "1"),
                (507, "disk_full", "0"),
                (400,),
                (404,),
                (413,),
            )
        ],
        *[
            pytest.param(faults.Refused(*refusal), marks=pytest.mark.fault_row("D8"))
            for refusal in ((401, "auth"), (403, "auth"), (401,), (403,))
        ],
    ],
    ids=lambda fault: f"{fault.status}-{fault.code or 'page'}-{fault.retry_after}",
)
def test_refusals_are_waited_out(site: Site, proxy: ChaosProxy, fault: faults.Refused) -> None:
    """Overloaded, broken, a key that was withdrawn, a proxy's page: nothing is given up for it."""
    run = site.init(proxy.url)
    items = log(run, 0)
    run.flush(20)
    proxy.inject(fault)
    items = log(run, items)
    eventually(lambda: proxy.fired["Refused"] >= 2, "it was asked again")
    assert run.get_metrics().losses == {}
    proxy.heal()
    finish(site, run, items)
    assert BatchStatus.DUPLICATE not in statuses(proxy)


@pytest.mark.fault_row("C19")
def test_a_certificate_that_is_not_to_be_trusted_gets_nothing(site: Site, tmp_path: Path) -> None:
    """A self-signed server in the middle: no request reaches it, nothing goes out in the clear."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed: no certificate can be made")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost"]
    words += ["-keyout", str(key), "-out", str(certificate), "-days", "1"]
    subprocess.run(words, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    hellos: list[str | None] = []
    context.sni_callback = lambda _, name, __: hellos.append(name)
    with ChaosProxy(site.server.address.url, context) as middle:
        url = middle.url.replace("http:", "https:")
        run = site.init(url, init_mode="auto")
        items = log(run, 0)
        assert run.flush(20).spooled == POINTS * items
        eventually(lambda: len(hellos) >= 2, "it was tried again")
        assert run.close(3).statistics.spooled == POINTS * items
        assert middle.requests == []
        assert middle.connections == 0, "a handshake was completed"
    (report,) = site.replay()
    assert report.state == "delivered", report
    site.find().check_whole(items)
    site.check_empty()


@pytest.mark.fault_row("C9")
@pytest.mark.parametrize("seed", [None])
def test_an_answer_cut_at_any_byte_is_no_answer(
    site: Site, proxy: ChaosProxy, seed: int | None
) -> None:
    """Head, between head and body, body: cut at 12 places, the rest arrives on the next try."""
    seed = random.SystemRandom().randrange(2**32) if seed is None else seed
    print("seed", seed)
    rng = random.Random(seed)
    run = site.init(proxy.url)
    items = log(run, 0)
    run.flush(20)
    length = len(proxy.answers[-1])
    for place in [0, 1, length - 1, *(rng.randrange(length) for _ in range(9))]:
        cut = faults.Truncated(place)
        fired = proxy.fired.total()
        proxy.inject(cut, times=1)
        items = log(run, items, 2)
        run.flush(20)
        assert proxy.fired.total() == fired + 1
    finish(site, run, items)


@pytest.mark.fault_row("C1")
def test_an_outage_is_spooled_and_drained(site: Site, proxy: ChaosProxy) -> None:
    """Refused for a while: flush is content with the disk and says so, then all of it arrives."""
    run = site.init(proxy.url)
    items = log(run, 0)
    run.flush(20)
    proxy.refuse()
    items = log(run, items)
    statistics = run.flush(20)
    assert proxy.fired["refuse"] == 1
    assert statistics.spooled == POINTS * ITEMS, statistics
    assert statistics.is_balanced
    assert any(path.suffix == ".seg" for path in site.directory().iterdir())
    items = log(run, items)
    proxy.listen()
    items = log(run, items)
    finish(site, run, items)


@pytest.mark.fault_row("C1")
def test_a_close_after_a_long_outage_asks_once_more(site: Site, proxy: ChaosProxy) -> None:
    """The server is back, the next try is far off: closing does not leave the points behind."""
    run = site.init(proxy.url)
    items = log(run, 0)
    run.flush(20)
    proxy.refuse()
    items = log(run, items)
    assert run.flush(20).spooled == POINTS * ITEMS
    proxy.listen()
    info = run.close(30)
    assert info.is_complete, info
    site.find().check_whole(items)
    site.check_empty()


@pytest.mark.fault_row("C1")
def test_what_an_outage_outlives_is_delivered_by_the_next(site: Site, proxy: ChaosProxy) -> None:
    """Closed while refused: kept on the disk with a word, and delivered by a replay, once."""
    run = site.init(proxy.url)
    items = log(run, 0)
    run.flush(20)
    proxy.refuse()
    items = log(run, items)
    info = run.close(4)
    assert info.statistics.spooled == POINTS * ITEMS
    assert info.statistics.is_balanced
    assert not info.is_complete
    (report,) = site.replay()
    assert report.state == "delivered", report
    site.find().check_whole(items)
    site.check_empty()
    assert site.replay() == []
    with site.reader() as reader:
        assert reader.run("run").state == "finished"


@pytest.mark.fault_row("C2")
def test_connecting_that_never_ends_is_given_up(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SYNs vanish: an `auto` run starts on the disk, logs and closes; a replay delivers it."""
    monkeypatch.setattr(http, "_CONNECT_TIMEOUT_S", 0.5)
    with SynHole() as hole:
        assert hole.is_full()
        run = site.init(hole.url, init_mode="auto")
        items = log(run, 0)
        statistics = run.flush(20)
        assert statistics.spooled == POINTS * items
        info = run.close(5)
        assert info.statistics.spooled == POINTS * items
        assert hole.is_full()
    (report,) = site.replay()
    assert report.state == "delivered", report
    site.find().check_whole(items)
    site.check_empty()


@pytest.mark.fault_row("C16")
def test_names_that_resolve_late_and_anew(
    site: Site, proxy: ChaosProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No such name, then one, then none while connected: what is logged meanwhile arrives, once."""
    real, answers = socket.getaddrinfo, {"is_known": False}
    asked: Counter[str] = Counter()

    def resolve(host, *arguments, **more):
        if host != "metrics.example":
            return real(host, *arguments, **more)
        asked["known" if answers["is_known"] else "unknown"] += 1
        if not answers["is_known"]:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return real("127.0.0.1", *arguments, **more)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    run = site.init(proxy.url.replace("127.0.0.1", "metrics.example"), init_mode="auto")
    items = log(run, 0)
    assert run.flush(20).spooled == POINTS * ITEMS
    answers["is_known"] = True
    eventually(lambda: run.flush(20).spooled == 0, "the name is found")
    answers["is_known"] = False
    proxy.cut()
    items = log(run, items)
    eventually(lambda: asked["unknown"] >= 2, "it was asked for again")
    answers["is_known"] = True
    finish(site, run, items)


@pytest.mark.fault_row("C3")
def test_a_black_hole_is_left_in_time(site: Site, proxy: ChaosProxy, impatient: None) -> None:
    """Established connections swallow everything: logging goes on, the disk has it, it drains."""
    run = site.init(proxy.url)
    items = log(run, 0)
    run.flush(20)
    proxy.inject(faults.black_hole, path="")
    items = log(run, items)
    statistics = run.flush(20)
    assert statistics.spooled == POINTS * ITEMS
    assert proxy.fired["black_hole"] >= 2, "it was not tried again"
    items = log(run, items)
    proxy.heal()
    finish(site, run, items)


@pytest.mark.fault_row("C4")
def test_acks_that_never_arrive_store_once_and_do_not_amplify(
    site: Site, proxy: ChaosProxy, impatient: None
) -> None:
    """Every request arrives, no answer does: duplicates after healing, and few of them."""
    run = site.init(proxy.url)
    items = log(run, 0)
    run.flush(20)
    proxy.inject(faults.deaf)
    items = log(run, items)
    eventually(lambda: proxy.fired["deaf"] >= 3, "three requests stayed unanswered")
    deaf = proxy.fired["deaf"]
    # The requests are bounded by their time-outs; nothing hammers.
    assert deaf <= 5
    proxy.heal()
    finish(site, run, items)
    repeats = statuses(proxy).count(BatchStatus.DUPLICATE)
    assert 1 <= repeats


@pytest.mark.fault_row("C10")
def test_another_writers_answer_is_refused(site: Site, proxy: ChaosProxy) -> None:
    """A request is lost and answered by what the server said to somebody else, seq for seq."""
    own, other = site.init(proxy.url, "own"), site.init(proxy.url, "other")
    for phase in range(4):
        log(other, ITEMS * phase)
        other.flush(20)
    log(own, 0)
    own.flush(20)
    foreign = {
        (one.lane, one.seq): answer
        for answer in proxy.answers
        if writer_of(answer) == other._run.front.joined_writer.writer_id
        for one in decode_reply(body_of(answer)).replies
    }
    known = max(seq for lane, seq in foreign if lane == 0)
    assert known >= 3

    async def astray(exchange: faults.Exchange) -> None:
        await exchange.request()
        await exchange.say(foreign[0, 2])

    proxy.inject(astray, times=3)
    log(own, ITEMS)
    eventually(lambda: proxy.fired["astray"] == 3, "three answers went astray")
    eventually(lambda: own.get_metrics().send_errors >= 3, "none of them was taken for its own")
    for run, name, items in ((own, "own", 2 * ITEMS), (other, "other", 4 * ITEMS)):
        info = run.close(30)
        assert info.is_complete, info
        site.find(name).check_whole(items)
    site.check_empty()


def body_of(answer: bytes) -> bytes:
    return answer.partition(b"\r\n\r\n")[2]


def writer_of(answer: bytes) -> str:
    return decode_reply(body_of(answer)).writer_id


@pytest.mark.fault_row("C11", "H6")
def test_a_request_replayed_later_changes_nothing(site: Site, proxy: ChaosProxy) -> None:
    """Every recorded request is delivered again after the run ended: all duplicates."""
    run = site.init(proxy.url)
    items = log(run, 0)
    run.flush(20)
    items = log(run, items)
    finish(site, run, items)
    recorded = list(proxy.requests)
    assert recorded
    for request in random.Random(1).sample(recorded, len(recorded)):
        answer = decode_reply(proxy.replay(request).partition(b"\r\n\r\n")[2])
        assert {one.status for one in answer.replies} == {BatchStatus.DUPLICATE}
    site.find().check_whole(items)


@pytest.mark.fault_row("C13")
@pytest.mark.parametrize("seconds", [0.1, 1.0])
def test_latency_loses_nothing(site: Site, proxy: ChaosProxy, seconds: float) -> None:
    """Answers take a while; nothing is given up and nothing sent twice."""
    run = site.init(proxy.url)
    late = faults.Late(seconds)
    proxy.inject(late)
    items = 0
    for _ in range(3):
        items = log(run, items)
        run.flush(20)
    assert proxy.fired["Late"] >= 3
    finish(site, run, items)
    assert BatchStatus.DUPLICATE not in statuses(proxy)


@pytest.mark.fault_row("C13")
def test_latency_beyond_the_time_limit_is_an_outage(
    site: Site, proxy: ChaosProxy, impatient: None
) -> None:
    """Answers that come after their request was given up: sent again, stored once."""
    run = site.init(proxy.url)
    items = log(run, 0)
    run.flush(20)
    proxy.inject(faults.Late(2.0), times=2)
    items = log(run, items)
    eventually(lambda: proxy.fired["Late"] == 2, "both were late")
    finish(site, run, items)
    assert BatchStatus.DUPLICATE in statuses(proxy)


@pytest.mark.fault_row("C14")
def test_a_narrow_line_takes_its_time(site: Site, proxy: ChaosProxy) -> None:
    """64 kbit/s: the backlog waits on the disk and in bounded memory, and arrives in order."""
    run = site.init(proxy.url)
    narrow = faults.Narrow(8000.0)
    proxy.inject(narrow)
    items = log(run, 0, 400)
    eventually(lambda: run.get_metrics().spooled > 0, "the backlog is on the disk")
    proxy.heal()
    finish(site, run, items)
    assert narrow.nbytes > 0


@pytest.mark.fault_row("C15")
def test_an_answer_that_trickles_is_given_up(
    site: Site, proxy: ChaosProxy, impatient: None
) -> None:
    """A byte a second: the whole answer has a time limit, and the request is made again."""
    run = site.init(proxy.url)
    items = log(run, 0)
    run.flush(20)
    proxy.inject(faults.Trickle(0.5))
    items = log(run, items)
    eventually(lambda: proxy.fired["Trickle"] >= 2, "it was made again")
    assert run.get_metrics().committed == POINTS * ITEMS
    proxy.heal()
    finish(site, run, items)


@pytest.mark.fault_row("C20")
def test_flapping_makes_progress_in_order(site: Site, proxy: ChaosProxy) -> None:
    """Up and down fifteen times under load: each time up something arrives, once and in order."""
    run = site.init(proxy.url)
    items, committed = log(run, 0), 0
    for _ in range(15):
        proxy.refuse()
        items = log(run, items, 10)
        eventually(lambda: run.get_metrics().send_errors > 0, "a request failed")
        proxy.listen()
        before = committed
        run.flush(20)
        committed = run.get_metrics().committed
        assert committed > before
    assert proxy.fired["refuse"] == 15
    finish(site, run, items)


@pytest.mark.fault_row("C22")
@pytest.mark.slow
def test_everybody_comes_back_after_an_outage(site: Site, proxy: ChaosProxy) -> None:
    """Forty writers find the server again: none is left behind, and none hammers it."""
    count = 40
    runs = [site.init(proxy.url, f"run-{n}") for n in range(count)]
    for run in runs:
        log(run, 0, 10)
    for run in runs:
        run.flush(20)
    proxy.refuse()
    for run in runs:
        log(run, 10, 10)
    eventually(
        lambda: all(run.get_metrics().send_errors >= 2 for run in runs), "all are in the outage"
    )
    before = proxy.connections
    proxy.listen()
    eventually(
        lambda: all(run.get_metrics().committed == 20 * POINTS for run in runs),
        "everybody is back without being asked",
    )
    # A connection for the batches, one beside it: nobody comes twice for the same.
    assert proxy.connections - before <= 3 * count
    for run in runs:
        assert run.close(20).is_complete
    for n in range(count):
        site.find(f"run-{n}").check_whole(20)
    site.check_empty()


@pytest.mark.fault_row("C23")
@pytest.mark.parametrize("seed", [None])
def test_clogged_connections_let_go_in_any_order(
    site: Site, proxy: ChaosProxy, impatient: None, seed: int | None
) -> None:
    """Requests pile up in the network and arrive late, shuffled, beside their repeats."""
    seed = random.SystemRandom().randrange(2**32) if seed is None else seed
    print("seed", seed)
    rng = random.Random(seed)
    run = site.init(proxy.url)
    items = log(run, 0)
    run.flush(20)
    clogged = faults.Clogged()
    proxy.inject(clogged)
    for wanted in range(1, 4):
        items = log(run, items, 10)
        eventually(lambda n=wanted: len(clogged.waiting) >= n, "one more is stuck")
    proxy.heal()
    rng.shuffle(clogged.waiting)
    for event in clogged.waiting:
        proxy._loop.call_soon_threadsafe(event.set)
    finish(site, run, items)
    eventually(lambda: BatchStatus.DUPLICATE in statuses(proxy), "a late copy arrived as well")
    site.find().check_whole(items)


@pytest.mark.fault_row("C3")
def test_close_against_a_black_hole_ends_and_keeps(site: Site, proxy: ChaosProxy) -> None:
    """With the real time limits: close(2) ends, everything is on the disk, a replay delivers it."""
    run = site.init(proxy.url)
    items = log(run, 0)
    run.flush(20)
    proxy.inject(faults.black_hole, path="")
    items = log(run, items)
    done = threading.Event()
    infos: list[metrana.CloseInfo] = []
    closing = threading.Thread(target=lambda: (infos.append(run.close(2)), done.set()))
    closing.start()
    assert done.wait(15), "close(2) hangs"
    closing.join()
    assert infos[0].statistics.spooled == POINTS * ITEMS
    assert infos[0].statistics.is_balanced
    assert proxy.fired["black_hole"] >= 1
    (report,) = site.replay()
    assert report.state == "delivered", report
    site.find().check_whole(items)
    site.check_empty()


@pytest.mark.fault_row("C3")
def test_a_flush_in_an_outage_without_a_spool_says_no(
    site: Site, proxy: ChaosProxy, impatient: None
) -> None:
    """Memory only: the flush raises, nothing is lost by it, and after healing all is stored."""
    assert settling.OUTAGE_S > 1
    run = site.init(proxy.url, disk=None)
    items = log(run, 0)
    run.flush(20)
    proxy.inject(faults.black_hole, path="")
    items = log(run, items)
    with pytest.raises(WaitTimeoutError):
        run.flush(2)
    assert proxy.fired["black_hole"] >= 1
    proxy.heal()
    info = run.close(30)
    assert info.is_complete, info
    site.find().check_whole(items)
