"""The kind of an API call, for metrics: its method and path with placeholders instead of names."""

from __future__ import annotations

from typing import Final

#: Words in API paths that could be mistaken for the name of a container or image.
_COLLECTIONS: Final = frozenset({"create", "json", "load", "prune", "search", "get"})
_ALONE: Final = frozenset({"/_ping", "/events", "/info", "/version", "/system/df"})
_NAMED: Final = {"containers": "{id}", "exec": "{id}", "images": "{name}"}
#: The last words of paths that follow an id or a name.
_VERBS: Final = frozenset(
    {
        *("archive", "attach", "changes", "exec", "export", "history", "json", "kill", "logs", "pause", "push"),
        *("rename", "resize", "restart", "start", "stats", "stop", "tag", "top", "unpause", "update", "wait"),
    }
)
OTHER: Final = "other"


def kind_of_call(method: str, path: str) -> str:
    """``GET /containers/{id}/json`` for an inspect of any container; ``other`` for an unknown path.

    The name of an image may have slashes, and these words in it. So only the last word can be a verb.
    """
    if path in _ALONE:
        return f"{method} {path}"
    root, _, rest = path[1:].partition("/")
    placeholder = _NAMED.get(root)
    if placeholder is None or not rest:
        return OTHER
    if rest in _COLLECTIONS:
        return f"{method} /{root}/{rest}"
    name, _, verb = rest.rpartition("/")
    if name and verb in _VERBS and method != "DELETE":
        return f"{method} /{root}/{placeholder}/{verb}"
    return f"{method} /{root}/{placeholder}"
