"""Converts CRI mounts and devices to the engine's, and back."""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from dockershim.api.cri.v1 import api_pb2 as cri
from dockershim.errors import InvalidArgument, Unsupported
from dockershim.translate.capabilities import Capabilities
from dockershim.translate.checks import check_text, reject, require
from dockershim.translate.user_namespace import UserNamespace, mapped_mounts, read_user_namespace

_API_NON_RECURSIVE_READ_ONLY = (1, 44)

_PROPAGATION = {
    cri.PROPAGATION_PRIVATE: "rprivate",
    cri.PROPAGATION_HOST_TO_CONTAINER: "rslave",
    cri.PROPAGATION_BIDIRECTIONAL: "rshared",
}
_TO_CRI_PROPAGATION = {
    "rslave": cri.PROPAGATION_HOST_TO_CONTAINER,
    "slave": cri.PROPAGATION_HOST_TO_CONTAINER,
    "rshared": cri.PROPAGATION_BIDIRECTIONAL,
    "shared": cri.PROPAGATION_BIDIRECTIONAL,
}


def check_mounts(mounts: Iterable[cri.Mount], features: Capabilities) -> None:
    """Raises InvalidArgument or Unsupported naming the mount and the field."""
    seen: set[str] = set()
    for mount in mounts:
        where = f"mounts[{mount.container_path}]"
        for path, field in ((mount.container_path, "container_path"), (mount.host_path, "host_path")):
            check_text(path, f"mounts.{field}")
        reject(mount.mount_options, f"{where}.mount_options", "mount options are not supported")
        if mount.HasField("image"):
            _check_image_mount(mount, where, features)
        elif mount.image_sub_path:
            raise InvalidArgument(f"{where}.image_sub_path: requires image")
        elif not mount.host_path.startswith("/"):
            raise InvalidArgument(f"{where}.host_path: {mount.host_path!r} must be an absolute path")
        if not mount.container_path:
            raise InvalidArgument(f"mounts[{mount.host_path}].container_path: must not be empty")
        target = container_path(mount.container_path)
        if target in seen:
            raise InvalidArgument(f"{where}: another mount has the same container_path")
        seen.add(target)
        if mount.recursive_read_only:
            _check_recursive_read_only(mount, where)


def _check_image_mount(mount: cri.Mount, where: str, features: Capabilities) -> None:
    reject(not features.image_volumes, f"{where}.image", "image volumes require Docker 28 or newer")
    require(mount.image.image, f"{where}.image.image")
    features.check_handler(mount.image.runtime_handler, f"{where}.image.runtime_handler")
    if mount.host_path:
        raise InvalidArgument(f"{where}.host_path: must be empty if image is set")
    if not mount.readonly:
        raise InvalidArgument(f"{where}.readonly: must be true for an image volume")
    reject(
        mount.propagation == cri.PROPAGATION_BIDIRECTIONAL,
        f"{where}.propagation",
        "must not be bidirectional for an image volume",
    )
    check_text(mount.image_sub_path, f"{where}.image_sub_path")
    if mount.image_sub_path.startswith("/") or ".." in mount.image_sub_path.split("/"):
        raise InvalidArgument(f"{where}.image_sub_path: {mount.image_sub_path!r} must be a path inside the image")


def _check_recursive_read_only(mount: cri.Mount, where: str) -> None:
    if not mount.readonly:
        raise InvalidArgument(f"{where}.recursive_read_only: requires readonly")
    if mount.propagation != cri.PROPAGATION_PRIVATE:
        raise InvalidArgument(f"{where}.recursive_read_only: requires private propagation")


def container_path(path: str) -> str:
    """A mount point as the engine wants it: absolute and normalized."""
    # normpath keeps two slashes at the start, as POSIX allows; for Linux and the engine they are one.
    return posixpath.normpath("/" + path.lstrip("/"))


def with_mapped_ids(mounts: Iterable[cri.Mount], namespace: UserNamespace | None) -> list[str]:
    """The container paths, as the engine gets them, of the mounts that ask for mapped ids. Raises InvalidArgument."""
    return mapped_mounts(((container_path(mount.container_path), mount) for mount in mounts), namespace)


