"""Where a writer's leftovers lie, and what says whose they are.

::

    <root>/v1/<host>/<server>/<run uid>/<writer id>/      every directory 0700, every file 0600
        LOCK                 flock of the process that writes or delivers
        META                 whose this is; immutable, there before the first frame
        names-00000001.frames …  every page of names once more, beside the copies in the segments
        00000001.seg …       frames, appended
        END                  how the writer left, if it did
        ASIDE                why nobody delivers this by itself any more

Path parts are digests and hex ids: no name that a user can choose reaches the file system. META
and END are a line of JSON and a line with its CRC32C; they are written beside, synced, and renamed
into place.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from typing import Any, Final, TypeVar

import orjson
from crc32c import crc32c

from metrana_async.errors import ProtocolError
from metrana_async.spool.disk import Disk
from metrana_async.wire.messages import LeaveRequest, OpenRequest, decode_message

VERSION: Final = "v1"
LOCK: Final = "LOCK"
META: Final = "META"
END: Final = "END"
ASIDE: Final = "ASIDE"
NAMES_PREFIX: Final = "names-"
NAMES_SUFFIX: Final = ".frames"
SEGMENT_SUFFIX: Final = ".seg"

META_BYTES_MAX: Final = 32 << 20
_CHECKSUM_BYTES: Final = 10
_ID_DIGITS: Final = 32
_PLACE_DIGITS: Final = 16
_LEVELS: Final = 5

_Message = TypeVar("_Message", OpenRequest, LeaveRequest)


@dataclass(frozen=True, slots=True)
class Meta:
    """Whose leftovers a directory holds.

    Attributes:
        server: the server they are for, as `place_digest` was given it, for people to read.
        mode: the `init_mode` of their writer.
        run_uid: what the frames carry as their run.
        request: how the writer introduces itself; without any key.
    """

    server: str
    mode: str
    run_uid: str
    request: OpenRequest

    @property
    def run_place(self) -> str:
        """workspace/project/run."""
        request = self.request
        return f"{request.workspace}/{request.project}/{request.run_name}"


def place_digest(place: str) -> str:
    """The path part that stands for a host or a server: 16 hex digits."""
    return hashlib.blake2b(place.encode(), digest_size=_PLACE_DIGITS // 2).hexdigest()


def writer_directory(root: str, *, host: str, server: str, run_uid: str, writer_id: str) -> str:
    """The directory of one writer incarnation."""
    return "/".join((server_directory(root, host=host, server=server), run_uid, writer_id))


def segment_name(number: int) -> str:
    """The file name of a segment."""
    return f"{number:08d}{SEGMENT_SUFFIX}"


def names_name(number: int) -> str:
    """The file name of a copy of the pages."""
    return f"{NAMES_PREFIX}{number:08d}{NAMES_SUFFIX}"


def is_names(name: str) -> bool:
    """Whether a file is a copy of the pages."""
    return name.startswith(NAMES_PREFIX) and name.endswith(NAMES_SUFFIX)


def segment_number(name: str) -> int | None:
    """The number of a segment file; None where `name` is something else."""
    stem = name.removesuffix(SEGMENT_SUFFIX)
    is_number = stem.isascii() and stem.isdigit()
    return int(stem) if is_number and segment_name(int(stem)) == name else None


def writer_directories(disk: Disk, top: str) -> list[str]:
    """Every writer's directory at or below `top`, in a stable order.

    `top` is a spool root, any level of one, or a writer's directory itself, also as a copy under
    another name. Nothing else is looked into, and no link is followed.
    """
    is_root = any(e.name == VERSION and e.is_directory for e in disk.entries(top))
    if _is_writers(disk, top) and not is_root:
        return [top]
    found: list[str] = []
    level = [top]
    for _ in range(_LEVELS):
        below = [f"{path}/{name}" for path in level for name in _parts(disk, path)]
        level = []
        for path in below:
            is_writer = len(path.rpartition("/")[2]) == _ID_DIGITS and _is_writers(disk, path)
            (found if is_writer else level).append(path)
    return found


def server_directory(root: str, *, host: str, server: str) -> str:
    """What lies above the writers of one host for one server."""
    return "/".join((root, VERSION, place_digest(host), place_digest(server)))


def _is_writers(disk: Disk, path: str) -> bool:
    names = [entry.name for entry in disk.entries(path) if entry.is_file]
    return LOCK in names or META in names or any(segment_number(name) for name in names)


def _parts(disk: Disk, directory: str) -> list[str]:
    return [
        entry.name
        for entry in disk.entries(directory)
        if entry.is_directory and (entry.name == VERSION or _is_part(entry.name))
    ]


def _is_part(name: str) -> bool:
    return len(name) in (_ID_DIGITS, _PLACE_DIGITS) and not set(name) - _HEX


_HEX: Final = frozenset("0123456789abcdef")


def encode_meta(meta: Meta) -> bytes:
    """META's bytes."""
    return _with_checksum(orjson.dumps(asdict(meta)))


def encode_end(leave: LeaveRequest) -> bytes:
    """END's bytes."""
    return _with_checksum(orjson.dumps(leave))


def _with_checksum(content: bytes) -> bytes:
    """Content and a second line that vouches for it: one flipped bit could name another run."""
    return b"%s\n%08x\n" % (content, crc32c(content))


def read_meta(disk: Disk, directory: str) -> Meta | None:
    """META of a directory, or None where it is missing or nothing can be made of it."""
    content = _read_json(disk, f"{directory}/{META}")
    try:
        if content is None:
            return None
        request = _message(OpenRequest, content["request"])
        server, mode, run_uid = (content[name] for name in ("server", "mode", "run_uid"))
        if not all(isinstance(text, str) for text in (server, mode, run_uid)):
            return None
        return Meta(server, mode, run_uid, request)
    except (KeyError, TypeError, ProtocolError):
        return None


def read_end(disk: Disk, directory: str) -> LeaveRequest | None:
    """How the writer left, or None where it did not say."""
    content = _read_json(disk, f"{directory}/{END}")
    try:
        return None if content is None else _message(LeaveRequest, content)
    except ProtocolError:
        return None


def read_aside(disk: Disk, directory: str) -> str | None:
    """Why a directory was set aside, or None where it was not."""
    try:
        return disk.read(f"{directory}/{ASIDE}", 0, 1 << 16).decode("utf-8", "replace")
    except OSError:
        return None


def put_file(disk: Disk, directory: str, name: str, data: bytes) -> None:
    """Write a small file in one piece, durably: it is there whole, or not at all."""
    beside = f"{directory}/{name}.new"
    disk.remove(beside)
    handle = disk.create(beside)
    try:
        disk.append(handle, data)
        disk.sync(handle)
    finally:
        disk.close(handle)
    disk.rename(beside, f"{directory}/{name}")
    disk.sync_directory(directory)


def _read_json(disk: Disk, path: str) -> dict[str, Any] | None:
    try:
        data = disk.read(path, 0, META_BYTES_MAX)
        if _with_checksum(data[:-_CHECKSUM_BYTES]) != data:
            return None
        content = orjson.loads(data[:-_CHECKSUM_BYTES])
    except (OSError, orjson.JSONDecodeError):
        return None
    return content if isinstance(content, dict) else None


def _message(cls: type[_Message], content: Any) -> _Message:
    return decode_message(cls, orjson.dumps(content))
