"""SPDY/3.1 header blocks: names and values, compressed with one dictionary and one context for each direction.

SPDY/3.1 draft (draft-mbelshe-httpbis-spdy-00 and its 3.1 revision), section 2.6.10.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

Headers = tuple[tuple[str, str], ...]

_U32 = struct.Struct(">L")

# Section 2.6.10.1: each of these words after its length, and then a text.
_WORDS = (
    "options,head,post,put,delete,trace,accept,accept-charset,accept-encoding,accept-language,accept-ranges,age,allow,"
    "authorization,cache-control,connection,content-base,content-encoding,content-language,content-length,"
    "content-location,content-md5,content-range,content-type,date,etag,expect,expires,from,host,if-match,"
    "if-modified-since,if-none-match,if-range,if-unmodified-since,last-modified,location,max-forwards,pragma,"
    "proxy-authenticate,proxy-authorization,range,referer,retry-after,server,te,trailer,transfer-encoding,upgrade,"
    "user-agent,vary,via,warning,www-authenticate,method,get,status,200 OK,version,HTTP/1.1,url,public,set-cookie,"
    "keep-alive,origin"
)
_TEXT = (
    "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505"
    "203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized"
    "403 Forbidden404 Not Found500 Internal Server Error501 Not Implemented503 Service Unavailable"
    "Jan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMT"
    "chunked,text/html,image/png,image/jpg,image/gif,application/xml,application/xhtml+xml,text/plain,"
    "text/javascript,publicprivatemax-age=gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0."
)
DICTIONARY = b"".join(_U32.pack(len(word)) + word.encode() for word in _WORDS.split(",")) + _TEXT.encode()


class BadBlock(Exception):
    """The bytes are not a header block. Later blocks of the same context cannot be read either."""


class Compressor:
    """Compresses the header blocks of one direction, in the order in which they are sent."""

    def __init__(self) -> None:
        # The smallest window that holds the dictionary: it takes 10 KiB, and zlib's default takes 256 KiB.
        self._zlib = zlib.compressobj(wbits=11, memLevel=1, zdict=DICTIONARY)

    def compress(self, headers: Headers) -> bytes:
        fields = (field.encode("latin-1") for pair in headers for field in pair)
        block = _U32.pack(len(headers)) + b"".join(_U32.pack(len(field)) + field for field in fields)
        return self._zlib.compress(block) + self._zlib.flush(zlib.Z_SYNC_FLUSH)


class Decompressor:
    """Unpacks the header blocks of the other direction. A block may unpack to at most ``longest`` bytes."""

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._zlib = zlib.decompressobj(zdict=DICTIONARY)

    def decompress(self, data: bytes) -> Headers:
        """The names and values of a block. Raises BadBlock."""
        try:
            block = self._zlib.decompress(data, self._longest + 1)
        except zlib.error as error:
            raise BadBlock(f"a header block cannot be decompressed: {error}") from error
        if len(block) > self._longest or self._zlib.unconsumed_tail:
            raise BadBlock(f"a header block decompresses to more than {self._longest} bytes")
        if self._zlib.eof:
            raise BadBlock("a header block ends the compressed stream")
        return tuple(_pairs(block))


def _pairs(block: bytes) -> Iterator[tuple[str, str]]:
    count, at = _number(block, 0)
    for _ in range(count):
        name, at = _text(block, at)
        value, at = _text(block, at)
        yield name, value
    if at != len(block):
        raise BadBlock("a header block has bytes after its last value")


def _text(block: bytes, at: int) -> tuple[str, int]:
    length, at = _number(block, at)
    if at + length > len(block):
        raise BadBlock("a header block ends within a text")
    return block[at : at + length].decode("latin-1"), at + length


def _number(block: bytes, at: int) -> tuple[int, int]:
    if at + _U32.size > len(block):
        raise BadBlock("a header block ends within a number")
    return int(_U32.unpack_from(block, at)[0]), at + _U32.size