def to_engine_mounts(
    mounts: Iterable[cri.Mount], runtime_handler: str, features: Capabilities, image_ids: Mapping[str, str]
) -> list[dict[str, Any]]:
    """HostConfig.Mounts. Raises Unsupported if the handler's runtime does not support a mount.

    ``image_ids`` are the ids of the images that the mounts name, by those names.
    """
    made: list[dict[str, Any]] = []
    times: Counter[str] = Counter()
    for mount in mounts:
        if mount.HasField("image"):
            image_id = image_ids[mount.image.image]
            made.append(_to_engine_image_mount(mount, _name_of_image(image_id, times[image_id])))
            times[image_id] += 1
        elif not _relabels(mount, features):
            made.append(_to_engine_mount(mount, runtime_handler, features))
    return made


def _name_of_image(image_id: str, before: int) -> str:
    """The name by which a container mounts an image that it mounts ``before`` times already.

    Docker 28 refuses a second mount by the same name. So the first one has the id, the next one the id without the
    algorithm, and each further one a digit less of it.
    """
    digits = image_id.rpartition(":")[2]
    return digits[: len(digits) + 1 - before] if before else image_id


def _to_engine_image_mount(mount: cri.Mount, image: str) -> dict[str, Any]:
    """By the image's id, which stays the image that is mounted when the name goes to another one.

    The engine takes no propagation here. An image has no mounts below it, so recursively read-only is read-only.
    """
    made = {
        "Type": "image",
        "Source": image,
        "Target": container_path(mount.container_path),
        "ReadOnly": True,
    }
    return {**made, "ImageOptions": {"Subpath": mount.image_sub_path}} if mount.image_sub_path else made


def _to_engine_mount(mount: cri.Mount, runtime_handler: str, features: Capabilities) -> dict[str, Any]:
    if mount.recursive_read_only and not features.has_recursive_read_only(runtime_handler):
        raise Unsupported(
            f"mounts[{mount.container_path}].recursive_read_only: requires Docker 25, Linux 5.12 and an OCI runtime"
            f" that supports it; {features.runtime_of(runtime_handler) or features.default_runtime} does not"
        )
    return bind_mount(
        mount.host_path,
        container_path(mount.container_path),
        _PROPAGATION[mount.propagation],
        features,
        readonly=mount.readonly,
        recursive_read_only=mount.recursive_read_only,
    )


def bind_mount(
    source: str,
    target: str,
    propagation: str,
    features: Capabilities,
    *,
    readonly: bool,
    recursive_read_only: bool = False,
) -> dict[str, Any]:
    """A bind mount of HostConfig.Mounts; ``propagation`` is rprivate and so on."""
    options: dict[str, Any] = {"Propagation": _allowed_propagation(source, propagation, features)}
    if readonly and features.api >= _API_NON_RECURSIVE_READ_ONLY:
        # Since Docker 25 a read-only bind is recursive by default.
        options["ReadOnlyForceRecursive" if recursive_read_only else "ReadOnlyNonRecursive"] = True
    return {"Type": "bind", "Source": source, "Target": target, "ReadOnly": readonly, "BindOptions": options}


def _allowed_propagation(source: str, propagation: str, features: Capabilities) -> str:
    """The propagation; empty, the engine's default, where the engine refuses private ones: at its data root, as
    a private copy of a mount there would keep the engine from unmounting it. The default is as private as it allows:
    the container sees mounts of the host, and the host does not see those of the container.

    The engine compares the texts of the paths, and so does this: it also refuses a path beside the root that begins
    with the same text, and does not refuse a symlink into the root.
    """
    root = features.root_dir
    if propagation in ("private", "rprivate") and root and (source.startswith(root) or root.startswith(source)):
        return ""
    return propagation


