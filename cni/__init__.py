"""A runtime for the Container Network Interface, versions 0.1.0 to 1.1.0 of its specification.

The modules follow SPEC.md: ``config`` (section 1), ``execute`` (section 2), ``runtime`` (section 3), ``result``
(section 5). ``cache`` keeps results on disk in libcni's format. ``watch`` follows a folder of configurations. The
package does not import anything of the program that uses it.
"""

from __future__ import annotations

from cni._files import read_bounded
from cni.cache import Attachment, CachedAttachment
from cni.config import NetworkList, PluginConfig, find_network
from cni.errors import (
    AttachmentError,
    CacheError,
    CNIError,
    ConfigError,
    ErrorCode,
    NotSupported,
    OperationFailed,
    OperationTimeout,
    PluginError,
    PluginNotFound,
    PluginStartError,
    PluginTimeout,
    ResultError,
)
from cni.execute import Completion, Executor, Invocation, SubprocessExecutor
from cni.result import DNS, Interface, IPConfig, Result, Route
from cni.runtime import Runtime, has_gc
from cni.watch import ConfigWatcher

__all__ = [
    "DNS",
    "Attachment",
    "AttachmentError",
    "CNIError",
    "CacheError",
    "CachedAttachment",
    "Completion",
    "ConfigError",
    "ConfigWatcher",
    "ErrorCode",
    "Executor",
    "IPConfig",
    "Interface",
    "Invocation",
    "NetworkList",
    "NotSupported",
    "OperationFailed",
    "OperationTimeout",
    "PluginConfig",
    "PluginError",
    "PluginNotFound",
    "PluginStartError",
    "PluginTimeout",
    "Result",
    "ResultError",
    "Route",
    "Runtime",
    "SubprocessExecutor",
    "find_network",
    "has_gc",
    "read_bounded",
]
