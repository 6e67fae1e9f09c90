#!/sbin/openrc-run
# dockershim.service for OpenRC. Flags for the server belong into dockershim_args in /etc/conf.d/dockershim.
# OpenRC reads the variables, and each sh that it runs with has these limits.
# shellcheck disable=SC2034,SC3045

name="dockershim"
description="Kubernetes CRI server for Docker Engine"
description_reload="Read the configuration again"
extra_started_commands="reload"

command="/opt/dockershim/bin/dockershim"
command_args="serve ${dockershim_args:-}"
supervisor="supervise-daemon"
# No limit of restarts: a node without its runtime is worse than one more try.
respawn_delay=2
respawn_max=0
# Longer than --shutdown-grace, in which calls in flight may end.
retry="SIGTERM/60"
# It needs little CPU time, but soon: a kubelet waits for it even while containers and the engine use every CPU.
supervise_daemon_args="--nicelevel -10 --oom-score-adj -999"
output_log="/var/log/dockershim.log"
error_log="/var/log/dockershim.log"

depend() {
  # Not need: pods survive a restart of the engine, and calls answer UNAVAILABLE until it is back.
  want docker
  use net logger
  after docker firewall
  before kubelet
}

start_pre() {
  # A core dump has the registries' passwords, among all else in the server's memory.
  ulimit -c 0
  # In a container the limit may be lower.
  ulimit -n 1048576 2>/dev/null || ulimit -n "$(ulimit -H -n)"
}

reload() {
  ebegin "Reloading $name"
  supervise-daemon "$RC_SVCNAME" --signal HUP
  eend $?
}