def to_engine_binds(mounts: Iterable[cri.Mount], features: Capabilities) -> list[str]:
    """HostConfig.Binds, for mounts with an SELinux label: only this older form of a mount supports labels."""
    binds = []
    for mount in mounts:
        if not _relabels(mount, features):
            continue
        if ":" in mount.host_path + mount.container_path:
            raise Unsupported(f"mounts[{mount.container_path}].selinux_relabel: not supported for a path with ':'")
        if mount.recursive_read_only:
            raise Unsupported(f"mounts[{mount.container_path}].selinux_relabel: not supported with recursive_read_only")
        propagation = _allowed_propagation(mount.host_path, _PROPAGATION[mount.propagation], features)
        mode = ",".join(filter(None, ("ro" if mount.readonly else "rw", "Z", propagation)))
        binds.append(f"{mount.host_path}:{container_path(mount.container_path)}:{mode}")
    return binds


def _relabels(mount: cri.Mount, features: Capabilities) -> bool:
    # The engine's own label lets every container read an image.
    return mount.selinux_relabel and features.selinux and not mount.HasField("image")


def to_cri_mounts(host_config: Mapping[str, Any]) -> list[cri.Mount]:
    """The mounts of a container from its HostConfig, in both forms that shims have used."""
    mounts = _to_plain_mounts(host_config)
    namespace, mapped = read_user_namespace(host_config)
    for mount in mounts:
        if namespace is not None and mount.container_path in mapped:
            mount.uidMappings.append(namespace.uids)
            mount.gidMappings.append(namespace.gids)
    return mounts


def _to_plain_mounts(host_config: Mapping[str, Any]) -> list[cri.Mount]:
    made = host_config.get("Mounts") or ()
    ids = [mount["Source"] for mount in made if mount.get("Source", "").startswith("sha256:")]
    mounts = [
        _to_cri_image_mount(mount, ids) if mount.get("Type") == "image" else _to_cri_mount(mount) for mount in made
    ]
    for bind in host_config.get("Binds") or ():
        source, _, rest = bind.partition(":")
        target, _, options_text = rest.partition(":")
        options = options_text.split(",")
        mounts.append(
            cri.Mount(
                container_path=target,
                host_path=source,
                readonly="ro" in options,
                selinux_relabel=bool({"z", "Z"} & set(options)),
                propagation=next(filter(None, map(_TO_CRI_PROPAGATION.get, options)), cri.PROPAGATION_PRIVATE),
            )
        )
    return mounts


def _to_cri_mount(mount: Mapping[str, Any]) -> cri.Mount:
    return cri.Mount(
        container_path=mount.get("Target", ""),
        host_path=mount.get("Source", ""),
        readonly=bool(mount.get("ReadOnly")),
        propagation=_to_cri_propagation((mount.get("BindOptions") or {}).get("Propagation", "")),
        recursive_read_only=bool((mount.get("BindOptions") or {}).get("ReadOnlyForceRecursive")),
    )


def _to_cri_image_mount(mount: Mapping[str, Any], ids: Iterable[str]) -> cri.Mount:
    name = mount.get("Source", "")
    image = next((image_id for image_id in ids if name and image_id.startswith(f"sha256:{name}")), name)
    return cri.Mount(
        container_path=mount.get("Target", ""),
        readonly=True,
        image=cri.ImageSpec(image=image, image_ref=image),
        image_sub_path=(mount.get("ImageOptions") or {}).get("Subpath", ""),
    )


def _to_cri_propagation(name: str) -> cri.MountPropagation:
    return _TO_CRI_PROPAGATION.get(name, cri.PROPAGATION_PRIVATE)


def to_engine_devices(devices: Iterable[cri.Device]) -> list[dict[str, str]]:
    """HostConfig.Devices."""
    result = []
    for device in devices:
        if not device.host_path.startswith("/"):
            raise InvalidArgument(f"devices: {device.host_path!r} must be an absolute path on the host")
        permissions = device.permissions or "rwm"
        if set(permissions) - set("rwm"):
            raise InvalidArgument(
                f"devices[{device.host_path}].permissions: {permissions!r} must only contain r, w and m"
            )
        result.append(
            {
                "PathOnHost": device.host_path,
                "PathInContainer": device.container_path or device.host_path,
                "CgroupPermissions": permissions,
            }
        )
    return result
