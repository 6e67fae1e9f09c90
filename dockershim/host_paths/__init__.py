"""Files at paths that pods and kubelets name, in a process of its own: a call on one of them may never return."""
