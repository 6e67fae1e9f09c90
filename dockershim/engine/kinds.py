"""Which of the API's calls a request is: its method and path, with the names in it left out."""

from __future__ import annotations

from typing import Final

#: Paths of the API that could be taken for the name of a container or image.
_COLLECTIONS: Final = frozenset({"create", "json", "load", "prune", "search", "get"})
_ALONE: Final = frozenset({"/_ping", "/events", "/info", "/version", "/system/df"})
_NAMED: Final = {"containers": "{id}", "exec": "{id}", "images": "{name}"}
#: What can be asked of one of them.
_VERBS: Final = frozenset(
    {
        *("archive", "attach", "changes", "exec", "export", "history", "json", "kill", "logs", "pause", "push"),
        *("rename", "resize", "restart", "start", "stats", "stop", "tag", "top", "unpause", "update", "wait"),
    }
)
OTHER: Final = "other"


def kind_of_call(method: str, path: str) -> str:
    """``GET /containers/{id}/json`` for GET of any container; ``other`` for a path that is not known here.

    The name of an image has slashes, and may be one of the words: only the last one can be what is asked of it.
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
