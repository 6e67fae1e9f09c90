"""Makes all parts of the server and connects them. No other module knows all parts."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    closing,
    contextmanager,
    nullcontext,
    suppress,
)
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import background
import cni
import streaming
from checkpoints import Store
from dockershim.common import steps
from dockershim.common.rollback import settle
from dockershim.common.steps import step
from dockershim.common.timed import Kind, subscribed
from dockershim.common.tls import ServerTLS
from dockershim.cri import Handler, RuntimeService, image_handlers
from dockershim.cri.accounts import ImageAccounts
from dockershim.cri.adoption import adopt
from dockershim.cri.cdi import CdiSpecs
from dockershim.cri.container_checkpoint import ContainerCheckpoint
from dockershim.cri.container_reads import ContainerReads
from dockershim.cri.engine_containers import EngineContainers
from dockershim.cri.events import ContainerEvents
from dockershim.cri.exec import Execs
from dockershim.cri.images import ImageService
from dockershim.cri.infra_image import BUILTIN_INFRA_IMAGE
from dockershim.cri.journal import Journal
from dockershim.cri.lifecycle import Lifecycle
from dockershim.cri.logs import LogKeeper, Logs
from dockershim.cri.reconcile import reconcile
from dockershim.cri.stats import Statistics
from dockershim.cri.status import NodeStatus
from dockershim.cri.streaming import Streaming
from dockershim.debug.page_server import DebugServer, Look
from dockershim.debug.starts import PodStarts
from dockershim.engine.client import TLS, Engine
from dockershim.engine.credentials import NodeCredentials, default_files
from dockershim.engine.oom import LOWEST_OOM_SCORE
from dockershim.errors import FailedPrecondition, ShimError, StartError
from dockershim.hooks.folder import hook_servers
from dockershim.host_paths.server_side import HostPaths
from dockershim.interceptors import Chain
from dockershim.logs.container_logs import ContainerLogs
from dockershim.network.netns import Pins
from dockershim.network.plugins import TimedPlugins
from dockershim.network.pod_network import (
    ENGINE_NETWORK,
    CNINetwork,
    ConfigSource,
    KubenetSource,
    NodeNetwork,
    NoSource,
)
from dockershim.server.config import Config
from dockershim.server.world import MACHINE, World
from dockershim.state.checkpoints import Checkpoints
from dockershim.state.engine_info import EngineInfo
from dockershim.state.failed_calls import FailedCalls
from dockershim.state.follower import EngineFollower
from dockershim.state.image_records import ImageRecords
from dockershim.state.inventory import Inventory
from dockershim.state.kept_limits import KeptLimits
from dockershim.state.pods import Pods
from dockershim.state.watchdog import Watchdog
from dockershim.stats.disk import DiskUsage
from dockershim.tracing.environment import destination
from dockershim.translate.container import EngineLog
from dockershim.translate.network import parse_pod_cidrs
from dockershim.translate.records import SandboxRecord

if TYPE_CHECKING:
    from dockershim.metrics.instruments import Instruments
    from dockershim.metrics.state import State
    from dockershim.nri.validator import Rules

logger = logging.getLogger(__name__)

#: Hundreds of containers are read in about a second; an engine that hangs must not keep the server from serving.
_FIRST_LOOK_DEADLINE = 10.0


@dataclass(frozen=True, slots=True)
class Services:
    """The two CRI services and what the process does with them.

    ``runtime`` and ``images`` are the handlers of their calls. ``reload`` takes over the reloadable part of a new
    configuration. ``journal`` has what the log says about calls. ``summary`` says in a line how things are.
    """

    runtime: Sequence[Handler]
    images: Sequence[Handler]
    reload: Callable[[Config], None]
    summary: Callable[[], str]
    journal: Journal | None = None


class _Current:
    """The current configuration. Parts read reloadable values from it at each use."""

    def __init__(self, config: Config) -> None:
        self.config = config

    def replace(self, config: Config) -> None:
        self.config = config


@asynccontextmanager
async def compose(config: Config, world: World = MACHINE) -> AsyncIterator[Services]:
    """The services for a configuration, in a world. Works without the engine too: calls then answer UNAVAILABLE."""
    current = _Current(config)
    async with AsyncExitStack() as stack:
        stack.enter_context(subscribed(steps.to_log, Kind.STEP))
        await make_traces(os.environ, stack)
        instruments = _instruments(config, stack)
        engine = await stack.enter_async_context(_engine(current, world))
        pins = await asyncio.to_thread(_pins, config, world)
        starts = _pod_starts(config, stack)
        cni_network = await _cni_network(config, world, pins, stack)
        network = ENGINE_NETWORK if config.network_plugin == "docker" else cni_network
        with step("read the checkpoints"):
            store = Store(config.root_directory / "sandbox")
            checkpoints = await asyncio.to_thread(Checkpoints, store, config.adopt_from)
        follower = EngineFollower(engine, compare_every=config.inventory_check_interval)
        image_records = ImageRecords(engine, follower)
        oom_log = stack.enter_context(closing(world.oom_log()))
        kept_limits = await asyncio.to_thread(KeptLimits, config.state_directory / "limits")
        inventory = Inventory(engine, follower, oom_log.has, kept_limits.of)
        info = EngineInfo(
            engine, follower, config.cgroup_driver, config.oci_runtime, early_network=config.early_network
        )
        pods = Pods(inventory, checkpoints, cni_network, pins)
        disk = DiskUsage(inventory, engine, every=config.disk_usage_interval)
        infra_image = config.pod_infra_container_image or BUILTIN_INFRA_IMAGE
        images = ImageService(
            engine,
            image_records,
            infra_image,
            disk,
            capabilities=info.capabilities,
            pull_progress_deadline=lambda: current.config.image_pull_progress_deadline,
            node_credentials=NodeCredentials(default_files(os.environ)),
            received=instruments.received if instruments else None,
        )
        logs = await stack.enter_async_context(ContainerLogs(config.root_directory / "logs", world.start_process))
        streams = await _streaming(config, stack)
        host_paths = await stack.enter_async_context(HostPaths(world.start_process))
        cdi = CdiSpecs(host_paths)
        chain = Chain()
        containers = EngineContainers(engine, inventory, lambda: current.config.runtime_request_timeout)
        accounts = ImageAccounts(engine, containers, image_records, config.state_directory)
        keeper = LogKeeper(logs, inventory, info, host_paths)
        watchdog = Watchdog(engine, silent=follower.interrupt, upkeep=info.read)
        await stack.enter_async_context(follower)
        stack.push_async_callback(accounts.close)
        await stack.enter_async_context(watchdog)
        failed_calls = FailedCalls()
        lifecycle = Lifecycle.of(
            pods=pods,
            inventory=inventory,
            containers=containers,
            network=network,
            info=info,
            chain=chain,
            host_paths=host_paths,
            cdi=cdi,
            images=image_records,
            accounts=accounts,
            logs=keeper,
            kept_limits=kept_limits,
            state=config.state_directory,
            infra_image=infra_image,
            ensure_infra_image=images.ensure_infra_image,
            engine_log=_engine_log(config),
            cgroups=world.cgroups,
        )
        events = ContainerEvents(follower, inventory, accounts, lifecycle.reads)
        dumps = ContainerCheckpoint(
            inventory, containers, accounts, config.root_directory / "dumps", start_process=world.start_process
        )
        runtime = RuntimeService(
            node=NodeStatus(
                info=info,
                follower=follower,
                network=network,
                host_paths=host_paths,
                logs=logs,
                failed_calls=failed_calls,
                chain=chain,
                infra_image=infra_image,
            ),
            lifecycle=lifecycle,
            events=events,
            container_reads=ContainerReads(inventory, keeper, accounts),
            dumps=dumps,
            logs=Logs(inventory, logs),
            execs=Execs(engine, inventory),
            streams=Streaming(streams, engine, inventory, pods),
            statistics=Statistics(inventory, pins, info, disk),
        )
        if instruments is not None:
            # Imported only here: its library takes memory.
            from dockershim.metrics.state import State

            state = State(
                pods=pods,
                inventory=inventory,
                checkpoints=checkpoints,
                follower=follower,
                info=info,
                watchdog=watchdog,
                images=image_records,
                events=events,
                logs=logs,
                network=network,
                streams=streams,
            )
            await _serve_metrics(config, instruments, state, stack)
        if starts is not None:
            await _serve_page(config, runtime, starts, stack)
        await _look_at_engine(follower, info)
        await _start_children(config, logs, host_paths)
        await stack.enter_async_context(keeper)
        await stack.enter_async_context(
            hook_servers(
                chain,
                pods,
                config.runtime_hooks_dir,
                timeout=lambda: current.config.runtime_hook_timeout,
                dial=world.dial_hook_server,
            )
        )
        await stack.enter_async_context(
            _nri_plugins(
                chain=chain,
                current=current,
                pods=pods,
                inventory=inventory,
                info=info,
                follower=follower,
                host_paths=host_paths,
                cdi=cdi,
                lifecycle=lifecycle,
            )
        )
        await stack.enter_async_context(background.kept(partial(_examine, network), owner="network", name="examine"))
        await stack.enter_async_context(
            background.kept(lifecycle.drafts.remove_leftovers, owner="drafts", name="leftovers")
        )
        await stack.enter_async_context(background.kept(containers.keep_clear, owner="containers", name="leftovers"))
        adopting = partial(adopt, pods, lifecycle.end)
        await stack.enter_async_context(background.kept(adopting, owner="adoption", name="adopt pods"))
        await stack.enter_async_context(disk)
        await stack.enter_async_context(background.kept(accounts.remove_leftovers, owner="accounts", name="leftovers"))
        await stack.enter_async_context(background.kept(dumps.keep_clear, owner="dumps", name="clear up"))
        reconciling = partial(reconcile, pods, lifecycle.end, lifecycle.limits)
        await stack.enter_async_context(background.kept(reconciling, owner="reconciliation", name="reconcile"))
        stack.push_async_callback(settle)
        journal = Journal(pods, inventory, follower.outage, failed_calls)
        summary = partial(_summary, follower, info, inventory)
        yield Services(runtime.handlers(), image_handlers(images), current.replace, summary, journal)


def _summary(follower: EngineFollower, info: EngineInfo, inventory: Inventory) -> str:
    if follower.engine_failure is not None:
        return f"The engine cannot be used: {follower.engine_failure}"
    records = inventory.snapshot()
    pods = sum(isinstance(record, SandboxRecord) for record in records)
    engine = f"Docker Engine {info.last.version}" if info.last is not None else "the engine answers"
    return f"{pods} pods, {len(records) - pods} containers; {engine}"


async def make_traces(environ: Mapping[str, str], stack: AsyncExitStack) -> None:
    """Make traces if the environment asks for them. What is wrong with it is logged: it must not cost the node."""
    try:
        if (where := destination(environ)) is None:
            return
        from dockershim.tracing.export import sending

        await stack.enter_async_context(sending(where))
    except ModuleNotFoundError as error:
        logger.warning("tracing is disabled: %s; install dockershim[tracing]", error)
    except Exception as error:
        # The SDK raises errors of any type for values that it cannot use.
        logger.warning("tracing is disabled: %s", error)
    else:
        logger.info("traces are sent to %s by %s", where.endpoint, where.protocol)


def _instruments(config: Config, stack: AsyncExitStack) -> Instruments | None:
    """The instruments for metrics; None if metrics are not served, as the library takes memory."""
    if not config.metrics_bind_addr:
        return None
    from dockershim.metrics.instruments import Instruments

    instruments = Instruments()
    stack.enter_context(instruments.subscribed())
    return instruments


def _pod_starts(config: Config, stack: AsyncExitStack) -> PodStarts | None:
    """Who takes note of the starts of pods; None if there is no page that would show them."""
    if not config.debug_bind_addr:
        return None
    starts = PodStarts()
    stack.enter_context(subscribed(starts.begin, *starts.kinds))
    return starts


async def _serve_page(config: Config, runtime: RuntimeService, starts: PodStarts, stack: AsyncExitStack) -> None:
    host, _, port = config.debug_bind_addr.rpartition(":")
    server = DebugServer(Look(runtime, starts), host.strip("[]"), int(port))
    with _bound_by(f"--debug-bind-addr={config.debug_bind_addr}"):
        await stack.enter_async_context(server)
    logger.info("the debug page is served on %s/", server.base_url)


async def _serve_metrics(config: Config, instruments: Instruments, state: State, stack: AsyncExitStack) -> None:
    from dockershim.metrics.metrics_server import Exposition, MetricsServer

    state.register(instruments.registry)
    host, _, port = config.metrics_bind_addr.rpartition(":")
    context = await _tls(config.metrics_tls_cert, config.metrics_tls_key, config.metrics_tls_client_ca, stack)
    server = MetricsServer(Exposition(instruments.registry, state), host.strip("[]"), int(port), context)
    with _bound_by(f"--metrics-bind-addr={config.metrics_bind_addr}"):
        await stack.enter_async_context(server)
    logger.info("metrics are served on %s", server.url)


def _nri_plugins(
    *,
    chain: Chain,
    current: _Current,
    pods: Pods,
    inventory: Inventory,
    info: EngineInfo,
    follower: EngineFollower,
    host_paths: HostPaths,
    cdi: CdiSpecs,
    lifecycle: Lifecycle,
) -> AbstractAsyncContextManager[None]:
    config = current.config
    if not config.nri:
        return nullcontext()
    # Imported only here, so that a node without NRI does not pay for it.
    from dockershim.nri.events import Events
    from dockershim.nri.interceptor import NRI, to_actions
    from dockershim.nri.plugin import Timeouts
    from dockershim.nri.registration import Settings, nri_plugins
    from dockershim.nri.to_nri import Node

    def node() -> Node:
        return Node(info.last.cgroup_driver if info.last is not None else current.config.cgroup_driver)

    def timeouts() -> Timeouts:
        config = current.config
        return Timeouts(config.nri_plugin_registration_timeout, config.nri_plugin_request_timeout)

    path = None if config.nri_disable_connections else config.nri_socket
    settings = Settings(path, config.nri_plugin_dir, config.nri_plugin_config_dir)
    actions = to_actions(
        inventory, info, lifecycle.container_update.update_limits, lifecycle.container_end.stop_container
    )
    events = Events(pods, inventory, node, actions, _nri_rules(config))
    nri = NRI(events, pods=pods, inventory=inventory, info=info, host_paths=host_paths, cdi_edits=cdi.edits)
    return nri_plugins(chain, nri, settings, timeouts, follower.current)


def _nri_rules(config: Config) -> Rules | None:
    if not config.nri_default_validator:
        return None
    from dockershim.nri.validator import Rules

    return Rules(
        **{f"reject_{what.replace('-', '_')}_adjustment": True for what in config.nri_reject},
        required_plugins=config.nri_required_plugins,
        tolerate_missing_plugins_annotation=config.nri_tolerate_missing_plugins_annotation,
    )


def _engine(current: _Current, world: World) -> Engine:
    config = current.config
    tls = None
    if config.docker_tls_ca or config.docker_tls_cert:
        tls = TLS(config.docker_tls_ca, config.docker_tls_cert, config.docker_tls_key, config.docker_tls_verify)
    return Engine(
        config.docker_endpoint,
        request_timeout=lambda: current.config.runtime_request_timeout,
        tls=tls,
        connect=world.connect,
    )


def _pins(config: Config, world: World) -> Pins:
    pins = world.pins(config.state_directory)
    try:
        pins.share()
    except OSError as error:
        logger.warning("CNI daemons in pods may not see the pods' network namespaces: %s", error)
    return pins


async def _cni_network(config: Config, world: World, pins: Pins, stack: AsyncExitStack) -> CNINetwork:
    runtime = cni.Runtime(
        bin_dirs=list(config.cni_bin_dir),
        cache_dir=config.cni_cache_dir,
        timeout=config.cni_timeout,
        executor=TimedPlugins(world.plugins),
    )
    source: ConfigSource
    if config.network_plugin == "docker":
        source = NoSource()
    elif config.network_plugin == "kubenet":
        source = KubenetSource(mtu=config.network_plugin_mtu, hairpin_mode=config.hairpin_mode)
    else:
        source = await stack.enter_async_context(cni.ConfigWatcher(config.cni_conf_dir))
    locks = config.state_directory / "cni"
    network = await stack.enter_async_context(
        CNINetwork(runtime, source, pins, locks, parse_pod_cidrs(config.pod_cidr))
    )
    network.set_pod_cidr(config.pod_cidr)
    return network


async def _start_children(config: Config, logs: ContainerLogs, host_paths: HostPaths) -> None:
    """Start our processes beside the rest of the start, so that the first container does not wait for them."""
    if _engine_log(config) is not None:
        logs.start()
    await host_paths.start()


async def _examine(network: NodeNetwork) -> None:
    """Ask the CNI plugins what they can before the first pod has to wait for that."""
    with suppress(FailedPrecondition):  # which Status and RunPodSandbox tell
        await network.check()


def _engine_log(config: Config) -> EngineLog | None:
    if config.container_log_format == "docker":
        return None
    return EngineLog(config.engine_log_max_size, config.engine_log_max_files)


async def _streaming(config: Config, stack: AsyncExitStack) -> streaming.Server:
    host, _, port = config.streaming_bind_addr.rpartition(":")
    context = await _tls(config.streaming_tls_cert, config.streaming_tls_key, config.streaming_tls_client_ca, stack)
    server = streaming.Server(
        host.strip("[]"), int(port), ssl_context=context, idle_timeout=config.streaming_idle_timeout
    )
    with _bound_by(f"--streaming-bind-addr={config.streaming_bind_addr}"):
        await server.start()
    stack.push_async_callback(server.close)
    logger.info("exec, attach and port-forward are served on %s", server.base_url)
    return server


@contextmanager
def _bound_by(flag: str) -> Iterator[None]:
    """A block that begins to listen at an address. Turns OSError into a StartError that names the flag."""
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise StartError(f"{flag}: {reason}") from error


async def _tls(cert: Path | None, key: Path | None, client_ca: Path | None, stack: AsyncExitStack) -> ServerTLS | None:
    """The TLS context for one of our servers; None without a certificate."""
    if cert is None or key is None:
        return None
    context = await asyncio.to_thread(ServerTLS, cert, key, client_ca)
    await stack.enter_async_context(background.kept(context.follow, owner="tls", name="follow the certificates"))
    return context


async def _look_at_engine(follower: EngineFollower, info: EngineInfo) -> None:
    try:
        async with asyncio.timeout(_FIRST_LOOK_DEADLINE):
            await follower.current()
            features = await info.capabilities()
    except (ShimError, TimeoutError) as error:
        if not follower.outage.lasts:
            logger.warning("%s; retrying with each call", str(error) or "cannot read the engine's state yet")
        return
    logger.info("Docker Engine %s, API %d.%d, cgroups by %s", features.version, *features.api, features.cgroup_driver)
    if (lowest := info.lowest_oom_score()) > LOWEST_OOM_SCORE:
        logger.warning("the engine is not permitted to lower OOM scores; those of containers are at least %d", lowest)
