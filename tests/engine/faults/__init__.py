"""Fault injection: every fault at every step of five calls, with a look at the whole machine before and after.

Nothing in the server knows of it. Its steps are found by watching one call that goes well: the requests that pass a
proxy in front of the engine (``proxy``), the CNI plugins that wrappers see run (``plugins``), and the named steps that
the server passes (``points``). Each fault is ordered for one step of one pod, happens once, and the client then goes
on as a kubelet does. So several pods are at it at the same time, and a new step is covered by itself.
"""
