"""Reads a file of bbolt, the database of containerd (go.etcd.io/bbolt, format 2), while its owner writes to it.

A database is a B+ tree of pages. A writer never changes a page of the last transaction: it writes copies to free pages,
and at last one of the two meta pages in turn, which names the new root. So a copy of the file is whole if the last
transaction is still the same after it was read.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Self

_LONGEST: Final = 64 * 1024 * 1024
_ATTEMPTS: Final = 5
#: No tree is deeper. In a damaged one a page may be its own child, or that of many.
_DEEPEST: Final = 32

_MAGIC, _FORMAT = 0xED0CDAED, 2
_PAGE = struct.Struct("<QHHI")  # id, flags, count of elements, overflow
_META = struct.Struct("<IIIIQQQQQQ")  # …, page size, …, root page, …, transaction, checksum
_BRANCH = struct.Struct("<IIQ")  # position of the key from here, its size, page
_LEAF = struct.Struct("<IIII")  # flags, position of the key from here, its size, size of the value behind it
_BUCKET = struct.Struct("<QQ")  # root page, sequence; with page 0 the page itself follows
_IS_BRANCH, _IS_LEAF, _IS_BUCKET = 1, 2, 1
_FNV_START, _FNV_PRIME = 0xCBF29CE484222325, 0x100000001B3


class DamagedDatabase(Exception):
    """The file is no database of this format, or not whole."""


class Bucket:
    """A bucket of a database: keys with values, and keys with buckets. Reads raise DamagedDatabase."""

    def __init__(self, file: memoryview, page_size: int, page: memoryview) -> None:
        self._file = file
        self._page_size = page_size
        self._page = page

    @classmethod
    def root_of(cls, path: Path) -> Self:
        """The root bucket of the database in a file, as it is now. Raises OSError, DamagedDatabase."""
        with path.open("rb", buffering=0) as file:
            for _ in range(_ATTEMPTS):
                before = _last_meta(file.read(1 << 17))
                file.seek(0)
                content = file.read(_LONGEST + 1)
                file.seek(0)
                if len(content) > _LONGEST:
                    raise DamagedDatabase(f"{path} has more than {_LONGEST} bytes")
                if before == _last_meta(file.read(1 << 17)):
                    _, page_size, root = before
                    view = memoryview(content)
                    return cls(view, page_size, _page_at(view, page_size, root))
                file.seek(0)
        raise DamagedDatabase(f"{path} changes faster than it can be read")

    def value(self, key: bytes) -> bytes | None:
        """The value of a key."""
        return next((bytes(value) for flags, name, value in self._leaves() if name == key and not flags), None)

    def bucket(self, key: bytes) -> Bucket | None:
        """The bucket of a key."""
        return next((bucket for name, bucket in self.buckets() if name == key), None)

    def buckets(self) -> Iterator[tuple[bytes, Bucket]]:
        """All keys that have buckets, and those."""
        for flags, name, value in self._leaves():
            if flags & _IS_BUCKET:
                try:
                    root, _ = _BUCKET.unpack_from(value)
                except struct.error as error:
                    raise DamagedDatabase("a bucket is cut off") from error
                page = _page_at(self._file, self._page_size, root) if root else value[_BUCKET.size :]
                yield name, Bucket(self._file, self._page_size, page)

    def _leaves(self) -> Iterator[tuple[int, bytes, memoryview]]:
        """Flags, key and value of each key, in the order of the keys."""
        try:
            yield from self._leaves_below(self._page, _DEEPEST, set())
        except struct.error as error:
            raise DamagedDatabase("a page is cut off") from error

    def _leaves_below(self, page: memoryview, depth: int, seen: set[int]) -> Iterator[tuple[int, bytes, memoryview]]:
        _, flags, count, _ = _PAGE.unpack_from(page)
        if flags & _IS_LEAF:
            for index in range(count):
                at = _PAGE.size + index * _LEAF.size
                kind, position, key_size, value_size = _LEAF.unpack_from(page, at)
                key = at + position
                yield kind, bytes(page[key : key + key_size]), page[key + key_size : key + key_size + value_size]
        elif flags & _IS_BRANCH and depth:
            for index in range(count):
                _, _, child = _BRANCH.unpack_from(page, _PAGE.size + index * _BRANCH.size)
                if child in seen:
                    raise DamagedDatabase(f"page {child} is in the tree twice")
                seen.add(child)
                yield from self._leaves_below(_page_at(self._file, self._page_size, child), depth - 1, seen)
        else:
            raise DamagedDatabase("a page is none of a tree")


def _page_at(file: memoryview, size: int, number: int) -> memoryview:
    """A page with the pages behind it that it continues on."""
    start = number * size
    # A damaged page may name one that is farther than any memory.
    if start + _PAGE.size > len(file):
        raise DamagedDatabase(f"there is no page {number}")
    overflow = _PAGE.unpack_from(file, start)[3]
    return file[start : start + (1 + overflow) * size]


def _last_meta(start: bytes) -> tuple[int, int, int]:
    """The last transaction, the size of a page, and the root page, from the first two pages."""
    found = []
    size = _META.unpack_from(start, _PAGE.size)[2] if len(start) >= _PAGE.size + _META.size else 0
    for at in (_PAGE.size, size + _PAGE.size):
        if not size or len(start) < at + _META.size:
            continue
        magic, form, _, _, root, _, _, _, transaction, checksum = _META.unpack_from(start, at)
        if (magic, form) == (_MAGIC, _FORMAT) and checksum == _fnv(start[at : at + _META.size - 8]):
            found.append((transaction, size, root))
    if not found:
        raise DamagedDatabase("there is no meta page")
    return max(found)


def _fnv(data: bytes) -> int:
    """FNV-1a, 64 bits."""
    value = _FNV_START
    for byte in data:
        value = (value ^ byte) * _FNV_PRIME & 0xFFFFFFFFFFFFFFFF
    return value
