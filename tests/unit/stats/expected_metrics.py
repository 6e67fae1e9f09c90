"""The metrics of a pod, as Prometheus gets them."""

from __future__ import annotations

# What critest demands of a runtime, which is what a kubelet's /metrics/cadvisor has had (Kubernetes enhancement 2371).
EXPECTED = """
    blkio_device_usage_total cpu_cfs_periods_total cpu_cfs_throttled_periods_total cpu_cfs_throttled_seconds_total
    cpu_system_seconds_total cpu_usage_seconds_total cpu_user_seconds_total file_descriptors fs_inodes_free
    fs_inodes_total fs_limit_bytes fs_reads_bytes_total fs_reads_total fs_usage_bytes fs_writes_bytes_total
    fs_writes_total hugetlb_max_usage_bytes hugetlb_usage_bytes last_seen memory_cache memory_failcnt
    memory_failures_total memory_kernel_usage memory_mapped_file memory_max_usage_bytes memory_rss memory_swap
    memory_usage_bytes memory_working_set_bytes network_receive_bytes_total network_receive_errors_total
    network_receive_packets_dropped_total network_receive_packets_total network_transmit_bytes_total
    network_transmit_errors_total network_transmit_packets_dropped_total network_transmit_packets_total
    oom_events_total pressure_cpu_stalled_seconds_total pressure_cpu_waiting_seconds_total
    pressure_io_stalled_seconds_total pressure_io_waiting_seconds_total pressure_memory_stalled_seconds_total
    pressure_memory_waiting_seconds_total processes sockets spec_cpu_period spec_cpu_quota spec_cpu_shares
    spec_memory_limit_bytes spec_memory_reservation_limit_bytes spec_memory_swap_limit_bytes start_time_seconds threads
    threads_max ulimits_soft
"""
