"""Messages and answers survive the wire; errors keep their class."""

from __future__ import annotations

import orjson
import pytest

from metrana_async import errors
from metrana_async.wire.acks import (
    BatchReply,
    BatchStatus,
    IngestReply,
    Notice,
    decode_reply,
    encode_reply,
)
from metrana_async.wire.messages import (
    HeartbeatReply,
    HeartbeatRequest,
    LeaveRequest,
    OpenReply,
    OpenRequest,
    ProcessIdentity,
    Seeds,
    decode_error,
    decode_message,
    encode_error,
    encode_message,
)

NOTICE = Notice("EpisodeTakenOver", "text", "r", {"a": "b"}, "e", 3, 7, {"host": "h", "pid": 1})

MESSAGES = [
    OpenRequest(
        "ws",
        "p",
        None,
        "job",
        "never",
        "0" * 32,
        process=ProcessIdentity("h", "b", 1, 2, 3),
        attributes=[["set", "config/lr", 0.1]],
    ),
    OpenReply(
        "0" * 32,
        "ws",
        "p",
        "run",
        created=True,
        orchestration_id="job",
        orchestration_ids=["job"],
        generation="g",
        seeds=Seeds([["standard", "m", "ML_STEP", [], "ordered", None, 3, {}]]),
        acked={0: 5},
        notices=[NOTICE],
    ),
    HeartbeatRequest("0" * 32, "1" * 32, {"accepted": 5}),
    LeaveRequest("0" * 32, "1" * 32, is_run_over=False, status="failed", exception_type="KeyError"),
    HeartbeatReply("running", "g", [NOTICE]),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_messages_round_trip(message):
    """Each message decodes to what was encoded."""
    assert decode_message(type(message), encode_message(message)) == message


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_a_wrong_field_is_a_protocol_error_that_names_it(message):
    """Unknown and mistyped fields are refused by name."""
    content = orjson.loads(encode_message(message))
    with pytest.raises(errors.ProtocolError, match="surprise"):
        decode_message(type(message), orjson.dumps({**content, "surprise": 1}))
    name = next(k for k, v in content.items() if isinstance(v, str))
    with pytest.raises(errors.ProtocolError, match=name):
        decode_message(type(message), orjson.dumps({**content, name: 17}))


def test_an_ingest_reply_round_trips():
    """Statuses, counts, marks and notices come back."""
    reply = IngestReply(
        "0" * 32,
        "1" * 32,
        (
            BatchReply(0, 4, BatchStatus.STORED, {"stored": 3}),
            BatchReply(1, 9, BatchStatus.GAP, expected=7),
            BatchReply(1, 9, BatchStatus.NEED_PAGES, pages=("2" * 32,)),
        ),
        {0: 4, 1: 6},
        "g",
        (NOTICE,),
        1 << 20,
        250,
    )
    assert decode_reply(encode_reply(reply)) == reply


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"replies": 1}', b"\xff", b"null"])
def test_a_malformed_reply_is_a_protocol_error(data):
    """The client never trusts an answer it cannot read."""
    with pytest.raises(errors.ProtocolError):
        decode_reply(data)


@pytest.mark.parametrize("code", sorted(errors.ERROR_BY_CODE))
def test_every_code_maps_to_one_class_and_back(code):
    """An error keeps its class, message and hint across the wire."""
    original = errors.error_from_code(code, "what happened")
    original.hint = "do this"
    assert original.code == code
    found = decode_error(*encode_error(original))
    assert type(found) is type(original)
    assert (found.message, found.hint) == ("what happened", "do this")
    assert "do this" in str(found)


def test_codes_are_unique():
    """No two error classes share a code."""
    classes = errors._all_subclasses(errors.MetranaError)
    assert len({cls.code for cls in classes}) == len(classes) == len(errors.ERROR_BY_CODE)


def test_an_unreadable_error_answer_is_retryable():
    """A proxy's HTML page is a reason to retry, not a verdict."""
    error = decode_error(502, b"<html>bad gateway</html>")
    assert error.retryable
    assert "502" in str(error)


def test_a_proxys_limit_is_no_verdict_of_the_server():
    """Its 413 is tried again, smaller, and says what to do; the server's own is for good."""
    error = decode_error(413, b"<html>too large</html>")
    assert isinstance(error, errors.BatchTooLargeError)
    assert error.retryable
    assert "client_max_body_size" in str(error)
    own = decode_error(*encode_error(errors.BatchTooLargeError("a frame is too large")))
    assert isinstance(own, errors.BatchTooLargeError)
    assert not own.retryable
