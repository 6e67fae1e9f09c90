"""A hook server for dockershim, and for koordinator's koord-runtime-proxy: `python -m examples.hook_server --help`.

It serves the seven hooks on a unix socket, writes each call as a line of JSON, and makes the changes that its options
name. With --register it also writes the file by which dockershim finds it, once it serves, and removes it at its end:

    python -m examples.hook_server --socket /run/example-hooks.sock --register /etc/runtime/hookserver.d/example.json \\
        --env GREETING=hello --cpuset 0

docs/hooks.md says when each hook is called, and what an answer changes.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

import grpc
from google.protobuf.json_format import MessageToDict

from dockershim.api.hooks.v1alpha1 import api_pb2 as hooks

SERVICE = hooks.DESCRIPTOR.services_by_name["RuntimeHookService"]
HOOKS = tuple(method.name.removesuffix("Hook") for method in SERVICE.methods)


class HookServer:
    """Answers with what it was told, so that nothing is cleared, and the changes of its options."""

    def __init__(self, options: argparse.Namespace, output: TextIO) -> None:
        self._options = options
        self._output = output

    def handlers(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        """A handler for each method of the service, by its name."""
        return {
            method.name: grpc.unary_unary_rpc_method_handler(
                self._handler(method.name.removesuffix("Hook")),
                request_deserializer=_message(method.input_type.name).FromString,
                response_serializer=lambda answer: answer.SerializeToString(),
            )
            for method in SERVICE.methods
        }

    def _handler(self, hook: str) -> Callable[[Any, Any], Awaitable[Any]]:
        async def handle(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            told = MessageToDict(request, preserving_proto_field_name=True)
            self._output.write(json.dumps({"hook": hook, "request": told}, sort_keys=True) + "\n")
            self._output.flush()
            await asyncio.sleep(self._options.delay)
            if isinstance(request, hooks.PodSandboxHookRequest):
                return self._about_pod(request)
            return self._about_container(request)

        return handle

    def _about_pod(self, request: hooks.PodSandboxHookRequest) -> hooks.PodSandboxHookResponse:
        options = self._options
        return hooks.PodSandboxHookResponse(
            labels=options.label,
            annotations=options.annotation,
            cgroup_parent=options.cgroup_parent or request.cgroup_parent,
            resources=request.resources if request.HasField("resources") else None,
        )

    def _about_container(self, request: hooks.ContainerResourceHookRequest) -> hooks.ContainerResourceHookResponse:
        options = self._options
        resources = hooks.LinuxContainerResources()
        resources.CopyFrom(request.container_resources)
        for name in ("cpu_shares", "cpu_quota"):
            if value := getattr(options, name):
                setattr(resources, name, value)
        if options.memory:
            resources.memory_limit_in_bytes = options.memory
            resources.memory_swap_limit_in_bytes = options.memory
        resources.cpuset_cpus = options.cpuset or resources.cpuset_cpus
        return hooks.ContainerResourceHookResponse(
            container_annotations=options.annotation,
            container_resources=resources,
            pod_cgroup_parent=request.pod_cgroup_parent,
            container_envs={**request.container_envs, **options.env},
        )


def _message(name: str) -> Any:
    return getattr(hooks, name)


async def serve(options: argparse.Namespace, output: TextIO) -> None:
    """Serve until SIGTERM or SIGINT."""
    options.socket.unlink(missing_ok=True)
    server = grpc.aio.server()
    handlers = HookServer(options, output).handlers()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE.full_name, handlers),))
    # Any process that can connect can see what the node runs.
    before = os.umask(0o177)
    server.add_insecure_port(f"unix:{options.socket}")
    os.umask(before)
    await server.start()
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    with _registered(options):
        await ended.wait()
    await server.stop(grace=5)


@contextlib.contextmanager
def _registered(options: argparse.Namespace) -> Iterator[None]:
    if options.register is None:
        yield
        return
    config = {
        "remote-endpoint": str(options.socket),
        "failure-policy": options.failure_policy,
        "runtime-hooks": options.hook or list(HOOKS),
    }
    options.register.parent.mkdir(0o755, parents=True, exist_ok=True)
    unfinished = options.register.with_name(f".{options.register.name}.{os.getpid()}")
    unfinished.write_text(json.dumps(config, indent=2) + "\n")
    unfinished.rename(options.register)
    try:
        yield
    finally:
        options.register.unlink(missing_ok=True)


class _Pair(argparse.Action):
    """KEY=VALUE, any number of times, as a dictionary."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, *_: Any) -> None:
        key, separator, value = values.partition("=")
        if not (key and separator):
            parser.error(f"{values!r} is not KEY=VALUE")
        setattr(namespace, self.dest, {**getattr(namespace, self.dest), key: value})


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.hook_server", description=__doc__.partition("\n")[0])
    parser.add_argument("--socket", type=Path, required=True, help="where to serve")
    parser.add_argument("--register", type=Path, help="the file in dockershim's folder of hook servers to write")
    parser.add_argument("--failure-policy", choices=("Fail", "Ignore", ""), default="Ignore")
    parser.add_argument("--hook", action="append", choices=HOOKS, help="a hook to be called for; without it all are")
    parser.add_argument("--delay", type=float, default=0, help="seconds before each answer")
    parser.add_argument("--label", action=_Pair, default={}, help="KEY=VALUE, added to pods")
    parser.add_argument("--annotation", action=_Pair, default={}, help="KEY=VALUE, added to pods and containers")
    parser.add_argument("--env", action=_Pair, default={}, help="KEY=VALUE, added to containers")
    parser.add_argument("--cgroup-parent", default="", help="where pods and their containers are put")
    parser.add_argument("--cpuset", default="", help="the CPUs of containers")
    parser.add_argument("--cpu-shares", type=int, default=0, help="of containers")
    parser.add_argument("--cpu-quota", type=int, default=0, help="of containers, in microseconds")
    parser.add_argument("--memory", type=int, default=0, help="limit of containers, in bytes, without swap")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    asyncio.run(serve(parse(sys.argv[1:]), sys.stdout))
