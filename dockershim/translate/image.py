"""Converts the engine's image JSON to the CRI's Image."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Required, TypedDict

import msgspec

from dockershim.api.cri.v1 import api_pb2
from dockershim.errors import InvalidArgument
from dockershim.translate.reference import Reference, parse_reference

# As many digits as surely fit into the field of 64 bits.
_UID: Final = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True, slots=True)
class ImageRecord:
    """An image on the node: ``id`` is ``sha256:…``, names are as the engine shows them, ``size`` is in bytes.

    ``user`` is the image's own USER, as in "1002", "www-data" or "1003:users"; empty means root. ``added`` are the
    bytes that the engine adds to the description of each container of this image: labels, variables, and more.
    """

    id: str
    tags: tuple[str, ...]
    digests: tuple[str, ...]
    size: int
    user: str = ""
    added: int = 0


class ImageConfig(NamedTuple):
    """What an ImageRecord has of the image's configuration."""

    user: str
    added: int


class ListedImage(TypedDict, total=False):
    """An element of GET /images/json, with the fields that ``to_image_records`` reads, and its time of creation."""

    Id: Required[str]
    RepoTags: list[str] | None
    RepoDigests: list[str] | None
    Size: int
    Created: int
    Descriptor: dict[str, Any] | None


#: Characters of a USER. A longer one is that of no account, and would make a list of images too long to be sent.
_LONGEST_USER: Final = 256
#: Bytes that an image may add. Each event of a container has its labels, and each inspect has all.
MOST_ADDED: Final = 1 << 20


def check_added(image: ImageRecord, asked: str) -> None:
    """Check that containers can be made of the image that was ``asked`` for. Raises InvalidArgument."""
    if image.added > MOST_ADDED:
        raise InvalidArgument(
            f"image {asked!r} has {image.added} bytes of labels, variables and other configuration, which the engine"
            f" copies to each of its containers; at most {MOST_ADDED} are allowed: rebuild it with less"
        )


def to_image_record(inspected: Mapping[str, Any], left_out: int = 0) -> ImageRecord:
    """From ``GET /images/{name}/json``, of which so many bytes are left out."""
    config = inspected.get("Config") or {}
    return ImageRecord(
        id=inspected["Id"],
        tags=_tags(inspected.get("RepoTags")),
        digests=_digests(inspected),
        size=inspected.get("Size") or 0,
        user=(config.get("User") or "")[:_LONGEST_USER],
        added=(len(msgspec.json.encode(config)) if config else 0) + left_out,
    )


def to_image_records(listed: Sequence[ListedImage], configs: Mapping[str, ImageConfig]) -> list[ImageRecord]:
    """From ``GET /images/json``, which does not have the configurations: ``configs`` has them by image id.

    An image that is missing in ``configs`` was removed meanwhile and is left out.
    """
    return [
        ImageRecord(
            id=image["Id"],
            tags=_tags(image.get("RepoTags")),
            digests=_digests(image),
            size=image.get("Size") or 0,
            user=configs[image["Id"]].user,
            added=configs[image["Id"]].added,
        )
        for image in listed
        if image["Id"] in configs
    ]


def _tags(names: Sequence[str] | None) -> tuple[str, ...]:
    """``name:tag`` of each, without the ``<none>:<none>`` that engines before 25 give to unnamed images.

    containerd's image store has ``name@digest`` among the tags, too, for an image that was pulled by digest, and does
    not sort them.
    """
    return tuple(sorted(name for name in names or () if not name.startswith("<none>") and "@" not in name))


def _digests(image: Mapping[str, Any]) -> tuple[str, ...]:
    """``name@digest`` of each, without the ``<none>@<none>`` that engines before 25 give to unnamed images.

    containerd's image store has a digest without a name for what is no image of a platform, such as an artifact; and
    its lists have the digest of one name alone, where an inspect has one for each. Only there an image has a
    ``Descriptor``, and its digest is that of every name.
    """
    names = [name for name in image.get("RepoDigests") or () if not name.startswith("<none>") and "@" in name]
    if digest := (image.get("Descriptor") or {}).get("digest"):
        tags = image.get("RepoTags") or ()
        names += [name if "@" in name else f"{name.rpartition(':')[0]}@{digest}" for name in tags]
    return tuple(sorted(set(names)))


def to_cri_image(record: ImageRecord, pinned: bool) -> api_pb2.Image:
    image = api_pb2.Image(
        id=record.id,
        repo_tags=record.tags,
        repo_digests=record.digests,
        size=record.size,
        spec=api_pb2.ImageSpec(image=next(iter((*record.tags, *record.digests, record.id)))),
        pinned=pinned,
    )
    user = record.user.partition(":")[0]
    if _UID.fullmatch(user):
        image.uid.value = int(user)
    else:
        image.username = user
    return image


def is_named(record: ImageRecord, reference: Reference) -> bool:
    """Whether the reference means this image. If it has a digest, only that counts."""
    return reference.shown in record.tags or reference.shown in record.digests


def to_image_ref(digests: Sequence[str], asked: str) -> str:
    """The image's name by digest for a container that was created with the name ``asked``: the same name, one of the
    same repository, or any; empty if there is none."""
    try:
        reference = parse_reference(asked)
    except InvalidArgument:
        return min(digests, default="")

    def distance(digest: str) -> tuple[bool, bool, str]:
        return digest != reference.shown, parse_reference(digest).name != reference.name, digest

    return min(digests, key=distance, default="")


def to_cri_image_info(inspected: Mapping[str, Any]) -> dict[str, str]:
    """``ImageStatusResponse.info`` of a verbose request: what the engine knows, as JSON under the key ``info``."""
    return {"info": json.dumps(inspected, separators=(",", ":"), sort_keys=True)}
